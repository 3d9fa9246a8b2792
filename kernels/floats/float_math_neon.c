/* The float table with NEON. Six rows times four vectors are 24 sums, 4 vectors of weights and one of activations of the 32
 * registers. */
#include "kernels/vec/vec_neon.h"

#include "kernels/floats/float_math.h"

#define MR 6
#define NV 4
#define MR_WIDE 2
#define NV_WIDE 8

#define BF16_PAIRS 0
#define ROW_CASES FGEMM_CASE(1) FGEMM_CASE(2) FGEMM_CASE(3) FGEMM_CASE(4) FGEMM_CASE(5) FGEMM_CASE(6)
#include "kernels/floats/fgemm_body.inc"

static inline vf load_row(td_dtype dtype, const void *src, size_t at, size_t n) {
    if (dtype == TD_DT_BF16)
        return n >= LANES ? vf_load_bf16((const td_bf16 *)src + at) : vf_load_bf16_n((const td_bf16 *)src + at, n);
    return n >= LANES ? vf_load((const float *)src + at) : vf_load_n((const float *)src + at, n);
}

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

#include "kernels/floats/float_math_body.inc"

const td_float_math td_float_math_neon = {.name = "neon", FLOAT_MATH_MEMBERS};
