#include "quant/weight_quant.h"

#include <math.h>
#include <string.h>

#include "core/math/small_float.h"
#include "kernels/rows/convert.h"
#include "kernels/rows/row_quant.h"

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

float td_int4_scale(float least, float most) {
    return most > -least ? -fmaxf(most / 8, -least / 7) : fmaxf(-least / 8, most / 7);
}

static float quantize_group(const float *w, size_t k, td_dtype scale_dtype, uint8_t *q) {
    float least = 0, most = 0;
    for (size_t i = 0; i < k; i++) {
        if (!isfinite(w[i])) return NAN;
        least = fminf(least, w[i]);
        most = fmaxf(most, w[i]);
    }
    float scale = td_round_to(scale_dtype, td_int4_scale(least, most)), inv = 1.0f / scale;
    if (isinf(scale)) return NAN;
    if (isinf(inv)) { /* all zero, or too small for the type of the scale */
        memset(q, 8, k);
        return 0;
    }
    for (size_t i = 0; i < k; i++) q[i] = (uint8_t)(8 + (int)fminf(fmaxf(rintf(w[i] * inv), -8.0f), 7.0f));
    return scale;
}

bool td_quantize_weight_i4_groups(td_dtype dtype, const void *w, size_t n, size_t k, size_t size, td_dtype scale_dtype,
                                  uint8_t *q, size_t q_stride, float *scale, float *tmp) {
    size_t n_groups = q_stride / size;
    bool   finite = true;
    for (size_t r = 0; r < n; r++) {
        uint8_t *codes = q + r * q_stride;
        td_to_f32(dtype, (const char *)w + r * k * td_dtype_bytes(dtype), k, tmp);
        memset(codes, 8, q_stride);
        for (size_t g = 0; g < n_groups; g++) {
            size_t at = g * size, len = at >= k ? 0 : k - at < size ? k - at : size;
            float *s = &scale[r * n_groups + g];
            *s = len ? quantize_group(tmp + at, len, scale_dtype, codes + at) : 0;
            finite = finite && !isnan(*s);
        }
    }
    return finite;
}

/* ---- fp4 --------------------------------------------------------------------------------------- */

/* Magnitudes order like their bit patterns, NaN above all. */
static uint32_t most_bf16(const td_bf16 *x, size_t n) {
    int16_t most = 0; /* without the sign they are positive: SSE2 knows the larger of two such numbers */
    for (size_t i = 0; i < n; i++) {
        int16_t bits = (int16_t)(x[i] & 0x7fff);
        most = bits > most ? bits : most;
    }
    return (uint32_t)most << 16;
}

static uint32_t most_f32(td_dtype dtype, const char *x, size_t n) {
    enum { PIECE = 1024 };
    float   v[PIECE];
    int32_t most = 0, bits[PIECE];
    for (size_t at = 0; at < n; at += PIECE) {
        size_t len = n - at < PIECE ? n - at : PIECE;
        td_to_f32(dtype, x + at * td_dtype_bytes(dtype), len, v);
        memcpy(bits, v, len * sizeof *v);
        for (size_t i = 0; i < len; i++) most = (bits[i] & 0x7fffffff) > most ? bits[i] & 0x7fffffff : most;
    }
    return (uint32_t)most;
}

float td_amax(td_dtype dtype, const void *x, size_t n) {
    uint32_t most = dtype == TD_DT_BF16 ? most_bf16(x, n) : most_f32(dtype, x, n);
    float    amax;
    memcpy(&amax, &most, sizeof amax);
    return amax;
}

float td_fp4_factor(float amax) {
    return amax < 0x1p-100f ? 1 : amax / (TD_E2M1_MAX * TD_E4M3_MAX);
}

static float fp4_scale(float amax, td_dtype scale_dtype, float factor) {
    if (scale_dtype == TD_DT_F8_E4M3) return td_e4m3_to_f32(td_f32_to_e4m3(amax / TD_E2M1_MAX / factor));
    uint8_t power = td_f32_to_e8m0_floor(amax);
    return td_e8m0_to_f32(power > 2 ? power - 2 : 0);
}

bool td_quantize_weight_fp4_groups(td_dtype dtype, const void *w, size_t n, size_t k, size_t size, td_dtype scale_dtype,
                                   float factor, uint8_t *q, size_t q_stride, float *scale, float *tmp) {
    size_t n_groups = q_stride / size;
    bool   finite = isfinite(factor);
    memset(q, 0, n * q_stride);
    memset(scale, 0, n * n_groups * sizeof *scale);
    for (size_t r = 0; r < n; r++, q += q_stride, scale += n_groups) {
        td_to_f32(dtype, (const char *)w + r * k * td_dtype_bytes(dtype), k, tmp);
        for (size_t at = 0; at < k; at += size) {
            size_t len = k - at < size ? k - at : size;
            float  amax = td_amax(TD_DT_F32, tmp + at, len), s = scale[at / size] = fp4_scale(amax, scale_dtype, factor);
            float  inv = s == 0 ? 0 : 1.0f / (s * factor);
            if (!isfinite(amax)) finite = false;
            for (size_t i = 0; i < len && finite; i++) q[at + i] = td_f32_to_e2m1(tmp[at + i] * inv);
        }
    }
    return finite;
}
