/*
 * Attention blocks with their projections, decode and prefill. The operations are those of the projections (int8) and of
 * scores, values and, for an expanded prompt, of the keys and values made from the latents, which a card does in bf16. On
 * the host all stand against the int8 peak. Blocks of recurrent layers stand among them, where the device has any: states
 * and open blocks are what they read, and their products are in f32.
 */
#include <stdlib.h>

#include "bench/bench.h"
#include "bench/bench_device.h"
#include "core/error.h"
#include "npu/block_work.h"

#define WEIGHTS 14
#define BUFFERS 7

/* A block and everything it uses. */
typedef struct {
    td_bench_device d;
    td_npu_weight  *w[WEIGHTS];
    void  *buffers[BUFFERS]; /* two of the cache, input, output; of an indexer its keys, its choice, its open blocks */
    size_t bytes[BUFFERS];
    td_block_desc  desc;
    td_npu_block  *block;
    td_bench_steps steps;
    td_npu_graph  *graph;
} attention;

typedef struct {
    td_weight_format format;
    uint32_t         rank;
    size_t           n, k; /* n 0: the block has no such weight */
} weight_shape;

/* A model's attention: MLA where it has latents, gated DeltaNet or KDA where it has key heads, else GQA. */
typedef struct {
    uint32_t hidden, heads;
    uint32_t q_lora, kv_lora, nope, rope, v_dim; /* MLA */
    uint32_t top, pool, index_heads, index_dim;  /* the same with an indexer */
    uint32_t kv_heads, dim;                      /* GQA */
    uint32_t key_heads, key_dim, conv_width;     /* DeltaNet: `heads` of v_dim are its value heads */
    uint32_t low;                                /* the same as Kimi delta attention, */
    float    floor;                              /* whose log decays may have one */
} model_shape;

static const model_shape
    V2_LITE = {.hidden = 2048, .heads = 16, .kv_lora = 512, .nope = 128, .rope = 64, .v_dim = 128},
    V3 = {.hidden = 7168, .heads = 128, .q_lora = 1536, .kv_lora = 512, .nope = 128, .rope = 64, .v_dim = 128},
    V32 = {.hidden = 7168,
           .heads = 128,
           .q_lora = 1536,
           .kv_lora = 512,
           .nope = 128,
           .rope = 64,
           .v_dim = 128,
           .top = 2048,
           .index_heads = 64,
           .index_dim = 128},
    QWEN3_30B = {.hidden = 2048, .heads = 32, .kv_heads = 4, .dim = 128},
    QWEN35_35B = {.hidden = 2048, .heads = 32, .v_dim = 128, .key_heads = 16, .key_dim = 128, .conv_width = 4},
    KIMI_48B = {.hidden = 2304, .heads = 32, .v_dim = 128, .key_heads = 32, .key_dim = 128, .conv_width = 4, .low = 128},
    GLM53 = {.hidden = 4096,
             .heads = 64,
             .q_lora = 1536,
             .kv_lora = 512,
             .nope = 256,
             .v_dim = 256,
             .top = 2048,
             .pool = 4,
             .index_heads = 32,
             .index_dim = 128},
    GLM53_KDA = {.hidden = 4096,
                 .heads = 64,
                 .v_dim = 128,
                 .key_heads = 64,
                 .key_dim = 128,
                 .conv_width = 4,
                 .low = 128,
                 .floor = -5};

typedef struct {
    const char         *name;
    const model_shape  *model;
    td_bench_step_shape step;
    bool                cards_only; /* a CPU takes many seconds */
    bool                kv_int8;    /* the cache is in 8 bits */
} row_shape;

static const row_shape ROWS[] = {
    {"mla v2-lite decode, context 1024", &V2_LITE, {1, 1, 1023}, false, false},
    {"mla v2-lite decode, context 4096", &V2_LITE, {1, 1, 4095}, false, false},
    {"mla v2-lite decode, context 16384", &V2_LITE, {1, 1, 16383}, false, false},
    {"mla v2-lite decode, context 16384, KV int8", &V2_LITE, {1, 1, 16383}, false, true},
    {"mla v2-lite prefill 2048", &V2_LITE, {1, 2048, 0}, false, false},
    {"mla v2-lite prefill 8192", &V2_LITE, {1, 8192, 0}, false, false},
    {"mla v3 decode, 16 at 16384", &V3, {16, 1, 16383}, true, false},
    {"mla v3 prefill 8192", &V3, {1, 8192, 0}, true, false},
    {"mla v3.2 decode, context 4096", &V32, {1, 1, 4095}, false, false},
    {"mla v3.2 decode, context 32768", &V32, {1, 1, 32767}, false, false},
    {"mla glm-5.3 decode, context 4096", &GLM53, {1, 1, 4095}, false, false},
    {"mla glm-5.3 decode, context 32768", &GLM53, {1, 1, 32767}, false, false},
    {"gqa qwen3-30b decode, context 4096", &QWEN3_30B, {1, 1, 4095}, false, false},
    {"gqa qwen3-30b decode, context 16384", &QWEN3_30B, {1, 1, 16383}, false, false},
    {"gqa qwen3-30b decode, context 16384, KV int8", &QWEN3_30B, {1, 1, 16383}, false, true},
    {"gqa qwen3-30b prefill 2048", &QWEN3_30B, {1, 2048, 0}, false, false},
    {"gqa qwen3-30b prefill 2048, KV int8", &QWEN3_30B, {1, 2048, 0}, false, true},
    {"gqa qwen3-30b decode, 16 at 16384", &QWEN3_30B, {16, 1, 16383}, true, false},
    {"gqa qwen3-30b prefill 8192", &QWEN3_30B, {1, 8192, 0}, true, false},
    {"delta qwen3.5-35b decode", &QWEN35_35B, {1, 1, 1040}, false, false},
    {"delta qwen3.5-35b decode, 16", &QWEN35_35B, {16, 1, 1040}, false, false},
    {"delta qwen3.5-35b prefill 2048", &QWEN35_35B, {1, 2048, 0}, false, false},
    {"delta kimi-linear-48b decode", &KIMI_48B, {1, 1, 1040}, false, false},
    {"delta kimi-linear-48b decode, 16", &KIMI_48B, {16, 1, 1040}, false, false},
    {"delta kimi-linear-48b prefill 2048", &KIMI_48B, {1, 2048, 0}, false, false},
    {"delta glm-5.3 decode", &GLM53_KDA, {1, 1, 1040}, false, false},
    {"delta glm-5.3 prefill 2048", &GLM53_KDA, {1, 2048, 0}, false, false},
};

/* A row as it is measured: its sizes may be divided. kv: keys of a sequence; pages: of all. */
typedef struct {
    const char         *name;
    model_shape         m;
    td_bench_step_shape step;
    uint32_t            named_tok, n_tok, kv, pages; /* named_tok: its rows before */
    bool                kv_int8;
} sized_row;

static td_status run(void *ctx, td_error *err) {
    attention *a = ctx;
    return td_bench_device_run(&a->d, a->graph, err);
}

static td_status make_weights(attention *a, const weight_shape *shapes, td_error *err) {
    for (int i = 0; i < WEIGHTS; i++)
        if (shapes[i].n)
            TD_TRY(td_bench_device_weight(&a->d, shapes[i].format, shapes[i].rank, shapes[i].n, shapes[i].k, &a->w[i], err));
    return TD_OK;
}

static td_status make_buffers(attention *a, const size_t values[BUFFERS], td_error *err) {
    for (int i = 0; i < BUFFERS; i++) {
        if (!values[i]) continue;
        TD_TRY(td_bench_device_activations(&a->d, values[i], &a->buffers[i], err));
        a->bytes[i] = values[i] * sizeof(td_bf16);
    }
    return TD_OK;
}

static uint32_t spare_pages(const attention *a, const sized_row *r) {
    td_npu_caps caps;
    a->d.npu->ops->caps(a->d.npu, &caps);
    return caps.kv_spare ? (td_step_spare_rows(r->n_tok) + TD_KV_PAGE - 1) / TD_KV_PAGE : 0;
}

/* A cache, counted in bf16 values; what they happen to be changes no time. */
static size_t cache_values(const attention *a, const sized_row *r, size_t heads, td_kv_rows what, size_t n) {
    size_t page = a->d.npu->ops->kv_page_bytes(a->d.npu, r->kv_int8 ? TD_KV_INT8 : what, n);
    return (r->pages + spare_pages(a, r)) * heads * page / sizeof(td_bf16);
}

/* Zeros: bf16 side by side would be subnormal f32 now and then. */
static td_status make_zeros(attention *a, int i, size_t bytes, td_error *err) {
    TD_TRY(a->d.npu->ops->alloc(a->d.npu, bytes, &a->buffers[i], err));
    a->bytes[i] = bytes;
    return TD_OK;
}

static td_status make_open_blocks(attention *a, const sized_row *r, td_index_desc *x, td_error *err) {
    x->open_slots = r->step.n_seq;
    TD_TRY(make_zeros(a, 6, x->open_slots * td_index_open_values(x) * sizeof(float), err));
    x->open = a->buffers[6];
    return TD_OK;
}

static td_status open_mla(attention *a, const sized_row *r, td_block_desc *desc, td_error *err) {
    const model_shape *m = &r->m;
    const size_t       q_n = (size_t)m->heads * (m->nope + m->rope), q_k = m->q_lora ? m->q_lora : m->hidden;
    const weight_shape weights[WEIGHTS] = {{TD_WEIGHT_W8A8, 2, q_n, q_k},
                                           {TD_WEIGHT_W8A8, 2, m->kv_lora + m->rope, m->hidden},
                                           {TD_WEIGHT_F32, 1, 1, m->kv_lora},
                                           {TD_WEIGHT_BF16, 2, (size_t)m->heads * (m->nope + m->v_dim), m->kv_lora},
                                           {TD_WEIGHT_W8A8, 2, m->hidden, (size_t)m->heads * m->v_dim},
                                           {TD_WEIGHT_F32, 2, m->rope ? r->kv : 0, m->rope},
                                           {TD_WEIGHT_W8A8, 2, m->q_lora, m->hidden},
                                           {TD_WEIGHT_F32, 1, m->q_lora ? 1 : 0, m->q_lora},
                                           {TD_WEIGHT_BF16, 2, (size_t)m->index_heads * m->index_dim, m->q_lora},
                                           {TD_WEIGHT_BF16, 2, m->index_dim, m->hidden},
                                           {TD_WEIGHT_BF16, 2, m->index_heads, m->hidden},
                                           {TD_WEIGHT_F32, 1, m->top ? 1 : 0, m->index_dim},
                                           {TD_WEIGHT_BF16, 2, m->pool ? m->index_dim : 0, m->hidden},
                                           {TD_WEIGHT_F32, 2, m->pool, m->index_dim}};
    const size_t       act = (size_t)r->n_tok * m->hidden;
    TD_TRY(make_weights(a, weights, err));
    TD_TRY(make_buffers(
        a,
        (size_t[BUFFERS]){cache_values(a, r, 1, TD_KV_LATENT, m->kv_lora),
                          m->rope ? cache_values(a, r, 1, TD_KV_ROPE, m->rope) : 0, act, act,
                          m->top ? cache_values(a, r, 1, TD_KV_INDEX, m->index_dim) : 0, 2 * (size_t)r->n_tok * m->top},
        err));
    *desc = (td_block_desc){.kind = TD_BLOCK_MLA,
                            .mla = {.hidden = m->hidden,
                                    .heads = m->heads,
                                    .q_lora = m->q_lora,
                                    .kv_lora = m->kv_lora,
                                    .nope_dim = m->nope,
                                    .rope_dim = m->rope,
                                    .v_dim = m->v_dim,
                                    .eps = 1e-6f,
                                    .softmax_scale = 0.1f,
                                    .q_a = a->w[6],
                                    .q_a_norm = a->w[7],
                                    .q_b = m->q_lora ? a->w[0] : NULL,
                                    .q = m->q_lora ? NULL : a->w[0],
                                    .kv_a = a->w[1],
                                    .kv_a_norm = a->w[2],
                                    .kv_b = a->w[3],
                                    .o = a->w[4],
                                    .rope = a->w[5],
                                    .kv_latent = a->buffers[0],
                                    .kv_rope = a->buffers[1],
                                    .kv_int8 = r->kv_int8,
                                    .kv_pages = r->pages,
                                    .kv_spare_pages = spare_pages(a, r),
                                    .in = a->buffers[2],
                                    .out = a->buffers[3]}};
    if (m->top)
        desc->mla.index = (td_index_desc){.top = m->top,
                                          .pool = m->pool,
                                          .heads = m->index_heads,
                                          .dim = m->index_dim,
                                          .q = a->w[8],
                                          .k = a->w[9],
                                          .weights = a->w[10],
                                          .k_norm = a->w[11],
                                          .k_norm_bias = a->w[11],
                                          .keys = a->buffers[4],
                                          .gate = a->w[12],
                                          .ape = a->w[13],
                                          .chosen = a->buffers[5]};
    return m->pool ? make_open_blocks(a, r, &desc->mla.index, err) : TD_OK;
}

static td_status open_gqa(attention *a, const sized_row *r, td_block_desc *desc, td_error *err) {
    const model_shape *m = &r->m;
    const weight_shape weights[WEIGHTS] = {{TD_WEIGHT_W8A8, 2, (size_t)m->heads * m->dim, m->hidden},
                                           {TD_WEIGHT_W8A8, 2, (size_t)m->kv_heads * m->dim, m->hidden},
                                           {TD_WEIGHT_W8A8, 2, (size_t)m->kv_heads * m->dim, m->hidden},
                                           {TD_WEIGHT_W8A8, 2, m->hidden, (size_t)m->heads * m->dim},
                                           {TD_WEIGHT_F32, 1, 1, m->dim},
                                           {TD_WEIGHT_F32, 2, r->kv, m->dim}};
    const size_t       cache = cache_values(a, r, m->kv_heads, TD_KV_HEAD, m->dim), act = (size_t)r->n_tok * m->hidden;
    TD_TRY(make_weights(a, weights, err));
    TD_TRY(make_buffers(a, (size_t[BUFFERS]){cache, cache, act, act}, err));
    *desc = (td_block_desc){.kind = TD_BLOCK_GQA,
                            .gqa = {.hidden = m->hidden,
                                    .heads = m->heads,
                                    .kv_heads = m->kv_heads,
                                    .head_dim = m->dim,
                                    .eps = 1e-6f,
                                    .softmax_scale = 0.1f,
                                    .q = a->w[0],
                                    .k = a->w[1],
                                    .v = a->w[2],
                                    .o = a->w[3],
                                    .q_norm = a->w[4],
                                    .k_norm = a->w[4],
                                    .rope = a->w[5],
                                    .kv_k = a->buffers[0],
                                    .kv_v = a->buffers[1],
                                    .kv_int8 = r->kv_int8,
                                    .kv_pages = r->pages,
                                    .kv_spare_pages = spare_pages(a, r),
                                    .in = a->buffers[2],
                                    .out = a->buffers[3]}};
    return TD_OK;
}

static td_status make_delta_weights(attention *a, const sized_row *r, td_delta_desc *d, td_error *err) {
    const model_shape *m = &r->m;
    const size_t       conv = m->key_heads * td_delta_conv_rows(d), v = (size_t)m->heads * m->v_dim;
    const weight_shape weights[WEIGHTS] = {{TD_WEIGHT_W8A8, 2, conv, m->hidden},    {TD_WEIGHT_W8A8, 2, v, m->hidden},
                                           {TD_WEIGHT_F32, 2, m->heads, m->hidden}, {TD_WEIGHT_F32, 2, m->heads, m->hidden},
                                           {TD_WEIGHT_F32, 2, conv, m->conv_width}, {TD_WEIGHT_F32, 1, 1, m->heads},
                                           {TD_WEIGHT_F32, 1, 1, m->v_dim},         {TD_WEIGHT_W8A8, 2, m->hidden, v}};
    TD_TRY(make_weights(a, weights, err));
    d->qkv = a->w[0];
    d->z = a->w[1];
    d->b = a->w[2];
    d->a = a->w[3];
    d->conv = a->w[4];
    d->a_log = d->dt_bias = a->w[5];
    d->norm = a->w[6];
    d->o = a->w[7];
    return TD_OK;
}

static td_status make_kimi_weights(attention *a, const sized_row *r, td_delta_desc *d, td_error *err) {
    const model_shape *m = &r->m;
    const size_t       k = (size_t)m->key_heads * m->key_dim, v = (size_t)m->heads * m->v_dim;
    const weight_shape weights[WEIGHTS] = {{TD_WEIGHT_W8A8, 2, k, m->hidden},    {TD_WEIGHT_W8A8, 2, k, m->hidden},
                                           {TD_WEIGHT_W8A8, 2, v, m->hidden},    {TD_WEIGHT_BF16, 2, m->low, m->hidden},
                                           {TD_WEIGHT_BF16, 2, k, m->low},       {TD_WEIGHT_BF16, 2, m->low, m->hidden},
                                           {TD_WEIGHT_BF16, 2, v, m->low},       {TD_WEIGHT_F32, 2, m->heads, m->hidden},
                                           {TD_WEIGHT_F32, 2, k, m->conv_width}, {TD_WEIGHT_F32, 2, v, m->conv_width},
                                           {TD_WEIGHT_F32, 1, 1, m->heads},      {TD_WEIGHT_F32, 1, 1, k},
                                           {TD_WEIGHT_F32, 1, 1, m->v_dim},      {TD_WEIGHT_W8A8, 2, m->hidden, v}};
    TD_TRY(make_weights(a, weights, err));
    d->qkv = a->w[0];
    d->k = a->w[1];
    d->v = a->w[2];
    d->a_low = a->w[3];
    d->a = a->w[4];
    d->z_low = a->w[5];
    d->z = a->w[6];
    d->b = a->w[7];
    d->conv = d->conv_k = a->w[8];
    d->conv_v = a->w[9];
    d->a_log = a->w[10];
    d->dt_bias = a->w[11];
    d->norm = a->w[12];
    d->o = a->w[13];
    return TD_OK;
}

static td_status open_delta(attention *a, const sized_row *r, td_block_desc *desc, td_error *err) {
    const model_shape *m = &r->m;
    *desc = (td_block_desc){.kind = TD_BLOCK_DELTA,
                            .delta = {.form = m->low ? TD_DELTA_KIMI : TD_DELTA_GATED,
                                      .hidden = m->hidden,
                                      .key_heads = m->key_heads,
                                      .value_heads = m->heads,
                                      .key_dim = m->key_dim,
                                      .value_dim = m->v_dim,
                                      .conv_width = m->conv_width,
                                      .low = m->low,
                                      .floor = m->floor,
                                      .eps = 1e-6f,
                                      .state_slots = r->step.n_seq,
                                      .open_slots = r->step.n_seq}};
    td_delta_desc *d = &desc->delta;
    const size_t   slots = (size_t)r->step.n_seq * m->key_heads * sizeof(float), act = (size_t)r->n_tok * m->hidden;
    const size_t   bytes[2] = {slots * td_delta_state_values(d), slots * td_delta_open_values(d)};
    TD_TRY((m->low ? make_kimi_weights : make_delta_weights)(a, r, d, err));
    for (int i = 0; i < 2; i++) TD_TRY(make_zeros(a, i, bytes[i], err));
    TD_TRY(make_buffers(a, (size_t[BUFFERS]){0, 0, act, act}, err));
    d->state = a->buffers[0];
    d->open = a->buffers[1];
    d->in = a->buffers[2];
    d->out = a->buffers[3];
    return TD_OK;
}

/* As many blocks in a call as take some ms; each reads its cache, which is larger than what a card keeps. */
static uint32_t blocks_of_call(const td_bench *b, const sized_row *r) {
    return !b->device || b->o->divide > 1 || r->step.n_new > 1 ? 1 : 32;
}

static td_status open_attention(attention *a, const td_bench *b, const td_bench_device *d, const sized_row *r,
                                td_error *err) {
    const td_step *step;
    *a = (attention){.d = *d};
    TD_TRY(r->m.kv_lora     ? open_mla(a, r, &a->desc, err)
           : r->m.key_heads ? open_delta(a, r, &a->desc, err)
                            : open_gqa(a, r, &a->desc, err));
    a->desc.max_tok = r->n_tok;
    a->desc.max_kv = r->kv;
    TD_TRY(d->npu->ops->block_create(d->npu, &a->desc, &a->block, err));
    TD_TRY(td_bench_steps_open(&a->steps, d, &r->step, 0, err));
    TD_TRY(td_bench_steps_fill(&a->steps, d, &r->step, 0, &step, err));
    return td_bench_device_capture(d, &a->block, 1, blocks_of_call(b, r), step, &a->graph, err);
}

static void close_attention(attention *a) {
    const td_npu_ops *ops = a->d.npu->ops;
    if (a->graph) ops->graph_destroy(a->d.npu, a->graph);
    if (a->block) ops->block_destroy(a->d.npu, a->block);
    for (int i = 0; i < WEIGHTS; i++)
        if (a->w[i]) ops->weight_destroy(a->d.npu, a->w[i]);
    for (int i = 0; i < BUFFERS; i++)
        if (a->buffers[i]) ops->free(a->d.npu, a->buffers[i], a->bytes[i]);
    td_bench_steps_close(&a->steps);
}

/* Bytes that a block must read and operations that it must do, projections included. */
static void work_of(const sized_row *r, td_bench_case *c) {
    const model_shape *m = &r->m;
    bool               decode = r->step.n_new == 1;
    const double       kv_bytes = r->kv_int8 ? 1 : 2; /* of a value */
    double             tok = r->n_tok, keys = (double)r->kv * r->step.n_seq, new_rows = r->step.n_new;
    double             pairs = decode ? keys : r->step.n_seq * new_rows * (new_rows + 1) / 2;
    if (m->kv_lora) {
        double q = (double)m->heads * (m->nope + m->rope), hidden = m->hidden;
        double linears = (m->q_lora ? m->q_lora * (hidden + q) : hidden * q) +
                         hidden * ((double)m->heads * m->v_dim + m->kv_lora + m->rope),
               kv_b = (double)m->heads * (m->nope + m->v_dim) * m->kv_lora;
        c->bytes = linears + 2 * kv_b + kv_bytes * keys * (m->kv_lora + m->rope);
        c->int8_ops = 2 * tok * linears;
        c->float_ops =
            2 * tok * kv_b + 2 * pairs * m->heads * (decode ? 2 * m->kv_lora + m->rope : m->nope + m->rope + m->v_dim);
    } else {
        double linears = (double)m->hidden * 2 * (m->heads + m->kv_heads) * m->dim;
        c->bytes = linears + kv_bytes * 2 * keys * m->kv_heads * m->dim;
        c->int8_ops = 2 * tok * linears;
        c->float_ops = 2 * 2 * pairs * m->heads * m->dim;
    }
}

/* The same where the keys that a row meets are not those before it. */
static void described_work(const sized_row *r, const td_block_desc *desc, td_bench_case *c) {
    td_tier_work work = {0};
    td_work_add_matrices(&work, desc, &(td_block_formats){.linear = TD_WEIGHT_W8A8}, r->n_tok, 0);
    for (uint32_t q = 0; q < r->step.n_seq; q++)
        td_work_add_attention(&work, desc, sizeof(td_bf16), &(td_work_sequence){.rows = r->step.n_new, .keys = r->kv});
    c->bytes = (double)work.bytes;
    c->int8_ops = (double)work.int8_ops;
    c->float_ops = (double)work.f32_ops;
}

static uint32_t divided(uint32_t n, uint32_t by, uint32_t least) {
    return n / by > least ? n / by : n < least ? n : least;
}

/* Heads of one kind stay a multiple of the other's; a head stays as it is. */
static sized_row size_row(const row_shape *row, uint32_t divide) {
    sized_row r = {.name = row->name,
                   .m = *row->model,
                   .step = row->step,
                   .named_tok = row->step.n_seq * row->step.n_new,
                   .kv_int8 = row->kv_int8};
    r.m.hidden = divided(r.m.hidden, divide, 64);
    const uint32_t groups = r.m.kv_heads + r.m.key_heads; /* one of them is 0 */
    r.m.kv_heads = divided(r.m.kv_heads, divide, 1);
    r.m.key_heads = divided(r.m.key_heads, divide, 1);
    r.m.heads = groups ? row->model->heads / groups * (r.m.kv_heads + r.m.key_heads) : divided(r.m.heads, divide, 4);
    r.m.q_lora = divided(r.m.q_lora, divide, 64);
    r.m.top = divided(r.m.top, divide, r.m.top ? 16 : 0);
    if (r.m.pool) r.m.top -= r.m.top % r.m.pool;
    r.m.index_heads = divided(r.m.index_heads, divide, r.m.top ? 4 : 0);
    r.step.n_seq = divided(r.step.n_seq, divide, 2);
    r.step.n_new = divided(r.step.n_new, divide, 8);
    r.step.context = divided(r.step.context, divide, 63);
    r.n_tok = r.step.n_seq * r.step.n_new;
    r.kv = r.step.context + r.step.n_new;
    r.pages = r.step.n_seq * ((r.kv + TD_KV_PAGE - 1) / TD_KV_PAGE);
    return r;
}

static td_status time_row(td_bench *b, const td_bench_device *d, const sized_row *r, td_error *err) {
    attention a;
    td_status st = open_attention(&a, b, d, r, err);
    if (st == TD_OK) {
        td_bench_case c = {.m = r->named_tok,
                           .kernel = r->m.kv_lora     ? "mla"
                                     : r->m.key_heads ? "delta"
                                                      : "gqa",
                           .calls = b->device || r->step.n_new > 1 ? 1 : 50,
                           .times = blocks_of_call(b, r),
                           .run = run,
                           .ctx = &a};
        snprintf(c.shape, sizeof c.shape, "%s", r->name);
        if (r->m.key_heads || r->m.top)
            described_work(r, &a.desc, &c);
        else
            work_of(r, &c);
        st = td_bench_time(b, &c, err);
    }
    close_attention(&a);
    return st;
}

td_status td_bench_attention(td_bench *b, td_error *err) {
    td_bench_device d;
    td_npu_caps     caps = {0};
    td_status       st = td_bench_device_open(&d, b, false, err);
    if (st == TD_OK) d.npu->ops->caps(d.npu, &caps);
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS && st == TD_OK; i++) {
        sized_row r = size_row(&ROWS[i], b->o->divide);
        if (!td_bench_wanted(b, r.name) || (ROWS[i].cards_only && !b->device)) continue;
        if ((r.m.key_heads && !caps.recurrent) || (r.m.top && !caps.chosen_keys) || (r.kv_int8 && !caps.kv_int8)) continue;
        st = time_row(b, &d, &r, err);
    }
    td_bench_device_close(&d);
    return st;
}
