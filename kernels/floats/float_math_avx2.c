/* The float table with AVX2 and FMA. */
#include "kernels/vec/vec_avx2.h"

#include "kernels/floats/float_math.h"

#define MR 6
#define NV 2
#define MR_WIDE 2
#define NV_WIDE 4

#define BF16_PAIRS 0
#define ROW_CASES FGEMM_CASE(1) FGEMM_CASE(2) FGEMM_CASE(3) FGEMM_CASE(4) FGEMM_CASE(5) FGEMM_CASE(6)
#include "kernels/floats/fgemm_body.inc"

static inline vf load_row(td_dtype dtype, const void *src, size_t at, size_t n) {
    if (dtype == TD_DT_BF16)
        return n >= LANES ? vf_load_bf16((const td_bf16 *)src + at) : vf_load_bf16_n((const td_bf16 *)src + at, n);
    return n >= LANES ? vf_load((const float *)src + at) : vf_load_n((const float *)src + at, n);
}

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

#include "kernels/floats/float_math_body.inc"

const td_float_math td_float_math_avx2 = {.name = "avx2", FLOAT_MATH_MEMBERS};
