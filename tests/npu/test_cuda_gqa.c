/* The CUDA kernels of grouped-query attention against the host's block in f32, over steps of prompts and generated tokens;
 * and that decode and prefill give a row the same bits, whatever else is in the step. */
#include "cuda_rig.h"

CUDA_KERNEL(td_gqa_place);
CUDA_KERNEL(td_gqa_decode_64);
CUDA_KERNEL(td_gqa_decode_128);
CUDA_KERNEL(td_gqa_prefill_64);
CUDA_KERNEL(td_gqa_prefill_128);
CUDA_KERNEL(td_merge_spans);

#define SEQS 3
#define SEQ_PAGES 6
#define ROWS_MAX 700

typedef struct {
    uint32_t  hidden, heads, kv_heads, dim;
    bool      normed;
    float     eps, scale;
    float    *w[3], *norm[2], *rope, *identity;
    cuda_buf  k_cache, v_cache, norms[2], table;
    rig       g;
    void     *host_k, *host_v;
    uint32_t  block_table[SEQS * SEQ_PAGES], have[SEQS];
    size_t    max_pos;
    td_npu_weight *weights[7];
} model;

static model model_open(rnd *r, uint32_t heads, uint32_t kv_heads, uint32_t dim, bool normed) {
    model  m = {.hidden = heads * dim, /* so that the block's o can be an identity */
                .heads = heads,
                .kv_heads = kv_heads,
                .dim = dim,
                .normed = normed,
                .eps = 1e-6f,
                .scale = 1 / sqrtf((float)dim),
                .max_pos = SEQ_PAGES * TD_KV_PAGE};
    size_t width = (size_t)heads * dim, kv = (size_t)kv_heads * dim,
           cache = (size_t)SEQS * SEQ_PAGES * kv_heads * TD_KV_PAGE * dim;
    m.g = rig_open(2, TD_DT_F32, false);
    for (int i = 0; i < 3; i++) {
        m.w[i] = rnd_array(r, (i ? kv : width) * m.hidden, 3 / sqrtf((float)m.hidden));
        m.weights[i] = make_weight(&m.g, TD_WEIGHT_F32, m.w[i], i ? kv : width, m.hidden);
    }
    m.identity = calloc(width * width, sizeof(float));
    for (size_t i = 0; i < width; i++) m.identity[i * width + i] = 1;
    m.weights[3] = make_weight(&m.g, TD_WEIGHT_F32, m.identity, width, width);
    m.rope = malloc(m.max_pos * dim * sizeof(float));
    for (size_t p = 0; p < m.max_pos; p++)
        for (size_t i = 0; i < dim / 2; i++) {
            double angle = (double)p * pow(10000, -2.0 * (double)i / dim);
            m.rope[p * dim + i] = (float)cos(angle), m.rope[p * dim + dim / 2 + i] = (float)sin(angle);
        }
    m.weights[4] = make_weight(&m.g, TD_WEIGHT_F32, m.rope, m.max_pos, dim);
    m.table = cuda_copy(m.rope, m.max_pos * dim * sizeof(float));
    for (int i = 0; i < 2; i++) {
        m.norm[i] = rnd_array(r, dim, 2);
        m.weights[5 + i] = make_weight(&m.g, TD_WEIGHT_F32, m.norm[i], 0, dim);
        m.norms[i] = cuda_copy(m.norm[i], dim * sizeof(float));
    }
    m.k_cache = cuda_alloc(cache * 2), m.v_cache = cuda_alloc(cache * 2);
    m.host_k = calloc(1, SEQS * SEQ_PAGES * kv_heads * m.g.npu->ops->kv_page_bytes(m.g.npu, TD_KV_HEAD, dim));
    m.host_v = calloc(1, SEQS * SEQ_PAGES * kv_heads * m.g.npu->ops->kv_page_bytes(m.g.npu, TD_KV_HEAD, dim));
    for (uint32_t i = 0; i < SEQS * SEQ_PAGES; i++) m.block_table[i] = i;
    for (uint32_t i = SEQS * SEQ_PAGES; i > 1; i--) { /* pages in any order */
        uint32_t j = (uint32_t)rnd_range(r, 0, i - 1), swap = m.block_table[i - 1];
        m.block_table[i - 1] = m.block_table[j], m.block_table[j] = swap;
    }
    return m;
}

static void model_close(model *m) {
    for (int i = 0; i < 7; i++) m->g.npu->ops->weight_destroy(m->g.npu, m->weights[i]);
    rig_close(&m->g);
    CUDA_FREE(m->k_cache, m->v_cache, m->norms[0], m->norms[1], m->table);
    void *mem[] = {m->w[0], m->w[1], m->w[2], m->norm[0], m->norm[1], m->rope, m->identity, m->host_k, m->host_v};
    for (size_t i = 0; i < sizeof mem / sizeof mem[0]; i++) free(mem[i]);
}

/* A step of rows[s] rows of each sequence, through both. */
static void run_step(model *m, rnd *r, const uint32_t rows[SEQS]) {
    uint32_t seq_start[SEQS + 1] = {0}, kv_len[SEQS], *pos = malloc(ROWS_MAX * 4), *slot = malloc(ROWS_MAX * 4), n_seq = SEQS;
    uint8_t  absorbed[SEQS] = {0};
    for (uint32_t s = 0; s < SEQS; s++) {
        seq_start[s + 1] = seq_start[s] + rows[s];
        for (uint32_t i = 0; i < rows[s]; i++) {
            uint32_t p = m->have[s] + i;
            pos[seq_start[s] + i] = p;
            slot[seq_start[s] + i] = m->block_table[s * SEQ_PAGES + p / TD_KV_PAGE] * TD_KV_PAGE + p % TD_KV_PAGE;
        }
        kv_len[s] = m->have[s] += rows[s];
    }
    uint32_t       n = seq_start[SEQS], width = m->heads * m->dim, kv = m->kv_heads * m->dim, stride = SEQ_PAGES;
    float         *x = rnd_array(r, (size_t)n * m->hidden, 1), *hout = malloc((size_t)n * width * sizeof(float));
    td_step_counts counts = {.n_tok = n, .n_seq = SEQS};
    td_step_arrays a = {.counts = &counts,
                        .pos = pos,
                        .slot = slot,
                        .seq_start = seq_start,
                        .kv_len = kv_len,
                        .absorbed = absorbed,
                        .block_table = m->block_table};
    td_step        step = td_step_unified(&a, SEQ_PAGES);
    td_npu_block  *b = make_block(&m->g, &(td_block_desc){.kind = TD_BLOCK_GQA,
                                                          .max_tok = n,
                                                          .max_kv = (uint32_t)m->max_pos,
                                                          .gqa = {.hidden = m->hidden,
                                                                  .heads = m->heads,
                                                                  .kv_heads = m->kv_heads,
                                                                  .head_dim = m->dim,
                                                                  .eps = m->eps,
                                                                  .softmax_scale = m->scale,
                                                                  .q = m->weights[0],
                                                                  .k = m->weights[1],
                                                                  .v = m->weights[2],
                                                                  .o = m->weights[3],
                                                                  .q_norm = m->normed ? m->weights[5] : NULL,
                                                                  .k_norm = m->normed ? m->weights[6] : NULL,
                                                                  .rope = m->weights[4],
                                                                  .kv_k = m->host_k,
                                                                  .kv_v = m->host_v,
                                                                  .kv_pages = SEQS * SEQ_PAGES,
                                                                  .in = x,
                                                                  .out = hout}});
    run_block(&m->g, b, &step);
    m->g.npu->ops->block_destroy(m->g.npu, b);

    cuda_buf proj[3];
    for (int i = 0; i < 3; i++) {
        size_t w = i ? kv : width;
        proj[i] = cuda_alloc(n * w * 4);
        for (size_t row = 0; row < n; row++)
            for (size_t j = 0; j < w; j++) {
                double sum = 0;
                for (size_t l = 0; l < m->hidden; l++) sum += (double)m->w[i][j * m->hidden + l] * (double)x[row * m->hidden + l];
                ((float *)proj[i].p)[row * w + j] = (float)sum;
            }
    }
    uint32_t spans = (SEQ_PAGES * TD_KV_PAGE + TD_CUDA_SPAN - 1) / TD_CUDA_SPAN, many = 1u << 30, few = 4, none = 0,
             blocks = m->kv_heads * (uint32_t)cuda_up(m->heads / m->kv_heads, TD_CUDA_DECODE_HEADS), d_max = m->dim <= 64 ? 64 : 128,
             span_keys = TD_CUDA_SPAN;
    cuda_buf nb = cuda_word(n), ns = cuda_word(n_seq), ss = cuda_copy(seq_start, sizeof seq_start), pb = cuda_copy(pos, n * 4),
             sb = cuda_copy(slot, n * 4), bt = cuda_copy(m->block_table, sizeof m->block_table), q = cuda_alloc((size_t)n * width * 2),
             partial = cuda_alloc((size_t)n * m->heads * spans * (m->dim + 2) * 4), outs[3];
    const td_cuda_kernel *decode = d_max == 64 ? &td_cuda_kernel_td_gqa_decode_64 : &td_cuda_kernel_td_gqa_decode_128,
                         *prefill = d_max == 64 ? &td_cuda_kernel_td_gqa_prefill_64 : &td_cuda_kernel_td_gqa_prefill_128;
    cuda_run(&td_cuda_kernel_td_gqa_place, cuda_grid(n + 2, 1, 1, 128, 0), CUDA_OUT(q, m->k_cache, m->v_cache),
             CUDA_ARGS(&nb.p, &pb.p, &sb.p, &proj[0].p, &proj[1].p, &proj[2].p, m->normed ? &m->norms[0].p : CUDA_NULL,
                       m->normed ? &m->norms[1].p : CUDA_NULL, &m->eps, &m->table.p, &m->heads, &m->kv_heads, &m->dim, &q.p,
                       &m->k_cache.p, &m->v_cache.p));
    for (int way = 0; way < 3; way++) { /* all rows by prefill, all by decode, both */
        uint32_t limit = way == 0 ? none : way == 1 ? many : few;
        outs[way] = cuda_alloc((size_t)n * width * 4);
        cuda_run(prefill, cuda_grid(n / TD_CUDA_PREFILL_ROWS + SEQS, m->heads, 1, TD_CUDA_ATTN_THREADS, TD_CUDA_PREFILL_SHARED(d_max, d_max)),
                 CUDA_OUT(outs[way]),
                 CUDA_ARGS(&ns.p, &ss.p, &pb.p, &bt.p, &stride, &limit, &q.p, &m->k_cache.p, &m->v_cache.p, &m->heads,
                           &m->kv_heads, &m->dim, &m->scale, &outs[way].p));
        if (!limit) continue;
        cuda_run(decode, cuda_grid(cuda_up(spans, TD_CUDA_DECODE_SPANS), blocks, n + 1, TD_CUDA_ATTN_THREADS, TD_CUDA_DECODE_SHARED(d_max)),
                 CUDA_OUT(partial),
                 CUDA_ARGS(&nb.p, &ns.p, &ss.p, &pb.p, &bt.p, &stride, &limit, &q.p, &m->k_cache.p, &m->v_cache.p, &m->heads,
                           &m->kv_heads, &m->dim, &m->scale, &spans, &partial.p));
        cuda_run(&td_cuda_kernel_td_merge_spans, cuda_grid(m->heads, n + 1, 1, TD_CUDA_MERGE_THREADS, 0), CUDA_OUT(outs[way]),
                 CUDA_ARGS(&nb.p, &ns.p, &ss.p, &pb.p, CUDA_NULL, &limit, &span_keys, &partial.p, &m->heads, &m->dim, &spans,
                           &outs[way].p, CUDA_NULL));
    }
    assert_same_bits("decode and prefill", outs[1].p, outs[0].p, (size_t)n * width * 4, 4);
    assert_same_bits("both in one step", outs[2].p, outs[0].p, (size_t)n * width * 4, 4);

    double *want = malloc((size_t)n * width * sizeof *want);
    for (size_t i = 0; i < (size_t)n * width; i++) want[i] = (double)hout[i];
    double error = error_of(TD_DT_F32, outs[0].p, want, (size_t)n * width);
    if (!(error < 8e-3)) fail_msg("%u rows: relative error %g", n, error); /* q, k, v and probabilities have 8 bits */
    CUDA_FREE(proj[0], proj[1], proj[2], nb, ns, ss, pb, sb, bt, q, partial, outs[0], outs[1], outs[2]);
    free(x), free(hout), free(want), free(pos), free(slot);
}

static void steps(void **state) {
    (void)state;
    rnd r = rnd_open("cuda gqa");
    static const struct {
        uint32_t heads, kv_heads, dim;
        bool     normed;
        uint32_t rows[4][SEQS];
    } cases[] = {
        {4, 2, 64, true, {{70, 0, 5}, {1, 3, 1}, {9, 1, 64}, {1, 1, 1}}},
        {6, 1, 40, false, {{600, 1, 0}, {1, 2, 0}, {2, 1, 1}, {0, 0, 1}}}, /* two spans; a head dim that fits no tile */
        {34, 2, 16, true, {{3, 2, 1}, {1, 1, 1}, {0, 0, 0}, {5, 0, 1}}},   /* groups of more heads than a warp takes */
        {2, 2, 128, true, {{2, 66, 1}, {1, 1, 1}, {0, 7, 0}, {1, 0, 0}}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        model m = model_open(&r, cases[c].heads, cases[c].kv_heads, cases[c].dim, cases[c].normed);
        for (int i = 0; i < 4; i++)
            if (cases[c].rows[i][0] + cases[c].rows[i][1] + cases[c].rows[i][2]) run_step(&m, &r, cases[c].rows[i]);
        model_close(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps)};
    return cmocka_run_group_tests_name("cuda_gqa", tests, NULL, NULL);
}
