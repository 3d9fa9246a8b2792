/* The float table in plain C: the reference, and what runs where no better tier is compiled. */
#include "kernels/vec/vec_scalar.h"

#include "kernels/floats/float_math.h"

#define MR 4
#define NV 2
#define MR_WIDE 1
#define NV_WIDE 8

#define BF16_PAIRS 0
#define ROW_CASES FGEMM_CASE(1) FGEMM_CASE(2) FGEMM_CASE(3) FGEMM_CASE(4)
#include "kernels/floats/fgemm_body.inc"

static void transpose(float *dst, size_t panel_stride, td_dtype dtype, const void *src, size_t ld, size_t rows,
                      size_t cols) {
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            dst[r / TD_ATTN_PANEL * panel_stride + c * TD_ATTN_PANEL + r % TD_ATTN_PANEL] =
                dtype == TD_DT_BF16 ? td_bf16_to_f32(((const td_bf16 *)src)[r * ld + c]) : ((const float *)src)[r * ld + c];
}

#include "kernels/floats/float_math_body.inc"

const td_float_math td_float_math_scalar = {.name = "scalar", FLOAT_MATH_MEMBERS};
