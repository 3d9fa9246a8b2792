/*
 * W8A8, which is int8c over a matrix' tiles, of every tier that this machine has, compared with plain integer sums, bit for
 * bit. The float tables are compared with double precision, and with themselves in other tiles, bit for bit. All buffers end
 * at a page that faults.
 */
#include "tests/npu/npu_test_util.h"
#include "tests/td_test.h"

#include "tests/kernels/kernel_tables.h"

/* ---- W8A8 --------------------------------------------------------------------------------------- */

/* Their products are not numbers, infinite, zeros of both signs, subnormal, or just too large. */
static const float SCALES[] = {NAN, INFINITY, -0.0f, 1e-43f, -1e-40f, 3e38f};

/* The tiles of a matrix of int8 codes q [n, k] with scales sw [n], k padded; both end at a fence. */
static fenced pack_tiles(const td_tile_layout *tiles, const int8_t *q, const float *sw, size_t n, size_t k) {
    size_t        padded = (k + tiles->kr - 1) / tiles->kr * tiles->kr, bytes = td_tile_bytes(tiles, padded, NULL);
    fenced        w = fence((n + tiles->nr - 1) / tiles->nr * bytes);
    FREED int8_t *rows = malloc(tiles->nr * padded);
    for (size_t first = 0; first < n; first += tiles->nr) {
        float scale[TD_GEMM_NR_MAX] = {0};
        memset(rows, 0, tiles->nr * padded);
        for (size_t i = 0; i < tiles->nr && first + i < n; i++) {
            memcpy(rows + i * padded, q + (first + i) * k, k);
            scale[i] = sw[first + i];
        }
        td_tile_pack(tiles, (char *)w.p + first / tiles->nr * bytes, &(td_gemm_weights){.rows = rows, .scale = scale},
                     padded, NULL);
    }
    return w;
}

static void check_w8a8(const td_gemm_kernel *kernel, rnd *r, size_t m, size_t n, size_t k, td_dtype out_dtype, bool bias) {
    const td_tile_layout *tiles = kernel->tiles;
    size_t padded = (k + tiles->kr - 1) / tiles->kr * tiles->kr, n_tiles = (n + tiles->nr - 1) / tiles->nr, ldo = n + 3;
    size_t element = td_dtype_bytes(out_dtype);
    fenced x = fence(m * padded), sw = fence(n * 4), out = fence((m * ldo - 3) * element), b = fence(n * 4),
           q = fence(n * k);
    int8_t            *xs = x.p, *qs = q.p;
    FREED td_gemm_row *rows = calloc(m, sizeof *rows);
    memset(xs, 0, m * padded);
    for (size_t i = 0; i < n * k; i++) qs[i] = (int8_t)(rnd_u64(r) & 255); /* all of int8 */
    for (size_t i = 0; i < m; i++) {
        bool extreme = i % 3 == 0;
        rows[i] =
            (td_gemm_row){.x = xs + i * padded,
                          .scale = i % 5 == 4 ? SCALES[rnd_range(r, 0, sizeof SCALES / sizeof SCALES[0] - 1)] : rnd_real(r)};
        for (size_t l = 0; l < k; l++)
            rows[i].sum += xs[i * padded + l] =
                (int8_t)(extreme ? (rnd_u64(r) & 1 ? 127 : -127) : (int)rnd_range(r, 0, 254) - 127);
    }
    for (size_t j = 0; j < n; j++) ((float *)sw.p)[j] = rnd_real(r);
    for (size_t j = 0; j < n; j++) ((float *)b.p)[j] = rnd_real(r) * 1000;
    fenced       w = pack_tiles(tiles, qs, sw.p, n, k);
    size_t       cut = rnd_range(r, 0, n_tiles); /* two items */
    td_gemm_args a = WITH(td_gemm_args, .tile = w.p, .n_tiles = cut, .k = padded, .m = m, .rows = rows,
                          .end = {.n = n, .bias = bias ? b.p : NULL, .out = out.p, .ld = ldo, .dtype = out_dtype});
    if (a.n_tiles) kernel->run(&a);
    a.tile = (char *)w.p + cut * td_tile_bytes(tiles, padded, NULL);
    a.n_tiles = n_tiles - cut;
    a.end.column = cut * tiles->nr;
    if (a.n_tiles) kernel->run(&a);
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++) {
            int64_t s = 0;
            for (size_t l = 0; l < k; l++) s += (int64_t)qs[j * k + l] * xs[i * padded + l];
            float y = (float)(int32_t)s * ((float *)sw.p)[j] * rows[i].scale;
            if (bias) y += ((float *)b.p)[j];
            bool same = out_dtype == TD_DT_F32 ? !memcmp((float *)out.p + i * ldo + j, &y, 4)
                                               : ((td_bf16 *)out.p)[i * ldo + j] == td_f32_to_bf16(y);
            if (!same) fail_msg("%s: m %zu n %zu k %zu differs at row %zu, column %zu", kernel->name, m, n, k, i, j);
        }
        for (size_t c = 0; i + 1 < m && c < 3 * element; c++) /* between rows nothing is written */
            assert_int_equal(((unsigned char *)out.p)[(i * ldo + n) * element + c], 0x5a);
    }
    fenced *all[] = {&x, &w, &sw, &out, &b, &q};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) unfence(all[i]);
}

TEST(w8a8_is_exact) {
    rnd r = rnd_open("W8A8");
    EACH_BUILT(t, product[TD_PRODUCT_INT8C]) {
        const td_gemm_kernel *k = t->product[TD_PRODUCT_INT8C];
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

/* Sums beyond 2^24 and at the edge of int32 stay exact before they become floats; of one tile and of as many as are
 * multiplied together. */
TEST(w8a8_holds_the_largest_sums) {
    enum { ROWS = 16, N_MOST = 4 * TD_GEMM_NR_MAX }; /* from so many rows on they are tiles' */
    size_t k = TD_INT8C_K_MAX;
    EACH_TABLE(t, product[TD_PRODUCT_INT8C]) {
        const td_gemm_kernel *kernel = t->product[TD_PRODUCT_INT8C];
        for (int trial = 0; trial < 8; trial++) {
            int         sign = trial & 1 ? 1 : -1, weight = trial & 2 ? 127 : -128;
            size_t      m = trial & 4 ? ROWS : 1, n = trial & 4 ? 4u * kernel->tiles->nr : 1;
            int8_t     *w = malloc(n * k), *x = malloc(m * k);
            float       sw[N_MOST], out[ROWS * N_MOST] = {0};
            td_gemm_row rows[ROWS];
            memset(w, weight, n * k);
            memset(x, 127 * sign, m * k);
            for (size_t j = 0; j < n; j++) sw[j] = 1;
            for (size_t i = 0; i < m; i++)
                rows[i] = (td_gemm_row){.x = x + i * k, .scale = 1, .sum = 127 * sign * (int32_t)k};
            fenced tiles = pack_tiles(kernel->tiles, w, sw, n, k);
            kernel->run(&WITH(td_gemm_args, .tile = tiles.p, .n_tiles = (n + kernel->tiles->nr - 1) / kernel->tiles->nr,
                              .k = k, .m = m, .rows = rows, .end = {.n = n, .out = out, .ld = n, .dtype = TD_DT_F32}));
            for (size_t i = 0; i < m * n; i++) assert_true(out[i] == (float)(weight * 127 * (int64_t)sign * (int64_t)k));
            free(w), free(x), unfence(&tiles);
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

TEST(products_agree_in_every_tile) {
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
        FREED float *before = malloc(m * n * sizeof *before);
        memcpy(before, c.p, m * n * sizeof *before);
        td_fgemm_args g = WITH(td_fgemm_args, .m = m, .n = n, .k = k, .a = a.p, .lda = k, .b = b.p, .ldb = ldb,
                               .b_dtype = dtype, .accumulate = round & 4, .c = c.p, .ldc = n);
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
        fenced *all[] = {&a, &b, &c, &one};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) unfence(all[i]);
    }
}

TEST(transposes) {
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
TEST(elementwise) {
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
        td_kernels_here()->rows->glu(&(td_glu){0}, zs, ys, 1, n, zs, n);
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

/* A sum over 80 products; a row's bits do not depend on the rows beside it. */
TEST(sums_of_what_is_positive) {
    rnd                  r = rnd_open("sums of what is positive");
    const td_float_math *math = td_kernels_here()->math;
    for (size_t n = 1; n < 80; n++) {
        enum { ROWS = 5 };
        const size_t ld = n + n % 3;
        fenced       s = fence((ROWS * ld - ld + n) * 4), w = fence(n * 4), out = fence(ROWS * 4);
        float       *ss = s.p, *ws = w.p, *got = out.p, alone;
        for (size_t i = 0; i < ROWS * ld - ld + n; i++) ss[i] = rnd_real(&r);
        for (size_t i = 0; i < n; i++) ws[i] = rnd_real(&r);
        ss[n / 2] = NAN;
        math->relu_dot(ss, ld, ROWS, ws, n, got);
        for (size_t i = 0; i < ROWS; i++) {
            double want = 0;
            for (size_t j = 0; j < n; j++) want += ss[i * ld + j] > 0 ? (double)ss[i * ld + j] * (double)ws[j] : 0;
            assert_true(fabs((double)got[i] - want) <= 1e-5);
            math->relu_dot(ss + i * ld, ld, 1, ws, n, &alone);
            assert_memory_equal(&alone, got + i, sizeof alone);
        }
        unfence(&s), unfence(&w), unfence(&out);
    }
}

/* Element (i, j) of Sylvester's matrix is -1 to the number of bits that i and j share. */
TEST(hadamard_matrices) {
    rnd                  r = rnd_open("hadamard matrices");
    const td_float_math *math = td_kernels_here()->math;
    for (size_t n = 1; n <= 256; n = n < 80 ? n + 1 : n == 80 ? 128 : 2 * n) {
        const size_t order = n & -n;
        fenced       x = fence(n * 4), bits = fence(n * 4);
        float       *xs = x.p, *scalar = bits.p;
        FREED float *from = rnd_array(&r, n, 1);
        memcpy(xs, from, n * 4), memcpy(scalar, from, n * 4);
        math->hadamard(xs, n);
        td_kernels_scalar.math->hadamard(scalar, n);
        assert_memory_equal(xs, scalar, n * 4);
        for (size_t i = 0; i < n; i++) {
            double want = 0;
            for (size_t j = 0; j < order; j++)
                want += (__builtin_popcountl(i % order & j) % 2 ? -1 : 1) * (double)from[i / order * order + j];
            assert_true(fabs((double)xs[i] - want / sqrt((double)order)) <= 1e-5);
        }
        unfence(&x), unfence(&bits);
    }
}
