/* The CUDA kernels of latent attention, compared with the host's block in f32 over steps in which some sequences are
 * absorbed and others expanded; and bf16 products, compared with plain ones. */
#include "cuda_rig.h"
#include "tests/td_test.h"

CUDA_KERNEL(td_mla_place);
CUDA_KERNEL(td_mla_absorbed_16);
CUDA_KERNEL(td_mla_absorbed_64);
CUDA_KERNEL(td_mla_expand);
CUDA_KERNEL(td_mla_prefill);
CUDA_KERNEL(td_merge_spans);
CUDA_KERNEL(td_list_rows);
CUDA_KERNEL(td_copy_listed);
CUDA_KERNEL(td_bf16_linear_8);
CUDA_KERNEL(td_bf16_linear_32);
CUDA_KERNEL(td_bf16_columns_8);
CUDA_KERNEL(td_bf16_columns_32);
CUDA_KERNEL(td_f32_linear_1);
CUDA_KERNEL(td_f32_linear_8);
CUDA_KERNEL(td_norm_f32);

/* hidden is heads * v_dim, so that the block's o can be an identity. */
typedef struct {
    uint32_t       heads, kv_lora, nope, rope, v_dim, hidden, per_head;
    float          eps, scale;
    float         *w[2]; /* q, kv_a */
    cuda_buf       latent, keys, gamma, table, kv_b;
    rig            g;
    void          *host_latent, *host_rope;
    cuda_sequences seqs;
    td_npu_weight *weights[6];
} model;

static model model_open(rnd *r, uint32_t heads, uint32_t kv_lora, uint32_t nope, uint32_t rope, uint32_t v_dim) {
    model  m = WITH(model, .heads = heads, .kv_lora = kv_lora, .nope = nope, .rope = rope, .v_dim = v_dim,
                    .hidden = heads * v_dim, .per_head = nope + v_dim, .eps = 1e-6f, .scale = 1 / sqrtf((float)(nope + rope)),
                    .seqs = cuda_sequences_open(r));
    size_t max_pos = CUDA_SEQ_PAGES * TD_KV_PAGE, slots = (size_t)CUDA_PAGES * TD_KV_PAGE,
           rows[2] = {heads * (nope + rope), kv_lora + rope};
    FREED float *identity = cuda_identity(m.hidden), *table = cuda_rope_table(max_pos, rope),
                *gamma = rnd_array(r, kv_lora, 1.5f),
                *kv_b = rnd_array(r, (size_t)heads * m.per_head * kv_lora, 2 / sqrtf((float)kv_lora));
    m.g = rig_open(2, TD_DT_F32, false);
    for (int i = 0; i < 2; i++) {
        m.w[i] = rnd_array(r, rows[i] * m.hidden, 3 / sqrtf((float)m.hidden));
        m.weights[i] = make_weight(&m.g, TD_WEIGHT_F32, m.w[i], rows[i], m.hidden);
    }
    m.weights[2] = make_weight(&m.g, TD_WEIGHT_F32, identity, m.hidden, m.hidden);
    m.weights[3] = make_weight(&m.g, TD_WEIGHT_F32, table, max_pos, rope);
    m.weights[4] = make_weight(&m.g, TD_WEIGHT_F32, gamma, 0, kv_lora);
    m.weights[5] = make_weight(&m.g, TD_WEIGHT_BF16, kv_b, (size_t)heads * m.per_head, kv_lora);
    m.table = cuda_copy(table, max_pos * rope * sizeof(float)), m.gamma = cuda_copy(gamma, kv_lora * sizeof(float));
    m.kv_b = cuda_bf16(kv_b, (size_t)heads * m.per_head * kv_lora);
    m.latent = cuda_alloc(slots * kv_lora * sizeof(td_bf16)), m.keys = cuda_alloc(slots * rope * sizeof(td_bf16));
    m.host_latent = calloc(CUDA_PAGES, m.g.npu->ops->kv_page_bytes(m.g.npu, TD_KV_LATENT, kv_lora));
    m.host_rope = calloc(CUDA_PAGES, m.g.npu->ops->kv_page_bytes(m.g.npu, TD_KV_ROPE, rope));
    return m;
}

static void model_close(model *m) {
    rig_close(&m->g);
    CUDA_FREE(m->latent, m->keys, m->gamma, m->table, m->kv_b);
    free(m->w[0]), free(m->w[1]), free(m->host_latent), free(m->host_rope);
}

static float *host_attention(model *m, const cuda_step *s, float *x) {
    float        *out = malloc((size_t)s->n * m->hidden * sizeof(float));
    td_npu_block *b =
        make_block(&m->g, &ATTENTION_OF(TD_BLOCK_MLA, s->n, CUDA_SEQ_PAGES * TD_KV_PAGE, mla, .hidden = m->hidden,
                                        .heads = m->heads, .kv_lora = m->kv_lora, .nope_dim = m->nope, .rope_dim = m->rope,
                                        .v_dim = m->v_dim, .eps = m->eps, .softmax_scale = m->scale, .q = m->weights[0],
                                        .kv_a = m->weights[1], .o = m->weights[2], .rope = m->weights[3],
                                        .kv_a_norm = m->weights[4], .kv_b = m->weights[5], .kv_latent = m->host_latent,
                                        .kv_rope = m->host_rope, .kv_pages = CUDA_PAGES, .in = x, .out = out));
    run_block(&m->g, b, &s->step);
    return out;
}

/* Rows of 16-byte words between those of the step and the listed ones. */
static void copy_listed(const cuda_buf *n, const cuda_buf *list, uint32_t most, uint32_t words, uint32_t to_step,
                        const cuda_buf *from, const cuda_buf *to) {
    cuda_run(&td_cuda_kernel_td_copy_listed, cuda_grid(2, most, 1, 128, 0), CUDA_OUT(*to),
             CUDA_ARGS(&n->p, &list->p, &words, &to_step, &from->p, &to->p));
}

/* Absorbed rows, by blocks of `heads` heads. */
static void attend_absorbed(model *m, const cuda_step *s, const cuda_buf *q, size_t heads, const cuda_buf *out) {
    const td_cuda_kernel *kernel = heads == 16 ? &td_cuda_kernel_td_mla_absorbed_16 : &td_cuda_kernel_td_mla_absorbed_64;
    uint32_t dim = m->nope + m->rope, q_row = m->heads * dim, lat_row = m->heads * m->kv_lora, zero = 0, one = 1, spans = 3,
             head_weights = m->per_head * m->kv_lora, ctx_row = m->heads * m->kv_lora;
    cuda_buf list = cuda_alloc(s->n * 2 * sizeof(uint32_t)), n = cuda_word(0);
    cuda_run(&td_cuda_kernel_td_list_rows, cuda_grid(1, 1, 1, 32, 0), CUDA_OUT(list, n),
             CUDA_ARGS(&s->n_seq.p, &s->starts.p, &s->forms.p, &zero, &s->n, &one, &list.p, &n.p));
    const uint32_t rows = *(uint32_t *)n.p, most = rows + 1;
    if (!rows) {
        CUDA_FREE(list, n);
        return;
    }
    cuda_buf partial = cuda_alloc((size_t)rows * m->heads * spans * (m->kv_lora + 2) * sizeof(float)),
             ctx = cuda_alloc((size_t)rows * ctx_row * sizeof(td_bf16)),
             mine = cuda_alloc((size_t)rows * q_row * sizeof(td_bf16)),
             q_lat = cuda_alloc((size_t)rows * lat_row * sizeof(td_bf16)),
             sums = cuda_alloc((size_t)rows * m->hidden * sizeof(float));
    void *w_uv = (td_bf16 *)m->kv_b.p + (size_t)m->nope * m->kv_lora;
    copy_listed(&n, &list, most, q_row / 8, 0, q, &mine);
    cuda_run(&td_cuda_kernel_td_bf16_columns_8,
             cuda_grid(cuda_up(m->kv_lora, TD_CUDA_COLUMNS_N), cuda_up(rows, 8), m->heads, TD_CUDA_LINEAR_THREADS, 0),
             CUDA_OUT(q_lat),
             CUDA_ARGS(&n.p, &mine.p, &q_row, &dim, &m->kv_b.p, &head_weights, &m->kv_lora, &m->nope, &q_lat.p, &lat_row,
                       &m->kv_lora));
    cuda_run(kernel, cuda_grid(spans, cuda_up(m->heads, heads), most, TD_CUDA_LATENT_THREADS, TD_CUDA_LATENT_SHARED(heads)),
             CUDA_OUT(partial),
             CUDA_ARGS(&n.p, &list.p, &s->n_seq.p, &s->starts.p, &s->pos.p, &s->pages.p, &s->stride, &q_lat.p, &mine.p,
                       &m->latent.p, &m->keys.p, &m->heads, &m->kv_lora, &m->nope, &m->rope, &m->scale, &spans, &partial.p));
    cuda_run(&td_cuda_kernel_td_merge_spans,
             cuda_grid(m->heads, most, cuda_up(m->kv_lora, TD_CUDA_MERGE_VALUES(m->kv_lora)), TD_CUDA_MERGE_THREADS, 0),
             CUDA_OUT(ctx),
             CUDA_ARGS(&n.p, &list.p, &s->n_seq.p, &s->starts.p, &s->pos.p, &zero, CUDA_NULL, &partial.p, &m->heads,
                       &m->kv_lora, &spans, CUDA_NULL, &ctx.p));
    cuda_run(&td_cuda_kernel_td_bf16_linear_8,
             cuda_grid(cuda_up(rows, 8), cuda_up(m->v_dim, TD_CUDA_TILE_N), m->heads, TD_CUDA_LINEAR_THREADS, 0),
             CUDA_OUT(sums),
             CUDA_ARGS(&n.p, &ctx.p, &ctx_row, &m->kv_lora, &w_uv, &head_weights, CUDA_NULL, &m->v_dim, &m->kv_lora, &sums.p,
                       &m->hidden, &m->v_dim, &one));
    copy_listed(&n, &list, most, m->hidden / 4, 1, &sums, out);
    CUDA_FREE(list, n, partial, ctx, mine, q_lat, sums);
}

/* Expanded rows, `at_once` heads at a time. */
static void attend_expanded(model *m, const cuda_step *s, const cuda_buf *q, uint32_t at_once, const cuda_buf *out) {
    cuda_buf expanded = cuda_alloc((size_t)CUDA_PAGES * TD_KV_PAGE * at_once * m->per_head * sizeof(td_bf16));
    for (uint32_t head = 0; head < m->heads; head += at_once) {
        uint32_t n = m->heads - head < at_once ? m->heads - head : at_once;
        void    *w = (td_bf16 *)m->kv_b.p + (size_t)head * m->per_head * m->kv_lora;
        cuda_run(&td_cuda_kernel_td_mla_expand,
                 cuda_grid(2, n * cuda_up(m->per_head, TD_CUDA_EXPAND_OUT), 1, TD_CUDA_ATTN_THREADS, TD_CUDA_EXPAND_SHARED),
                 CUDA_OUT(expanded),
                 CUDA_ARGS(&s->n_seq.p, &s->lens.p, &s->pages.p, &s->stride, &s->forms.p, &m->latent.p, &m->kv_lora, &w, &n,
                           &m->per_head, &expanded.p));
        cuda_run(
            &td_cuda_kernel_td_mla_prefill,
            cuda_grid(s->n / TD_CUDA_PREFILL_ROWS + CUDA_SEQS, n, 1, TD_CUDA_ATTN_THREADS,
                      TD_CUDA_PREFILL_SHARED(TD_CUDA_EXPANDED_NOPE_MAX + TD_CUDA_LATENT_ROPE_MAX, TD_CUDA_EXPANDED_DV_MAX)),
            CUDA_OUT(*out),
            CUDA_ARGS(&s->n_seq.p, &s->starts.p, &s->pos.p, &s->pages.p, &s->stride, &s->forms.p, &q->p, &m->keys.p,
                      &expanded.p, &n, &head, &m->heads, &m->nope, &m->rope, &m->v_dim, &m->scale, &out->p));
    }
    CUDA_FREE(expanded);
}

static void run_step(model *m, rnd *r, const uint32_t rows[CUDA_SEQS], const uint8_t absorbed[CUDA_SEQS]) {
    AT_END(cuda_step_close) cuda_step s;
    cuda_step_open(&s, &m->seqs, rows, absorbed);
    size_t       n = (size_t)s.n * m->hidden, dim = m->nope + m->rope;
    FREED float *x = rnd_array(r, n, 1), *want = host_attention(m, &s, x);
    cuda_buf     proj = cuda_product(m->w[0], x, s.n, m->heads * dim, m->hidden),
             kv = cuda_product(m->w[1], x, s.n, m->kv_lora + m->rope, m->hidden),
             q = cuda_alloc(s.n * m->heads * dim * sizeof(td_bf16)), out = cuda_alloc(n * sizeof(float)),
             again = cuda_alloc(n * sizeof(float));
    cuda_run(&td_cuda_kernel_td_mla_place,
             cuda_grid(1 + cuda_up(m->heads * dim + m->rope, TD_CUDA_LATENT_PLACE_VALUES), s.n + 1, 1,
                       TD_CUDA_LATENT_PLACE_THREADS, 0),
             CUDA_OUT(q, m->latent, m->keys),
             CUDA_ARGS(&s.n_rows.p, &s.pos.p, &s.slot.p, &proj.p, &kv.p, &m->gamma.p, &m->eps, &m->table.p, &m->heads,
                       &m->nope, &m->rope, &m->kv_lora, &q.p, &m->latent.p, &m->keys.p));
    attend_absorbed(m, &s, &q, 16, &out);
    attend_expanded(m, &s, &q, m->heads, &out);
    assert_close("mla", out.p, want, n,
                 1.2e-2); /* as gqa, and the absorbed query and the expanded key and value have 8 bits */
    attend_absorbed(m, &s, &q, 64, &again);
    attend_expanded(m, &s, &q, 2, &again);
    assert_same_bits("heads at once", again.p, out.p, n * sizeof(float), sizeof(float));
    CUDA_FREE(proj, kv, q, out, again);
}

TEST(steps) {
    rnd r = rnd_open("cuda mla");
    static const struct {
        uint32_t heads, kv_lora, nope, rope, v_dim;
        uint32_t rows[4][CUDA_SEQS];
        uint8_t  absorbed[4][CUDA_SEQS];
    } cases[] = {
        {3, 48, 16, 8, 16, {{70, 3, 0}, {1, 5, 1}, {1, 1, 66}, {1, 1, 1}}, {{0, 0, 0}, {1, 0, 0}, {1, 1, 0}, {1, 1, 1}}},
        {18, 64, 24, 16, 8, {{5, 1, 1}, {2, 1, 0}}, {{0, 0, 1}, {1, 1, 1}}},     /* more heads than a block of 16 */
        {2, 512, 128, 64, 128, {{66, 2, 1}, {1, 2, 3}}, {{0, 0, 1}, {1, 0, 1}}}, /* DeepSeek-V3's sizes of a head */
        {1, 40, 8, 8, 24, {{600, 0, 0}, {1, 1, 0}, {2, 0, 0}}, {{0, 0, 0}, {1, 1, 1}, {1, 0, 1}}}, /* two spans */
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        AT_END(model_close)
        model m = model_open(&r, cases[c].heads, cases[c].kv_lora, cases[c].nope, cases[c].rope, cases[c].v_dim);
        for (int i = 0; i < 4; i++)
            if (cases[c].rows[i][0] + cases[c].rows[i][1] + cases[c].rows[i][2])
                run_step(&m, &r, cases[c].rows[i], cases[c].absorbed[i]);
    }
}

/* Products in bf16 and f32; the variants give the same bits, a row the same alone as among others. */
TEST(float_linears) {
    rnd r = rnd_open("cuda bf16");
    for (int round = 0; round < 6; round++) {
        uint32_t n = 8 * (uint32_t)rnd_range(&r, 1, round ? 10 : 80), k = 8 * (uint32_t)rnd_range(&r, 1, 80),
                 odd = k - (uint32_t)rnd_range(&r, 0, 7), rows = (uint32_t)rnd_range(&r, 1, 40), one = 1, none = 0;
        FREED float *w = rnd_array(&r, (size_t)n * k, 1), *x = rnd_array(&r, (size_t)rows * k, 1),
                    *bias = rnd_array(&r, n, 1);
        for (size_t i = 0; i < (size_t)n * k; i++) w[i] = td_bf16_to_f32(td_f32_to_bf16(w[i]));
        for (size_t i = 0; i < (size_t)rows * k; i++) x[i] = td_bf16_to_f32(td_f32_to_bf16(x[i]));
        cuda_buf nb = cuda_word(rows), wb = cuda_bf16(w, (size_t)n * k), wf = cuda_copy(w, (size_t)n * k * 4),
                 xb = cuda_bf16(x, (size_t)rows * k), bb = cuda_copy(bias, n * 4), out = cuda_alloc((size_t)rows * n * 4),
                 again = cuda_alloc((size_t)rows * n * 4), alone = cuda_alloc(n * 4), one_row = cuda_word(1),
                 want = cuda_product(w, x, rows, n, k);
        for (uint32_t part = 0; part < 2; part++) { /* all of k, and rows that are not aligned */
            uint32_t of = part ? odd : k;
            cuda_buf cut = cuda_product(w, x, rows, n, of), *sums = part ? &cut : &want;
            void    *last = (td_bf16 *)xb.p + (size_t)(rows - 1) * of;
            cuda_run(&td_cuda_kernel_td_f32_linear_8,
                     cuda_grid(cuda_up(n, TD_CUDA_F32_OUTPUTS), cuda_up(rows, TD_CUDA_F32_ROWS), 1, TD_CUDA_F32_THREADS, 0),
                     CUDA_OUT(out), CUDA_ARGS(&nb.p, &xb.p, &wf.p, &n, &of, &out.p));
            assert_close("td_f32_linear_8", out.p, sums->p, (size_t)rows * n, 1e-6);
            cuda_run(&td_cuda_kernel_td_f32_linear_1, cuda_grid(n, 2, 1, TD_CUDA_F32_THREADS, 0), CUDA_OUT(alone),
                     CUDA_ARGS(&one_row.p, &last, &wf.p, &n, &of, &alone.p));
            assert_same_bits("a row alone", alone.p, (float *)out.p + (size_t)(rows - 1) * n, n * 4, 4);
            CUDA_FREE(cut);
        }
        for (size_t i = 0; i < (size_t)rows * n; i++) ((float *)want.p)[i] += bias[i % n];
        cuda_run(&td_cuda_kernel_td_bf16_linear_8,
                 cuda_grid(cuda_up(rows, 8), cuda_up(n, TD_CUDA_TILE_N), 1, TD_CUDA_LINEAR_THREADS, 0), CUDA_OUT(out),
                 CUDA_ARGS(&nb.p, &xb.p, &k, &none, &wb.p, &none, &bb.p, &n, &k, &out.p, &n, &none, &one));
        assert_close("td_bf16_linear_8", out.p, want.p, (size_t)rows * n, 1e-6);
        cuda_run(&td_cuda_kernel_td_bf16_linear_32,
                 cuda_grid(cuda_up(rows, 32), cuda_up(n, TD_CUDA_TILE_N), 1, TD_CUDA_LINEAR_THREADS, 0), CUDA_OUT(again),
                 CUDA_ARGS(&nb.p, &xb.p, &k, &none, &wb.p, &none, &bb.p, &n, &k, &again.p, &n, &none, &one));
        assert_same_bits("variants", again.p, out.p, (size_t)rows * n * 4, 4);
        FREED float *turned = malloc((size_t)n * k * sizeof(float));
        for (size_t i = 0; i < (size_t)n * k; i++) turned[i % k * n + i / k] = w[i];
        cuda_buf tb = cuda_bf16(turned, (size_t)n * k), halves = cuda_alloc((size_t)rows * n * 2);
        for (int wide = 0; wide < 2; wide++) {
            cuda_run(wide ? &td_cuda_kernel_td_bf16_columns_32 : &td_cuda_kernel_td_bf16_columns_8,
                     cuda_grid(cuda_up(n, TD_CUDA_COLUMNS_N), cuda_up(rows, wide ? 32 : 8), 1, TD_CUDA_LINEAR_THREADS, 0),
                     CUDA_OUT(halves), CUDA_ARGS(&nb.p, &xb.p, &k, &none, &tb.p, &none, &n, &k, &halves.p, &n, &none));
            for (size_t i = 0; i < (size_t)rows * n; i++) {
                double got = (double)td_bf16_to_f32(((td_bf16 *)halves.p)[i]),
                       sum = (double)((float *)want.p)[i] - (double)bias[i % n];
                assert_true(fabs(got - sum) <= fabs(sum) / 250 + 1e-5 * sqrt(k));
            }
            if (wide) assert_same_bits("variants by columns", halves.p, again.p, (size_t)rows * n * 2, 2);
            memcpy(again.p, halves.p, (size_t)rows * n * 2);
        }
        CUDA_FREE(halves);
        CUDA_FREE(tb);
        CUDA_FREE(nb, wb, wf, xb, bb, out, again, alone, one_row, want);
    }
}

/* q's low-rank part: normed in f32, and codes of what is not rounded. */
TEST(norms_of_floats) {
    rnd      r = rnd_open("cuda f32 norm");
    uint32_t k = 200, ldq = 256, rows = 3;
    float   *x = rnd_array(&r, 600, 5), *gamma = rnd_array(&r, 200, 1), eps = 1e-6f;
    cuda_buf n = cuda_word(rows), xb = cuda_copy(x, 2400), gb = cuda_copy(gamma, 800), out = cuda_alloc(1200),
             q = cuda_alloc(3 * 256), scale = cuda_alloc(12);
    cuda_run(&td_cuda_kernel_td_norm_f32, cuda_grid(4, 1, 1, TD_CUDA_SHORT_THREADS, 0), CUDA_OUT(out, q, scale),
             CUDA_ARGS(&n.p, &xb.p, &gb.p, &eps, &k, &out.p, &q.p, &ldq, &scale.p));
    for (int i = 0; i < 3; i++) {
        double row[200], want[200];
        for (int j = 0; j < 200; j++) row[j] = (double)x[i * 200 + j];
        ref_norm(gamma, 1e-6, row, 200, want);
        for (int j = 0; j < 200; j++) {
            double s = (double)((float *)scale.p)[i];
            assert_true(fabs((double)td_bf16_to_f32(((td_bf16 *)out.p)[i * 200 + j]) - want[j]) <=
                        fabs(want[j]) / 256 + 1e-12);
            assert_true(fabs((double)((int8_t *)q.p)[i * 256 + j] * s - want[j]) <= s * 0.5001);
        }
        for (int j = 200; j < 256; j++) assert_int_equal(((int8_t *)q.p)[i * 256 + j], 0);
    }
    CUDA_FREE(n, xb, gb, out, q, scale);
    free(x), free(gamma);
}
