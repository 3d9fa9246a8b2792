/*
 * IEEE binary16, and the 8- and 4-bit floats of quantised checkpoints, as the OCP specifications define them (8-bit
 * Floating Point 1.0, Microscaling Formats 1.0): sign, exponent, mantissa from the top bit on.
 *   e4m3  bias 7, no infinity, NaN is 0x7f and 0xff, at most 448, subnormals in steps of 2^-9
 *   e8m0  a power of two without sign, 2^(code - 127); 255 is NaN
 *   e2m1  0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; a code is four bits
 * Every value is exact in f32, those of e4m3 and e2m1 in bf16 too.
 */
#ifndef TD_CORE_MATH_SMALL_FLOAT_H
#define TD_CORE_MATH_SMALL_FLOAT_H

#include "core/dtype.h"

/** One IEEE binary16 value, exact. */
float td_f16_to_f32(td_f16 v);

/** The nearest binary16, ties to even; beyond its range an infinity, a NaN stays one. */
td_f16 td_f32_to_f16(float f);

/** f rounded to the nearest BF16 or F16; F32: f. */
float td_round_to(td_dtype dtype, float f);

/** scale rounded to dtype (F32, BF16 or F16); 0 where that, or its inverse, is no finite number above zero. */
float td_fit_scale(td_dtype dtype, float scale);

#define TD_E4M3_MAX 448.0f

/** The value of a code, exact; NaN for 0x7f and 0xff. */
float td_e4m3_to_f32(uint8_t code);

/** dst[i] = the value of src[i], i < n. */
void td_e4m3_to_f32_n(const uint8_t *src, size_t n, float *dst);

/** The nearest code, ties to even; beyond 448, infinity included, it stays at 448; NaN becomes 0x7f. */
uint8_t td_f32_to_e4m3(float f);

/** 2^(code - 127); NaN for 255. */
float td_e8m0_to_f32(uint8_t code);

/** The code of the largest power of two that is not above f; 0 for what is smaller than 2^-127, zero and negatives included;
 * 255 for NaN and infinity. */
uint8_t td_f32_to_e8m0_floor(float f);

#define TD_E2M1_MAX 6.0f

/** Twice the value of code & 15: an integer in [-12, 12]. */
int8_t td_e2m1_twice(uint8_t code);

/** The nearest code in [0, 15], ties to the even one; beyond 6 it stays at 6. f is not NaN; the sign of zero is kept. */
uint8_t td_f32_to_e2m1(float f);

#endif
