/* The CUDA kernels of grouped-query attention, compared with the host's block in f32 over steps of prompts and generated
 * tokens. Decode and prefill give a row the same bits, whatever else is in the step. */
#include "cuda_rig.h"
#include "tests/td_test.h"

CUDA_KERNEL(td_gqa_place);
CUDA_KERNEL(td_gqa_decode_64);
CUDA_KERNEL(td_gqa_decode_128);
CUDA_KERNEL(td_gqa_prefill_64);
CUDA_KERNEL(td_gqa_prefill_128);
CUDA_KERNEL(td_list_rows);
CUDA_KERNEL(td_merge_spans);

typedef enum { NO_NORM, NORM_HEADS, NORM_ROWS } norm_kind;

typedef struct {
    uint32_t  heads, kv_heads, dim, turned;
    norm_kind norm;
    uint32_t  window;
    bool      sinks;
    uint32_t  rows[4][CUDA_SEQS]; /* of each step */
} gqa_case;

/* hidden is heads * dim, so that the block's o can be an identity: its output is attention's own. */
typedef struct {
    gqa_case       of;
    uint32_t       width, kv;
    float          eps, scale;
    float         *w[3];
    cuda_buf       k_cache, v_cache, norms[2], table, sinks;
    rig            g;
    void          *host_k, *host_v;
    cuda_sequences seqs;
    td_npu_weight *weights[8];
} model;

static model model_open(rnd *r, const gqa_case *of) {
    uint32_t     heads = of->heads, kv_heads = of->kv_heads, dim = of->dim, turned = of->turned;
    model        m = WITH(model, .of = *of, .width = heads * dim, .kv = kv_heads * dim, .eps = 1e-6f,
                          .scale = 1 / sqrtf((float)dim), .seqs = cuda_sequences_open(r));
    size_t       max_pos = CUDA_SEQ_PAGES * TD_KV_PAGE, cache = (size_t)CUDA_PAGES * kv_heads * TD_KV_PAGE * dim;
    FREED float *identity = cuda_identity(m.width), *rope = cuda_rope_table(max_pos, turned);
    m.g = rig_open(2, TD_DT_F32, false);
    for (int i = 0; i < 3; i++) {
        m.w[i] = rnd_array(r, (size_t)(i ? m.kv : m.width) * m.width, 3 / sqrtf((float)m.width));
        m.weights[i] = make_weight(&m.g, TD_WEIGHT_F32, m.w[i], i ? m.kv : m.width, m.width);
    }
    m.weights[3] = make_weight(&m.g, TD_WEIGHT_F32, identity, m.width, m.width);
    m.weights[4] = make_weight(&m.g, TD_WEIGHT_F32, rope, max_pos, turned);
    m.table = cuda_copy(rope, max_pos * turned * sizeof(float));
    for (int i = 0; i < 2; i++) {
        size_t       n = of->norm != NORM_ROWS ? dim : i ? m.kv : m.width;
        FREED float *norm = rnd_array(r, n, 2);
        m.weights[5 + i] = make_weight(&m.g, TD_WEIGHT_F32, norm, 0, n);
        m.norms[i] = cuda_copy(norm, n * sizeof(float));
    }
    FREED float *sinks = rnd_array(r, heads, 4);
    m.weights[7] = make_weight(&m.g, TD_WEIGHT_F32, sinks, 0, heads);
    m.sinks = cuda_copy(sinks, heads * sizeof(float));
    m.k_cache = cuda_alloc(cache * sizeof(td_bf16)), m.v_cache = cuda_alloc(cache * sizeof(td_bf16));
    m.host_k = calloc((size_t)CUDA_PAGES * kv_heads, m.g.npu->ops->kv_page_bytes(m.g.npu, TD_KV_HEAD, dim));
    m.host_v = calloc((size_t)CUDA_PAGES * kv_heads, m.g.npu->ops->kv_page_bytes(m.g.npu, TD_KV_HEAD, dim));
    return m;
}

static void model_close(model *m) {
    rig_close(&m->g);
    CUDA_FREE(m->k_cache, m->v_cache, m->norms[0], m->norms[1], m->table, m->sinks);
    for (int i = 0; i < 3; i++) free(m->w[i]);
    free(m->host_k), free(m->host_v);
}

static float *host_attention(model *m, const cuda_step *s, float *x) {
    float        *out = malloc((size_t)s->n * m->width * sizeof(float));
    td_npu_block *b = make_block(
        &m->g,
        &ATTENTION_OF(TD_BLOCK_GQA, s->n, CUDA_SEQ_PAGES * TD_KV_PAGE, gqa, .hidden = m->width, .heads = m->of.heads,
                      .kv_heads = m->of.kv_heads, .head_dim = m->of.dim, .rope_dim = m->of.turned, .window = m->of.window,
                      .norm_rows = m->of.norm == NORM_ROWS, .eps = m->eps, .softmax_scale = m->scale, .q = m->weights[0],
                      .k = m->weights[1], .v = m->weights[2], .o = m->weights[3],
                      .q_norm = m->of.norm ? m->weights[5] : NULL, .k_norm = m->of.norm ? m->weights[6] : NULL,
                      .sinks = m->of.sinks ? m->weights[7] : NULL, .rope = m->weights[4], .kv_k = m->host_k,
                      .kv_v = m->host_v, .kv_pages = CUDA_PAGES, .in = x, .out = out));
    run_block(&m->g, b, &s->step);
    return out;
}

#define PIECE 40 /* rows of a launch of decode */

/* Attention of the rows in q; sequences with fewer than `few` rows are decode's. @param spans of a row at most */
static void attend(model *m, const cuda_step *s, const cuda_buf *q, uint32_t few, uint32_t spans, const cuda_buf *out) {
    const gqa_case *c = &m->of;
    const void     *sinks = c->sinks ? &m->sinks.p : CUDA_NULL;
    uint32_t        d = c->dim <= 64 ? 64 : 128, most = PIECE, n_pieces = (uint32_t)cuda_up(s->n, PIECE);
    size_t          blocks = c->kv_heads * cuda_up(c->heads / c->kv_heads, TD_CUDA_DECODE_HEADS);
    cuda_buf        partial = cuda_alloc((size_t)PIECE * c->heads * spans * (c->dim + 2) * sizeof(float)),
             list = cuda_alloc(s->n * 2 * sizeof(uint32_t)), count = cuda_alloc(n_pieces * sizeof(uint32_t));
    cuda_run(
        d == 64 ? &td_cuda_kernel_td_gqa_prefill_64 : &td_cuda_kernel_td_gqa_prefill_128,
        cuda_grid(s->n / TD_CUDA_PREFILL_ROWS + CUDA_SEQS, c->heads, 1, TD_CUDA_ATTN_THREADS, TD_CUDA_PREFILL_SHARED(d, d)),
        CUDA_OUT(*out),
        CUDA_ARGS(&s->n_seq.p, &s->starts.p, &s->pos.p, &s->pages.p, &s->stride, &few, &q->p, &m->k_cache.p, &m->v_cache.p,
                  &c->heads, &c->kv_heads, &c->dim, &c->window, sinks, &m->scale, &spans, &out->p));
    cuda_run(&td_cuda_kernel_td_list_rows, cuda_grid(1, 1, 1, 32, 0), CUDA_OUT(list, count),
             CUDA_ARGS(&s->n_seq.p, &s->starts.p, CUDA_NULL, &few, &most, &n_pieces, &list.p, &count.p));
    for (uint32_t i = 0; i < n_pieces; i++) {
        void *n = (uint32_t *)count.p + i, *rows = (uint32_t *)list.p + (size_t)i * PIECE * 2;
        if (*(uint32_t *)n == 0) continue;
        cuda_run(d == 64 ? &td_cuda_kernel_td_gqa_decode_64 : &td_cuda_kernel_td_gqa_decode_128,
                 cuda_grid(spans, blocks, PIECE, TD_CUDA_ATTN_THREADS, TD_CUDA_DECODE_SHARED(d)), CUDA_OUT(partial),
                 CUDA_ARGS(&n, &rows, &s->n_seq.p, &s->starts.p, &s->pos.p, &s->pages.p, &s->stride, &q->p, &m->k_cache.p,
                           &m->v_cache.p, &c->heads, &c->kv_heads, &c->dim, &c->window, &m->scale, &spans, &partial.p));
        cuda_run(&td_cuda_kernel_td_merge_spans,
                 cuda_grid(c->heads, PIECE, cuda_up(c->dim, TD_CUDA_MERGE_VALUES(c->dim)), TD_CUDA_MERGE_THREADS, 0),
                 CUDA_OUT(*out),
                 CUDA_ARGS(&n, &rows, &s->n_seq.p, &s->starts.p, &s->pos.p, &c->window, sinks, &partial.p, &c->heads,
                           &c->dim, &spans, &out->p, CUDA_NULL));
    }
    CUDA_FREE(partial, list, count);
}

static void run_step(model *m, rnd *r, const uint32_t rows[CUDA_SEQS]) {
    AT_END(cuda_step_close) cuda_step s;
    uint32_t                          norm_rows = m->of.norm == NORM_ROWS, spans = (uint32_t)rnd_range(r, 1, 3);
    cuda_step_open(&s, &m->seqs, rows, (uint8_t[CUDA_SEQS]){0});
    size_t       n = (size_t)s.n * m->width;
    FREED float *x = rnd_array(r, n, 1), *want = host_attention(m, &s, x);
    cuda_buf     proj[3], q = cuda_alloc(n * sizeof(td_bf16)), out[3];
    for (int i = 0; i < 3; i++) proj[i] = cuda_product(m->w[i], x, s.n, i ? m->kv : m->width, m->width);
    cuda_run(&td_cuda_kernel_td_gqa_place, cuda_grid(s.n + 2, 1, 1, 128, 0), CUDA_OUT(q, m->k_cache, m->v_cache),
             CUDA_ARGS(&s.n_rows.p, &s.pos.p, &s.slot.p, &proj[0].p, &proj[1].p, &proj[2].p,
                       m->of.norm ? &m->norms[0].p : CUDA_NULL, m->of.norm ? &m->norms[1].p : CUDA_NULL, &norm_rows, &m->eps,
                       &m->table.p, &m->of.turned, &m->of.heads, &m->of.kv_heads, &m->of.dim, &q.p, &m->k_cache.p,
                       &m->v_cache.p));
    for (int way = 0; way < 3; way++) { /* all rows by prefill, all by decode, both */
        out[way] = cuda_alloc(n * sizeof(float));
        attend(m, &s, &q, (uint32_t[]){0, 1u << 30, 4}[way], spans, &out[way]);
        assert_same_bits("decode and prefill", out[way].p, out[0].p, n * sizeof(float), sizeof(float));
    }
    assert_close("gqa", out[0].p, want, n, 8e-3); /* queries, keys, values and probabilities have 8 bits */
    CUDA_FREE(proj[0], proj[1], proj[2], q, out[0], out[1], out[2]);
}

TEST(steps) {
    rnd                   r = rnd_open("cuda gqa");
    static const gqa_case cases[] = {
        {4, 2, 64, 32, NORM_HEADS, 0, false, {{70, 0, 5}, {1, 3, 1}, {9, 1, 64}, {1, 1, 1}}},
        {3, 1, 40, 40, NO_NORM, 0, false, {{600, 1}, {1, 2}, {2, 1, 1}, {0, 0, 1}}}, /* two spans; dim fits no tile */
        {34, 2, 16, 16, NORM_HEADS, 0, true, {{3, 2, 1}, {1, 1, 1}, {5, 0, 1}}}, /* more heads in a group than a warp takes
                                                                                  */
        {2, 2, 128, 128, NORM_HEADS, 0, true, {{2, 66, 1}, {1, 1, 1}, {0, 7, 0}, {1, 0, 0}}},
        {6, 2, 16, 8, NORM_ROWS, 0, false, {{9, 1, 66}, {1, 3, 1}}},
        /* windows within a span and over two; the last rows of the first sequence see nothing of its first span */
        {1, 1, 16, 16, NO_NORM, 30, true, {{545, 1}, {1, 2}, {5, 40, 1}}},
        {2, 1, 24, 24, NORM_ROWS, 1, false, {{66, 1}, {1, 2}}}, /* a row meets itself alone */
        {2, 1, 64, 64, NO_NORM, 64, true, {{130, 3, 65}, {1, 1, 1}}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        AT_END(model_close) model m = model_open(&r, &cases[c]);
        for (int i = 0; i < 4; i++)
            if (cases[c].rows[i][0] + cases[c].rows[i][1] + cases[c].rows[i][2]) run_step(&m, &r, cases[c].rows[i]);
    }
}
