/* The float table of each instruction set. */
#include "kernels/vec/vec.h"

#include <math.h>

#include "kernels/floats/float_math.h"
#include "kernels/vec/vec_exp.inc"

/* ---- the tiles of products ------------------------------------------------------------------- */

/*
 *   MR, NV       the full tile: rows, vectors of columns (NV even)
 *   MR_WIDE, NV_WIDE  the tile for few rows: more columns, to have enough sums in flight
 *   ROW_CASES    FGEMM_CASE(1) .. FGEMM_CASE(MR)
 *   BF16_PAIRS   1: two vectors of bf16 are widened together into their even and odd columns (v_widen_pair), which takes fewer
 *                instructions; then v_split_pair and v_join_pair bring columns into that order and back. 0: none of this exists
 */
#if TD_FOR_SCALAR
#define MR 4
#define NV 2
#define MR_WIDE 1
#define NV_WIDE 8

#define BF16_PAIRS 0
#define ROW_CASES FGEMM_CASE(1) FGEMM_CASE(2) FGEMM_CASE(3) FGEMM_CASE(4)
#elif TD_FOR_AVX2
#define MR 6
#define NV 2
#define MR_WIDE 2
#define NV_WIDE 4

#define BF16_PAIRS 0
#define ROW_CASES FGEMM_CASE(1) FGEMM_CASE(2) FGEMM_CASE(3) FGEMM_CASE(4) FGEMM_CASE(5) FGEMM_CASE(6)
#elif TD_FOR_NEON
/* Six rows times four vectors are 24 sums, 4 vectors of weights and one of activations of the 32 registers. */
#define MR 6
#define NV 4
#define MR_WIDE 2
#define NV_WIDE 8

#define BF16_PAIRS 0
#define ROW_CASES FGEMM_CASE(1) FGEMM_CASE(2) FGEMM_CASE(3) FGEMM_CASE(4) FGEMM_CASE(5) FGEMM_CASE(6)
#else /* AVX512 */
#define MR 12
#define NV 2
#define MR_WIDE 4
#define NV_WIDE 4

#define BF16_PAIRS 1
/* clang-format off */
#define ROW_CASES  \
    FGEMM_CASE(1) FGEMM_CASE(2) FGEMM_CASE(3) FGEMM_CASE(4) FGEMM_CASE(5) FGEMM_CASE(6) \
    FGEMM_CASE(7) FGEMM_CASE(8) FGEMM_CASE(9) FGEMM_CASE(10) FGEMM_CASE(11) FGEMM_CASE(12)
/* clang-format on */

/* 32 columns in one load: the even ones are the low halves of each lane, the odd ones the high halves. */
static inline __attribute__((always_inline)) void v_widen_pair(const td_bf16 *p, vf *even, vf *odd) {
    __m512i both = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int32_t)0xffff0000)));
}
static inline __attribute__((always_inline)) void v_split_pair(vf *a, vf *b) {
    __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    vf      x = _mm512_permutex2var_ps(*a, even, *b);
    *b = _mm512_permutex2var_ps(*a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), *b);
    *a = x;
}
static inline __attribute__((always_inline)) void v_join_pair(vf *a, vf *b) {
    __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    vf      x = _mm512_permutex2var_ps(*a, low, *b);
    *b = _mm512_permutex2var_ps(*a, _mm512_add_epi32(low, _mm512_set1_epi32(8)), *b);
    *a = x;
}
#endif

/* ---- products -------------------------------------------------------------------------------- */

#define TILE static inline __attribute__((always_inline))

#if BF16_PAIRS
#define WIDEN_PAIR(p, even, odd) v_widen_pair(p, even, odd)
#define SPLIT_PAIR(a, b) v_split_pair(a, b)
#define JOIN_PAIR(a, b) v_join_pair(a, b)
#else
#define WIDEN_PAIR(p, even, odd) (*(even) = vf_load_bf16(p), *(odd) = vf_load_bf16((p) + LANES))
#define SPLIT_PAIR(a, b) (void)0
#define JOIN_PAIR(a, b) (void)0
#endif

typedef enum { FULL_F32, FULL_BF16, ONE_F32, ONE_BF16, TAIL_F32, TAIL_BF16 } fgemm_kind;

/* c[0 .. rows, 0 .. nv vectors]; TAIL: one vector of `last` lanes. rows, nv and kind are constants after inlining. */
TILE void fgemm_tile(const td_fgemm_args *g, size_t i0, size_t j0, int rows, int nv, fgemm_kind kind, size_t last) {
    const bool   tail = kind >= TAIL_F32, bf16 = kind & 1, pairs = kind == FULL_BF16;
    vf           acc[MR][NV_WIDE];
    const float *a = g->a + i0 * g->lda;
    float       *c = g->c + i0 * g->ldc + j0;
    const char  *ahead = g->ahead ? g->ahead + j0 / 32 * g->k * 64 : (const char *)a;
    const size_t step = g->ahead && i0 == 0 ? 64 : 0, second = g->ahead ? g->k * 64 : 0; /* of more than 32 columns */
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < nv; v++) {
            if (!g->accumulate)
                acc[i][v] = vf_set1(0);
            else
                acc[i][v] = tail ? vf_load_n(c + (size_t)i * g->ldc, last) : vf_load(c + (size_t)i * g->ldc + v * LANES);
            if (pairs && v % 2) SPLIT_PAIR(&acc[i][v - 1], &acc[i][v]);
        }
    for (size_t l = 0; l < g->k; l++, ahead += step) {
        __builtin_prefetch(ahead, 0, 2);
        if (nv * LANES > 32) __builtin_prefetch(ahead + second, 0, 2);
        const td_bf16 *h = (const td_bf16 *)g->b + l * g->ldb + j0;
        const float   *f = (const float *)g->b + l * g->ldb + j0;
        vf             b[NV_WIDE];
#pragma GCC unroll 8
        for (int v = 0; v < nv; v++) {
            if (pairs && v % 2 == 0)
                WIDEN_PAIR(h + (size_t)v * LANES, &b[v], &b[v + 1]);
            else if (bf16 && !pairs)
                b[v] = tail ? vf_load_bf16_n(h, last) : vf_load_bf16(h);
            else if (!bf16)
                b[v] = tail ? vf_load_n(f, last) : vf_load(f + (size_t)v * LANES);
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            vf x = vf_set1(a[(size_t)i * g->lda + l]);
#pragma GCC unroll 8
            for (int v = 0; v < nv; v++) acc[i][v] = vf_mla(x, b[v], acc[i][v]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < nv; v++) {
            if (pairs && v % 2 == 0) JOIN_PAIR(&acc[i][v], &acc[i][v + 1]);
            if (tail)
                vf_store_n(c + (size_t)i * g->ldc, acc[i][v], last);
            else
                vf_store(c + (size_t)i * g->ldc + v * LANES, acc[i][v]);
        }
}

#define FGEMM_CASE(r) \
    case r: fgemm_tile(g, i, j0, r, nv, kind, last); break;

/* Tiles of equal height: a short last one would leave the multipliers waiting for loads. */
TILE void fgemm_rows(const td_fgemm_args *g, size_t j0, int nv, fgemm_kind kind, size_t last) {
    size_t tiles = (g->m + MR - 1) / MR;
    for (size_t t = 0; t < tiles; t++) {
        size_t i = g->m * t / tiles;
        switch (g->m * (t + 1) / tiles - i) { ROW_CASES }
    }
}

TILE void fgemm_rows_wide(const td_fgemm_args *g, size_t j0, fgemm_kind kind) {
    size_t i = 0;
    for (; i + MR_WIDE <= g->m; i += MR_WIDE) fgemm_tile(g, i, j0, MR_WIDE, NV_WIDE, kind, 0);
    for (; i < g->m; i++) fgemm_tile(g, i, j0, 1, NV_WIDE, kind, 0);
}

TILE void fgemm_columns(const td_fgemm_args *g, bool bf16) {
    size_t j = 0;
    if (g->m <= MR_WIDE)
        for (; j + NV_WIDE * LANES <= g->n; j += NV_WIDE * LANES) fgemm_rows_wide(g, j, bf16 ? FULL_BF16 : FULL_F32);
    for (; j + NV * LANES <= g->n; j += NV * LANES) fgemm_rows(g, j, NV, bf16 ? FULL_BF16 : FULL_F32, 0);
    for (; j + LANES <= g->n; j += LANES) fgemm_rows(g, j, 1, bf16 ? ONE_BF16 : ONE_F32, 0);
    if (j < g->n) fgemm_rows(g, j, 1, bf16 ? TAIL_BF16 : TAIL_F32, g->n - j);
}

static void gemm(const td_fgemm_args *g) {
    if (g->b_dtype == TD_DT_BF16)
        fgemm_columns(g, true);
    else
        fgemm_columns(g, false);
}

/* ---- transposes ------------------------------------------------------------------------------ */

#if !TD_FOR_SCALAR
static inline vf load_row(td_dtype dtype, const void *src, size_t at, size_t n) {
    if (dtype == TD_DT_BF16)
        return n >= LANES ? vf_load_bf16((const td_bf16 *)src + at) : vf_load_bf16_n((const td_bf16 *)src + at, n);
    return n >= LANES ? vf_load((const float *)src + at) : vf_load_n((const float *)src + at, n);
}
#endif

#if TD_FOR_SCALAR
static void transpose(float *dst, size_t panel_stride, td_dtype dtype, const void *src, size_t ld, size_t rows,
                      size_t cols) {
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            dst[r / TD_ATTN_PANEL * panel_stride + c * TD_ATTN_PANEL + r % TD_ATTN_PANEL] =
                dtype == TD_DT_BF16 ? td_bf16_to_f32(((const td_bf16 *)src)[r * ld + c]) : ((const float *)src)[r * ld + c];
}
#elif TD_FOR_AVX2
static void transpose(float *dst, size_t panel_stride, td_dtype dtype, const void *src, size_t ld, size_t rows,
                      size_t cols) {
    for (size_t r0 = 0; r0 < rows; r0 += 8)
        for (size_t c0 = 0; c0 < cols; c0 += 8) {
            float *to = dst + r0 / TD_ATTN_PANEL * panel_stride + c0 * TD_ATTN_PANEL + r0 % TD_ATTN_PANEL;
            vf     x[8], y[8];
            for (size_t r = 0; r < 8; r++)
                x[r] = r0 + r < rows ? load_row(dtype, src, (r0 + r) * ld + c0, cols - c0) : vf_set1(0);
            for (int i = 0; i < 4; i++) { /* pairs of rows */
                y[2 * i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]);
                y[2 * i + 1] = _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
            }
            for (int i = 0; i < 8; i += 4) { /* fours */
                x[i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
                x[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xee);
                x[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0x44);
                x[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0xee);
            }
            for (int i = 0; i < 4; i++) { /* halves */
                y[i] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20);
                y[i + 4] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
            }
            for (size_t c = 0; c < 8 && c0 + c < cols; c++) vf_store(to + c * TD_ATTN_PANEL, y[c]);
        }
}
#elif TD_FOR_NEON
/* Squares of four rows and four columns. */
static void transpose(float *dst, size_t panel_stride, td_dtype dtype, const void *src, size_t ld, size_t rows,
                      size_t cols) {
    for (size_t r0 = 0; r0 < rows; r0 += 4)
        for (size_t c0 = 0; c0 < cols; c0 += 4) {
            float *to = dst + r0 / TD_ATTN_PANEL * panel_stride + c0 * TD_ATTN_PANEL + r0 % TD_ATTN_PANEL;
            vf     x[4], y[4];
            for (size_t r = 0; r < 4; r++)
                x[r] = r0 + r < rows ? load_row(dtype, src, (r0 + r) * ld + c0, cols - c0) : vf_set1(0);
            for (int i = 0; i < 2; i++) { /* of rows i and i + 2, columns 0 and 1, then 2 and 3, side by side */
                y[i] = vzip1q_f32(x[i], x[i + 2]);
                y[i + 2] = vzip2q_f32(x[i], x[i + 2]);
            }
            for (int i = 0; i < 2; i++) {
                x[2 * i] = vzip1q_f32(y[2 * i], y[2 * i + 1]);
                x[2 * i + 1] = vzip2q_f32(y[2 * i], y[2 * i + 1]);
            }
            for (size_t c = 0; c < 4 && c0 + c < cols; c++) vf_store(to + c * TD_ATTN_PANEL, x[c]);
        }
}
#else /* AVX512 */
static void transpose(float *dst, size_t panel_stride, td_dtype dtype, const void *src, size_t ld, size_t rows,
                      size_t cols) {
    for (size_t r0 = 0; r0 < rows; r0 += 16)
        for (size_t c0 = 0; c0 < cols; c0 += 16) {
            float *to = dst + r0 / TD_ATTN_PANEL * panel_stride + c0 * TD_ATTN_PANEL + r0 % TD_ATTN_PANEL;
            vf     x[16], y[16];
#pragma GCC unroll 16
            for (size_t r = 0; r < 16; r++)
                x[r] = r0 + r < rows ? load_row(dtype, src, (r0 + r) * ld + c0, cols - c0) : vf_set1(0);
#pragma GCC unroll 8
            for (int i = 0; i < 16; i += 2) { /* pairs of rows */
                y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
                y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
            }
#pragma GCC unroll 4
            for (int i = 0; i < 16; i += 4) { /* fours: x[i + c] holds column c, c + 4, c + 8, c + 12 of rows i .. i + 3 */
                x[i] = _mm512_shuffle_ps(y[i], y[i + 2], 0x44);
                x[i + 1] = _mm512_shuffle_ps(y[i], y[i + 2], 0xee);
                x[i + 2] = _mm512_shuffle_ps(y[i + 1], y[i + 3], 0x44);
                x[i + 3] = _mm512_shuffle_ps(y[i + 1], y[i + 3], 0xee);
            }
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) { /* quarters: the 4 x 4 blocks change places */
                vf ab_even = _mm512_shuffle_f32x4(x[c], x[c + 4], 0x88), ab_odd = _mm512_shuffle_f32x4(x[c], x[c + 4], 0xdd);
                vf cd_even = _mm512_shuffle_f32x4(x[c + 8], x[c + 12], 0x88),
                   cd_odd = _mm512_shuffle_f32x4(x[c + 8], x[c + 12], 0xdd);
                y[c] = _mm512_shuffle_f32x4(ab_even, cd_even, 0x88);
                y[c + 8] = _mm512_shuffle_f32x4(ab_even, cd_even, 0xdd);
                y[c + 4] = _mm512_shuffle_f32x4(ab_odd, cd_odd, 0x88);
                y[c + 12] = _mm512_shuffle_f32x4(ab_odd, cd_odd, 0xdd);
            }
#pragma GCC unroll 16
            for (size_t c = 0; c < 16; c++)
                if (c0 + c < cols) vf_store(to + c * TD_ATTN_PANEL, y[c]);
        }
}
#endif

/* ---- value by value -------------------------------------------------------------------------- */

/*
 * In vectors of 16 lanes that the compiler maps to the set. Multiply-adds are fused in exp only, and a tail is computed as a
 * full vector whose surplus lanes are dropped, so an element's bits depend on its own inputs only.
 */
typedef float   v16 __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));

#define BODY static inline __attribute__((always_inline))

BODY v16 load16(const float *p) {
    v16 v;
    memcpy(&v, p, sizeof v);
    return v;
}

BODY v16 load_tail(const float *p, size_t n) { /* 0 in lanes n .. 15 */
    v16 v = {0};
    memcpy(&v, p, n * sizeof *p);
    return v;
}

BODY void store_tail(float *p, v16 v, size_t n) {
    if (n >= 16)
        memcpy(p, &v, sizeof v);
    else
        memcpy(p, &v, n * sizeof *p);
}

BODY v16 load_upto(const float *p, size_t n) {
    return n >= 16 ? load16(p) : load_tail(p, n);
}

BODY v16 splat(float f) {
    return (v16){f, f, f, f, f, f, f, f, f, f, f, f, f, f, f, f};
}

BODY v16 select16(v16i mask, v16 yes, v16 no) {
    return (v16)((mask & (v16i)yes) | (~mask & (v16i)no));
}

/* Lanes i and i + 8, then i + 4, 2, 1: the fixed tree of every sum over lanes. */
#define FOLD(v, w) \
    __builtin_shufflevector(v, v, w, w + 1, w + 2, w + 3, w + 4, w + 5, w + 6, w + 7, 8, 9, 10, 11, 12, 13, 14, 15)

BODY float sum16(v16 v) {
    v = v + FOLD(v, 8);
    v = v + FOLD(v, 4);
    v = v + FOLD(v, 2);
    v = v + FOLD(v, 1);
    return v[0];
}

BODY float max16(v16 v) {
    v = select16(FOLD(v, 8) > v, FOLD(v, 8), v);
    v = select16(FOLD(v, 4) > v, FOLD(v, 4), v);
    v = select16(FOLD(v, 2) > v, FOLD(v, 2), v);
    v = select16(FOLD(v, 1) > v, FOLD(v, 1), v);
    return v[0];
}

BODY v16 exp16(v16 x) {
    vf part[16 / LANES];
    memcpy(part, &x, sizeof x);
#pragma GCC unroll 4
    for (int i = 0; i < 16 / LANES; i++) part[i] = vf_exp(part[i]);
    memcpy(&x, part, sizeof x);
    return x;
}

static float softmax(td_softmax *state, float *s, size_t n, size_t n_fill, float scale) {
    const v16i lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    v16        best = splat(-INFINITY);
    for (size_t j = 0; j < n; j += 16) {
        v16 x = load16(s + j) * scale;
        x = select16(lane < (int32_t)(n - j), x, splat(-INFINITY));
        memcpy(s + j, &x, sizeof x);
        best = select16(x > best, x, best);
    }
    float max = max16(best);
    max = state->max > max ? state->max : max;
    v16    sum = splat(0);
    size_t j = 0;
    for (; j < n; j += 16) {
        v16 x = load16(s + j);
        v16 p = (v16)((lane < (int32_t)(n - j)) & (v16i)exp16(x - max));
        memcpy(s + j, &p, sizeof p);
        sum = sum + p;
    }
    for (; j < n_fill; j += 16) memset(s + j, 0, 16 * sizeof *s);
    float factor = state->max == max ? 1.0f : exp16(splat(state->max) - max)[0];
    state->max = max;
    state->sum = state->sum * factor + sum16(sum);
    return factor;
}

static void scale_add(float *dst, float dst_scale, const float *src, float src_scale, size_t n) {
    for (size_t i = 0; i < n; i += 16) {
        v16 d = load_upto(dst + i, n - i) * dst_scale;
        if (src) d = d + load_upto(src + i, n - i) * src_scale;
        store_tail(dst + i, d, n - i);
    }
}

static void rms_norm(const float *x, const float *gamma, float eps, size_t n, float *out) {
    v16 squares = splat(0);
    for (size_t i = 0; i < n; i += 16) {
        v16 v = load_upto(x + i, n - i);
        squares = squares + v * v;
    }
    float factor = 1.0f / sqrtf(sum16(squares) / (float)n + eps);
    for (size_t i = 0; i < n; i += 16)
        store_tail(out + i, load_upto(x + i, n - i) * factor * load_upto(gamma + i, n - i), n - i);
}

static float exp_sum(float *x, float shift, size_t n) {
    v16 sum = splat(0);
    for (size_t i = 0; i < n; i += 16) {
        v16 e = exp16(load_upto(x + i, n - i) - shift);
        store_tail(x + i, e, n - i);
        if (n - i < 16) {
            v16 kept = {0};
            memcpy(&kept, x + i, (n - i) * sizeof *x);
            e = kept;
        }
        sum = sum + e;
    }
    return sum16(sum);
}

static void sigmoid(float *x, size_t n) {
    for (size_t i = 0; i < n; i += 16) store_tail(x + i, 1.0f / (1.0f + exp16(-load_upto(x + i, n - i))), n - i);
}

static float dot(const float *a, const float *b, size_t n) {
    v16 sum = splat(0);
    for (size_t i = 0; i < n; i += 16) sum = sum + load_upto(a + i, n - i) * load_upto(b + i, n - i);
    return sum16(sum);
}

static void relu_dot(const float *s, size_t ld, size_t m, const float *w, size_t n, float *out) {
    for (size_t i = 0; i < m; i++, s += ld) {
        v16 sum = splat(0);
        for (size_t j = 0; j < n; j += 16) {
            const v16 x = load_upto(s + j, n - j);
            sum = sum + select16(x > splat(0), x, splat(0)) * load_upto(w + j, n - j);
        }
        out[i] = sum16(sum);
    }
}

/* Of lanes that are w apart, the sum and the difference. w: a power of two, constant */
#define SWAP(v, w)                                                                                                      \
    __builtin_shufflevector(v, v, 0 ^ w, 1 ^ w, 2 ^ w, 3 ^ w, 4 ^ w, 5 ^ w, 6 ^ w, 7 ^ w, 8 ^ w, 9 ^ w, 10 ^ w, 11 ^ w, \
                            12 ^ w, 13 ^ w, 14 ^ w, 15 ^ w)
#define BUTTERFLY(v, w) (SWAP(v, w) + (v16)((v16i)(v) ^ (((LANE & w) != 0) & INT32_MIN)))

static void hadamard(float *x, size_t n) {
    const v16i   LANE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const size_t order = n & -n;
    const float  unit = 1 / sqrtf((float)order);
    for (size_t i = 0; i < n; i += 16) {
        v16 v = load_upto(x + i, n - i) * unit;
        if (order > 1) v = BUTTERFLY(v, 1);
        if (order > 2) v = BUTTERFLY(v, 2);
        if (order > 4) v = BUTTERFLY(v, 4);
        if (order > 8) v = BUTTERFLY(v, 8);
        store_tail(x + i, v, n - i);
    }
    for (size_t half = 16; half < order; half *= 2)
        for (size_t i = 0; i < n; i += i % half == half - 16 ? half + 16 : 16) {
            const v16 a = load16(x + i), b = load16(x + i + half);
            store_tail(x + i, a + b, 16);
            store_tail(x + i + half, a - b, 16);
        }
}

static void add(float *x, const float *y, size_t n) {
    for (size_t i = 0; i < n; i += 16) store_tail(x + i, load_upto(x + i, n - i) + load_upto(y + i, n - i), n - i);
}

static void rope(float *x, const float *table, size_t dim) {
    size_t half = dim / 2;
    for (size_t i = 0; i < half; i += 16) {
        size_t n = half - i;
        v16    a = load_upto(x + i, n), b = load_upto(x + half + i, n);
        v16    c = load_upto(table + i, n), s = load_upto(table + half + i, n);
        store_tail(x + i, a * c - b * s, n);
        store_tail(x + half + i, b * c + a * s, n);
    }
}

const td_float_math TD_OF_SET(float_math) = {.name = TD_SET_NAME,
                                             .gemm = gemm,
                                             .transpose = transpose,
                                             .softmax = softmax,
                                             .scale_add = scale_add,
                                             .rms_norm = rms_norm,
                                             .exp_sum = exp_sum,
                                             .sigmoid = sigmoid,
                                             .dot = dot,
                                             .relu_dot = relu_dot,
                                             .hadamard = hadamard,
                                             .add = add,
                                             .rope = rope};
