/*
 * `smmla`: eight k of two rows of activations times those of some outputs, on aarch64; vectors of 128 bits.
 * vec/mmla_sve256.h has the same words for vectors of 256.
 */
#ifndef TD_KERNELS_VEC_MMLA_I8MM_H
#define TD_KERNELS_VEC_MMLA_I8MM_H

#include <arm_neon.h>

#include "kernels/vec/mmla_pairs.h"

#define MMLA_OUTPUTS 2 /* of a vector of weights */
#define MMLA_PAIRS 3   /* of rows, whose sums with 16 outputs leave registers for the rest */
#define MMLA_EACH_PAIRS(x) x(1) x(2) x(3)

typedef int8x16_t mmla_codes; /* [MMLA_OUTPUTS][8]: weights */
typedef int8x16_t mmla_rows;  /* [2][8]: activations */
typedef int32x4_t mmla_sums;  /* [2 rows][2 outputs]; of more outputs one such after the other */

MMLA mmla_codes mmla_load_codes(const void *p) {
    return vld1q_s8(p);
}
/* High nibbles, as signed numbers. */
MMLA mmla_codes mmla_high(mmla_codes c) {
    return vshrq_n_s8(c, 4);
}
MMLA mmla_rows mmla_load_rows(const void *p) {
    return vld1q_s8(p);
}
MMLA mmla_sums mmla_zero(void) {
    return vdupq_n_s32(0);
}
MMLA void mmla_store(int32_t *p, mmla_sums s) {
    vst1q_s32(p, s);
}

/* By hand: gcc 12 moves accumulators of the intrinsic to and fro. */
#define mmla_add(sums, rows, codes) __asm__("smmla %0.4s, %1.16b, %2.16b" : "+w"(sums) : "w"(rows), "w"(codes))

#endif
