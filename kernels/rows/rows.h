/* Work on single rows of values: conversions, quantisation, gates, sums. Every set of instructions gives the same bits. */
#ifndef TD_KERNELS_ROWS_ROWS_H
#define TD_KERNELS_ROWS_ROWS_H

#include "core/dtype.h"
#include "kernels/exact_sum.h"
#include "kernels/glu.h"

typedef struct {
    /** dst[i] = (f32)src[i], i < n; exact. dtype: BF16 or F16 (kernels/rows/convert.h). */
    void (*to_f32)(td_dtype dtype, const void *src, size_t n, float *dst);
    /** dst[i] = bf16(src[i]), round to nearest even; a NaN stays a NaN. */
    void (*to_bf16)(const float *src, size_t n, td_bf16 *dst);
    /** td_quantize_row (kernels/rows/row_quant.h). */
    int32_t (*quantize)(td_dtype dtype, const void *x, size_t k, float qmax, int8_t *q, float *scale);
    /**
     * out[r, i] = what p makes of gate[r, i] and up[r, i] (kernels/glu.h); gate and up [rows, cols] dense, out [rows, ldo],
     * may be gate. Relative error of silu below 4e-7.
     */
    void (*glu)(const td_glu *p, const float *gate, const float *up, size_t rows, size_t cols, float *out, size_t ldo);
    /** The terms w * v[i] to sum i of the row (kernels/exact_sum.h), i < n. */
    void (*exact_add)(float w, const float *v, size_t n, int32_t *sums);
    /** out[i] = the value of sum i of the row, i < n. */
    void (*exact_end)(const int32_t *sums, size_t n, float *out);
} td_rows;

extern const td_rows td_rows_scalar, td_rows_avx2, td_rows_avx512, td_rows_neon;

/* The scalar loops of to_f32 and to_bf16: what is left of whole vectors goes through them. */
void td_to_f32_scalar(td_dtype dtype, const void *src, size_t n, float *dst);
void td_f32_to_bf16_n_scalar(const float *src, size_t n, td_bf16 *dst);

#endif
