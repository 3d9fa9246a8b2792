/*
 * Attention blocks with their projections, decode and prefill. The operations are those of the projections (int8) and of
 * scores, values and, for an expanded prompt, of the keys and values made from the latents; all stand against the int8 peak.
 */
#include <stdlib.h>

#include "bench/bench.h"
#include "bench/bench_device.h"
#include "core/error.h"

#define WEIGHTS 6
#define BUFFERS 4

/* A block and everything it uses. */
typedef struct {
    td_bench_device d;
    td_npu_weight  *w[WEIGHTS];
    void           *buffers[BUFFERS]; /* two of the cache, input, output */
    size_t          bytes[BUFFERS];
    td_npu_block   *block;
    td_step_counts  counts;
    td_step         step;
    uint32_t       *pos, *table; /* [n_tok], [pages] */
    uint32_t        start[2], kv;
    uint8_t         absorbed;
} attention;

typedef struct {
    td_weight_format format;
    uint32_t         rank;
    size_t           n, k;
} weight_shape;

typedef struct {
    const char *name;
    bool        mla;
    uint32_t    n_tok, kv; /* n_tok 1: decode at kv keys; else a prompt */
} row_shape;

static const row_shape ROWS[] = {
    {"mla v2-lite decode, context 1024", true, 1, 1024},      {"mla v2-lite decode, context 4096", true, 1, 4096},
    {"mla v2-lite decode, context 16384", true, 1, 16384},    {"mla v2-lite prefill 2048", true, 2048, 2048},
    {"mla v2-lite prefill 8192", true, 8192, 8192},           {"gqa qwen3-30b decode, context 4096", false, 1, 4096},
    {"gqa qwen3-30b decode, context 16384", false, 1, 16384}, {"gqa qwen3-30b prefill 2048", false, 2048, 2048},
};

/* V2-Lite */
enum { MLA_HIDDEN = 2048, MLA_HEADS = 16, LORA = 512, NOPE = 128, ROPE = 64, V_DIM = 128 };
/* Qwen3-30B-A3B */
enum { GQA_HIDDEN = 2048, GQA_HEADS = 32, KV_HEADS = 4, DIM = 128 };

static td_status run(void *ctx, td_error *err) {
    attention *a = ctx;
    return td_bench_device_run(&a->d, a->block, &a->step, err);
}

static td_status make_weights(attention *a, const weight_shape *shapes, td_error *err) {
    for (int i = 0; i < WEIGHTS; i++)
        TD_TRY(td_bench_device_weight(&a->d, shapes[i].format, shapes[i].rank, shapes[i].n, shapes[i].k, &a->w[i], err));
    return TD_OK;
}

static td_status make_buffers(attention *a, const size_t values[BUFFERS], td_error *err) {
    for (int i = 0; i < BUFFERS; i++) {
        TD_TRY(td_bench_device_activations(&a->d, values[i], &a->buffers[i], err));
        a->bytes[i] = values[i] * sizeof(td_bf16);
    }
    return TD_OK;
}

/* A cache for kv tokens, counted in bf16 values; what they happen to be changes no time. */
static size_t cache_values(const attention *a, size_t kv, size_t heads, td_kv_rows what, size_t n) {
    return (kv + TD_KV_PAGE - 1) / TD_KV_PAGE * heads * a->d.npu->ops->kv_page_bytes(a->d.npu, what, n) / sizeof(td_bf16);
}

static td_status open_mla(attention *a, const row_shape *r, td_block_desc *desc, td_error *err) {
    const weight_shape weights[WEIGHTS] = {{TD_WEIGHT_W8A8, 2, MLA_HEADS * (NOPE + ROPE), MLA_HIDDEN},
                                           {TD_WEIGHT_W8A8, 2, LORA + ROPE, MLA_HIDDEN},
                                           {TD_WEIGHT_F32, 1, 1, LORA},
                                           {TD_WEIGHT_BF16, 2, MLA_HEADS * (NOPE + V_DIM), LORA},
                                           {TD_WEIGHT_W8A8, 2, MLA_HIDDEN, MLA_HEADS * V_DIM},
                                           {TD_WEIGHT_F32, 2, r->kv, ROPE}};
    TD_TRY(make_weights(a, weights, err));
    TD_TRY(
        make_buffers(a,
                     (size_t[]){cache_values(a, r->kv, 1, TD_KV_LATENT, LORA), cache_values(a, r->kv, 1, TD_KV_ROPE, ROPE),
                                (size_t)r->n_tok * MLA_HIDDEN, (size_t)r->n_tok * MLA_HIDDEN},
                     err));
    *desc = (td_block_desc){.kind = TD_BLOCK_MLA,
                            .mla = {.hidden = MLA_HIDDEN,
                                    .heads = MLA_HEADS,
                                    .kv_lora = LORA,
                                    .nope_dim = NOPE,
                                    .rope_dim = ROPE,
                                    .v_dim = V_DIM,
                                    .eps = 1e-6f,
                                    .softmax_scale = 0.1f,
                                    .q = a->w[0],
                                    .kv_a = a->w[1],
                                    .kv_a_norm = a->w[2],
                                    .kv_b = a->w[3],
                                    .o = a->w[4],
                                    .rope = a->w[5],
                                    .kv_latent = a->buffers[0],
                                    .kv_rope = a->buffers[1],
                                    .in = a->buffers[2],
                                    .out = a->buffers[3]}};
    return TD_OK;
}

static td_status open_gqa(attention *a, const row_shape *r, td_block_desc *desc, td_error *err) {
    const weight_shape weights[WEIGHTS] = {{TD_WEIGHT_W8A8, 2, GQA_HEADS * DIM, GQA_HIDDEN},
                                           {TD_WEIGHT_W8A8, 2, KV_HEADS * DIM, GQA_HIDDEN},
                                           {TD_WEIGHT_W8A8, 2, KV_HEADS * DIM, GQA_HIDDEN},
                                           {TD_WEIGHT_W8A8, 2, GQA_HIDDEN, GQA_HEADS * DIM},
                                           {TD_WEIGHT_F32, 1, 1, DIM},
                                           {TD_WEIGHT_F32, 2, r->kv, DIM}};
    const size_t       cache = cache_values(a, r->kv, KV_HEADS, TD_KV_HEAD, DIM), act = (size_t)r->n_tok * GQA_HIDDEN;
    TD_TRY(make_weights(a, weights, err));
    TD_TRY(make_buffers(a, (size_t[]){cache, cache, act, act}, err));
    *desc = (td_block_desc){.kind = TD_BLOCK_GQA,
                            .gqa = {.hidden = GQA_HIDDEN,
                                    .heads = GQA_HEADS,
                                    .kv_heads = KV_HEADS,
                                    .head_dim = DIM,
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
                                    .in = a->buffers[2],
                                    .out = a->buffers[3]}};
    return TD_OK;
}

static td_status open_attention(attention *a, const td_bench_device *d, const row_shape *r, td_error *err) {
    td_block_desc desc;
    uint32_t      pages = (r->kv + TD_KV_PAGE - 1) / TD_KV_PAGE;
    *a = (attention){.d = *d, .kv = r->kv, .start = {0, r->n_tok}, .absorbed = r->n_tok == 1};
    TD_TRY(r->mla ? open_mla(a, r, &desc, err) : open_gqa(a, r, &desc, err));
    desc.max_tok = r->n_tok;
    desc.max_kv = r->kv;
    TD_TRY(d->npu->ops->block_create(d->npu, &desc, &a->block, err));
    a->pos = malloc(r->n_tok * sizeof *a->pos);
    a->table = malloc(pages * sizeof *a->table);
    if (!a->pos || !a->table) return td_fail(err, TD_ENOMEM, "out of memory for a step");
    for (uint32_t i = 0; i < pages; i++) a->table[i] = i;
    for (uint32_t i = 0; i < r->n_tok; i++) a->pos[i] = r->kv - r->n_tok + i;
    a->counts = (td_step_counts){.n_tok = r->n_tok, .n_seq = 1};
    a->step = td_step_unified(&(td_step_arrays){.counts = &a->counts,
                                                .pos = a->pos,
                                                .slot = a->pos,
                                                .seq_start = a->start,
                                                .kv_len = &a->kv,
                                                .absorbed = &a->absorbed,
                                                .block_table = a->table},
                              pages);
    return TD_OK;
}

static void close_attention(attention *a) {
    const td_npu_ops *ops = a->d.npu->ops;
    if (a->block) ops->block_destroy(a->d.npu, a->block);
    for (int i = 0; i < WEIGHTS; i++)
        if (a->w[i]) ops->weight_destroy(a->d.npu, a->w[i]);
    for (int i = 0; i < BUFFERS; i++)
        if (a->buffers[i]) ops->free(a->d.npu, a->buffers[i], a->bytes[i]);
    free(a->pos);
    free(a->table);
}

/* Bytes that a call must read and operations that it must do, projections included. */
static void work_of(const row_shape *r, double *bytes, double *ops) {
    double tok = r->n_tok, kv = r->kv, pairs = r->n_tok == 1 ? kv : tok * (tok + 1) / 2;
    if (r->mla) {
        double linears = MLA_HIDDEN * (MLA_HEADS * (NOPE + ROPE + V_DIM) + LORA + ROPE),
               kv_b = (double)MLA_HEADS * (NOPE + V_DIM) * LORA;
        *bytes = linears + 2 * kv_b + 2 * kv * (LORA + ROPE);
        *ops = 2 * tok * (linears + kv_b) + 2 * pairs * MLA_HEADS * (r->n_tok == 1 ? 2 * LORA + ROPE : NOPE + ROPE + V_DIM);
    } else {
        double linears = (double)GQA_HIDDEN * 2 * (GQA_HEADS + KV_HEADS) * DIM;
        *bytes = linears + 2 * 2 * kv * KV_HEADS * DIM;
        *ops = 2 * tok * linears + 2 * 2 * pairs * GQA_HEADS * DIM;
    }
}

td_status td_bench_attention(td_bench *b, td_error *err) {
    td_bench_device d;
    td_status       st = td_bench_device_open(&d, b, err);
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS && st == TD_OK; i++) {
        const row_shape *r = &ROWS[i];
        attention        a;
        if (!td_bench_wanted(b, r->name)) continue;
        st = open_attention(&a, &d, r, err);
        if (st == TD_OK) {
            td_bench_case c = {
                .m = r->n_tok, .kernel = r->mla ? "mla" : "gqa", .calls = r->n_tok == 1 ? 50 : 1, .run = run, .ctx = &a};
            snprintf(c.shape, sizeof c.shape, "%s", r->name);
            work_of(r, &c.bytes, &c.ops);
            st = td_bench_time(b, &c, err);
        }
        close_attention(&a);
    }
    td_bench_device_close(&d);
    return st;
}
