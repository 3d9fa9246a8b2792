/* Conversions between bf16, f16 and f32 arrays. Every CPU tier gives the same bits, also for subnormals, infinities and NaN.
 */
#ifndef TD_QUANT_CONVERT_H
#define TD_QUANT_CONVERT_H

#include "core/dtype.h"

/** dst[i] = (f32)src[i], i < n; exact. dtype: TD_DT_F32, TD_DT_BF16 or TD_DT_F16; a NaN becomes quiet from f16. */
void td_to_f32(td_dtype dtype, const void *src, size_t n, float *dst);

/** dst[i] = bf16(src[i]), round to nearest even; a NaN stays a NaN. */
void td_f32_to_bf16_n(const float *src, size_t n, td_bf16 *dst);

/** f32 to the activation type: TD_DT_BF16 (rounded as above) or TD_DT_F32 (copied). */
void td_from_f32(td_dtype dtype, const float *src, size_t n, void *dst);

/** One IEEE binary16 value, exact. */
float td_f16_to_f32(td_f16 v);

/** The nearest binary16, ties to even; beyond its range an infinity, a NaN stays one. */
td_f16 td_f32_to_f16(float f);

/* The tiers, for tests and selection. */
void td_to_f32_scalar(td_dtype dtype, const void *src, size_t n, float *dst);
void td_to_f32_avx2(td_dtype dtype, const void *src, size_t n, float *dst);
void td_to_f32_avx512(td_dtype dtype, const void *src, size_t n, float *dst);
void td_f32_to_bf16_n_scalar(const float *src, size_t n, td_bf16 *dst);
void td_f32_to_bf16_n_avx2(const float *src, size_t n, td_bf16 *dst);
void td_f32_to_bf16_n_avx512(const float *src, size_t n, td_bf16 *dst);

#endif
