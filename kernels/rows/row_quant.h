/*
 * Symmetric quantisation of rows to integer codes with one f32 scale per row.
 *
 *   amax  = max |x[i]|            scale = amax / qmax            inv = 1 / scale
 *   q[i]  = rint(x[i] * inv)      (round half to even; |q| <= qmax)
 *
 * A row whose amax is 0, or so small that 1 / scale overflows, has scale 1 and codes 0. A row that holds an infinity or a
 * NaN has scale NaN and codes 0, so that whatever is computed from it is NaN. Every CPU tier gives the same bits.
 */
#ifndef TD_KERNELS_ROWS_ROW_QUANT_H
#define TD_KERNELS_ROWS_ROW_QUANT_H

#include "core/dtype.h"

/**
 * Activations: codes in [-127, 127].
 * @param dtype    of x: TD_DT_F32, TD_DT_BF16 or TD_DT_F16.
 * @param x        [n, k], rows x_stride elements apart.
 * @param q        [n, k], rows q_stride >= k apart; q[k .. q_stride) of each row is set to 0. q may be the same address as
 * an f32 x when n is 1 (codes trail what is read).
 * @param scale    [n] out.
 * @param sum      [n] out: sum of the row's codes; or NULL.
 * Thread-safe; allocates nothing.
 */
void td_quantize_rows_i8(td_dtype dtype, const void *x, size_t n, size_t k, size_t x_stride, int8_t *q, size_t q_stride,
                         float *scale, int32_t *sum);

/** One row with qmax given (7 for int4, 127 for int8), the rule above; q[k] onwards is left alone. Returns the sum of the
 * codes. */
int32_t td_quantize_row(td_dtype dtype, const void *x, size_t k, float qmax, int8_t *q, float *scale);

/** The sum of k codes. */
int32_t td_sum_codes_i8(const int8_t *q, size_t k);

/** A row of codes made before, [k], into one of q_stride codes: what td_quantize_rows_i8 writes beside the scale. */
void td_place_row_i8(const int8_t *codes, size_t k, int8_t *q, size_t q_stride, int32_t *sum);

/** sum[g] = -8 * (sum of q[g * size .. (g + 1) * size)) for g < k / size; size a multiple of 8 up to 128, k of size. */
void td_group_sums_i8(const int8_t *q, size_t k, size_t size, int32_t *sum);

#endif
