/*
 * The weighted sum over a token's experts: the same bits in any order of its terms, and in any parts.
 *
 * A term is t = weight * y, rounded to f32 and limited to +-TD_EXACT_MAX. It is cut in two:
 *   high   t in units of 2^-4, rounded to nearest even
 *   low    what is left, in units of 2^-26, rounded the same way
 * Sums of either part are int32, which no order changes. They cannot overflow: a part of a term is at most 2^22, and a token
 * has at most TD_EXACT_TERMS experts. So experts may be added by threads, cards and hosts in any company; parts of a sum are
 * added word by word, and the whole is rounded once.
 *
 * Why two int32 words. Vector units add them as fast as floats, those of cards included, some of which have few or no f64.
 * Both parts come out of the float unit without a conversion. t + 1.5 * 2^19 has the high part in its last bits, and the
 * rest + 1.5 * 2^-3 has the low one. No other step rounds. A term adds these bits as they are; so a sum of n terms begins at
 * minus n times the bits of the two constants, and is only a sum when all n are there.
 *
 * A NaN among the terms leaves a word that no other terms can (test_exact_sum tries all numbers of NaNs); its sum is a NaN.
 */
#ifndef TD_KERNELS_EXACT_SUM_H
#define TD_KERNELS_EXACT_SUM_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TD_EXACT_TERMS 32      /* of a sum, at most */
#define TD_EXACT_MAX 262143.0f /* 2^18 - 1 */
#define TD_EXACT_HIGH_UNIT 0x1p-4f
#define TD_EXACT_LOW_UNIT 0x1p-26f
#define TD_EXACT_CARRY_BITS 22  /* a unit of high is 2^22 units of low */
#define TD_EXACT_HIGH 786432.0f /* 1.5 * 2^19 */
#define TD_EXACT_LOW 0.1875f    /* 1.5 * 2^-3; the sum of both is an f32, too */
#define TD_EXACT_HIGH_BITS 0x49400000u
#define TD_EXACT_LOW_BITS 0x3E400000u
#define TD_EXACT_WORD_MAX (1 << 27) /* largest size of a word of a whole sum */

/* A row of sums: of each TD_EXACT_BLOCK values the high words, then the low ones. */
#define TD_EXACT_BLOCK 16

/** Words of a row of n sums. */
static inline size_t td_exact_words(size_t n) {
    return (n + TD_EXACT_BLOCK - 1) / TD_EXACT_BLOCK * TD_EXACT_BLOCK * 2;
}

/** Where the high word of sum i lies; the low one is TD_EXACT_BLOCK words behind it. */
static inline size_t td_exact_at(size_t i) {
    return i + i / TD_EXACT_BLOCK * TD_EXACT_BLOCK;
}

/** Begin a row of n sums of so many terms each. @param row [td_exact_words(n)] */
static inline void td_exact_begin(int32_t *row, size_t n, uint32_t terms) {
    const int32_t high = (int32_t)(0u - terms * TD_EXACT_HIGH_BITS), low = (int32_t)(0u - terms * TD_EXACT_LOW_BITS);
    for (size_t i = 0; i < n; i += TD_EXACT_BLOCK, row += 2 * TD_EXACT_BLOCK)
        for (size_t j = 0; j < TD_EXACT_BLOCK; j++) {
            row[j] = high;
            row[TD_EXACT_BLOCK + j] = low;
        }
}

/* The definition for one value. Vector loops are td_rows.exact_add and exact_end (kernels/rows/rows.h). */

static inline uint32_t td_exact_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/** Add a term to the sum of which sum is the high word. */
static inline void td_exact_add_one(float weight, float y, int32_t *sum) {
    float t = weight * y;
    if (t < -TD_EXACT_MAX) t = -TD_EXACT_MAX;
    if (t > TD_EXACT_MAX) t = TD_EXACT_MAX;
    const float high = t + TD_EXACT_HIGH, low = t + (TD_EXACT_HIGH + TD_EXACT_LOW - high);
    sum[0] = (int32_t)((uint32_t)sum[0] + td_exact_bits(high));
    sum[TD_EXACT_BLOCK] = (int32_t)((uint32_t)sum[TD_EXACT_BLOCK] + td_exact_bits(low));
}

/** The whole sum. The carry goes from the low word to the high one first, so that the value is rounded once below 2^20. */
static inline float td_exact_value(const int32_t *sum) {
    int32_t high = sum[0], low = sum[TD_EXACT_BLOCK];
    if (high > TD_EXACT_WORD_MAX || high < -TD_EXACT_WORD_MAX || low > TD_EXACT_WORD_MAX || low < -TD_EXACT_WORD_MAX)
        return NAN;
    const int32_t carry = (low + (1 << (TD_EXACT_CARRY_BITS - 1))) >> TD_EXACT_CARRY_BITS;
    high += carry;
    low -= carry * (1 << TD_EXACT_CARRY_BITS);
    return (float)high * TD_EXACT_HIGH_UNIT + (float)low * TD_EXACT_LOW_UNIT;
}

#endif
