/*
 * Bytes times bytes for 16 outputs, aarch64: what int8c and W8A8 are made of. Weights are [k / 4][16][4], signed: a vector of them holds four
 * k of four outputs, and `sdot` by an element multiplies them with any four of the 16 k that one load of a row of activations brings. The
 * including file brings dot() (kernels/vec/dot_neon.h). Five rows take 20 sums, 5 vectors of activations and 4 of weights of the 32 registers;
 * one row has two chains for each sum, which hide the latency of `sdot`.
 */
#ifndef TD_KERNELS_PRODUCT_INT8_NEON_ROWS_H
#define TD_KERNELS_PRODUCT_INT8_NEON_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include <arm_neon.h>

#define INT8_MR 5
#define INT8_NR 16
#define INT8_STEP 16 /* k of a vector of activations */

/* Where a pass prefetches from, for L2, and how far that moves with a step; and how far ahead of itself it does so for L1. */
typedef struct {
    const char *at;
    size_t      step, near;
} int8_fetch;

#define INT8_FOUR_K(w, lane, sum_of_r)                                                                              \
    {                                                                                                               \
        const int8x16_t w0 = vld1q_s8(w), w1 = vld1q_s8((w) + 16), w2 = vld1q_s8((w) + 32), w3 = vld1q_s8((w) + 48); \
        _Pragma("GCC unroll 8") for (int r = 0; r < m; r++) {                                                       \
            int32x4_t *s = sum_of_r;                                                                                \
            s[0] = dot(s[0], w0, x[r], lane);                                                                       \
            s[1] = dot(s[1], w1, x[r], lane);                                                                       \
            s[2] = dot(s[2], w2, x[r], lane);                                                                       \
            s[3] = dot(s[3], w3, x[r], lane);                                                                       \
        }                                                                                                           \
    }

/* sum[r] = the 16 outputs of row r < m; k is a multiple of 4, m a constant after inlining. */
static inline __attribute__((always_inline)) void int8_rows_times_tile(int32x4_t sum[INT8_MR][4], const int8_t *w, size_t k, const int8_t *const *from,
                                                                        int8_fetch f, const int m) {
    int32x4_t odd[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
    int8x16_t x[INT8_MR];
    size_t    j = 0;
#pragma GCC unroll 8
    for (int r = 0; r < m; r++) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = vdupq_n_s32(0);
    for (; j + INT8_STEP <= k; j += INT8_STEP, w += INT8_STEP * INT8_NR, f.at += f.step) {
        for (size_t line = 0; line < INT8_STEP * INT8_NR; line += 64) __builtin_prefetch(w + line + f.near, 0, 3);
        for (size_t line = 0; line < f.step; line += 64) __builtin_prefetch(f.at + line, 0, 2);
#pragma GCC unroll 8
        for (int r = 0; r < m; r++) x[r] = vld1q_s8(from[r] + j);
        INT8_FOUR_K(w, 0, sum[r])
        INT8_FOUR_K(w + 64, 1, m == 1 ? odd : sum[r])
        INT8_FOUR_K(w + 128, 2, sum[r])
        INT8_FOUR_K(w + 192, 3, m == 1 ? odd : sum[r])
    }
    for (; j < k; j += 4, w += 4 * INT8_NR) {
#pragma GCC unroll 8
        for (int r = 0; r < m; r++) x[r] = vreinterpretq_s8_s32(vld1q_dup_s32((const int32_t *)(const void *)(from[r] + j)));
        INT8_FOUR_K(w, 0, sum[r])
    }
    if (m == 1)
        for (int i = 0; i < 4; i++) sum[0][i] = vaddq_s32(sum[0][i], odd[i]);
}

#endif
