/* Weights to codes by rounding to nearest: integers with one f32 scale per output row, symmetric (kernels/rows/row_quant.h
 * has the rule and its corner cases); int4 and fp4 in groups along k. */
#ifndef TD_QUANT_WEIGHT_QUANT_H
#define TD_QUANT_WEIGHT_QUANT_H

#include <stdbool.h>

#include "core/dtype.h"

/**
 * W8: codes in [-127, 127], scale = rowmax / 127.
 * @param dtype of w: TD_DT_F32, TD_DT_BF16 or TD_DT_F16.
 * @param w     [n, k] dense.
 * @param q     [n, k], rows q_stride >= k apart; the rest of a row is set to 0.
 * @param scale [n].
 * @return false when some row holds an infinity or a NaN (its scale is NaN).
 */
bool td_quantize_weight_i8(td_dtype dtype, const void *w, size_t n, size_t k, int8_t *q, size_t q_stride, float *scale);

/** INT4: the same with codes in [-7, 7], scale = rowmax / 7, one code per byte. */
bool td_quantize_weight_i4(td_dtype dtype, const void *w, size_t n, size_t k, int8_t *q, size_t q_stride, float *scale);

/**
 * INT4 in groups along k: codes in [0, 15] with zeros of 8, scale = td_int4_scale rounded to scale_dtype, code = 8 + rint(w
 * / scale) limited to [0, 15]. A group of zeros, or of values too small for the type of the scale, has scale 0.
 * @param size  weights of a group; the last one of a row may be shorter.
 * @param q     [n, q_stride]; beyond k codes are 8.
 * @param scale [n, q_stride / size], groups beyond k 0.
 * @param tmp   [k] f32.
 * @return false when there is an infinity or a NaN, or a scale overflows scale_dtype.
 */
bool td_quantize_weight_i4_groups(td_dtype dtype, const void *w, size_t n, size_t k, size_t size, td_dtype scale_dtype,
                                  uint8_t *q, size_t q_stride, float *scale, float *tmp);

/**
 * The scale with which codes in [-8, 7] reach all weights of a group or a row. Its sign gives the weight of largest
 * magnitude a negative code, as there is one more of these.
 * @param least  of the weights and 0; most likewise.
 */
float td_int4_scale(float least, float most);

/** max |x[i]|, i < n; an infinity or a NaN where x holds one. */
float td_amax(td_dtype dtype, const void *x, size_t n);

/** The factor of NVFP4 for a matrix of this amax: amax / (6 * 448); 1 below 2^-100, and then all its weights become 0. */
float td_fp4_factor(float amax);

/**
 * FP4 in groups along k: weight = e2m1 code * scale * factor (core/math/small_float.h), codes by rounding weight / (scale *
 * factor) to nearest, ties to even, limited to [-6, 6]. amax is that of the group.
 *   F8_E8M0  scale = 2^(floor(log2(amax)) - 2), at least 2^-127 (OCP Microscaling Formats 1.0, section 6.3); factor is 1
 *   F8_E4M3  scale = amax / 6 / factor, rounded to e4m3 (NVFP4)
 * @param q     [n, q_stride] codes in [0, 15]; beyond k they are 0.
 * @param scale [n, q_stride / size], groups beyond k 0.
 * @param tmp   [k] f32.
 * @return false when there is an infinity or a NaN.
 */
bool td_quantize_weight_fp4_groups(td_dtype dtype, const void *w, size_t n, size_t k, size_t size, td_dtype scale_dtype,
                                   float factor, uint8_t *q, size_t q_stride, float *scale, float *tmp);

#endif
