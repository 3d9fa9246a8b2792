/*
 * The tables of 16-bit attention that this machine runs. Each is compared with plain integers, bit for bit. A tile's
 * attention is compared with double precision, within a bound that follows from the roundings. Buffers end at a page that
 * faults.
 */
#include "tests/npu/npu_test_util.h"
#include "tests/td_test.h"

#include "core/memory/mem.h"
#include "tests/kernels/kernel_tables.h"

#define TABLES(k) EACH_TABLE(k##_table, attn16) for (const td_attn16 *k = k##_table->attn16; k; k = NULL)

static int16_t rnd_int16(rnd *r, int most) {
    return (int16_t)((int)rnd_range(r, 0, 2 * (size_t)most) - most);
}

/* ---- products --------------------------------------------------------------------------------- */

typedef struct {
    size_t m, n, pairs;
    enum { PANELS, CROSSED, IN_ROWS } b;
    bool   column, keep;
    size_t used; /* 0: all columns */
} product_shape;

/* Planes of rows, or of panels, one behind the other with gaps. */
static td_attn16_planes planes_of(rnd *r, const td_attn16 *k, size_t n, size_t pairs, fenced *f) {
    const size_t stride = k->planes_bytes(pairs) + 64 * rnd_range(r, 0, 3);
    *f = fence(n * stride);
    assert_int_equal((uintptr_t)f->p % 64, 0);
    return (td_attn16_planes){f->p, stride};
}

static td_attn16_planes planes_of_rows(rnd *r, const td_attn16 *k, const td_attn16_gemm *g, fenced *f) {
    const td_attn16_planes p = planes_of(r, k, (g->m + 15) / 16, g->pairs, f);
    for (size_t i = 0; i < g->m; i += 16)
        k->split_rows(g->a + i * g->lda, g->lda, g->m - i < 16 ? g->m - i : 16, g->pairs, (char *)f->p + i / 16 * p.stride);
    return p;
}

/* Of panels with some pairs more, for which the rows have no elements. */
static td_attn16_planes planes_of_panels(rnd *r, const td_attn16 *k, const td_attn16_gemm *g, fenced *f) {
    const size_t           pairs = g->pairs + rnd_range(r, 0, 70);
    const td_attn16_planes p = planes_of(r, k, g->n / 16, pairs, f);
    fenced                 panel = fence(pairs * 64);
    int16_t               *to = panel.p;
    for (size_t i = 0; i < g->n / 16; i++) {
        memcpy(to, g->b + i * g->panel_stride, g->pairs * 64);
        for (size_t l = g->pairs * 32; l < pairs * 32; l++) to[l] = rnd_int16(r, 32767);
        k->split_panel(to, pairs, (char *)f->p + i * p.stride);
    }
    unfence(&panel);
    return p;
}

/* most: the largest element; 2 * pairs * most^2 must fit into int32. */
static void check_product(const td_attn16 *k, rnd *r, product_shape s, int most) {
    size_t lda = 2 * s.pairs + rnd_range(r, 0, 5), ldc = s.n + rnd_range(r, 0, 3),
           stride = s.pairs * 32 + 16 * rnd_range(r, 0, 2), panels = s.n / 16;
    size_t ldb = s.n + rnd_range(r, 0, 3),
           b_n = s.b == IN_ROWS ? (2 * s.pairs - 1) * ldb + s.n : (panels - 1) * stride + s.pairs * 32;
    fenced   a = fence(((s.m - 1) * lda + 2 * s.pairs) * 2), b = fence(b_n * 2), c = fence(((s.m - 1) * ldc + s.n) * 4);
    fenced   scale = fence(s.m * 4), keep = fence(s.m * 4), column = fence(s.n * 4);
    int16_t *as = a.p, *bs = b.p;
    float   *cs = c.p, *before = malloc(s.m * ldc * sizeof *before);
    for (size_t i = 0; i < (s.m - 1) * lda + 2 * s.pairs; i++)
        as[i] = i % 7 ? rnd_int16(r, most) : (int16_t)(rnd_u64(r) & 1 ? most : -most);
    for (size_t i = 0; i < b_n; i++) bs[i] = i % 5 ? rnd_int16(r, most) : (int16_t)most;
    for (size_t i = 0; i < (s.m - 1) * ldc + s.n; i++) cs[i] = rnd_real(r) * 1e9f;
    for (size_t i = 0; i < s.m; i++) ((float *)scale.p)[i] = rnd_real(r), ((float *)keep.p)[i] = rnd_real(r);
    for (size_t i = 0; i < s.n; i++) ((float *)column.p)[i] = rnd_real(r);
    memcpy(before, cs, ((s.m - 1) * ldc + s.n) * sizeof *before);
    td_attn16_gemm g =
        WITH(td_attn16_gemm, .m = s.m, .n = s.n, .used = s.used, .pairs = s.pairs, .a = as, .lda = lda, .scale = scale.p,
             .b = bs, .panel_stride = stride, .crossed = s.b == CROSSED, .ldb = s.b == IN_ROWS ? ldb : 0,
             .column = s.column ? column.p : NULL, .keep = s.keep ? keep.p : NULL, .c = cs, .ldc = ldc,
             .ahead = rnd_u64(r) & 1 ? (const char *)bs : NULL, .ahead_bytes = 4096);
    fenced a_planes = {0}, b_planes = {0};
    if (k->planes_bytes && s.b != IN_ROWS) { /* those of rows, of panels, of both, of none */
        const size_t which = rnd_range(r, 0, 3);
        if (which & 1) g.a_planes = planes_of_rows(r, k, &g, &a_planes);
        if (which & 2) g.b_planes = planes_of_panels(r, k, &g, &b_planes);
    }
    k->gemm(&g);
    for (size_t i = 0; i < s.m; i++) {
        for (size_t j = 0; j < s.n; j++) {
            size_t panel = s.b == CROSSED ? j / 32 * 2 + j / 4 % 2 : j / 16,
                   lane = s.b == CROSSED ? j % 32 / 8 * 4 + j % 4 : j % 16;
            int64_t sum = 0;
            for (size_t l = 0; l < 2 * s.pairs; l++)
                sum += (int64_t)as[i * lda + l] *
                       bs[s.b == IN_ROWS ? l * ldb + j : panel * stride + l / 2 * 32 + lane * 2 + l % 2];
            float factor = ((float *)scale.p)[i], *old = &before[i * ldc + j];
            if (s.column) factor *= ((float *)column.p)[j];
            float want =
                s.keep ? fmaf((float)(int32_t)sum, factor, *old * ((float *)keep.p)[i]) : (float)(int32_t)sum * factor;
            if (s.used && j >= s.used && !memcmp(old, &cs[i * ldc + j], sizeof *old)) continue;
            if (memcmp(&want, &cs[i * ldc + j], sizeof want))
                fail_msg("%s: m %zu n %zu pairs %zu: row %zu, column %zu is %g, not %g", k->name, s.m, s.n, s.pairs, i, j,
                         (double)cs[i * ldc + j], (double)want);
        }
        if (i + 1 < s.m)
            assert_memory_equal(cs + i * ldc + s.n, before + i * ldc + s.n,
                                (ldc - s.n) * 4); /* between rows nothing is written */
    }
    free(before);
    fenced *all[] = {&a, &b, &c, &scale, &keep, &column};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) unfence(all[i]);
    if (a_planes.p) unfence(&a_planes);
    if (b_planes.p) unfence(&b_planes);
}

TEST(products_are_exact) {
    rnd r = rnd_open("16-bit products");
    TABLES(k) {
        print_message("  %s\n", k->name);
        for (size_t m = 1; m <= 35; m++)
            for (size_t panels = 1; panels <= 3; panels++)
                check_product(
                    k, &r,
                    (product_shape){m, panels * 16, rnd_range(&r, 1, 40), panels == 2 ? m % 3 : PANELS, m & 2, m & 4, 0},
                    2047);
        for (int i = 0; i < 20; i++) {
            const int b = i % 3;
            size_t    n = (b == PANELS ? 16 : 32) * rnd_range(&r, 1, 5),
                   pairs = b == IN_ROWS ? rnd_range(&r, 1, TD_ATTN16_KEYS / 2) : rnd_range(&r, 1, 300);
            check_product(k, &r, (product_shape){rnd_range(&r, 1, 130), n, pairs, b, i & 2, i & 4, 0}, 1800);
            check_product(k, &r,
                          (product_shape){rnd_range(&r, 1, 130), 16, 4 * rnd_range(&r, 1, 70), PANELS, i & 2, i & 4, 0},
                          1800); /* by fours of pairs */
            check_product(
                k, &r,
                (product_shape){rnd_range(&r, 1, 130), 16, rnd_range(&r, 1, 70), PANELS, i & 8, i & 4, rnd_range(&r, 1, 16)},
                1800);
        }
        check_product(k, &r, (product_shape){3, 32, 1, PANELS, false, false, 0}, 32767); /* 2 * 32767^2 is below 2^31 */
    }
}

/* Rows, columns and k around the borders of tiles and of pairs of them, as prefill has them; long rows too. */
TEST(borders_of_tiles_are_exact) {
    static const size_t MS[] = {15, 16, 17, 31, 32, 33, 48, 128}, NS[] = {16, 32, 48, 96},
                        PAIRS[] = {1, 15, 16, 17, 31, 32, 33, 64, 96, 288, 512, 520};
    rnd r = rnd_open("16-bit products at borders");
    TABLES(k) {
        for (size_t i = 0; i < sizeof MS / sizeof *MS; i++)
            for (size_t j = 0; j < sizeof NS / sizeof *NS; j++)
                for (size_t l = 0; l < sizeof PAIRS / sizeof *PAIRS; l++) {
                    const bool even = NS[j] % 32 == 0;
                    check_product(k, &r,
                                  (product_shape){MS[i], NS[j], PAIRS[l], even && l % 2 ? CROSSED : PANELS, i & 1, l & 2, 0},
                                  1400);
                }
    }
}

/* Integers whose bytes are at the ends of their range. A row and a column have at most one large integer, so that sums stay
 * below 2^31. Also sums close to 2^31, which a split into bytes exceeds on the way. */
TEST(bytes_at_their_ends_are_exact) {
    static const int16_t ENDS[] = {0, 1, -1, 127, 128, -127, -128, 129, 255, 256, -255, -256, -257};
    static const int16_t LARGE[] = {32767, -32767, 32512, -32513, 0x7f00, -0x7f00, 0x7f80, -0x7f80};
    enum { M = 40, N = 64, PAIRS = 80 };
    rnd r = rnd_open("16-bit products of extreme bytes");
    TABLES(k) {
        for (int trial = 0; trial < 12; trial++) {
            static int16_t a[M * 2 * PAIRS], b[N / 16][PAIRS][16][2];
            static float   c[M * N];
            float          ones[M];
            bool           full = trial >= 8; /* 2 * 32767^2 with either sign, and nothing else */
            for (size_t i = 0; i < M * 2 * PAIRS; i++) a[i] = full ? 0 : ENDS[rnd_range(&r, 0, 12)];
            for (size_t i = 0; i < sizeof b / sizeof(int16_t); i++)
                (&b[0][0][0][0])[i] = full ? 0 : ENDS[rnd_range(&r, 0, 12)];
            for (size_t i = 0; i < M; i++) {
                size_t at = rnd_range(&r, 0, PAIRS - 1) * 2;
                ones[i] = 1;
                if (full) at = 34;
                a[i * 2 * PAIRS + at] = LARGE[full ? i & 1 : rnd_range(&r, 0, 7)];
                if (full) a[i * 2 * PAIRS + at + 1] = LARGE[i & 1];
            }
            for (size_t j = 0; j < N; j++) {
                size_t at = full ? 17 : rnd_range(&r, 0, PAIRS - 1);
                b[j / 16][at][j % 16][0] = LARGE[full ? j / 2 & 1 : rnd_range(&r, 0, 7)];
                if (full) b[j / 16][at][j % 16][1] = LARGE[j / 2 & 1];
            }
            k->gemm(&WITH(td_attn16_gemm, .m = M, .n = N, .pairs = PAIRS, .a = a, .lda = 2 * PAIRS, .scale = ones,
                          .b = b[0][0][0], .panel_stride = PAIRS * 32, .c = c, .ldc = N));
            for (size_t i = 0; i < M; i++)
                for (size_t j = 0; j < N; j++) {
                    int64_t sum = 0;
                    for (size_t l = 0; l < 2 * PAIRS; l++)
                        sum += (int64_t)a[i * 2 * PAIRS + l] * b[j / 16][l / 2][j % 16][l % 2];
                    assert_in_range(sum + INT32_MAX, 0, 2 * (int64_t)INT32_MAX);
                    if (c[i * N + j] != (float)(int32_t)sum)
                        fail_msg("%s: row %zu, column %zu is %g, not %lld", k->name, i, j, (double)c[i * N + j],
                                 (long long)sum);
                }
        }
    }
}

/* ---- rows ------------------------------------------------------------------------------------- */

static fenced rnd_row(rnd *r, td_dtype dtype, size_t n, float size) {
    fenced f = fence(n * td_dtype_bytes(dtype));
    for (size_t i = 0; i < n; i++) {
        float v = rnd_real(r) * (i % 11 == 3 ? 40 : 1) * size;
        if (dtype == TD_DT_BF16)
            ((td_bf16 *)f.p)[i] = td_f32_to_bf16(v);
        else
            ((float *)f.p)[i] = v;
    }
    return f;
}

/* Rows fit into their integers, each within half a step of what the scale says; all tables round alike where their scales
 * are the same. */
TEST(rows_become_integers) {
    rnd r = rnd_open("16-bit rows");
    TABLES(k) {
        for (size_t n = 1; n <= 200; n++) {
            td_dtype dtype = n & 1 ? TD_DT_BF16 : TD_DT_F32;
            size_t rows = rnd_range(&r, 1, 5), n2 = n % 3 ? rnd_range(&r, 1, 70) : 0, ld_out = n + n2 + rnd_range(&r, 0, 3);
            float  magnitude = n % 4 ? 1e-3f : 3e4f;
            fenced x = rnd_row(&r, dtype, rows * n, magnitude), x2 = fence((rows * n2 + 1) * 2), x2_scale = fence(rows * 4);
            fenced q = fence(((rows - 1) * ld_out + n + n2) * 2), scale = fence(rows * 4), max = fence(rows * 4);
            bool   with_max = rnd_u64(&r) & 1;
            for (size_t i = 0; i < rows * n2; i++) ((int16_t *)x2.p)[i] = rnd_int16(&r, 9000);
            for (size_t i = 0; i < rows; i++) ((float *)x2_scale.p)[i] = magnitude * 1e-3f * (1 + rnd_real(&r) / 2);
            k->convert(&WITH(td_attn16_rows, .rows = rows, .n = n, .n2 = n2, .dtype = dtype, .x = x.p, .ld = n, .x2 = x2.p,
                             .ld2 = n2, .x2_scale = x2_scale.p, .out = q.p, .ld_out = ld_out, .scale = scale.p,
                             .max = with_max ? max.p : NULL));
            for (size_t row = 0; row < rows; row++) {
                double         norm = 0, largest = 0, step = (double)((float *)scale.p)[row];
                const int16_t *to = (int16_t *)q.p + row * ld_out;
                for (size_t i = 0; i < n + n2; i++) {
                    double v = i < n ? act_get(dtype, x.p, row * n + i)
                                     : (double)((int16_t *)x2.p)[row * n2 + i - n] * (double)((float *)x2_scale.p)[row];
                    norm += v * v;
                    if (i < n) largest = fmax(largest, fabs(v));
                    assert_true(fabs((double)to[i] * step - v) <= 0.51 * step);
                }
                assert_true(fabs(step - sqrt(norm) / 32767) <= 1e-6 * step);
                if (with_max) assert_true((double)((float *)max.p)[row] == largest);
            }
            fenced *all[] = {&x, &x2, &x2_scale, &q, &scale, &max};
            for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) unfence(all[i]);
        }
        float   rows[3][2] = {{0, 0}, {-7e-3f, 0}, {3, -4}}, scale[3]; /* 32767 * 3 / 5, 32767 * 4 / 5 */
        int16_t q[3][2];
        k->convert(&(td_attn16_rows){
            .rows = 3, .n = 2, .dtype = TD_DT_F32, .x = rows, .ld = 2, .out = q[0], .ld_out = 2, .scale = scale});
        assert_int_equal(q[0][0] | q[0][1] | q[1][1], 0);
        assert_int_equal(q[1][0], -32767);
        assert_int_equal(q[2][0], 19660);
        assert_int_equal(q[2][1], -26214);
        assert_true(scale[0] > 0);
    }
}

TEST(rows_change_places) {
    rnd r = rnd_open("16-bit pairs and transposes");
    TABLES(k) {
        for (size_t n = 1; n <= 130; n += 3) {
            size_t   whole = td_round_up(n, 32), stride = 32 + 16 * (n % 2);
            fenced   a = fence(whole * 2), b = fence(whole * 2), out = fence(((whole / 16 - 1) * stride + 32) * 2);
            bool     two = n % 5;
            int16_t *to = out.p;
            for (size_t i = 0; i < whole; i++)
                ((int16_t *)a.p)[i] = (int16_t)rnd_u64(&r), ((int16_t *)b.p)[i] = (int16_t)rnd_u64(&r);
            k->pair(a.p, two ? b.p : NULL, n, to, stride);
            for (size_t i = 0; i < n; i++) {
                const int16_t *at = to + (i / 32 * 2 + i / 4 % 2) * stride + (i % 32 / 8 * 4 + i % 4) * 2;
                assert_int_equal(at[0], ((int16_t *)a.p)[i]);
                assert_int_equal(at[1], two ? ((int16_t *)b.p)[i] : 0);
            }
            unfence(&a), unfence(&b), unfence(&out);
        }
        for (int round = 0; round < 60; round++) {
            size_t rows = rnd_range(&r, 1, 70), cols = rnd_range(&r, 1, 50), lds = cols + rnd_range(&r, 0, 3),
                   whole = td_round_up(rows, 16);
            size_t ldd = whole + rnd_range(&r, 0, 3);
            fenced src = fence(((rows - 1) * lds + cols) * 4), dst = fence(((cols - 1) * ldd + whole) * 4);
            for (size_t i = 0; i < (rows - 1) * lds + cols; i++) ((int32_t *)src.p)[i] = (int32_t)rnd_u64(&r);
            k->transpose(dst.p, ldd, src.p, lds, rows, cols);
            for (size_t c = 0; c < cols; c++)
                for (size_t i = 0; i < whole; i++)
                    assert_int_equal(((int32_t *)dst.p)[c * ldd + i], i < rows ? ((int32_t *)src.p)[i * lds + c] : 0);
            unfence(&src), unfence(&dst);
        }
    }
}

/* ---- attention -------------------------------------------------------------------------------- */

enum { DV = 64, TILES = 3, KEYS = TILES * TD_ATTN16_KEYS, LANES = TD_ATTN16_LANES };

typedef struct {
    size_t  dk, n_keys; /* of the longest row */
    bool    windows;
    size_t  from[LANES], n[LANES]; /* the keys that a row sees: [from, n); without windows from is 0 */
    double *q, *k, *v;             /* [LANES, dk], [KEYS, dk], [KEYS, DV]: what bf16 holds */
} problem;

static double *rnd_rows(rnd *r, size_t rows, size_t cols, bool outliers) {
    double *x = malloc(rows * cols * sizeof *x);
    for (size_t i = 0; i < rows * cols; i++) {
        double v = (double)(rnd_real(r) + rnd_real(r) + rnd_real(r));
        if (outliers) v *= i % cols == 5 ? 60 : i / cols % 17 == 3 ? 30 : 1; /* a channel, and some rows */
        x[i] = (double)td_bf16_to_f32(td_f32_to_bf16((float)v));
    }
    return x;
}

static float rounded(const td_attn16 *k, const double *x, size_t n, int16_t *out, float *max) {
    float *f = malloc(n * sizeof *f), scale;
    for (size_t i = 0; i < n; i++) f[i] = (float)x[i];
    k->convert(
        &(td_attn16_rows){.rows = 1, .n = n, .dtype = TD_DT_F32, .x = f, .ld = n, .out = out, .scale = &scale, .max = max});
    free(f);
    return scale;
}

/* out [LANES, DV]; error [LANES]: what the rounding of weights may add, in units of out. Checks that no sum can overflow. */
static void attend(const td_attn16 *k, const problem *p, float softmax_scale, float *out, double *error) {
    FREED int16_t *q_row = calloc(LANES * p->dk, 2), *q = malloc(LANES * p->dk * 2),
                  *key = malloc(TD_ATTN16_KEYS * p->dk * 2);
    int16_t v[TD_ATTN16_KEYS][DV], pairs[DV / 16][TD_ATTN16_KEYS / 2][16][2], weights[LANES][TD_ATTN16_KEYS];
    float   row_scale[LANES], max[LANES], sum[LANES] = {0}, keep[LANES], p_scale[LANES], k_scale[TD_ATTN16_KEYS],
                                        v_scale[TD_ATTN16_KEYS], v_max[TD_ATTN16_KEYS];
    float x[TD_ATTN16_KEYS][LANES];
    for (size_t i = 0; i < LANES; i++) {
        row_scale[i] = rounded(k, p->q + i * p->dk, p->dk, q_row + i * p->dk, NULL) * softmax_scale * 1.44269504f;
        max[i] = -INFINITY;
        error[i] = 0;
    }
    k->transpose((int32_t *)(void *)q, 16, (int32_t *)(void *)q_row, p->dk / 2, LANES, p->dk / 2);
    for (size_t first = 0; first < p->n_keys; first += TD_ATTN16_KEYS) {
        size_t  n = p->n_keys - first < TD_ATTN16_KEYS ? p->n_keys - first : TD_ATTN16_KEYS;
        int32_t seen[LANES], from[LANES];
        for (size_t j = 0; j < n; j++) {
            k_scale[j] = rounded(k, p->k + (first + j) * p->dk, p->dk, key + j * p->dk, NULL);
            v_scale[j] = rounded(k, p->v + (first + j) * DV, DV, v[j], &v_max[j]);
        }
        for (size_t j = 0; j < n; j += 2)
            k->pair(v[j], j + 1 < n ? v[j + 1] : NULL, DV, pairs[0][j / 2][0], TD_ATTN16_KEYS * 16);
        for (size_t i = 0; i < LANES; i++) {
            const bool some = p->n[i] > first && p->from[i] < first + n;
            seen[i] = !some ? 0 : (int32_t)(p->n[i] - first < n ? p->n[i] - first : n);
            from[i] = !some || p->from[i] <= first ? 0 : (int32_t)(p->from[i] - first);
        }
        k->gemm(&WITH(td_attn16_gemm, .m = n, .n = LANES, .pairs = p->dk / 2, .a = key, .lda = p->dk, .scale = k_scale,
                      .b = q, .panel_stride = LANES * p->dk, .c = x[0], .ldc = LANES));
        k->softmax(&WITH(td_attn16_softmax, .x = x[0], .ldx = LANES, .n = n, .seen = seen, .from = p->windows ? from : NULL,
                         .row_scale = row_scale, .v_scale = v_scale, .v_max = v_max, .max = max, .sum = sum, .keep = keep,
                         .p = weights[0], .p_scale = p_scale));
        for (size_t i = 0; i < LANES; i++) {
            error[i] *= (double)keep[i];
            for (size_t j = 0; j < n; j++) {
                assert_true(weights[i][j] >= 0);
                assert_true((j < (size_t)seen[i] && j >= (size_t)from[i]) || weights[i][j] == 0);
                error[i] += 0.5 * (double)p_scale[i] / (double)v_scale[j] * (double)v_max[j]; /* half a unit of a weight */
            }
            for (size_t c = 0; c < DV; c++) {
                int64_t reach = 0;
                for (size_t j = 0; j < n; j++) reach += llabs((int64_t)weights[i][j] * v[j][c]);
                assert_true(reach <= INT32_MAX);
            }
        }
        k->gemm(&WITH(td_attn16_gemm, .m = LANES, .n = DV, .pairs = (n + 1) / 2, .a = weights[0], .lda = TD_ATTN16_KEYS,
                      .scale = p_scale, .b = pairs[0][0][0], .panel_stride = TD_ATTN16_KEYS * 16, .crossed = true,
                      .keep = first ? keep : NULL, .c = out, .ldc = DV));
    }
    for (size_t i = 0; i < LANES; i++) {
        for (size_t c = 0; c < DV; c++) out[i * DV + c] /= sum[i];
        error[i] /= (double)sum[i];
    }
}

/*
 * With steps of |q| / 32767 and |k| / 32767, half of them in each of dk elements, q . k is off by at most e = sqrt(dk) |q|
 * |k| / 32767 (a bit more for the product of both), so a weight by a factor of exp(2 e scale). A value is off by half its
 * step, a weight by half its step, which `attend` sums up.
 */
TEST(attention_is_as_exact_as_its_steps) {
    rnd r = rnd_open("16-bit attention");
    TABLES(k) {
        double worst = 0;
        for (int round = 0; round < 12; round++) {
            const size_t dims[] = {64, 128, 192, 576};
            bool         outliers = round & 1;
            problem      p = {.dk = dims[round % 4], .n_keys = rnd_range(&r, 1, KEYS)};
            float        scale = (round % 3 ? 1.0f : 3.0f) / sqrtf((float)p.dk), out[LANES * DV], again[LANES * DV];
            double       error[LANES], other[LANES], *weight = malloc(KEYS * sizeof *weight);
            p.q = rnd_rows(&r, LANES, p.dk, outliers), p.k = rnd_rows(&r, KEYS, p.dk, outliers),
            p.v = rnd_rows(&r, KEYS, DV, outliers);
            p.windows = round % 4 > 1;
            for (size_t i = 0; i < LANES; i++) {
                p.n[i] = i ? rnd_range(&r, 1, p.n_keys) : p.n_keys;
                p.from[i] = p.windows && i ? rnd_range(&r, 0, p.n[i] - 1) : 0;
            }
            attend(k, &p, scale, out, error);
            double squares = 0, of = 0;
            for (size_t i = 0; i < LANES; i++) {
                double q_norm = rms(p.q + i * p.dk, p.dk) * sqrt((double)p.dk), k_norm = 0, v_step = 0, v_max = 0, exponent;
                for (size_t j = p.from[i]; j < p.n[i]; j++) {
                    weight[j] = 0;
                    for (size_t l = 0; l < p.dk; l++) weight[j] += p.q[i * p.dk + l] * p.k[j * p.dk + l];
                    weight[j] *= (double)scale;
                    k_norm = fmax(k_norm, rms(p.k + j * p.dk, p.dk) * sqrt((double)p.dk));
                    v_step = fmax(v_step, rms(p.v + j * DV, DV) * sqrt(DV) / 32767);
                    for (size_t c = 0; c < DV; c++) v_max = fmax(v_max, fabs(p.v[j * DV + c]));
                }
                ref_softmax(weight + p.from[i], p.n[i] - p.from[i]);
                exponent = 2 * (double)scale * q_norm * k_norm * sqrt((double)p.dk) / 32767 * 1.01;
                double bound =
                    v_max * (exp(exponent) - 1) + 0.5 * v_step + error[i] + 1e-5 * v_max; /* the last: float sums, exp */
                for (size_t c = 0; c < DV; c++) {
                    double want = 0;
                    for (size_t j = p.from[i]; j < p.n[i]; j++) want += weight[j] * p.v[j * DV + c];
                    double off = fabs((double)out[i * DV + c] - want);
                    if (!(off <= bound))
                        fail_msg("%s: round %d, row %zu: off by %g, bound %g", k->name, round, i, off, bound);
                    squares += off * off, of += want * want;
                }
            }
            if (!outliers) worst = fmax(worst, sqrt(squares / of));

            /* a row alone among others: the same bits */
            size_t row = rnd_range(&r, 0, LANES - 1);
            for (size_t i = 0; i < LANES; i++)
                if (i != row) {
                    p.n[i] = rnd_range(&r, 1, p.n_keys);
                    for (size_t l = 0; l < p.dk; l++) p.q[i * p.dk + l] *= 3;
                }
            p.n_keys = p.n[row]; /* and no key after its last */
            for (size_t i = 0; i < LANES; i++) {
                if (i == row) continue;
                p.n[i] = p.n[i] < p.n_keys ? p.n[i] : p.n_keys;
                p.from[i] = p.windows ? rnd_range(&r, 0, p.n[i] - 1) : 0;
            }
            attend(k, &p, scale, again, other);
            assert_memory_equal(again + row * DV, out + row * DV, DV * sizeof *out);
            free(p.q), free(p.k), free(p.v), free(weight);
        }
        print_message("  %s: largest relative error of even rows %.1e\n", k->name, worst);
        assert_true(worst < 1.0 / 512); /* what one rounding to bf16 costs */
    }
}
