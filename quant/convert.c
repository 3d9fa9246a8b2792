/* Conversions: the scalar tier, and the choice of tier. */
#include "quant/convert.h"

#include <assert.h>

#include "core/cpu.h"

float td_f16_to_f32(td_f16 v) {
    uint32_t sign = (uint32_t)(v & 0x8000u) << 16, exponent = v >> 10 & 31u, mantissa = v & 0x3ffu, bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000u | mantissa << 13;
        if (mantissa) bits |= 0x400000u; /* as the hardware does it */
    } else if (exponent) {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    } else {
        float f = (float)mantissa * 0x1p-24f; /* subnormal or zero: exact in f32 */
        memcpy(&bits, &f, sizeof bits);
        bits |= sign;
    }
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

td_f16 td_f32_to_f16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000u, abs = bits & 0x7fffffffu;
    if (abs > 0x7f800000u) return (td_f16)(sign | 0x7e00u);
    if (abs >= 0x477ff000u) return (td_f16)(sign | 0x7c00u); /* 65520 and more */
    if (abs < 0x38800000u) {                                 /* subnormal: its unit is that of 0.5 in f32 */
        float magnitude;
        memcpy(&magnitude, &abs, sizeof magnitude);
        magnitude += 0.5f;
        memcpy(&abs, &magnitude, sizeof abs);
        return (td_f16)(sign | (abs - 0x3f000000u));
    }
    return (td_f16)(sign | (abs - 0x38000000u + 0xfffu + (abs >> 13 & 1u)) >> 13);
}

void td_to_f32_scalar(td_dtype dtype, const void *src, size_t n, float *dst) {
    if (dtype == TD_DT_BF16)
        for (size_t i = 0; i < n; i++) dst[i] = td_bf16_to_f32(((const td_bf16 *)src)[i]);
    else
        for (size_t i = 0; i < n; i++) dst[i] = td_f16_to_f32(((const td_f16 *)src)[i]);
}

void td_f32_to_bf16_n_scalar(const float *src, size_t n, td_bf16 *dst) {
    for (size_t i = 0; i < n; i++) dst[i] = td_f32_to_bf16(src[i]);
}

void td_to_f32(td_dtype dtype, const void *src, size_t n, float *dst) {
    assert(dtype == TD_DT_F32 || dtype == TD_DT_BF16 || dtype == TD_DT_F16);
    if (n == 0) return;
    if (dtype == TD_DT_F32) {
        memcpy(dst, src, n * sizeof *dst);
        return;
    }
#if defined(__x86_64__)
    uint32_t cpu = td_cpu_features();
    if (cpu & TD_CPU_AVX512) {
        td_to_f32_avx512(dtype, src, n, dst);
        return;
    }
    if (cpu & TD_CPU_AVX2) {
        td_to_f32_avx2(dtype, src, n, dst);
        return;
    }
#endif
    td_to_f32_scalar(dtype, src, n, dst);
}

void td_f32_to_bf16_n(const float *src, size_t n, td_bf16 *dst) {
#if defined(__x86_64__)
    uint32_t cpu = td_cpu_features();
    if (cpu & TD_CPU_AVX512) {
        td_f32_to_bf16_n_avx512(src, n, dst);
        return;
    }
    if (cpu & TD_CPU_AVX2) {
        td_f32_to_bf16_n_avx2(src, n, dst);
        return;
    }
#endif
    td_f32_to_bf16_n_scalar(src, n, dst);
}

void td_from_f32(td_dtype dtype, const float *src, size_t n, void *dst) {
    assert(dtype == TD_DT_F32 || dtype == TD_DT_BF16);
    if (n == 0) return;
    if (dtype == TD_DT_F32)
        memcpy(dst, src, n * sizeof *src);
    else
        td_f32_to_bf16_n(src, n, dst);
}
