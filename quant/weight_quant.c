#include "quant/weight_quant.h"

#include <math.h>

#include "quant/row_quant.h"

static bool quantize_weight(td_dtype dtype, const void *w, size_t n, size_t k, float qmax, int8_t *q, size_t q_stride,
                            float *scale) {
    size_t row_bytes = k * td_dtype_bytes(dtype);
    bool   finite = true;
    for (size_t r = 0; r < n; r++) {
        int8_t *codes = q + r * q_stride;
        td_quantize_row(dtype, (const char *)w + r * row_bytes, k, qmax, codes, &scale[r]);
        memset(codes + k, 0, q_stride - k);
        finite = finite && !isnan(scale[r]);
    }
    return finite;
}

bool td_quantize_weight_i8(td_dtype dtype, const void *w, size_t n, size_t k, int8_t *q, size_t q_stride, float *scale) {
    return quantize_weight(dtype, w, n, k, 127.0f, q, q_stride, scale);
}

bool td_quantize_weight_i4(td_dtype dtype, const void *w, size_t n, size_t k, int8_t *q, size_t q_stride, float *scale) {
    return quantize_weight(dtype, w, n, k, 7.0f, q, q_stride, scale);
}
