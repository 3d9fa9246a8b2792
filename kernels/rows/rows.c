/* Single rows: conversions, quantisation, gated units, weighted sums. Those of each instruction set. */
#include "kernels/rows/rows.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "core/math/small_float.h"
#include "kernels/vec/vec.h"
#include "kernels/vec/vec_exact.inc"
#include "kernels/vec/vec_exp.inc"

/* Set *scale, from the bits of the row's largest magnitude; return 1 / scale, or 0 for a row whose codes are all 0
 * (kernels/rows/row_quant.h). */
static inline float row_inverse_scale(uint32_t amax_bits, float qmax, float *scale) {
    float amax;
    memcpy(&amax, &amax_bits, sizeof amax);
    if (amax_bits >= 0x7f800000u) {
        *scale = NAN;
        return 0;
    }
    float s = amax / qmax, inv = 1.0f / s;
    if (amax == 0 || isinf(inv)) {
        *scale = 1;
        return 0;
    }
    *scale = s;
    return inv;
}

#if TD_FOR_SCALAR

/* The reference, and the loops that whole vectors leave the rest to. */
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

#define CONVERSIONS .to_f32 = td_to_f32_scalar, .to_bf16 = td_f32_to_bf16_n_scalar

#else

/* ---- conversions ----------------------------------------------------------------------------- */

/* By whole vectors. What is left goes through the scalar set, which gives the same bits. */
static void to_f32(td_dtype dtype, const void *src, size_t n, float *dst) {
    const uint16_t *s = src;
    size_t          i = 0;
    if (dtype == TD_DT_BF16)
        for (; i + LANES <= n; i += LANES) vf_store(dst + i, vf_load_bf16(s + i));
    else
        for (; i + LANES <= n; i += LANES) vf_store(dst + i, vf_load_f16(s + i));
    td_to_f32_scalar(dtype, s + i, n - i, dst + i);
}

static void to_bf16(const float *src, size_t n, td_bf16 *dst) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) vf_store_bf16(dst + i, vf_load(src + i));
    td_f32_to_bf16_n_scalar(src + i, n - i, dst + i);
}

#define CONVERSIONS .to_f32 = to_f32, .to_bf16 = to_bf16

/* ---- quantisation ---------------------------------------------------------------------------- */

/* A tail goes through a zeroed buffer, so that every element takes the same path. */
VEC vf load_as(td_dtype dtype, const void *x, size_t i) {
    if (dtype == TD_DT_F32) return vf_load((const float *)x + i);
    if (dtype == TD_DT_BF16) return vf_load_bf16((const uint16_t *)x + i);
    return vf_load_f16((const uint16_t *)x + i);
}

/* Magnitudes order like their bit patterns, NaN above all. */
VEC vi larger_bits(vi most, vf v) {
    return vi_max(most, (vi)v & vi_set1(INT32_MAX));
}

VEC int32_t quantize_as(td_dtype dtype, const void *x, size_t k, float qmax, int8_t *q, float *scale) {
    const size_t element = td_dtype_bytes(dtype), body = k - k % LANES, rest = k % LANES;
    char         tail[LANES * sizeof(float)] = {0};
    int8_t       codes[LANES];
    vi           most[2] = {vi_set1(0), vi_set1(0)}, sum = vi_set1(0);
    size_t       i = 0;
    memcpy(tail, (const char *)x + body * element, rest * element);
    for (; i + 2 * LANES <= body; i += 2 * LANES) {
        most[0] = larger_bits(most[0], load_as(dtype, x, i));
        most[1] = larger_bits(most[1], load_as(dtype, x, i + LANES));
    }
    if (i < body) most[0] = larger_bits(most[0], load_as(dtype, x, i));
    if (rest) most[1] = larger_bits(most[1], load_as(dtype, tail, 0));
    const float inv = row_inverse_scale((uint32_t)vi_lanes_max(vi_max(most[0], most[1])), qmax, scale);
    if (inv == 0) {
        memset(q, 0, k);
        return 0;
    }
    for (i = 0; i < body; i += LANES) {
        vi c = vi_of_vf(load_as(dtype, x, i) * vf_set1(inv));
        sum += c;
        vi_store_i8(q + i, c);
    }
    if (rest) {
        vi c = vi_of_vf(load_as(dtype, tail, 0) * vf_set1(inv));
        sum += c;
        vi_store_i8(codes, c);
        memcpy(q + body, codes, rest);
    }
    return vi_lanes_sum(sum);
}

static int32_t quantize(td_dtype dtype, const void *x, size_t k, float qmax, int8_t *q, float *scale) {
    if (dtype == TD_DT_F32) return quantize_as(TD_DT_F32, x, k, qmax, q, scale);
    if (dtype == TD_DT_BF16) return quantize_as(TD_DT_BF16, x, k, qmax, q, scale);
    return quantize_as(TD_DT_F16, x, k, qmax, q, scale);
}

#endif

/* ---- gated units and weighted sums ----------------------------------------------------------- */

VEC void glu_row(const td_glu *p, bool silu, const float *gate, const float *up, size_t cols, float *out) {
    size_t i = 0;
    for (; i + LANES <= cols; i += LANES) vf_store(out + i, vf_gated(p, silu, vf_load(gate + i), vf_load(up + i)));
    if (i < cols)
        vf_store_n(out + i, vf_gated(p, silu, vf_load_n(gate + i, cols - i), vf_load_n(up + i, cols - i)), cols - i);
}

static void glu(const td_glu *p, const float *gate, const float *up, size_t rows, size_t cols, float *out, size_t ldo) {
    const bool   silu = td_glu_is_silu(p);
    const td_glu whole = td_glu_in_full(p);
    for (size_t r = 0; r < rows; r++, gate += cols, up += cols, out += ldo) {
        if (silu)
            glu_row(&whole, true, gate, up, cols, out);
        else
            glu_row(&whole, false, gate, up, cols, out);
    }
}

static void exact_add(float w, const float *v, size_t n, int32_t *sums) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) vf_exact_add(vf_set1(w), vf_load(v + i), sums + td_exact_at(i));
    for (; i < n; i++) td_exact_add_one(w, v[i], sums + td_exact_at(i));
}

static void exact_end(const int32_t *sums, size_t n, float *out) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) vf_store(out + i, vf_exact_value(sums + td_exact_at(i)));
    for (; i < n; i++) out[i] = td_exact_value(sums + td_exact_at(i));
}

const td_rows TD_OF_SET(rows) = {CONVERSIONS, .quantize = quantize, .glu = glu, .exact_add = exact_add,
                                 .exact_end = exact_end};
