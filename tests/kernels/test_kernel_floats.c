/*
 * Every W8A8 kernel of this machine's tiers against plain integer sums, bit for bit; the float tables against double
 * precision, and against themselves in other tiles, bit for bit. All buffers end at a page that faults.
 */
#include "tests/npu/npu_test_util.h"

#include "tests/kernels/kernel_tables.h"

/* ---- W8A8 --------------------------------------------------------------------------------------- */

/* Their products are not numbers, infinite, zeros of both signs, subnormal, or just too large. */
static const float SCALES[] = {NAN, INFINITY, -0.0f, 1e-43f, -1e-40f, 3e38f};

static void check_w8a8(const td_w8a8_kernel *kernel, rnd *r, size_t m, size_t n, size_t k, td_dtype out_dtype, bool bias) {
    size_t panels = td_w8a8_panels(kernel, n), panel_bytes = td_w8a8_panel_bytes(kernel, k), ldx = (k + 7) / 8 * 8,
           ldo = n + 3;
    size_t element = td_dtype_bytes(out_dtype);
    fenced x = fence(m * ldx), w = fence(panels * panel_bytes), sw = fence(panels * kernel->nr * 4),
           out = fence((m * ldo - 3) * element);
    fenced  sx = fence(m * 4), sum = fence(m * 4), b = fence(n * 4), q = fence(n * k);
    int8_t *xs = x.p, *qs = q.p;
    memset(xs, 0, m * ldx);
    for (size_t i = 0; i < n * k; i++) qs[i] = (int8_t)(rnd_u64(r) & 255); /* all of int8 */
    for (size_t i = 0; i < m; i++) {
        bool extreme = i % 3 == 0;
        ((float *)sx.p)[i] = i % 5 == 4 ? SCALES[rnd_range(r, 0, sizeof SCALES / sizeof SCALES[0] - 1)] : rnd_real(r);
        ((int32_t *)sum.p)[i] = 0;
        for (size_t l = 0; l < k; l++) {
            xs[i * ldx + l] = (int8_t)(extreme ? (rnd_u64(r) & 1 ? 127 : -127) : (int)rnd_range(r, 0, 254) - 127);
            ((int32_t *)sum.p)[i] += xs[i * ldx + l];
        }
    }
    for (size_t j = 0; j < panels * kernel->nr; j++) ((float *)sw.p)[j] = rnd_real(r);
    for (size_t j = 0; j < n; j++) ((float *)b.p)[j] = rnd_real(r) * 1000;
    for (size_t p = 0; p < panels; p++) {
        size_t row = p * kernel->nr;
        td_w8a8_pack(kernel, (char *)w.p + p * panel_bytes, qs + row * k, k, n - row < kernel->nr ? n - row : kernel->nr, k);
    }
    td_w8a8_args a = {.m = m,
                      .n = n,
                      .k = k,
                      .x = xs,
                      .ldx = ldx,
                      .sx = sx.p,
                      .x_sum = sum.p,
                      .w = w.p,
                      .sw = sw.p,
                      .bias = bias ? b.p : NULL,
                      .out = out.p,
                      .ldo = ldo,
                      .out_dtype = out_dtype};
    size_t       cut = rnd_range(r, 0, panels); /* two items */
    a.panel_end = cut;
    kernel->run(&a);
    a.panel_begin = cut;
    a.panel_end = panels;
    kernel->run(&a);
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++) {
            int64_t s = 0;
            for (size_t l = 0; l < k; l++) s += (int64_t)qs[j * k + l] * xs[i * ldx + l];
            float y = (float)(int32_t)s * ((float *)sx.p)[i] * ((float *)sw.p)[j];
            if (bias) y += ((float *)b.p)[j];
            bool same = out_dtype == TD_DT_F32 ? !memcmp((float *)out.p + i * ldo + j, &y, 4)
                                               : ((td_bf16 *)out.p)[i * ldo + j] == td_f32_to_bf16(y);
            if (!same) fail_msg("%s: m %zu n %zu k %zu differs at row %zu, column %zu", kernel->name, m, n, k, i, j);
        }
        for (size_t c = 0; i + 1 < m && c < 3 * element; c++) /* between rows nothing is written */
            assert_int_equal(((unsigned char *)out.p)[(i * ldo + n) * element + c], 0x5a);
    }
    fenced *all[] = {&x, &w, &sw, &out, &sx, &sum, &b, &q};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) unfence(all[i]);
}

static void w8a8_kernels_are_exact(void **state) {
    (void)state;
    rnd r = rnd_open("w8a8 kernels");
    EACH_BUILT(t, w8a8) {
        const td_w8a8_kernel *k = t->w8a8;
        if (!may_run(t)) {
            print_message("  %s skipped: not on this CPU, or masked\n", k->name);
            continue;
        }
        print_message("  %s\n", k->name);
        for (size_t m = 1; m <= 30; m++)
            check_w8a8(k, &r, m, rnd_range(&r, 1, 70), rnd_range(&r, 1, 90), m & 1 ? TD_DT_F32 : TD_DT_BF16, m & 2);
        for (int i = 0; i < 20; i++)
            check_w8a8(k, &r, rnd_range(&r, 1, 60), rnd_range(&r, 1, 130), rnd_range(&r, 1, 300),
                       i & 1 ? TD_DT_F32 : TD_DT_BF16, i & 2);
        for (int i = 0; i < 4; i++) /* several blocks of everything */
            check_w8a8(k, &r, rnd_range(&r, 90, 210), rnd_range(&r, 100, 300), rnd_range(&r, 500, 1100),
                       i & 1 ? TD_DT_F32 : TD_DT_BF16, i & 2);
        check_w8a8(k, &r, 3, 33, 20000, TD_DT_F32, false);
    }
}

/* Sums beyond 2^24 and at the edge of int32 stay exact before they become floats. */
static void w8a8_kernels_hold_the_largest_sums(void **state) {
    (void)state;
    enum { ROWS = 16 }; /* from there on they are tiles' */
    size_t k = TD_W8A8_K_MAX;
    EACH_TABLE(t, w8a8) {
        const td_w8a8_kernel *kernel = t->w8a8;
        for (int trial = 0; trial < 8; trial++) {
            int     sign = trial & 1 ? 1 : -1, weight = trial & 2 ? 127 : -128;
            size_t  m = trial & 4 ? ROWS : 1;
            int8_t *w = malloc(k), *x = malloc(m * k);
            void   *panel = malloc(td_w8a8_panel_bytes(kernel, k));
            float   sw[TD_W8A8_NR_MAX] = {1}, sx[ROWS], out[ROWS] = {0};
            int32_t sum[ROWS];
            memset(w, weight, k);
            memset(x, 127 * sign, m * k);
            for (size_t i = 0; i < m; i++) sx[i] = 1, sum[i] = 127 * sign * (int32_t)k;
            td_w8a8_pack(kernel, panel, w, k, 1, k);
            kernel->run(&(td_w8a8_args){.m = m,
                                        .n = 1,
                                        .k = k,
                                        .x = x,
                                        .ldx = k,
                                        .sx = sx,
                                        .x_sum = sum,
                                        .w = panel,
                                        .sw = sw,
                                        .out = out,
                                        .ldo = 1,
                                        .out_dtype = TD_DT_F32,
                                        .panel_end = 1});
            for (size_t i = 0; i < m; i++) assert_true(out[i] == (float)(weight * 127 * (int64_t)sign * (int64_t)k));
            free(w), free(x), free(panel);
        }
    }
}

/* ---- float -------------------------------------------------------------------------------------- */

static void fill(rnd *r, fenced *f, size_t n, td_dtype dtype) {
    for (size_t i = 0; i < n; i++) {
        float v = rnd_real(r);
        if (dtype == TD_DT_BF16)
            ((td_bf16 *)f->p)[i] = td_f32_to_bf16(v);
        else
            ((float *)f->p)[i] = v;
    }
}

static void products_agree_in_every_tile(void **state) {
    (void)state;
    rnd                  r = rnd_open("float products");
    const td_float_math *math = td_kernels_here()->math;
    print_message("  %s\n", math->name);
    for (int round = 0; round < 120; round++) {
        td_dtype dtype = round & 1 ? TD_DT_BF16 : TD_DT_F32;
        size_t m = rnd_range(&r, 1, 40), n = rnd_range(&r, 1, 150), k = rnd_range(&r, 1, 120), ldb = n + (round & 2 ? 5 : 0);
        fenced a = fence(m * k * 4), b = fence(((k - 1) * ldb + n) * td_dtype_bytes(dtype)), c = fence(m * n * 4),
               one = fence(n * 4);
        fill(&r, &a, m * k, TD_DT_F32);
        fill(&r, &b, (k - 1) * ldb + n, dtype);
        fill(&r, &c, m * n, TD_DT_F32);
        float *before = malloc(m * n * sizeof *before);
        memcpy(before, c.p, m * n * sizeof *before);
        td_fgemm_args g = {.m = m,
                           .n = n,
                           .k = k,
                           .a = a.p,
                           .lda = k,
                           .b = b.p,
                           .ldb = ldb,
                           .b_dtype = dtype,
                           .accumulate = round & 4,
                           .c = c.p,
                           .ldc = n};
        math->gemm(&g);
        for (size_t i = 0; i < m; i++)
            for (size_t j = 0; j < n; j++) {
                double want = round & 4 ? (double)before[i * n + j] : 0, size = fabs(want);
                for (size_t l = 0; l < k; l++) {
                    double p = (double)((float *)a.p)[i * k + l] * act_get(dtype, b.p, l * ldb + j);
                    want += p;
                    size += fabs(p);
                }
                /* k roundings, each of at most half an ulp of a partial sum that is at most `size` */
                assert_true(fabs((double)((float *)c.p)[i * n + j] - want) <= (double)(k + 1) * 6e-8 * size);
            }
        for (size_t i = 0; i < m; i++) { /* a row alone, and its columns in two parts */
            size_t cut = rnd_range(&r, 0, n);
            memcpy(one.p, before + i * n, n * sizeof *before);
            for (int part = 0; part < 2; part++) {
                td_fgemm_args h = g;
                size_t        from = part ? cut : 0;
                h.m = 1;
                h.n = part ? n - cut : cut;
                h.a = (float *)a.p + i * k;
                h.b = (char *)b.p + from * td_dtype_bytes(dtype);
                h.c = (float *)one.p + from;
                math->gemm(&h);
            }
            assert_memory_equal(one.p, (float *)c.p + i * n, n * 4);
        }
        free(before);
        fenced *all[] = {&a, &b, &c, &one};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) unfence(all[i]);
    }
}

static void transposes(void **state) {
    (void)state;
    rnd                  r = rnd_open("transpose");
    const td_float_math *math = td_kernels_here()->math;
    for (int round = 0; round < 60; round++) {
        td_dtype dtype = round & 1 ? TD_DT_BF16 : TD_DT_F32;
        size_t   rows = rnd_range(&r, 1, TD_ATTN_TILE), cols = rnd_range(&r, 1, 90), ld = cols + (round & 2 ? 3 : 0);
        fenced   src = fence(((rows - 1) * ld + cols) * td_dtype_bytes(dtype));
        size_t   stride = (cols + rnd_range(&r, 0, 4)) * TD_ATTN_PANEL;
        fenced   dst = fence(((rows - 1) / TD_ATTN_PANEL * stride + cols * TD_ATTN_PANEL) * 4);
        fill(&r, &src, (rows - 1) * ld + cols, dtype);
        math->transpose(dst.p, stride, dtype, src.p, ld, rows, cols);
        for (size_t i = 0; i < rows; i++)
            for (size_t c = 0; c < cols; c++)
                assert_true((double)((float *)dst.p)[i / TD_ATTN_PANEL * stride + c * TD_ATTN_PANEL + i % TD_ATTN_PANEL] ==
                            act_get(dtype, src.p, i * ld + c));
        unfence(&src), unfence(&dst);
    }
}

/* Elementwise: 3e-7 relative for exp, and an element's bits do not depend on where in the array it stands. */
static void elementwise(void **state) {
    (void)state;
    rnd                  r = rnd_open("elementwise");
    const td_float_math *math = td_kernels_here()->math;
    for (size_t n = 1; n < 80; n++) {
        fenced x = fence(n * 4), y = fence(n * 4), z = fence(n * 4), tail = fence(4);
        float *xs = x.p, *ys = y.p, *zs = z.p, *t = tail.p, shift = rnd_real(&r) * 3;
        double sum = 0;
        for (size_t i = 0; i < n; i++) xs[i] = rnd_real(&r) * (i % 5 == 0 ? 90 : 5), ys[i] = rnd_real(&r);

        memcpy(zs, xs, n * 4);
        for (size_t i = 0; i < n; i++) sum += exp((double)(xs[i] - shift));
        float got = math->exp_sum(zs, shift, n);
        assert_true(sum > 1e37 || fabs((double)got - sum) <= 1e-6 * sum + 1e-37);
        for (size_t i = 0; i < n; i++) {
            double want = exp((double)(xs[i] - shift));
            if (want > 1e37 || want < 2e-38) continue; /* saturates; flushes to 0 */
            assert_true(fabs((double)zs[i] - want) <= 3e-7 * want);
            *t = xs[i];
            math->exp_sum(t, shift, 1);
            assert_memory_equal(t, zs + i, 4);
        }
        memcpy(zs, xs, n * 4);
        td_kernels_here()->rows->silu_mul(zs, ys, 1, n, zs, n);
        for (size_t i = 0; i < n; i++) {
            double want = (double)xs[i] / (1 + exp(-(double)xs[i])) * (double)ys[i];
            assert_true(fabs((double)zs[i] - want) <= 1e-6 * fabs(want) + 1e-30);
        }
        memcpy(zs, xs, n * 4);
        math->sigmoid(zs, n);
        for (size_t i = 0; i < n; i++) assert_true(fabs((double)zs[i] - 1 / (1 + exp(-(double)xs[i]))) <= 1e-6);

        double dot = 0, size = 0;
        for (size_t i = 0; i < n; i++) dot += (double)xs[i] * (double)ys[i], size += fabs((double)xs[i] * (double)ys[i]);
        assert_true(fabs((double)math->dot(xs, ys, n) - dot) <= 1e-6 * size);
        unfence(&x), unfence(&y), unfence(&z), unfence(&tail);
    }
    float nan[3] = {NAN, 1, NAN};
    math->exp_sum(nan, 0, 3);
    assert_true(isnan(nan[0]) && !isnan(nan[1]) && isnan(nan[2]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(w8a8_kernels_are_exact),
        cmocka_unit_test(w8a8_kernels_hold_the_largest_sums),
        cmocka_unit_test(products_agree_in_every_tile),
        cmocka_unit_test(transposes),
        cmocka_unit_test(elementwise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
