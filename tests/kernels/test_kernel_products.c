/* Every kernel of products that this machine and TD_CPU_MASK allow, compared with plain sums, bit for bit. Buffers end at
 * guard pages. */

#include <math.h>

#include "core/math/rng.h"
#include "core/math/small_float.h"
#include "cpu_experts/cpu_experts.h"
#include "kernels/rows/convert.h"
#include "kernels/rows/row_quant.h"
#include "tests/guard_page.h"
#include "tests/kernels/kernel_tables.h"
#include "tests/td_test.h"

#define SEED 4242u

/* ---- kernels and what their tiles may hold ------------------------------------------------------ */

typedef struct {
    td_expert_format      format;
    const td_gemm_kernel *kernel;
    td_expert_groups      groups;
} variant;

enum { VARIANTS_MAX = 256 };

static size_t add_variants(variant *out, td_expert_format format, const td_gemm_kernel *k) {
    static const td_dtype SCALES[] = {TD_DT_BF16, TD_DT_F16, TD_DT_F32};
    size_t                n = 0;
    if (!td_expert_has_groups(format)) out[n++] = (variant){.format = format, .kernel = k};
    for (int nv = 0; nv < 2 && format == TD_EXPERT_FP4G; nv++)
        out[n++] = (variant){format, k, {.size = nv ? 16 : 32, .scale_dtype = nv ? TD_DT_F8_E4M3 : TD_DT_F8_E8M0}};
    for (uint16_t size = 32; size <= 128 && format == TD_EXPERT_INT4G; size *= 2)
        for (size_t i = 0; i < 6; i++)
            out[n++] = (variant){format, k, {.size = size, .scale_dtype = SCALES[i / 2], .zero_points = i % 2}};
    return n;
}

/* Every kernel of the build, or those that this machine (and TD_CPU_MASK) allows. */
static size_t list_variants(variant *out, bool runnable) {
    size_t n = 0;
    for (td_expert_format f = 0; f < TD_EXPERT_FORMATS; f++) EACH_BUILT(t, product[f])
    if (!runnable || may_run(t)) n += add_variants(out + n, f, t->product[f]);
    assert_true(n <= VARIANTS_MAX);
    return n;
}

static const struct {
    int lo, hi; /* codes */
} RANGE[TD_EXPERT_FORMATS] = {
    [TD_EXPERT_INT4C] = {-7, 7}, [TD_EXPERT_INT8C] = {-127, 127}, [TD_EXPERT_INT4G] = {0, 15}, [TD_EXPERT_FP4G] = {0, 15}};

/* Where the sums reach furthest. */
static const struct {
    int lo, hi;
} EXTREME[TD_EXPERT_FORMATS] = {
    [TD_EXPERT_INT4C] = {-7, 7}, [TD_EXPERT_INT8C] = {-127, 127}, [TD_EXPERT_INT4G] = {0, 15}, [TD_EXPERT_FP4G] = {15, 7}};

/* Twice the values of e2m1, as the specification lists them. */
static const int TWICE_E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static size_t scales_of_row(const variant *v, size_t k) {
    return td_expert_has_groups(v->format) ? k / v->groups.size : 1;
}

/* Random weights of a tile, and the tile; the weights end at guard pages. */
typedef struct {
    guarded         tile, rows, scale, zero, factor;
    td_gemm_weights w;
} test_tile;

static test_tile empty_tile(const variant *v, size_t k) {
    size_t    nr = v->kernel->tiles->nr, n_scales = nr * scales_of_row(v, k);
    test_tile t = WITH(test_tile, .tile = guard_alloc(td_tile_bytes(v->kernel->tiles, k, &v->groups)),
                       .rows = guard_alloc(nr * k * td_gemm_element((td_product)v->format)),
                       .scale = guard_alloc(n_scales * sizeof(float)), .zero = guard_alloc(n_scales),
                       .factor = guard_alloc(nr * sizeof(float)));
    t.w = (td_gemm_weights){t.rows.data, t.scale.data, t.zero.data, t.factor.data};
    return t;
}

static void free_tile(test_tile *t) {
    guard_free(&t->tile);
    guard_free(&t->rows);
    guard_free(&t->scale);
    guard_free(&t->zero);
    guard_free(&t->factor);
}

static test_tile make_tile(const variant *v, size_t k) {
    td_expert_format format = v->format;
    size_t           nr = v->kernel->tiles->nr;
    test_tile        t = empty_tile(v, k);
    for (size_t i = 0; i < nr * k; i++)
        if (format == TD_EXPERT_BF16)
            ((td_bf16 *)t.w.rows)[i] = td_f32_to_bf16((float)td_rng_uniform(SEED, k, i) - 0.5f);
        else
            ((int8_t *)t.w.rows)[i] =
                (int8_t)((int)(td_rng_u64(SEED, k, i) % (uint64_t)(RANGE[format].hi - RANGE[format].lo + 1)) +
                         RANGE[format].lo);
    for (size_t i = 0; i < nr * scales_of_row(v, k); i++) {
        float scale = 0.01f + (float)td_rng_uniform(SEED, 5, i);
        if (format == TD_EXPERT_INT4G && v->groups.scale_dtype == TD_DT_BF16) scale = td_bf16_to_f32(td_f32_to_bf16(scale));
        if (format == TD_EXPERT_INT4G && v->groups.scale_dtype == TD_DT_F16) scale = td_f16_to_f32(td_f32_to_f16(scale));
        if (format == TD_EXPERT_FP4G && v->groups.scale_dtype == TD_DT_F8_E8M0)
            scale = ldexpf(1, i % 29 ? (int)(i % 8) - 6 : -127);
        if (format == TD_EXPERT_FP4G && v->groups.scale_dtype == TD_DT_F8_E4M3) /* subnormal ones and zero too */
            scale = td_e4m3_to_f32((uint8_t)(i * 37 % 0x7f));
        t.w.scale[i] = format == TD_EXPERT_INT4G && i % 3 == 0 ? -scale : scale;
        t.w.zero[i] = v->groups.zero_points ? td_rng_u64(SEED, 6, i) % 16 : 8;
    }
    for (size_t i = 0; i < nr; i++) t.w.factor[i] = 0.01f + (float)td_rng_uniform(SEED, 8, i);
    td_tile_pack(v->kernel->tiles, t.tile.data, &t.w, k, &v->groups);
    return t;
}

static float expected(const variant *v, const td_gemm_weights *w, size_t n, size_t k, const td_gemm_row *row) {
    float acc = 0;
    if (v->format == TD_EXPERT_BF16) {
        for (size_t j = 0; j < k; j++)
            acc = fmaf(td_bf16_to_f32(((const td_bf16 *)w->rows)[n * k + j]), ((const float *)row->x)[j], acc);
        return acc;
    }
    const int8_t *codes = (const int8_t *)w->rows + n * k, *x = row->x;
    if (!td_expert_has_groups(v->format)) {
        int64_t sum = 0;
        for (size_t j = 0; j < k; j++) sum += (int64_t)codes[j] * x[j];
        return (float)(int32_t)sum * w->scale[n] * row->scale;
    }
    size_t size = v->groups.size, n_groups = k / size;
    bool   fp4 = v->format == TD_EXPERT_FP4G;
    for (size_t g = 0; g < n_groups; g++) {
        int64_t sum = 0;
        for (size_t j = g * size; j < (g + 1) * size; j++)
            sum += (int64_t)(fp4 ? TWICE_E2M1[codes[j]] : codes[j] - w->zero[n * n_groups + g]) * x[j];
        acc = fmaf((float)sum, w->scale[n * n_groups + g], acc);
    }
    return (fp4 ? acc * (w->factor[n] / 2) : acc) * row->scale;
}

/* Values of one tile as they are, rows side by side. */
static td_gemm_end plain_end(const td_gemm_kernel *kernel, void *out) {
    return (td_gemm_end){.n = kernel->tiles->nr, .out = out, .ld = kernel->tiles->nr, .dtype = TD_DT_F32};
}

/* ---- rows ------------------------------------------------------------------------------------- */

typedef struct {
    guarded     x, sums;
    td_gemm_row row;
} test_row;

static test_row make_row(const variant *v, size_t k, uint64_t stream, float scale) {
    bool     bf16 = v->format == TD_EXPERT_BF16, groups = td_expert_has_groups(v->format);
    test_row t = {.x = guard_alloc(k * (bf16 ? sizeof(float) : 1)),
                  .sums = guard_alloc(groups ? k / v->groups.size * sizeof(int32_t) : 4)};
    t.row = (td_gemm_row){.x = t.x.data, .scale = scale, .group_sum = t.sums.data};
    for (size_t j = 0; j < k; j++) {
        int8_t q = (int8_t)((int)(td_rng_u64(SEED, stream, j) % 255) - 127);
        if (bf16)
            ((float *)t.x.data)[j] = (float)td_rng_uniform(SEED, stream, j) - 0.5f;
        else
            ((int8_t *)t.x.data)[j] = q, t.row.sum += q;
    }
    if (groups) td_group_sums_i8(t.x.data, k, v->groups.size, t.sums.data);
    return t;
}

TEST(kernels_match_plain_sums) {
    enum {
        ROWS_MAX = 1000
    }; /* with the shortest k alone: more passes over a tile than there are bytes to share in a step's prefetch */
    static const size_t sizes[] = {1, 2, 3, 7, 64, 129, 2048},
                        ms[] = {1, 2, 3, 4, 5, 7, 12, 13, 14, 15, 16, 29, 47, ROWS_MAX};
    static variant     variants[VARIANTS_MAX];
    static test_row    x[ROWS_MAX];
    static td_gemm_row rows[ROWS_MAX];
    size_t             n_variants = list_variants(variants, true);
    print_message("seed %u\n", SEED);
    for (td_expert_format f = 0; f < TD_EXPERT_FORMATS; f++) EACH_BUILT(t, product[f])
    if (!may_run(t)) print_message("  %s skipped: not on this CPU, or masked\n", t->product[f]->name);
    for (size_t i = 0; i < n_variants; i++) {
        const variant        *v = &variants[i];
        const td_gemm_kernel *kernel = v->kernel;
        if (i == 0 || variants[i - 1].kernel != kernel) print_message("  %s\n", kernel->name);
        for (size_t z = 0, last = 0; z < sizeof sizes / sizeof sizes[0]; z++) {
            size_t k = (sizes[z] + kernel->tiles->kr - 1) / kernel->tiles->kr * kernel->tiles->kr;
            if (k == last || (k > 1024 && v->groups.size && v->groups.scale_dtype != TD_DT_BF16 &&
                              v->groups.scale_dtype != TD_DT_F8_E4M3))
                continue;
            AT_END(free_tile) test_tile t = make_tile(v, k);
            last = k;
            size_t       n_rows = z == 0 ? ROWS_MAX : 47, nr = kernel->tiles->nr;
            FREED float *want = malloc(n_rows * nr * sizeof *want);
            for (size_t r = 0; r < n_rows; r++) {
                x[r] = make_row(v, k, 100 + r, 0.5f + (float)r);
                for (size_t n = 0; n < nr; n++) want[r * nr + n] = expected(v, &t.w, n, k, &x[r].row);
            }
            for (size_t q = 0; q < sizeof ms / sizeof ms[0]; q++) {
                size_t m = ms[q];
                if (m > n_rows) continue;
                AT_END(guard_free) guarded out = guard_alloc(m * nr * sizeof(float));
                size_t                     row_bytes = k * (v->format == TD_EXPERT_BF16 ? sizeof(float) : 1);
                AT_END(guard_free) guarded even = guard_alloc(m * row_bytes);
                for (size_t r = 0; r < m; r++) {
                    rows[r] = x[r].row;
                    rows[r].x = memcpy((char *)even.data + r * row_bytes, x[r].x.data, row_bytes);
                }
                kernel->run(&WITH(td_gemm_args, .tile = t.tile.data, .n_tiles = 1, .k = k, .m = m, .rows = rows,
                                  .groups = v->groups, .end = plain_end(kernel, out.data)));
                assert_memory_equal(out.data, want, m * nr * sizeof *want);
            }
            for (size_t r = 0; r < n_rows; r++) {
                guard_free(&x[r].x);
                guard_free(&x[r].sums);
            }
        }
    }
}

/* Random numbers of rows, their distance, and k; every kernel against the format's scalar one. */
TEST(random_shapes_match_the_scalar_kernel) {
    enum { ROWS_MAX = 112, K_MAX = 3200, SHAPES = 3 };
    static variant variants[VARIANTS_MAX];
    size_t         n_variants = list_variants(variants, true);
    print_message("seed %u\n", SEED);
    for (size_t i = 0; i < n_variants * SHAPES; i++) {
        const variant        *v = &variants[i / SHAPES];
        const td_gemm_kernel *kernel = v->kernel, *scalar = td_kernels_scalar.product[v->format];
        if (kernel == scalar) continue;
        size_t m = 1 + td_rng_u64(SEED, 20, i) % ROWS_MAX,
               k = (1 + td_rng_u64(SEED, 21, i) % (K_MAX / kernel->tiles->kr)) * kernel->tiles->kr;
        size_t element = v->format == TD_EXPERT_BF16 ? sizeof(float) : 1,
               stride = k * element + td_rng_u64(SEED, 22, i) % 5 * 64;
        AT_END(guard_free)
        guarded x = guard_alloc((m - 1) * stride + k * element), out = guard_alloc(m * kernel->tiles->nr * sizeof(float));
        FREED float                *want = malloc(m * kernel->tiles->nr * sizeof(float));
        test_row                    row[ROWS_MAX];
        td_gemm_row                 rows[ROWS_MAX];
        AT_END(free_tile) test_tile t = make_tile(v, k);
        FREED void                 *scalar_tile = aligned_alloc(64, td_tile_bytes(scalar->tiles, k, &v->groups));
        for (size_t r = 0; r < m; r++) {
            rows[r] = (row[r] = make_row(v, k, 300 + i * ROWS_MAX + r, 0.5f + (float)r)).row;
            rows[r].x = memcpy((char *)x.data + r * stride, row[r].x.data, k * element);
        }
        kernel->run(&WITH(td_gemm_args, .tile = t.tile.data, .n_tiles = 1, .k = k, .m = m, .rows = rows, .groups = v->groups,
                          .end = plain_end(kernel, out.data)));
        for (size_t n0 = 0; n0 < kernel->tiles->nr; n0 += scalar->tiles->nr) {
            size_t          first = n0 * scales_of_row(v, k);
            td_gemm_weights w = {(char *)t.w.rows + n0 * k * td_gemm_element((td_product)v->format), t.w.scale + first,
                                 t.w.zero + first, t.w.factor + n0};
            td_tile_pack(scalar->tiles, scalar_tile, &w, k, &v->groups);
            scalar->run(&WITH(td_gemm_args, .tile = scalar_tile, .n_tiles = 1, .k = k, .m = m, .rows = rows,
                              .groups = v->groups, .end = plain_end(scalar, want)));
            for (size_t r = 0; r < m; r++)
                if (memcmp((float *)out.data + r * kernel->tiles->nr + n0, want + r * scalar->tiles->nr,
                           scalar->tiles->nr * sizeof *want))
                    fail_msg("%s, k %zu, row %zu of %zu, groups of %u: not as %s", kernel->name, k, r, m, v->groups.size,
                             scalar->name);
        }
        for (size_t r = 0; r < m; r++) {
            guard_free(&row[r].x);
            guard_free(&row[r].sums);
        }
    }
}

/* Rows and k around the borders of tiles, pairs of them, stretches and blocks; the formats without groups against their
 * scalar kernels. */
TEST(borders_of_tiles_match_the_scalar_kernel) {
    enum { ROWS_MAX = 530, K_MAX = 1088 };
    static const size_t ks[] = {32, 96, 544, K_MAX}, ms[] = {12, 15, 17, 31, 32, 33, 48, 85, 256, 257, ROWS_MAX};
    static variant      variants[VARIANTS_MAX];
    static td_gemm_row  rows[ROWS_MAX];
    size_t              n_variants = list_variants(variants, true);
    for (size_t i = 0; i < n_variants; i++) {
        const variant        *v = &variants[i];
        const td_gemm_kernel *kernel = v->kernel, *scalar = td_kernels_scalar.product[v->format];
        size_t                nr = kernel->tiles->nr;
        if (kernel == scalar || (v->format != TD_EXPERT_INT4C && v->format != TD_EXPERT_INT8C)) continue;
        for (size_t z = 0; z < sizeof ks / sizeof ks[0]; z++) {
            size_t                      k = ks[z];
            AT_END(free_tile) test_tile t = make_tile(v, k);
            FREED void                 *scalar_tile = aligned_alloc(64, td_tile_bytes(scalar->tiles, k, &v->groups));
            FREED int8_t               *codes = malloc(ROWS_MAX * k);
            FREED float                *want = aligned_alloc(64, 2 * ROWS_MAX * nr * sizeof(float));
            for (size_t r = 0; r < ROWS_MAX; r++) {
                rows[r] = (td_gemm_row){.scale = 0.5f + (float)r};
                for (size_t j = 0; j < k; j++)
                    rows[r].sum += codes[r * k + j] = (int8_t)((int)(td_rng_u64(SEED, 30 + r, j) % 255) - 127);
            }
            for (size_t q = 0; q < sizeof ms / sizeof ms[0]; q++) {
                size_t                     m = ms[q];
                AT_END(guard_free) guarded x = guard_alloc(m * k), out = guard_alloc(m * nr * sizeof(float));
                memcpy(x.data, codes, m * k);
                for (size_t r = 0; r < m; r++) rows[r].x = (int8_t *)x.data + r * k;
                kernel->run(&(td_gemm_args){
                    .tile = t.tile.data, .n_tiles = 1, .k = k, .m = m, .rows = rows, .end = plain_end(kernel, out.data)});
                for (size_t n0 = 0; n0 < nr; n0 += scalar->tiles->nr) {
                    td_gemm_weights w = {(char *)t.w.rows + n0 * k, t.w.scale + n0, t.w.zero, t.w.factor};
                    td_tile_pack(scalar->tiles, scalar_tile, &w, k, &v->groups);
                    scalar->run(&(td_gemm_args){
                        .tile = scalar_tile, .n_tiles = 1, .k = k, .m = m, .rows = rows, .end = plain_end(scalar, want)});
                    for (size_t r = 0; r < m; r++)
                        if (memcmp((float *)out.data + r * nr + n0, want + r * scalar->tiles->nr,
                                   scalar->tiles->nr * sizeof *want))
                            fail_msg("%s, k %zu, row %zu of %zu: not as %s", kernel->name, k, r, m, scalar->name);
                }
            }
        }
    }
}

/* Codes and activations at the ends of their ranges, over the longest k, for one row and for as many as tiles of rows take.
 */
TEST(extremes_do_not_saturate) {
    enum { ROWS = 32 };
    static variant variants[VARIANTS_MAX];
    size_t         n_variants = list_variants(variants, true), k = TD_GEMM_K_MAX;
    for (size_t i = 0; i < n_variants; i++) {
        const variant        *v = &variants[i];
        const td_gemm_kernel *kernel = v->kernel;
        if (v->format == TD_EXPERT_BF16 ||
            (v->groups.size && v->groups.scale_dtype != TD_DT_BF16 && v->groups.scale_dtype != TD_DT_F8_E8M0))
            continue;
        for (int ends = 0; ends < 4; ends++) {
            int code = ends & 1 ? EXTREME[v->format].lo : EXTREME[v->format].hi,
                zero = v->groups.zero_points ? (ends & 1 ? 15 : 0) : 8;
            int8_t                      value = ends & 2 ? -127 : 127;
            AT_END(free_tile) test_tile t = empty_tile(v, k);
            memset(t.w.rows, code, kernel->tiles->nr * k);
            memset(t.w.zero, zero, kernel->tiles->nr * scales_of_row(v, k));
            for (size_t n = 0; n < kernel->tiles->nr * scales_of_row(v, k); n++) t.w.scale[n] = 1;
            for (size_t n = 0; n < kernel->tiles->nr; n++) t.w.factor[n] = 1;
            td_tile_pack(kernel->tiles, t.tile.data, &t.w, k, &v->groups);
            test_row                   x = make_row(v, k, 1, 1);
            AT_END(guard_free) guarded out = guard_alloc(ROWS * kernel->tiles->nr * sizeof(float));
            td_gemm_row                rows[ROWS]; /* the same one: no distance between them */
            memset(x.x.data, value, k);
            x.row.sum = value * (int32_t)k;
            if (v->groups.size) td_group_sums_i8(x.x.data, k, v->groups.size, x.sums.data);
            float want = expected(v, &t.w, 0, k, &x.row);
            for (size_t r = 0; r < ROWS; r++) rows[r] = x.row;
            for (size_t m = 1; m <= ROWS; m += ROWS - 1) {
                kernel->run(&WITH(td_gemm_args, .tile = t.tile.data, .n_tiles = 1, .k = k, .m = m, .rows = rows,
                                  .groups = v->groups, .end = plain_end(kernel, out.data)));
                for (size_t n = 0; n < m * kernel->tiles->nr; n++) assert_true(((float *)out.data)[n] == want);
            }
            guard_free(&x.x);
            guard_free(&x.sums);
        }
    }
}

/* u silu(g), gpt-oss, DeepSeek-V4, and each number alone. */
static const td_glu SILU = {0}, GLUS[] = {{0}, {1.702f, 7, 1}, {0, 10, 0}, {0.5f, 0, 0}, {0, 0, -3}};
#define N_GLUS (sizeof GLUS / sizeof *GLUS)

/* What a way of ending makes of the plain values y [m, columns]: by the scalar table's rows, value by value. */
typedef enum { END_BIAS, END_BF16, END_GATE, END_FAR_F32, END_FAR_BF16, END_FAR_GATE, END_SUMS, ENDS } end_kind;

/* Far ones may be written in whole lines, where they are: two of three seeds have rows that begin with one. */
static bool is_far(end_kind kind) {
    return kind >= END_FAR_F32 && kind <= END_FAR_GATE;
}

static void check_end(const variant *v, end_kind kind, uint64_t seed) {
    enum { ROWS_MAX = 40, TILES_MAX = 5, COLUMNS_MAX = TILES_MAX * TD_GEMM_NR_MAX };
    const td_gemm_kernel *kernel = v->kernel;
    const td_rows        *rows_of_one = td_kernels_scalar.rows;
    size_t                nr = kernel->tiles->nr, k = kernel->tiles->kr, bytes = td_tile_bytes(kernel->tiles, k, &v->groups),
           m = 1 + td_rng_u64(SEED, 40, seed) % ROWS_MAX, n_tiles = 1 + td_rng_u64(SEED, 41, seed) % TILES_MAX,
           before = kind != END_SUMS ? td_rng_u64(SEED, 42, seed) % 3 * nr : 0; /* columns of other tiles */
    size_t columns = n_tiles * nr - (kind != END_SUMS ? td_rng_u64(SEED, 43, seed) % nr : 0), n = before + columns,
           ld = is_far(kind) && seed % 3 ? td_round_up(n, 32) + 32 : n + 5;
    const bool   half = kind == END_BF16 || kind == END_FAR_BF16, gated = kind == END_GATE || kind == END_FAR_GATE;
    size_t       element = half ? sizeof(td_bf16) : kind == END_SUMS ? 2 * sizeof(int32_t) : sizeof(float);
    static float y[ROWS_MAX * COLUMNS_MAX];
    td_gemm_row  rows[ROWS_MAX];
    test_row     x[ROWS_MAX];
    int32_t     *to[ROWS_MAX];
    float        weight[ROWS_MAX];
    guarded      tiles = guard_alloc(n_tiles * bytes), bias = guard_alloc(n * sizeof(float)),
            gate = guard_alloc(((m - 1) * ld + n) * sizeof(float)),
            out = guard_alloc((is_far(kind) ? m * ld : (m - 1) * ld + n) * element);
    size_t  row_bytes = k * (v->format == TD_EXPERT_BF16 ? sizeof(float) : 1);
    guarded even = guard_alloc(m * row_bytes);
    for (size_t r = 0; r < m; r++) {
        rows[r] = (x[r] = make_row(v, k, seed * ROWS_MAX + r, 0.01f + (float)r * 1e-3f)).row;
        rows[r].x = memcpy((char *)even.data + r * row_bytes, x[r].x.data, row_bytes);
    }
    for (size_t t = 0; t < n_tiles; t++) {
        AT_END(free_tile) test_tile one = make_tile(v, k);
        memcpy((char *)tiles.data + t * bytes, one.tile.data, bytes);
    }
    td_gemm_args a = WITH(td_gemm_args, .tile = tiles.data, .n_tiles = n_tiles, .k = k, .m = m, .rows = rows,
                          .groups = v->groups, .end = {.n = n_tiles * nr, .out = y, .ld = COLUMNS_MAX, .dtype = TD_DT_F32});
    kernel->run(&a);
    for (size_t i = 0; i < n; i++) ((float *)bias.data)[i] = (float)td_rng_uniform(SEED, 44, i) * 100;
    for (size_t i = 0; i < (m - 1) * ld + n; i++) ((float *)gate.data)[i] = (float)td_rng_uniform(SEED, 45, i) * 20 - 10;
    memset(out.data, 0, ((m - 1) * ld + n) * element);
    for (size_t r = 0; r < m; r++) {
        to[r] = (int32_t *)out.data + (kind == END_SUMS ? (m - 1 - r) * ld * 2 : 0); /* any row may go anywhere */
        weight[r] = (float)td_rng_uniform(SEED, 46, r);
        for (size_t j = 0; kind == END_SUMS && j < td_exact_words(n); j++) to[r][j] = (int32_t)j;
    }
    a.end = (td_gemm_end){
        .column = before, .n = n, .out = out.data, .ld = ld, .dtype = half ? TD_DT_BF16 : TD_DT_F32, .far = is_far(kind)};
    const bool   biased = kind <= END_BF16 || (!is_far(kind) && td_rng_u64(SEED, 47, seed) & 1);
    const td_glu glu = GLUS[is_far(kind) ? 0 : td_rng_u64(SEED, 48, seed) % N_GLUS];
    if (biased) a.end.bias = bias.data;
    if (gated) a.end.gate = gate.data, a.end.ld_gate = ld, a.end.glu = glu;
    if (kind == END_SUMS) a.end.sums = to, a.end.weight = weight, a.end.out = NULL;
    kernel->run(&a);
    for (size_t r = 0; r < m; r++) {
        float want[COLUMNS_MAX];
        for (size_t j = 0; j < columns; j++)
            want[j] = y[r * COLUMNS_MAX + j] + (biased ? ((float *)bias.data)[before + j] : 0);
        if (gated) rows_of_one->glu(&glu, (float *)gate.data + r * ld + before, want, 1, columns, want, columns);
        for (size_t j = 0; kind == END_SUMS && j < columns; j++) {
            const size_t at = td_exact_at(j);
            int32_t      sum[2 * TD_EXACT_BLOCK] = {(int32_t)at};
            sum[TD_EXACT_BLOCK] = (int32_t)at + TD_EXACT_BLOCK;
            td_exact_add_one(weight[r], want[j], sum);
            if (to[r][at] != sum[0] || to[r][at + TD_EXACT_BLOCK] != sum[TD_EXACT_BLOCK])
                fail_msg("%s: sum of row %zu of %zu, column %zu of %zu", kernel->name, r, m, j, columns);
        }
        for (size_t j = 0; kind != END_SUMS && j < columns; j++) {
            const void *got = (char *)out.data + (r * ld + before + j) * element;
            td_bf16     rounded = td_f32_to_bf16(want[j]);
            if (memcmp(got, half ? (void *)&rounded : &want[j], element))
                fail_msg("%s: end %d, row %zu of %zu, column %zu of %zu", kernel->name, kind, r, m, j, columns);
        }
        for (size_t j = 0; kind != END_SUMS && j < ld && r * ld + j < (m - 1) * ld + n; j++) { /* all else is left alone */
            static const char ZEROS[sizeof(float)];
            if (j < before || j >= n) assert_memory_equal((char *)out.data + (r * ld + j) * element, ZEROS, element);
        }
        guard_free(&x[r].x);
        guard_free(&x[r].sums);
    }
    guarded *all[] = {&tiles, &bias, &gate, &out, &even};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) guard_free(all[i]);
}

/* Several tiles of a matrix, the last not whole, with every way in which values end. */
TEST(values_end_where_they_should) {
    enum { TRIALS = 4 };
    static variant variants[VARIANTS_MAX];
    size_t         n_variants = list_variants(variants, true);
    for (size_t i = 0; i < n_variants; i++)
        for (int kind = 0; kind < ENDS; kind++)
            for (uint64_t trial = 0; trial < TRIALS; trial++)
                check_end(&variants[i], (end_kind)kind, (i * ENDS + (uint64_t)kind) * TRIALS + trial);
}

TEST(unpack_inverts_pack) {
    static variant variants[VARIANTS_MAX];
    size_t         n_variants = list_variants(variants, false), k = 384;
    for (size_t i = 0; i < n_variants; i++) {
        const variant              *v = &variants[i];
        const td_gemm_kernel       *kernel = v->kernel;
        AT_END(free_tile) test_tile t = make_tile(v, k), u = empty_tile(v, k);
        size_t                      n_scales = kernel->tiles->nr * scales_of_row(v, k);
        assert_int_equal(td_tile_bytes(kernel->tiles, k, &v->groups) % 64, 0);
        assert_true(strlen(kernel->tiles->name) <= 15);
        td_tile_unpack(kernel->tiles, t.tile.data, &u.w, k, &v->groups);
        assert_memory_equal(u.w.rows, t.w.rows, kernel->tiles->nr * k * td_gemm_element((td_product)v->format));
        if (v->format != TD_EXPERT_BF16) assert_memory_equal(u.w.scale, t.w.scale, n_scales * sizeof(float));
        if (v->format == TD_EXPERT_INT4G) assert_memory_equal(u.w.zero, t.w.zero, n_scales);
        if (v->format == TD_EXPERT_FP4G) assert_memory_equal(u.w.factor, t.w.factor, kernel->tiles->nr * sizeof(float));
        assert_ptr_equal(td_tile_layout_named((td_product)v->format, kernel->tiles->name), kernel->tiles);
    }
}

TEST(bytes_are_tight) {
    static const struct {
        td_expert_format format;
        td_expert_groups groups;
        double           bytes; /* per weight, at k = 7168, but for the four bytes a row of int4c, int8c and fp4g */
    } table[] = {{TD_EXPERT_INT4C, {0}, 0.5},
                 {TD_EXPERT_INT8C, {0}, 1},
                 {TD_EXPERT_INT4G, {.size = 32, .scale_dtype = TD_DT_BF16}, 0.5625},
                 {TD_EXPERT_INT4G, {.size = 128, .scale_dtype = TD_DT_F16, .zero_points = true}, 0.5 + 2.5 / 128},
                 {TD_EXPERT_FP4G, {.size = 32, .scale_dtype = TD_DT_F8_E8M0}, 0.53125},
                 {TD_EXPERT_FP4G, {.size = 16, .scale_dtype = TD_DT_F8_E4M3}, 0.5625}};
    static variant variants[VARIANTS_MAX];
    size_t         n_variants = list_variants(variants, false), k = 7168;
    for (size_t i = 0; i < n_variants; i++)
        for (size_t j = 0; j < sizeof table / sizeof *table; j++) {
            const variant *v = &variants[i];
            if (v->format != table[j].format || v->groups.size != table[j].groups.size ||
                v->groups.scale_dtype != table[j].groups.scale_dtype || v->groups.zero_points != table[j].groups.zero_points)
                continue;
            double weights = (double)k * v->kernel->tiles->nr,
                   bytes = (double)td_tile_bytes(v->kernel->tiles, k, &v->groups);
            assert_true(bytes >= table[j].bytes * weights &&
                        bytes <= table[j].bytes * weights + 4 * v->kernel->tiles->nr + 64);
        }
}

TEST(silu_is_accurate_and_the_same_in_every_tier) {
    enum { N = 1 << 16 };
    FREED float *g = malloc(N * 4), *u = malloc(N * 4), *first = malloc(N * 4);
    for (uint32_t i = 0; i < N; i++) {
        g[i] = (float)(td_rng_uniform(SEED, 6, i) * 60 - 30);
        if (i % 8 == 0) g[i] = (float)(td_rng_uniform(SEED, 7, i) * 400 - 200);
        if (i % 8 == 1) g[i] *= 1e-6f;
        u[i] = 1;
    }
    g[5] = 0;
    g[6] = -0.0f;
    size_t n_seen = 0;
    EACH_TABLE(t, rows) {
        AT_END(guard_free) guarded out = guard_alloc(N * 4);
        t->rows->glu(&SILU, g, u, 1, N, out.data, N);
        if (n_seen++ == 0) memcpy(first, out.data, N * 4);
        assert_memory_equal(out.data, first, N * 4);
        /* any position, any length gives the same bits */
        for (uint32_t at = 0; at < 64; at++) {
            float part[16];
            t->rows->glu(&SILU, g + at, u + at, 1, 16, part, 16);
            assert_memory_equal(part, (float *)out.data + at, sizeof part);
        }
        float rows[2][48]; /* rows of a wider matrix: what lies between them stays */
        for (uint32_t i = 0; i < 48; i++) rows[0][i] = rows[1][i] = -1;
        t->rows->glu(&SILU, g, u, 2, 32, rows[0], 48);
        for (uint32_t r = 0; r < 2; r++) {
            assert_memory_equal(rows[r], (float *)out.data + 32 * r, 32 * sizeof(float));
            for (uint32_t i = 32; i < 48; i++) assert_true(rows[r][i] == -1);
        }
    }
    double worst = 0;
    for (uint32_t i = 0; i < N; i++) {
        double want = (double)g[i] / (1 + exp(-(double)g[i]));
        if (g[i] < -86) { /* below, exp is clamped: only tiny */
            assert_true(fabs((double)first[i]) < 1e-34);
            continue;
        }
        double error = want == 0 ? fabs((double)first[i]) : fabs((double)first[i] / want - 1);
        if (error > worst) worst = error;
    }
    print_message("  worst relative error of silu %.3g\n", worst);
    assert_true(worst < 4e-7);
    g[0] = NAN;
    EACH_TABLE(t, rows) {
        t->rows->glu(&SILU, g, u, 1, 16, first, 16);
        assert_true(isnan(first[0]) && !isnan(first[1]));
    }
}

/* Errors are of a product with (u' + up_add) and a sigmoid: a few roundings each. */
TEST(gated_units_are_accurate_and_the_same_in_every_tier) {
    enum { N = 5000 };
    FREED float *g = malloc(N * 4), *u = malloc(N * 4), *first = malloc(N * 4);
    for (uint32_t i = 0; i < N; i++) {
        g[i] = (float)(td_rng_uniform(SEED, 50, i) * 40 - 20);
        u[i] = (float)(td_rng_uniform(SEED, 51, i) * 40 - 20);
    }
    g[0] = u[1] = INFINITY, u[2] = -INFINITY, g[3] = u[4] = NAN, g[5] = 7, u[6] = -7;
    for (size_t k = 1; k < N_GLUS; k++) {
        const td_glu *p = &GLUS[k];
        size_t        n_seen = 0;
        EACH_TABLE(t, rows) {
            AT_END(guard_free) guarded out = guard_alloc(N * 4);
            t->rows->glu(p, g, u, 1, N, out.data, N);
            if (n_seen++ == 0) memcpy(first, out.data, N * 4);
            for (uint32_t i = 0; i < N; i++) /* a NaN may have any bits */
                if (memcmp((float *)out.data + i, first + i, 4) && !(isnan(first[i]) && isnan(((float *)out.data)[i])))
                    fail_msg("%s: unit %zu, value %u", t->name, k, i);
        }
        assert_true(isnan(first[3]) && isnan(first[4]));
        for (uint32_t i = 5; i < N; i++) {
            double limit = p->limit != 0 ? (double)p->limit : INFINITY, alpha = p->alpha != 0 ? (double)p->alpha : 1;
            double gate = fmin((double)g[i], limit), up = fmax(-limit, fmin((double)u[i], limit)) + (double)p->up_add;
            double want = up * gate / (1 + exp(-alpha * gate)), size = (fabs(up) + fabs((double)p->up_add)) * fabs(gate);
            double allowed = 1e-6 + 1.2e-7 * fabs(alpha * gate); /* the exponent is rounded before exp */
            assert_true(fabs((double)first[i] - want) <= allowed * (fabs(want) + 0.1 * size / (1 + exp(-alpha * gate))));
        }
    }
}

TEST(tables_are_whole_and_in_order) {
    size_t n = 0;
    for (const td_kernels *const *t = td_kernels_all; *t; t++, n++) {
        for (int p = 0; p < TD_PRODUCTS; p++) assert_non_null((*t)->product[p]);
        assert_true((*t)->name && (*t)->attn16 && (*t)->math && (*t)->rows && (*t)->rounding);
        assert_true((*t)->checksum && (*t)->read && (*t)->int8_peak && (*t)->f32_peak && (*t)->bf16_peak);
        const td_kernels *best = td_kernels_for((*t)->needs); /* with emulated tiles AMX needs no more than AVX512-VNNI */
        assert_true(best == *t || (best->needs == (*t)->needs && best == td_kernels_all[0]));
        for (int p = 0; p < TD_PRODUCTS; p++)
            assert_ptr_equal(td_tile_layout_named((td_product)p, (*t)->product[p]->tiles->name), (*t)->product[p]->tiles);
    }
    assert_ptr_equal(td_kernels_all[n - 1], &td_kernels_scalar);
    assert_int_equal(td_kernels_scalar.needs, 0);
    assert_ptr_equal(td_kernels_here(), td_kernels_for(td_cpu_features()));
    assert_ptr_equal(td_kernels_for(UINT32_MAX), td_kernels_all[0]);
    assert_null(td_tile_layout_named(TD_PRODUCT_INT4C, "other"));
    const td_kernels *with = td_kernels_for(UINT32_MAX), *without = td_kernels_for(~TD_CPU_AMXINT8);
    for (int p = 0; p < TD_PRODUCTS; p++)
        assert_ptr_equal(with->product[p]->tiles, without->product[p]->tiles); /* files serve both */
}
