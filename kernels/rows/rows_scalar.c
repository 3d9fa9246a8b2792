/* Rows in plain C: the reference. */
#include <math.h>
#include <string.h>

#include "core/small_float.h"
#include "kernels/rows/convert.h"
#include "kernels/rows/row_scale.h"
#include "kernels/rows/rows.h"
#include "kernels/rows/silu_exp.h"

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

static float exp_reference(float x) {
    x = x > EXP_LOW ? x : EXP_LOW; /* the operand order of maxps and minps: a NaN becomes the bound */
    x = x < EXP_HIGH ? x : EXP_HIGH;
    float n = rintf(x * EXP_LOG2E);
    float r = fmaf(n, -EXP_LN2_LOW, fmaf(n, -EXP_LN2_HIGH, x));
    float p = fmaf(EXP_P0, r, EXP_P1);
    p = fmaf(p, r, EXP_P2);
    p = fmaf(p, r, EXP_P3);
    p = fmaf(p, r, EXP_P4);
    p = fmaf(p, r, EXP_P5);
    float    e = fmaf(p, r * r, r) + 1.0f, scale;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    memcpy(&scale, &bits, sizeof scale);
    return e * scale;
}

static void silu_mul(const float *gate, const float *up, size_t rows, size_t cols, float *out, size_t ldo) {
    for (size_t r = 0; r < rows; r++, gate += cols, up += cols, out += ldo)
        for (size_t i = 0; i < cols; i++) out[i] = gate[i] / (1.0f + exp_reference(-gate[i])) * up[i];
}

static void axpy(float w, const float *v, size_t n, float *y) {
    for (size_t i = 0; i < n; i++) y[i] = fmaf(w, v[i], y[i]);
}

const td_rows td_rows_scalar = {.to_f32 = td_to_f32_scalar, .to_bf16 = td_f32_to_bf16_n_scalar, .quantize = quantize, .silu_mul = silu_mul, .axpy = axpy};
