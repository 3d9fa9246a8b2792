/* Conversions between bf16, f16 and f32 arrays. Every CPU tier gives the same bits, also for subnormals, infinities and NaN.
 */
#ifndef TD_KERNELS_ROWS_CONVERT_H
#define TD_KERNELS_ROWS_CONVERT_H

#include "core/dtype.h"

/** dst[i] = (f32)src[i], i < n; exact. dtype: TD_DT_F32, TD_DT_BF16 or TD_DT_F16; a NaN becomes quiet from f16. */
void td_to_f32(td_dtype dtype, const void *src, size_t n, float *dst);

/** dst[i] = bf16(src[i]), round to nearest even; a NaN stays a NaN. */
void td_f32_to_bf16_n(const float *src, size_t n, td_bf16 *dst);

/** f32 to the activation type: TD_DT_BF16 (rounded as above) or TD_DT_F32 (copied). */
void td_from_f32(td_dtype dtype, const float *src, size_t n, void *dst);

#endif
