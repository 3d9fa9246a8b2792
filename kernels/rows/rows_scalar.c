/* Rows in plain C: the reference, and the loops that whole vectors leave the rest to. */
#include "kernels/vec/vec_scalar.h"

#include "core/math/small_float.h"
#include "kernels/rows/convert.h"
#include "kernels/rows/row_scale.h"
#include "kernels/rows/rows.h"
#include "kernels/rows/silu_body.inc"

void td_to_f32_scalar(td_dtype dtype, const void *src, size_t n, float *dst) {
    if (dtype == TD_DT_BF16)
        for (size_t i = 0; i < n; i++) dst[i] = td_bf16_to_f32(((const td_bf16 *)src)[i]);
    else
        for (size_t i = 0; i < n; i++) dst[i] = td_f16_to_f32(((const td_f16 *)src)[i]);
}

void td_f32_to_bf16_n_scalar(const float *src, size_t n, td_bf16 *dst) {
    for (size_t i = 0; i < n; i++) dst[i] = td_f32_to_bf16(src[i]);
}

static inline float value(td_dtype dtype, const void *x, size_t i) {
    if (dtype == TD_DT_F32) return ((const float *)x)[i];
    if (dtype == TD_DT_BF16) return td_bf16_to_f32(((const td_bf16 *)x)[i]);
    return td_f16_to_f32(((const td_f16 *)x)[i]);
}

static int32_t quantize(td_dtype dtype, const void *x, size_t k, float qmax, int8_t *q, float *scale) {
    uint32_t amax_bits = 0; /* magnitudes order like their bit patterns, NaN above all */
    for (size_t i = 0; i < k; i++) {
        float    v = value(dtype, x, i);
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        bits &= 0x7fffffffu;
        if (bits > amax_bits) amax_bits = bits;
    }
    float   inv = row_inverse_scale(amax_bits, qmax, scale);
    int32_t sum = 0;
    for (size_t i = 0; i < k; i++) {
        int8_t code = inv == 0 ? 0 : (int8_t)rintf(value(dtype, x, i) * inv);
        q[i] = code;
        sum += code;
    }
    return sum;
}

const td_rows td_rows_scalar = {
    .to_f32 = td_to_f32_scalar, .to_bf16 = td_f32_to_bf16_n_scalar, .quantize = quantize, .glu = glu, .axpy = axpy};
