/* The float table of each instruction set. */
#include "kernels/vec/vec.h"

#include "kernels/floats/float_math.h"

/* ---- the tiles of products ------------------------------------------------------------------- */

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
#include "kernels/floats/fgemm_body.inc"

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

#include "kernels/floats/float_math_body.inc"

const td_float_math TD_OF_SET(float_math) = {.name = TD_SET_NAME, FLOAT_MATH_MEMBERS};
