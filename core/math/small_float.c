/* 16-, 8- and 4-bit floats to f32 and back. */
#include "core/math/small_float.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static float of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

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

float td_round_to(td_dtype dtype, float f) {
    if (dtype == TD_DT_BF16) return td_bf16_to_f32(td_f32_to_bf16(f));
    if (dtype == TD_DT_F16) return td_f16_to_f32(td_f32_to_f16(f));
    return f;
}

float td_fit_scale(td_dtype dtype, float scale) {
    float s = td_round_to(dtype, scale);
    return s > 0 && isfinite(s) && isfinite(1.0f / s) ? s : 0;
}

/* Magnitude: (8 for normals + mantissa) * 2^(exponent - 10), the exponent of subnormals being 1. */
#define EXPONENT(c) ((c) >> 3 & 15 ? (c) >> 3 & 15 : 1)
#define MAGNITUDE(c) ((float)((((c)&0x78 ? 8 : 0) + ((c)&7)) << EXPONENT(c)) * 0x1p-10f)
#define E4M3(c) ((c)&0x80 ? -1.0f : 1.0f) * (((c)&0x7f) == 0x7f ? NAN : MAGNITUDE(c))
#define E4M3_4(c) E4M3(c), E4M3((c) + 1), E4M3((c) + 2), E4M3((c) + 3)
#define E4M3_16(c) E4M3_4(c), E4M3_4((c) + 4), E4M3_4((c) + 8), E4M3_4((c) + 12)
#define E4M3_64(c) E4M3_16(c), E4M3_16((c) + 16), E4M3_16((c) + 32), E4M3_16((c) + 48)

static const float E4M3_VALUES[256] = {E4M3_64(0), E4M3_64(64), E4M3_64(128), E4M3_64(192)};

float td_e4m3_to_f32(uint8_t code) {
    return E4M3_VALUES[code];
}

void td_e4m3_to_f32_n(const uint8_t *src, size_t n, float *dst) {
    for (size_t i = 0; i < n; i++) dst[i] = E4M3_VALUES[src[i]];
}

uint8_t td_f32_to_e4m3(float f) {
    uint32_t bits = bits_of(f), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7f;
    if (magnitude >= bits_of(448.0f)) return (uint8_t)(sign | 0x7e);
    if (magnitude < bits_of(0x1p-6f)) /* subnormal: rounded where the unit is that of 2^14 in f32 */
        return (uint8_t)(sign | (bits_of(of_bits(magnitude) + 0x1p14f) - bits_of(0x1p14f)));
    magnitude += 0x7ffffu + (magnitude >> 20 & 1u);
    return (uint8_t)(sign | ((magnitude >> 20) - (120u << 3)));
}

float td_e8m0_to_f32(uint8_t code) {
    if (code == 255) return NAN;
    return of_bits(code ? (uint32_t)code << 23 : 1u << 22); /* 2^-127 is a subnormal of f32 */
}

uint8_t td_f32_to_e8m0_floor(float f) {
    if (!(f >= 0)) return isnan(f) ? 255 : 0;
    return (uint8_t)(bits_of(f) >> 23); /* infinity: 255 */
}

int8_t td_e2m1_twice(uint8_t code) {
    static const int8_t TWICE[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return TWICE[code & 15];
}

uint8_t td_f32_to_e2m1(float f) {
    float   v = fabsf(f);
    uint8_t code = v <= 0.25f   ? 0
                   : v < 0.75f  ? 1
                   : v <= 1.25f ? 2
                   : v < 1.75f  ? 3
                   : v <= 2.5f  ? 4
                   : v < 3.5f   ? 5
                   : v <= 5.0f  ? 6
                                : 7;
    return (uint8_t)(code | (signbit(f) ? 8 : 0));
}
