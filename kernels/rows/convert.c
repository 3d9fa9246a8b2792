/* Conversions of arrays. */
#include "kernels/rows/convert.h"

#include <assert.h>

#include "kernels/kernels.h"

void td_to_f32(td_dtype dtype, const void *src, size_t n, float *dst) {
    assert(dtype == TD_DT_F32 || dtype == TD_DT_BF16 || dtype == TD_DT_F16);
    if (n == 0) return;
    if (dtype == TD_DT_F32)
        memcpy(dst, src, n * sizeof *dst);
    else
        td_kernels_here()->rows->to_f32(dtype, src, n, dst);
}

void td_f32_to_bf16_n(const float *src, size_t n, td_bf16 *dst) {
    td_kernels_here()->rows->to_bf16(src, n, dst);
}

void td_from_f32(td_dtype dtype, const float *src, size_t n, void *dst) {
    assert(dtype == TD_DT_F32 || dtype == TD_DT_BF16);
    if (n == 0) return;
    if (dtype == TD_DT_F32)
        memcpy(dst, src, n * sizeof *src);
    else
        td_f32_to_bf16_n(src, n, dst);
}
