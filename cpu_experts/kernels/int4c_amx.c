/*
 * int4 per channel, AMX-INT8, on the tiles of AVX512-VNNI. From ROWS_MIN rows on: a stretch of a tile's nibbles is unpacked to bytes once
 * and multiplied by all rows, 32 of them at a time; sums rest in a->out between stretches. Fewer rows are AVX512-VNNI's.
 * Never run on a processor that has the instructions: tested with core/amx.h's emulation.
 */
#include "core/amx.h"
#include "quant/kernels/vec_avx512.h"
#include "cpu_experts/kernels/expert_kernels.h"

#define HALF LANES
#include "cpu_experts/kernels/int4c_layout.inc"

#define ROWS_MIN 16
#define STRETCH  1024 /* k: 32 KB of bytes, beside the rows in L2 */
#define STEP     64   /* k of one tile of weights: 16 rows of 4 k of 16 outputs */
#define A_STRIDE (STRETCH + 64)            /* of copied rows: not a power of two */

/* Up to 32 rows: two tiles of them times two of outputs. */
typedef struct {
    size_t        row[3]; /* rows [0] .. [1] and [1] .. [2]; the second may be none */
    const int8_t *a[2];   /* where the stretch of each begins */
    size_t        stride[2];
} row_pair;

/* The codes of k values, k a multiple of 32, as [k / 64][low rows, high rows][16][64] bytes; zero up to a multiple of 64. */
static void unpack_stretch(uint8_t *out, const uint8_t *w, size_t k, size_t ahead) {
    const vi nibble = vi_set1(0x0f0f0f0f);
    for (size_t j = 0; j < k; j += STEP, out += 2 * STEP * HALF)
        for (size_t i = 0; i < STEP / 4; i++) {
            bool inside = j + 4 * i < k;
            vi   both = inside ? vi_load(w + (j + 4 * i) * HALF) : vi_set1(0);
            _mm_prefetch((const char *)w + (j + 4 * i) * HALF + ahead, _MM_HINT_T1);
            *(vi *)(out + 4 * i * HALF) = both & nibble;
            *(vi *)(out + (STEP + 4 * i) * HALF) = both >> 4 & nibble;
        }
}

/* Tiles 0 .. 3 sums, 4 and 5 rows, 6 and 7 weights. */
static void configure(const row_pair *p) {
    td_amx_config c = {.palette = 1};
    uint8_t       rows[2] = {(uint8_t)(p->row[1] - p->row[0]), (uint8_t)(p->row[2] - p->row[1])};
    for (int t = 0; t < 8; t++) {
        c.rows[t] = t >= 6 ? STEP / 4 : t >= 4 ? rows[t - 4] : rows[t / 2];
        c.bytes[t] = c.rows[t] ? TD_AMX_BYTES : 0;
    }
    td_amx_configure(&c);
}

/* Rows of a tile as they are, where whole steps of them can be read; else copied to `copy`. */
static void find_rows(row_pair *p, int i, const td_gemm_row *rows, size_t k0, size_t k, int8_t *copy) {
    size_t         n = p->row[i + 1] - p->row[i];
    const int8_t  *first = (const int8_t *)rows[p->row[i]].x + k0;
    ptrdiff_t      stride = n > 1 ? (const int8_t *)rows[p->row[i] + 1].x + k0 - first : STRETCH;
    bool           whole = k % STEP == 0;
    p->a[i] = whole ? first : copy;
    p->stride[i] = whole ? (size_t)stride : A_STRIDE;
    for (size_t r = 0; !whole && r < n; r++) {
        memcpy(copy + r * A_STRIDE, (const int8_t *)rows[p->row[i] + r].x + k0, k);
        memset(copy + r * A_STRIDE + k, 0, -k % STEP);
    }
}

/* acc [m, 32] += the pair's rows times a stretch; `fresh`: there are no sums yet. */
static void multiply(const row_pair *p, const uint8_t *w, size_t k, int32_t *acc, bool fresh) {
    const size_t acc_stride = 2 * HALF * sizeof *acc;
    const bool   two = p->row[2] > p->row[1];
    int32_t     *acc0 = acc + p->row[0] * 2 * HALF, *acc1 = acc + p->row[1] * 2 * HALF;
    if (fresh) {
        td_amx_zero(0);
        td_amx_zero(1);
        if (two) {
            td_amx_zero(2);
            td_amx_zero(3);
        }
    } else {
        td_amx_load(0, acc0, acc_stride);
        td_amx_load(1, acc0 + HALF, acc_stride);
        if (two) {
            td_amx_load(2, acc1, acc_stride);
            td_amx_load(3, acc1 + HALF, acc_stride);
        }
    }
    for (size_t j = 0; j < k; j += STEP, w += 2 * STEP * HALF) {
        td_amx_load(6, w, TD_AMX_BYTES);
        td_amx_load(4, p->a[0] + j, p->stride[0]);
        td_amx_dot(0, 4, 6);
        td_amx_load(7, w + STEP * HALF, TD_AMX_BYTES);
        td_amx_dot(1, 4, 7);
        if (two) {
            td_amx_load(5, p->a[1] + j, p->stride[1]);
            td_amx_dot(2, 5, 6);
            td_amx_dot(3, 5, 7);
        }
    }
    td_amx_store(0, acc0, acc_stride);
    td_amx_store(1, acc0 + HALF, acc_stride);
    if (two) {
        td_amx_store(2, acc1, acc_stride);
        td_amx_store(3, acc1 + HALF, acc_stride);
    }
}

/* Sums to values, in place. */
static void finish(const td_gemm_args *a) {
    const float *scale = a->tile;
    for (size_t r = 0; r < a->m; r++) {
        float *out = a->out + r * 2 * HALF;
        vi     correction = vi_set1(8 * a->rows[r].sum);
        vf     row_scale = vf_set1(a->rows[r].scale);
        vf_store(out, vf_of_vi(vi_load(out) - correction) * vf_load(scale) * row_scale);
        vf_store(out + HALF, vf_of_vi(vi_load(out + HALF) - correction) * vf_load(scale + HALF) * row_scale);
    }
}

static void run(const td_gemm_args *a) {
    _Alignas(64) uint8_t stretch[STRETCH * 2 * HALF];
    _Alignas(64) int8_t  copies[2][TD_AMX_ROWS * A_STRIDE];
    const uint8_t       *w = (const uint8_t *)a->tile + 2 * HALF * sizeof(float);
    size_t               n_tiles = (a->m + TD_AMX_ROWS - 1) / TD_AMX_ROWS; /* of rows */
    if (a->m < ROWS_MIN) {
        td_int4c_avx512vnni.run(a);
        return;
    }
    for (size_t k0 = 0; k0 < a->k; k0 += STRETCH) {
        size_t k = a->k - k0 < STRETCH ? a->k - k0 : STRETCH;
        unpack_stretch(stretch, w + k0 * HALF, k, tile_bytes(a->k, NULL));
        for (size_t t = 0; t < n_tiles; t += 2) { /* of equal height */
            row_pair p = {.row = {a->m * t / n_tiles, a->m * (t + 1) / n_tiles, a->m * (t + 2 < n_tiles ? t + 2 : n_tiles) / n_tiles}};
            configure(&p);
            for (int i = 0; i < 2 && p.row[i] < p.row[i + 1]; i++) find_rows(&p, i, a->rows, k0, k, copies[i]);
            multiply(&p, stretch, k, (int32_t *)a->out, k0 == 0);
        }
    }
    td_amx_release();
    finish(a);
}

const td_gemm_kernel td_int4c_amx = {
    INT4C_LAYOUT,
    .name = "int4c_amx_32x32",
    .layout = "int4c_32x4",
    .needs = TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512VNNI | TD_CPU_AMX_NEEDED,
    .mr = 32,
    .run = run,
};
