/*
 * 16-bit attention with NEON.
 *
 * There is no instruction that adds pairs of 16-bit products: `smlal` by an element multiplies four columns of one l by an
 * element of a row, so b's pairs are taken apart as they are loaded (`uzp`), once for the rows of a tile, and values that
 * lie in rows need not be put into pairs at all. Six rows times 16 columns take 24 sums, 6 vectors of eight l and 2 of
 * columns.
 */
#include "kernels/vec/vec_neon.h"

#include <stdbool.h>

#include "core/memory/mem.h"
#include "kernels/attention/attn16.h"

static void pair(const int16_t *a, const int16_t *b, size_t n, int16_t *out, size_t panel_stride) {
    for (size_t c = 0; c < n; c += 32, out += 2 * panel_stride)
        for (size_t h = 0; h < 4; h++) {
            int16x8_t x = vld1q_s16(a + c + 8 * h), y = b ? vld1q_s16(b + c + 8 * h) : vdupq_n_s16(0);
            vst1q_s16(out + 8 * h, vzip1q_s16(x, y));
            vst1q_s16(out + panel_stride + 8 * h, vzip2q_s16(x, y));
        }
}

VEC int32x4_t load_upto(const int32_t *p, size_t n) {
    int32_t lanes[4] = {0};
    if (n >= 4) return vld1q_s32(p);
    memcpy(lanes, p, n * sizeof *p);
    return vld1q_s32(lanes);
}

/* Squares of four rows and four columns. */
static void transpose(int32_t *dst, size_t ld_dst, const int32_t *src, size_t ld_src, size_t rows, size_t cols) {
    for (size_t r0 = 0; r0 < td_round_up(rows, 16); r0 += 4)
        for (size_t c0 = 0; c0 < cols; c0 += 4) {
            int32x4_t x[4], y[4];
#pragma GCC unroll 4
            for (size_t r = 0; r < 4; r++)
                x[r] = r0 + r < rows ? load_upto(src + (r0 + r) * ld_src + c0, cols - c0) : vdupq_n_s32(0);
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) { /* of rows i and i + 2, columns 0 and 1, then 2 and 3, side by side */
                y[i] = vzip1q_s32(x[i], x[i + 2]);
                y[i + 2] = vzip2q_s32(x[i], x[i + 2]);
            }
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                x[2 * i] = vzip1q_s32(y[2 * i], y[2 * i + 1]);
                x[2 * i + 1] = vzip2q_s32(y[2 * i], y[2 * i + 1]);
            }
#pragma GCC unroll 4
            for (size_t c = 0; c < 4; c++)
                if (c0 + c < cols) vst1q_s32(dst + (c0 + c) * ld_dst + r0, x[c]);
        }
}

/* ---- products -------------------------------------------------------------------------------- */

#define MR 6 /* rows beside a panel */

/* Where 16 columns of b lie: pairs of l side by side, or rows of l as they are. */
typedef struct {
    const int16_t *at;
    size_t         ld; /* of rows, in int16s */
} columns;

/* The 16 columns of one l each. */
typedef struct {
    int16x8_t l[2][2];
} two_l;

VEC two_l load_pair(columns b, size_t pair, const bool in_rows) {
    if (in_rows) {
        const int16_t *p = b.at + 2 * pair * b.ld, *q = p + b.ld;
        return (two_l){{{vld1q_s16(p), vld1q_s16(p + 8)}, {vld1q_s16(q), vld1q_s16(q + 8)}}};
    }
    const int16_t *p = b.at + 32 * pair;
    int16x8_t      v[4] = {vld1q_s16(p), vld1q_s16(p + 8), vld1q_s16(p + 16), vld1q_s16(p + 24)};
    return (two_l){{{vuzp1q_s16(v[0], v[1]), vuzp1q_s16(v[2], v[3])}, {vuzp2q_s16(v[0], v[1]), vuzp2q_s16(v[2], v[3])}}};
}

/* A pair of l of m rows, elements `lane` and `lane` + 1 of x: constants, as in_rows and m are after inlining. */
#define ONE_L(w, lane)                                                                \
    _Pragma("GCC unroll 8") for (int r = 0; r < m; r++) {                             \
        sum[r].q[0] = vmlal_laneq_s16(sum[r].q[0], vget_low_s16((w)[0]), x[r], lane); \
        sum[r].q[1] = vmlal_high_laneq_s16(sum[r].q[1], (w)[0], x[r], lane);          \
        sum[r].q[2] = vmlal_laneq_s16(sum[r].q[2], vget_low_s16((w)[1]), x[r], lane); \
        sum[r].q[3] = vmlal_high_laneq_s16(sum[r].q[3], (w)[1], x[r], lane);          \
    }
#define ONE_PAIR(pair, lane)                         \
    {                                                \
        const two_l w = load_pair(b, pair, in_rows); \
        ONE_L(w.l[0], lane)                          \
        ONE_L(w.l[1], (lane) + 1)                    \
    }

typedef struct {
    int32x4_t q[4];
} row_sums; /* of 16 columns */

VEC void multiply(const int16_t *a, size_t lda, columns b, size_t pairs, row_sums *out, const bool in_rows, const int m) {
    row_sums  sum[MR];
    int16x8_t x[MR];
    size_t    p = 0;
#pragma GCC unroll 8
    for (int r = 0; r < m; r++) sum[r].q[0] = sum[r].q[1] = sum[r].q[2] = sum[r].q[3] = vdupq_n_s32(0);
    for (; p + 4 <= pairs; p += 4) {
#pragma GCC unroll 8
        for (int r = 0; r < m; r++) x[r] = vld1q_s16(a + (size_t)r * lda + 2 * p);
        ONE_PAIR(p, 0)
        ONE_PAIR(p + 1, 2)
        ONE_PAIR(p + 2, 4)
        ONE_PAIR(p + 3, 6)
    }
    for (; p < pairs; p++) {
#pragma GCC unroll 8
        for (int r = 0; r < m; r++)
            x[r] = vreinterpretq_s16_s32(vld1q_dup_s32((const int32_t *)(const void *)(a + (size_t)r * lda + 2 * p)));
        ONE_PAIR(p, 0)
    }
#pragma GCC unroll 8
    for (int r = 0; r < m; r++) out[r] = sum[r];
}

#define CASE(m)                                              \
    case m:                                                  \
        if (in_rows)                                         \
            multiply(a, g->lda, b, g->pairs, sum, true, m);  \
        else                                                 \
            multiply(a, g->lda, b, g->pairs, sum, false, m); \
        break;

/* The sums of row i and of four columns from j on into c. */
VEC void finish(const td_attn16_gemm *g, size_t i, size_t j, int32x4_t sum) {
    float      *c = g->c + i * g->ldc + j;
    float32x4_t scale = vdupq_n_f32(g->scale[i]), y = vcvtq_f32_s32(sum);
    if (g->column) scale = vmulq_f32(scale, vld1q_f32(g->column + j));
    vst1q_f32(c, g->keep ? vfmaq_f32(vmulq_n_f32(vld1q_f32(c), g->keep[i]), y, scale) : vmulq_f32(y, scale));
}

static void gemm(const td_attn16_gemm *g) {
    const bool   in_rows = g->ldb != 0, crossed = g->crossed && !in_rows;
    const size_t tiles = (g->m + MR - 1) / MR, panels = g->used && !crossed ? td_div_up(g->used, 16) : g->n / 16;
    const char  *ahead = g->ahead;
    size_t       lines = g->ahead ? td_div_up(g->ahead_bytes, TD_CACHE_LINE) : 0, share = td_div_up(lines, panels * tiles);
    for (size_t panel = 0; panel < panels; panel++) {
        const columns b = in_rows ? (columns){g->b + panel * 16, g->ldb} : (columns){g->b + panel * g->panel_stride, 0};
        const size_t  first = crossed ? panel / 2 * 32 + panel % 2 * 4 : panel * 16, step = crossed ? 8 : 4;
        for (size_t t = 0, i0 = 0, rows; t < tiles; t++, i0 += rows) {
            const int16_t *a = g->a + i0 * g->lda;
            row_sums       sum[MR];
            for (size_t n = 0; n < share && lines; n++, lines--, ahead += TD_CACHE_LINE) __builtin_prefetch(ahead, 0, 2);
            rows = g->m * (t + 1) / tiles - i0; /* of equal height */
            switch (rows) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
            for (size_t r = 0; r < rows; r++)
                for (size_t q = 0; q < 4; q++) finish(g, i0 + r, first + step * q, sum[r].q[q]);
        }
    }
}

#include "kernels/attention/attn16_body.inc"

const td_attn16 td_attn16_neon = {.name = "attn16_neon", ATTN16_MEMBERS};
