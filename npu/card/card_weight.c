#include "npu/card/card_weight.h"

#include <math.h>
#include <string.h>

#include "core/error.h"
#include "kernels/rows/convert.h"
#include "quant/weight_quant.h"

#define VALUES 256 /* that are converted at a time */

static td_status check_finite(bool finite, td_error *err) {
    return finite ? TD_OK : td_fail(err, TD_EFORMAT, "a weight holds an infinity or a NaN");
}

td_status td_card_weight_int8(const td_weight_shape *shape, const td_tensor_view *src, int8_t *q, size_t stride,
                              float *scale, td_error *err) {
    if (src->dtype != TD_DT_I8)
        return check_finite(td_quantize_weight_i8(src->dtype, src->data, shape->n, shape->k, q, stride, scale), err);
    for (size_t r = 0; r < shape->n; r++) memcpy(q + r * stride, (const int8_t *)src->data + r * shape->k, shape->k);
    memcpy(scale, src->scale, shape->n * sizeof *scale);
    return TD_OK;
}

td_status td_card_weight_floats(const td_weight_shape *shape, const td_tensor_view *src, void *out, td_error *err) {
    size_t   n = shape->n * shape->k, from = td_dtype_bytes(src->dtype);
    td_dtype to = shape->format == TD_WEIGHT_F32 ? TD_DT_F32 : TD_DT_BF16;
    float    some[VALUES];
    for (size_t i = 0; i < n; i += VALUES) {
        size_t m = n - i < VALUES ? n - i : VALUES;
        td_to_f32(src->dtype, (const char *)src->data + i * from, m, some);
        td_from_f32(to, some, m, (char *)out + i * td_dtype_bytes(to));
    }
    return check_finite(isfinite(td_amax(to, out, n)), err);
}
