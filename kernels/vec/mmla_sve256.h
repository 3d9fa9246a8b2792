/*
 * `smmla` of SVE, in vectors of 256 bits: vec/mmla_i8mm.h has the words. Each half of a vector is worked on as one of 128,
 * so that both halves of the activations hold the same rows.
 */
#ifndef TD_KERNELS_VEC_MMLA_SVE256_H
#define TD_KERNELS_VEC_MMLA_SVE256_H

#include <arm_neon.h>
#include <arm_sve.h>

#include "kernels/vec/mmla_pairs.h"

#define MMLA_OUTPUTS 4
#define MMLA_PAIRS 6
#define MMLA_EACH_PAIRS(x) x(1) x(2) x(3) x(4) x(5) x(6)

typedef svint8_t  mmla_codes __attribute__((arm_sve_vector_bits(256)));
typedef svint8_t  mmla_rows __attribute__((arm_sve_vector_bits(256)));
typedef svint32_t mmla_sums __attribute__((arm_sve_vector_bits(256)));

MMLA mmla_codes mmla_load_codes(const void *p) {
    return svld1_s8(svptrue_b8(), p);
}
MMLA mmla_codes mmla_high(mmla_codes c) {
    return svasr_n_s8_x(svptrue_b8(), c, 4);
}
MMLA mmla_rows mmla_load_rows(const void *p) {
    return svld1rq_s8(svptrue_b8(), p);
}
MMLA mmla_sums mmla_zero(void) {
    return svdup_n_s32(0);
}
MMLA void mmla_store(int32_t *p, mmla_sums s) {
    svst1_s32(svptrue_b32(), p, s);
}

#define mmla_add(sums, rows, codes) __asm__("smmla %0.s, %1.b, %2.b" : "+w"(sums) : "w"(rows), "w"(codes))

#endif
