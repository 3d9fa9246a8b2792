/* The CUDA kernels of rows (embedding, norm, codes) and of int8 products, compared with the host's blocks: the same bits
 * where the arithmetic is exact or elementwise, and a bound for the norm's sum. */
#include "cuda_rig.h"
#include "kernels/kernels.h"
#include "tests/td_test.h"

CUDA_KERNEL(td_embed);
CUDA_KERNEL(td_norm);
CUDA_KERNEL(td_norm_middle);
CUDA_KERNEL(td_norm_short);
CUDA_KERNEL(td_quantize_bf16);
CUDA_KERNEL(td_quantize_bf16_short);
CUDA_KERNEL(td_quantize_f32);
CUDA_KERNEL(td_quantize_f32_short);
CUDA_KERNEL(td_glu_quantize);
CUDA_KERNEL(td_glu_quantize_short);
CUDA_KERNEL(td_w8a8_8);
CUDA_KERNEL(td_w8a8_16);
CUDA_KERNEL(td_w8a8_32);
CUDA_KERNEL(td_w8a8_64);
CUDA_KERNEL(td_w8a8_swiglu_8);
CUDA_KERNEL(td_w8a8_swiglu_16);
CUDA_KERNEL(td_w8a8_swiglu_32);
CUDA_KERNEL(td_w8a8_swiglu_64);
CUDA_KERNEL(td_w8a8_epilogue);
CUDA_KERNEL(td_bound_read);
CUDA_KERNEL(td_bound_int8);
CUDA_KERNEL(td_bound_bf16);

static const struct {
    const td_cuda_kernel *plain, *swiglu;
    size_t                rows, tiles;
} variants[] = {
    {&td_cuda_kernel_td_w8a8_8, &td_cuda_kernel_td_w8a8_swiglu_8, 8, 1},
    {&td_cuda_kernel_td_w8a8_16, &td_cuda_kernel_td_w8a8_swiglu_16, 16, 1},
    {&td_cuda_kernel_td_w8a8_32, &td_cuda_kernel_td_w8a8_swiglu_32, 32, 2},
    {&td_cuda_kernel_td_w8a8_64, &td_cuda_kernel_td_w8a8_swiglu_64, 64, 4},
};
#define VARIANTS (sizeof variants / sizeof variants[0])

TEST(embeddings) {
    rnd r = rnd_open("cuda embed");
    for (int round = 0; round < 6; round++) {
        uint32_t vocab = (uint32_t)rnd_range(&r, 1, 40), rows = (uint32_t)rnd_range(&r, 1, 9), bucket = rows + 3,
                 hidden = (uint32_t)rnd_range(&r, 1, 300) * (round & 1 ? 8 : 1);
        FREED float *table = rnd_array(&r, (size_t)vocab * hidden, 1);
        uint32_t     token[16];
        for (uint32_t i = 0; i < bucket; i++) token[i] = i < rows ? (uint32_t)rnd_range(&r, 0, vocab - 1) : UINT32_MAX;
        cuda_buf n = cuda_word(rows), ids = cuda_copy(token, bucket * 4), t = cuda_bf16(table, (size_t)vocab * hidden),
                 out = cuda_alloc((size_t)rows * hidden * 2);
        cuda_run(&td_cuda_kernel_td_embed,
                 cuda_grid(cuda_up(hidden, TD_CUDA_EMBED_VALUES), bucket, 1, TD_CUDA_EMBED_THREADS, 0), CUDA_OUT(out),
                 CUDA_ARGS(&n.p, &ids.p, &t.p, &vocab, &hidden, &out.p));
        for (uint32_t i = 0; i < rows; i++)
            assert_same_bits("embed", (td_bf16 *)out.p + (size_t)i * hidden, (td_bf16 *)t.p + (size_t)token[i] * hidden,
                             hidden * 2, 2);
        *(uint32_t *)ids.p = vocab; /* no such token */
        cuda_run(&td_cuda_kernel_td_embed,
                 cuda_grid(cuda_up(hidden, TD_CUDA_EMBED_VALUES), bucket, 1, TD_CUDA_EMBED_THREADS, 0), CUDA_OUT(out),
                 CUDA_ARGS(&n.p, &ids.p, &t.p, &vocab, &hidden, &out.p));
        assert_true(isnan(td_bf16_to_f32(*(td_bf16 *)out.p)));
        CUDA_FREE(n, ids, t, out);
    }
}

TEST(norms) {
    rnd r = rnd_open("cuda norm");
    for (int round = 0; round < 12; round++) {
        uint32_t rows = (uint32_t)rnd_range(&r, 1, 6), bucket = rows + 2,
                 hidden = round == 6 ? 7168 : (uint32_t)rnd_range(&r, 1, round == 0 ? 7168 : 700),
                 stride = hidden + (round & 2 ? 5 : 0),
                 ldq = (uint32_t)cuda_up(hidden, TD_CUDA_QUANT_STRIDE) * TD_CUDA_QUANT_STRIDE;
        bool         with_add = round & 1, is_short = hidden <= TD_CUDA_SHORT_MAX && round % 3;
        float        eps = 1e-6f;
        FREED float *x = rnd_array(&r, (size_t)rows * hidden, 3), *add = rnd_array(&r, (size_t)rows * hidden, 3),
                    *gamma = rnd_array(&r, hidden, 2);
        for (uint32_t j = 0; round == 3 && j < hidden; j++) x[j] = add[j] = 0;
        cuda_buf n = cuda_word(rows), xb = cuda_bf16(x, (size_t)rows * hidden), ab = cuda_bf16(add, (size_t)rows * hidden),
                 gb = cuda_copy(gamma, hidden * sizeof(float)), out = cuda_alloc((size_t)rows * stride * 2),
                 q = cuda_alloc((size_t)rows * ldq), scale = cuda_alloc(rows * sizeof(float));
        AT_END(rig_close) rig g = rig_open(2, TD_DT_BF16, false);
        FREED void *hx = act_array(g.act, x, (size_t)rows * hidden), *ha = act_array(g.act, add, (size_t)rows * hidden),
                   *hout = act_array(g.act, NULL, (size_t)rows * hidden);
        td_npu_weight *w = make_weight(&g, TD_WEIGHT_F32, gamma, 0, hidden);
        td_npu_block  *b = make_block(&g, &BLOCK_OF(TD_BLOCK_NORM, rows, norm, .hidden = hidden, .eps = eps, .gamma = w,
                                                    .x = hx, .add = with_add ? ha : NULL, .out = hout));
        run_rows(&g, b, rows);
        cuda_run(is_short ? &td_cuda_kernel_td_norm_short : &td_cuda_kernel_td_norm,
                 cuda_grid(bucket, 1, 1, is_short ? TD_CUDA_SHORT_THREADS : TD_CUDA_ROW_THREADS, 0),
                 CUDA_OUT(xb, out, q, scale),
                 CUDA_ARGS(&n.p, CUDA_NULL, &xb.p, with_add ? &ab.p : CUDA_NULL, &gb.p, &eps, &hidden, &out.p, &stride, &q.p,
                           &ldq, &scale.p));
        if (!is_short && hidden <= TD_CUDA_MIDDLE_MAX) { /* a kernel of half as many threads gives the same bits */
            cuda_buf x2 = cuda_bf16(x, (size_t)rows * hidden), out2 = cuda_alloc((size_t)rows * stride * 2),
                     q2 = cuda_alloc((size_t)rows * ldq), scale2 = cuda_alloc(rows * sizeof(float));
            cuda_run(&td_cuda_kernel_td_norm_middle, cuda_grid(bucket, 1, 1, TD_CUDA_MIDDLE_THREADS, 0),
                     CUDA_OUT(x2, out2, q2, scale2),
                     CUDA_ARGS(&n.p, CUDA_NULL, &x2.p, with_add ? &ab.p : CUDA_NULL, &gb.p, &eps, &hidden, &out2.p, &stride,
                               &q2.p, &ldq, &scale2.p));
            assert_same_bits("the residual", x2.p, xb.p, (size_t)rows * hidden * 2, 2);
            for (uint32_t i = 0; i < rows; i++)
                assert_same_bits("a norm", (td_bf16 *)out2.p + (size_t)i * stride, (td_bf16 *)out.p + (size_t)i * stride,
                                 hidden * 2, 2);
            assert_same_bits("codes", q2.p, q.p, (size_t)rows * ldq, 1);
            assert_same_bits("scales", scale2.p, scale.p, rows * 4, 4);
            CUDA_FREE(x2, out2, q2, scale2);
        }
        assert_same_bits("the residual", xb.p, hx, (size_t)rows * hidden * 2, 2);
        for (uint32_t i = 0; i < rows; i++) {
            const td_bf16 *got = (td_bf16 *)out.p + (size_t)i * stride, *want = (td_bf16 *)hout + (size_t)i * hidden;
            FREED int8_t  *codes = malloc(ldq);
            float          row_scale;
            for (uint32_t j = 0; j < hidden;
                 j++) { /* the sums differ in order: the factor by some 2^-22, a result by a step */
                double a = (double)td_bf16_to_f32(got[j]), e = (double)td_bf16_to_f32(want[j]);
                if (!(fabs(a - e) <= fabs(e) / 128)) fail_msg("norm: row %u element %u: %g, not %g", i, j, a, e);
            }
            td_quantize_rows_i8(TD_DT_BF16, got, 1, hidden, hidden, codes, ldq, &row_scale, NULL);
            assert_same_bits("codes", (int8_t *)q.p + (size_t)i * ldq, codes, ldq, 1);
            assert_same_bits("scale", (float *)scale.p + i, &row_scale, 4, 4);
        }
        CUDA_FREE(n, xb, ab, gb, out, q, scale);
    }
}

/* The rows that are asked for are normed, and no others. */
TEST(norms_of_chosen_rows) {
    rnd      r = rnd_open("cuda norm of rows");
    uint32_t hidden = 72, rows = 3, row_of[] = {4, 0, 4}, all = 5;
    float   *x = rnd_array(&r, 5 * 72, 1), *gamma = rnd_array(&r, 72, 1), eps = 1e-5f;
    cuda_buf n = cuda_word(rows), n_all = cuda_word(all), of = cuda_copy(row_of, sizeof row_of), xb = cuda_bf16(x, 5 * 72),
             gb = cuda_copy(gamma, 72 * sizeof(float)), out = cuda_alloc(3 * 72 * 2), every = cuda_alloc(5 * 72 * 2);
    uint32_t none = 0;
    cuda_run(&td_cuda_kernel_td_norm_short, cuda_grid(3, 1, 1, TD_CUDA_SHORT_THREADS, 0), CUDA_OUT(out),
             CUDA_ARGS(&n.p, &of.p, &xb.p, CUDA_NULL, &gb.p, &eps, &hidden, &out.p, &hidden, CUDA_NULL, &none, CUDA_NULL));
    cuda_run(&td_cuda_kernel_td_norm_short, cuda_grid(5, 1, 1, TD_CUDA_SHORT_THREADS, 0), CUDA_OUT(every),
             CUDA_ARGS(&n_all.p, CUDA_NULL, &xb.p, CUDA_NULL, &gb.p, &eps, &hidden, &every.p, &hidden, CUDA_NULL, &none,
                       CUDA_NULL));
    for (int i = 0; i < 3; i++)
        assert_same_bits("row", (td_bf16 *)out.p + i * 72, (td_bf16 *)every.p + row_of[i] * 72, 72 * 2, 2);
    CUDA_FREE(n, n_all, of, xb, gb, out, every);
    free(x), free(gamma);
}

TEST(codes) {
    static const td_cuda_kernel *const KERNELS[2][2] = {
        {&td_cuda_kernel_td_quantize_f32, &td_cuda_kernel_td_quantize_f32_short},
        {&td_cuda_kernel_td_quantize_bf16, &td_cuda_kernel_td_quantize_bf16_short}};
    rnd r = rnd_open("cuda codes");
    for (int round = 0; round < 8; round++) {
        uint32_t rows = 7, k = (uint32_t)rnd_range(&r, 1, 900), stride = k + 3;
        bool     is_bf16 = round & 1, is_short = round & 2;
        if (round < 4) k = stride = (k + 7) / 8 * 8 + (round == 3 ? 6200 : 0); /* aligned; more than threads keep */
        const uint32_t ldq = (k + 63) / 64 * 64;
        FREED float   *x = rnd_array(&r, rows * stride, 50);
        for (uint32_t j = 0; j < stride; j++) x[stride + j] = 0, x[2 * stride + j] = 1e-42f; /* zeros; 1 / scale overflows */
        x[3 * stride + k / 2] = INFINITY, x[4 * stride] = NAN;
        cuda_buf n = cuda_word(rows), in = is_bf16 ? cuda_bf16(x, rows * stride) : cuda_copy(x, rows * stride * 4),
                 q = cuda_alloc(rows * ldq), scale = cuda_alloc(rows * 4);
        cuda_run(KERNELS[is_bf16][is_short],
                 cuda_grid(rows + 1, 1, 1, is_short ? TD_CUDA_SHORT_THREADS : TD_CUDA_ROW_THREADS, 0), CUDA_OUT(q, scale),
                 CUDA_ARGS(&n.p, &in.p, &k, &stride, &q.p, &ldq, &scale.p));
        FREED int8_t *want = malloc(rows * ldq);
        float         want_scale[7];
        td_quantize_rows_i8(is_bf16 ? TD_DT_BF16 : TD_DT_F32, in.p, rows, k, stride, want, ldq, want_scale, NULL);
        assert_same_bits("codes", q.p, want, rows * ldq, 1);
        for (int i = 0; i < 7; i++)
            assert_true(((float *)scale.p)[i] == want_scale[i] || (isnan(((float *)scale.p)[i]) && isnan(want_scale[i])));
        CUDA_FREE(n, in, q, scale);
    }
}

/* As a library multiplies them: sums [rows, n] */
static void sums_of(const int8_weight *w, const cuda_buf *q, size_t rows, const cuda_buf *sums) {
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < w->n; j++) {
            int sum = 0;
            for (size_t l = 0; l < w->k; l++)
                sum += ((int8_t *)q->p)[i * w->ldk + l] * ((int8_t *)w->codes.p)[j * w->ldk + l];
            ((int *)sums->p)[i * w->n + j] = sum;
        }
}

/* out [rows, n] = rows of codes w^T, by the v-th variant. The weight is cut into up to three, which one launch multiplies. */
static void int8_product(rnd *r, size_t v, const cuda_buf *n_rows, uint32_t rows, const cuda_buf *q, const cuda_buf *scale,
                         const int8_weight *w, uint32_t n, const cuda_buf *bias, uint32_t f32, cuda_buf *out) {
    const size_t outputs = TD_CUDA_TILE_N * variants[v].tiles, item = f32 ? 4 : 2;
    uint32_t     ldk = (uint32_t)w->ldk, at[4] = {0, n, n, n}, of[3];
    size_t       blocks = 0;
    void        *codes[3], *scales[3], *biases[3], *outs[3];
    for (int i = 1; i < 3 && rnd_range(r, 0, 1); i++) at[i] = (uint32_t)rnd_range(r, at[i - 1], n);
    for (int i = 0; i < 3; i++) {
        of[i] = at[i + 1] - at[i];
        blocks += cuda_up(of[i], outputs);
        codes[i] = (int8_t *)w->codes.p + (size_t)at[i] * ldk;
        scales[i] = (float *)w->scale.p + at[i];
        biases[i] = bias ? (float *)bias->p + at[i] : NULL;
        outs[i] = (char *)out->p + (size_t)at[i] * rows * item;
    }
    cuda_run(
        variants[v].plain, cuda_grid(cuda_up(rows, variants[v].rows), blocks, 1, TD_CUDA_LINEAR_THREADS, 0), CUDA_OUT(*out),
        CUDA_ARGS(&n_rows->p, &q->p, &scale->p, &ldk, &f32, &codes[0], &scales[0], &biases[0], &of[0], &outs[0], &codes[1],
                  &scales[1], &biases[1], &of[1], &outs[1], &codes[2], &scales[2], &biases[2], &of[2], &outs[2]));
    FREED char *parts = malloc((size_t)rows * n * item);
    memcpy(parts, out->p, (size_t)rows * n * item);
    for (int i = 0; i < 3; i++)
        for (size_t row = 0; row < rows; row++)
            memcpy((char *)out->p + (row * n + at[i]) * item, parts + (at[i] * (size_t)rows + row * of[i]) * item,
                   of[i] * item);
}

/* Every variant gives the bits of the host's linear, at any number of rows. */
TEST(int8_linears) {
    rnd r = rnd_open("cuda w8a8");
    for (int round = 0; round < 8; round++) {
        uint32_t n = (uint32_t)rnd_range(&r, 1, 150), k = (uint32_t)rnd_range(&r, 1, round == 0 ? 1500 : 300), zero = 0,
                 one = 1, rows = (uint32_t)rnd_range(&r, 1, round & 1 ? 70 : 9);
        bool                  biased = round & 2;
        AT_END(rig_close) rig g = rig_open(2, TD_DT_BF16, false);
        int8_weight           w = int8_weight_make(&g, &r, n, k);
        uint32_t              ldk = (uint32_t)w.ldk;
        FREED float          *x = rnd_array(&r, (size_t)rows * k, 1), *bias = rnd_array(&r, n, 1);
        cuda_buf              nb = cuda_word(rows), xb = cuda_bf16(x, (size_t)rows * k), q = cuda_alloc((size_t)rows * ldk),
                 scale = cuda_alloc(rows * 4), bb = cuda_copy(bias, n * 4), out = cuda_alloc((size_t)rows * n * 2),
                 floats = cuda_alloc((size_t)rows * n * 4), sums = cuda_alloc((size_t)rows * n * 4);
        FREED void    *hout = act_array(g.act, NULL, (size_t)rows * n);
        td_npu_weight *hb = make_weight(&g, TD_WEIGHT_F32, bias, 0, n);
        td_npu_block  *b = make_block(
             &g,
             &(td_block_desc){.kind = TD_BLOCK_LINEAR,
                              .max_tok = rows,
                              .linear = {.n = n, .k = k, .w = w.host, .bias = biased ? hb : NULL, .in = xb.p, .out = hout}});
        run_rows(&g, b, rows);
        cuda_run(&td_cuda_kernel_td_quantize_bf16_short, cuda_grid(rows, 1, 1, TD_CUDA_SHORT_THREADS, 0), CUDA_OUT(q, scale),
                 CUDA_ARGS(&nb.p, &xb.p, &k, &k, &q.p, &ldk, &scale.p));
        for (size_t v = 0; v < VARIANTS; v++) {
            int8_product(&r, v, &nb, rows, &q, &scale, &w, n, biased ? &bb : NULL, zero, &out);
            assert_same_bits(variants[v].plain->name, out.p, hout, (size_t)rows * n * 2, 2);
        }
        sums_of(&w, &q, rows, &sums);
        memset(out.p, 0, out.bytes);
        for (uint32_t first = 0, stretch = (uint32_t)rnd_range(&r, 1, rows); first < rows; first += stretch) {
            const void *from = (int *)sums.p + (size_t)first * n;
            uint32_t    most = rows - first < stretch ? rows - first : stretch;
            for (int f32 = 0; f32 < 2; f32++)
                cuda_run(&td_cuda_kernel_td_w8a8_epilogue, cuda_grid(cuda_up(n, 256), most, 1, 256, 0),
                         CUDA_OUT(f32 ? floats : out),
                         CUDA_ARGS(&nb.p, &first, &from, CUDA_NULL, &scale.p, &w.scale.p, CUDA_NULL,
                                   biased ? &bb.p : CUDA_NULL, &n, f32 ? &floats.p : &out.p, f32 ? &one : &zero));
        }
        assert_same_bits("td_w8a8_epilogue", out.p, hout, (size_t)rows * n * 2, 2);
        for (size_t i = 0; i < (size_t)rows * n; i++)
            assert_int_equal(td_f32_to_bf16(((float *)floats.p)[i]), ((td_bf16 *)hout)[i]);
        int8_weight_free(&g, &w);
        CUDA_FREE(nb, xb, q, scale, bb, out, floats, sums);
    }
}

/* The gated MLP in int8, from codes to codes: the bits of the host's block. */
TEST(int8_mlps) {
    rnd r = rnd_open("cuda w8a8 mlp");
    for (int round = 0; round < 4; round++) {
        uint32_t h = (uint32_t)rnd_range(&r, 2, 200), inter = (uint32_t)rnd_range(&r, 2, 260),
                 rows = (uint32_t)rnd_range(&r, 1, 12), zero = 0, one = 1;
        AT_END(rig_close) rig g = rig_open(2, TD_DT_BF16, false);
        int8_weight           gate = int8_weight_make(&g, &r, inter, h), up = int8_weight_make(&g, &r, inter, h),
                    down = int8_weight_make(&g, &r, h, inter);
        uint32_t     ldh = (uint32_t)gate.ldk, ldi = (uint32_t)down.ldk;
        FREED float *x = rnd_array(&r, (size_t)rows * h, 4);
        cuda_buf     n = cuda_word(rows), xb = cuda_bf16(x, (size_t)rows * h), q = cuda_alloc((size_t)rows * ldh),
                 scale = cuda_alloc(rows * 4), act = cuda_alloc((size_t)rows * inter * 4),
                 two[2] = {cuda_alloc((size_t)rows * inter * 4), cuda_alloc((size_t)rows * inter * 4)},
                 q2 = cuda_alloc((size_t)rows * ldi), q3 = cuda_alloc((size_t)rows * ldi), scale2 = cuda_alloc(rows * 4),
                 scale3 = cuda_alloc(rows * 4), out = cuda_alloc((size_t)rows * h * 2);
        FREED void   *hout = act_array(g.act, NULL, (size_t)rows * h);
        td_npu_block *b = make_block(&g, &BLOCK_OF(TD_BLOCK_MLP, rows, mlp, .hidden = h, .inter = inter, .gate = gate.host,
                                                   .up = up.host, .down = down.host, .in = xb.p, .out = hout));
        run_rows(&g, b, rows);
        cuda_run(&td_cuda_kernel_td_quantize_bf16_short, cuda_grid(rows, 1, 1, TD_CUDA_SHORT_THREADS, 0), CUDA_OUT(q, scale),
                 CUDA_ARGS(&n.p, &xb.p, &h, &h, &q.p, &ldh, &scale.p));
        for (size_t v = 0; v < VARIANTS; v++) {
            cuda_run(variants[v].swiglu,
                     cuda_grid(cuda_up(rows, variants[v].rows), cuda_up(inter, 8 * variants[v].tiles), 1,
                               TD_CUDA_LINEAR_THREADS, 0),
                     CUDA_OUT(act),
                     CUDA_ARGS(&n.p, &q.p, &scale.p, &ldh, &gate.codes.p, &gate.scale.p, &up.codes.p, &up.scale.p, &inter,
                               &act.p));
            cuda_run(&td_cuda_kernel_td_quantize_f32_short, cuda_grid(rows, 1, 1, TD_CUDA_SHORT_THREADS, 0),
                     CUDA_OUT(q2, scale2), CUDA_ARGS(&n.p, &act.p, &inter, &inter, &q2.p, &ldi, &scale2.p));
            int8_product(&r, v, &n, rows, &q2, &scale2, &down, h, NULL, zero, &out);
            assert_same_bits(variants[v].swiglu->name, out.p, hout, (size_t)rows * h * 2, 2);
        }
        cuda_buf gated = cuda_alloc((size_t)rows * inter * 4),
                 sums[2] = {cuda_alloc((size_t)rows * inter * 4), cuda_alloc((size_t)rows * inter * 4)};
        for (int i = 0; i < 2; i++) sums_of(i ? &up : &gate, &q, rows, &sums[i]);
        cuda_run(&td_cuda_kernel_td_w8a8_epilogue, cuda_grid(cuda_up(inter, 256), rows, 1, 256, 0), CUDA_OUT(gated),
                 CUDA_ARGS(&n.p, &zero, &sums[0].p, &sums[1].p, &scale.p, &gate.scale.p, &up.scale.p, CUDA_NULL, &inter,
                           &gated.p, &one));
        assert_same_bits("td_w8a8_epilogue, gated", gated.p, act.p, (size_t)rows * inter * 4, 4);
        CUDA_FREE(gated, sums[0], sums[1]);
        for (int i = 0; i < 2; i++) int8_product(&r, 1, &n, rows, &q, &scale, i ? &up : &gate, inter, NULL, one, &two[i]);
        for (int is_short = 0; is_short < 2; is_short++) {
            cuda_run(is_short ? &td_cuda_kernel_td_glu_quantize_short : &td_cuda_kernel_td_glu_quantize,
                     cuda_grid(rows, 1, 1, is_short ? TD_CUDA_SHORT_THREADS : TD_CUDA_ROW_THREADS, 0), CUDA_OUT(q3, scale3),
                     CUDA_ARGS(&n.p, &two[0].p, &two[1].p, &inter, &(float){1}, &(float){INFINITY}, &(float){0}, &q3.p, &ldi,
                               &scale3.p));
            assert_same_bits("td_glu_quantize", q3.p, q2.p, (size_t)rows * ldi, 1);
            assert_same_bits("td_glu_quantize's scale", scale3.p, scale2.p, rows * 4, 4);
        }
        int8_weight_free(&g, &gate), int8_weight_free(&g, &up), int8_weight_free(&g, &down);
        CUDA_FREE(n, xb, q, scale, act, two[0], two[1], q2, q3, scale2, scale3, out);
    }
}

/* silu(gate) * up is the CPU tier's to the bit, before anything is rounded: gates of every size, and what is no number. */
TEST(gated_values) {
    enum { N = 40000 };
    static const float ODD[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 1e-42f, -1e-42f, 88.02f, 88.1f, 87.33f, 87.4f, -88.5f};
    rnd                r = rnd_open("cuda gated values");
    const td_glu       silu = {0};
    uint32_t           zero = 0, one = 1, n = N;
    float             *gate = rnd_array(&r, N, 1), *up = rnd_array(&r, N, 3), *want = malloc(N * sizeof *want), unit = 1;
    for (size_t i = 0; i < N; i++) gate[i] = ldexpf(gate[i], (int)(i % 14) - 6); /* up to 128 */
    memcpy(gate, ODD, sizeof ODD);
    cuda_buf rows = cuda_word(1), g = cuda_copy(gate, N * sizeof *gate), u = cuda_copy(up, N * sizeof *up),
             x = cuda_copy(&unit, sizeof unit), sums = cuda_alloc(N * sizeof(int)), out = cuda_alloc(N * sizeof(float));
    for (size_t i = 0; i < N; i++) ((int *)sums.p)[i] = 1; /* times its scale */
    cuda_run(&td_cuda_kernel_td_w8a8_epilogue, cuda_grid(cuda_up(N, 256), 1, 1, 256, 0), CUDA_OUT(out),
             CUDA_ARGS(&rows.p, &zero, &sums.p, &sums.p, &x.p, &g.p, &u.p, CUDA_NULL, &n, &out.p, &one));
    td_kernels_scalar.rows->glu(&silu, gate, up, 1, N, want, N);
    for (size_t i = 0; i < N; i++) {
        float got = ((float *)out.p)[i];
        if (!(isnan(got) && isnan(want[i])) && memcmp(&got, want + i, sizeof got) != 0)
            fail_msg("silu(%.9g) * %.9g is %.9g, not %.9g", (double)gate[i], (double)up[i], (double)got, (double)want[i]);
    }
    CUDA_FREE(rows, g, u, x, sums, out);
    free(gate), free(up), free(want);
}

/* What measures a card's bounds does all of it: every word is read once, every product is done. */
TEST(bound_reads) {
    rnd r = rnd_open("cuda bound read");
    for (int round = 0; round < 4; round++) {
        uint32_t n = (uint32_t)rnd_range(&r, 1, 9000), blocks = (uint32_t)rnd_range(&r, 1, 3), want = 0, got = 0;
        cuda_buf from = cuda_alloc((size_t)n * 16), out = cuda_alloc((size_t)blocks * TD_CUDA_BOUND_THREADS * 4);
        for (size_t i = 0; i < (size_t)n * 4; i++) want ^= ((uint32_t *)from.p)[i] = (uint32_t)rnd_u64(&r);
        cuda_run(&td_cuda_kernel_td_bound_read, cuda_grid(blocks, 1, 1, TD_CUDA_BOUND_THREADS, 0), CUDA_OUT(out),
                 CUDA_ARGS(&from.p, &n, &out.p));
        for (size_t i = 0; i < out.bytes / 4; i++) got ^= ((uint32_t *)out.p)[i];
        assert_int_equal(got, want);
        CUDA_FREE(from, out);
    }
}

static uint32_t bound_operand(uint32_t lane, uint32_t i) {
    return (lane * 6 + i + 1) * UINT32_C(2654435761);
}

/* The sum of all elements of A B is the sum over k of (the sum of A's column k) * (the sum of B's row k). Where an element
 * of an operand lies: PTX ISA, "Matrix fragments for mma". */
static long bound_product_sum(bool int8) {
    long columns[32] = {0}, rows[32] = {0}, sum = 0;
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t i = 0; i < 6; i++)
            for (uint32_t e = 0; e < (int8 ? 4u : 2u); e++) {
                uint32_t word = bound_operand(lane, i), far = i < 4 ? i / 2 : i - 4;
                uint32_t k = int8 ? far * 16 + lane % 4 * 4 + e : far * 8 + lane % 4 * 2 + e;
                long     v = int8 ? (long)(word >> 8 * e & 3) : (word >> (16 * e + 15) & 1 ? -1 : 1);
                *(i < 4 ? &columns[k] : &rows[k]) += v;
            }
    for (int k = 0; k < 32; k++) sum += columns[k] * rows[k];
    return sum;
}

TEST(bound_products) {
    const struct {
        const td_cuda_kernel *kernel;
        bool                  int8;
    } kinds[] = {{&td_cuda_kernel_td_bound_int8, true}, {&td_cuda_kernel_td_bound_bf16, false}};
    for (size_t i = 0; i < 2; i++)
        for (uint32_t rounds = 0; rounds < 4; rounds++) {
            long     want = bound_product_sum(kinds[i].int8) * rounds * TD_CUDA_BOUND_CHAINS;
            cuda_buf out = cuda_alloc(TD_CUDA_BOUND_THREADS * 4);
            cuda_run(kinds[i].kernel, cuda_grid(1, 1, 1, TD_CUDA_BOUND_THREADS, 0), CUDA_OUT(out),
                     CUDA_ARGS(&rounds, &out.p));
            assert_true(!rounds || want != 0);
            for (size_t warp = 0; warp < TD_CUDA_BOUND_THREADS / 32; warp++) {
                long got = 0;
                for (size_t t = warp * 32; t < warp * 32 + 32; t++)
                    got += kinds[i].int8 ? ((int *)out.p)[t] : (long)((float *)out.p)[t];
                assert_int_equal(got, want);
            }
            CUDA_FREE(out);
        }
}
