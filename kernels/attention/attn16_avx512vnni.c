/* 16-bit attention with AVX512-VNNI. */
#include "kernels/vec/vec_avx512.h"

#include <stdbool.h>

#include "core/memory/mem.h"
#include "kernels/attention/attn16.h"
#include "kernels/attention/attn16_zmm.inc"
#include "kernels/vec/fetch.h"
#include "kernels/vec/zmm_rows.h"

/* ---- products -------------------------------------------------------------------------------- */

#define MR TD_ZMM_ROWS_MAX /* rows beside two panels */
#define MR_ONE 16          /* beside one */

/* As instruction text: gcc 12 keeps some of the intrinsic's accumulators in memory. Half of the rows' pairs are broadcast by
 * it, as in kernels/vec/zmm_rows.h. */
VEC __m512i dot2(__m512i sum, __m512i b, const int16_t *pair, bool embedded) {
    if (embedded) {
        __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(*(const int16_t(*)[2])pair));
    } else {
        int32_t two;
        memcpy(&two, pair, sizeof two);
        __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(b), "v"(_mm512_set1_epi32(two)));
    }
    return sum;
}

/* Where the products prefetch next: so many bytes a step that it spreads evenly over all of them, as far as so many lines a
 * step suffice. */
typedef struct {
    const char *at, *end;
    size_t      step;
} prefetch;

static prefetch spread(const td_attn16_gemm *g, size_t steps, size_t lines) {
    if (!g->ahead || steps == 0) return (prefetch){(const char *)g->a, (const char *)g->a, 0};
    size_t step = (g->ahead_bytes + steps - 1) / steps;
    return (prefetch){g->ahead, g->ahead + g->ahead_bytes, step < lines * 64 ? step : lines * 64};
}

static size_t step_of(const prefetch *f) {
    return f->at < f->end ? f->step : 0;
}

#define LOAD(i)                                            \
    "vmovdqu64 64*" i "(%[w]), %%zmm28\n\tvmovdqu64 64*" i \
    "(%[w],%[w1]), %%zmm29\n\tprefetcht1 (%[ahead])\n\tadd %[step], %[ahead]\n\t"
#define LOAD_ROWS(i)                                                                               \
    "vmovdqu64 (%[w]), %%zmm30\n\tvmovdqu64 (%[w],%[w1]), %%zmm31\n\tlea (%[w],%[w1],2), %[w]\n\t" \
    "vpunpcklwd %%zmm31, %%zmm30, %%zmm28\n\tvpunpckhwd %%zmm31, %%zmm30, %%zmm29\n\t"             \
    "prefetcht1 (%[ahead])\n\tprefetcht1 64(%[ahead])\n\tadd %[step], %[ahead]\n\t"
#define CASE(rows) TD_ZMM_CASE(rows, "vpdpwssd", "", LOAD, "64", p, sum[0])
#define CASE_ROWS(rows) TD_ZMM_CASE(rows, "vpdpwssd", "", LOAD_ROWS, "0", p, sum[0])

/* Some rows and two panels. */
static void two_panels(const td_attn16_gemm *g, size_t i0, size_t rows, size_t panel, prefetch *f) {
    __m512i        sum[MR][2];
    td_zmm_product p = {.x = (const char *)(g->a + i0 * g->lda),
                        .stride = g->lda * sizeof *g->a,
                        .w = (const char *)(g->b + panel * (g->ldb ? 16 : g->panel_stride)),
                        .w1 = (g->ldb ? g->ldb : g->panel_stride) * sizeof *g->b,
                        .ahead = f->at,
                        .ahead_step = step_of(f),
                        .fours = g->pairs / 4,
                        .ones = g->pairs % 4};
    p.next = f->at + p.fours * 4 * p.ahead_step;
    if (g->ldb) {
        switch (rows) {
            /* clang-format off */
            CASE_ROWS(1) CASE_ROWS(2) CASE_ROWS(3) CASE_ROWS(4) CASE_ROWS(5) CASE_ROWS(6) CASE_ROWS(7) CASE_ROWS(8) CASE_ROWS(9) CASE_ROWS(10)
            CASE_ROWS(11) CASE_ROWS(12) CASE_ROWS(13) CASE_ROWS(14)
            /* clang-format on */
        }
    } else {
        switch (rows) {
            /* clang-format off */
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
            /* clang-format on */
        }
    }
    for (size_t i = 0; i < rows; i++) {
        finish_two(g, i0 + i, panel * 16, sum[i][0], sum[i][1], g->ldb || g->crossed);
    }
    f->at = p.ahead;
}

/* Some rows, a constant after inlining, and one panel. */
VEC void one_panel(const td_attn16_gemm *g, size_t i0, size_t panel, int rows) {
    __m512i        sum[MR_ONE];
    const int16_t *a3[6], *b = g->b + panel * g->panel_stride; /* row i is a3[i / 3] + (i % 3) * lda: an address each */
    const size_t   lda = g->lda;
#pragma GCC unroll 6
    for (int i = 0; i < 6; i++) a3[i] = g->a + (i0 + (size_t)i * 3) * lda;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) sum[i] = _mm512_setzero_si512();
    for (size_t k = 0; k < g->pairs; k++, b += 32) {
        __m512i b0 = _mm512_loadu_si512(b);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) sum[i] = dot2(sum[i], b0, a3[i / 3] + (size_t)(i % 3) * lda + 2 * k, i % 2 == 1);
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) finish(g, i0 + (size_t)i, panel * 16, _mm512_cvtepi32_ps(sum[i]));
}

/*
 * One panel beside many rows. A load of four of a row's pairs serves four multiplications, where one_panel needs a load for
 * each: the panel goes by fours of pairs, y[r] with column 4 g + r in quarter g, and a row's four sums are added up at the
 * end.
 */
#define MR_FOURS 6
#define FOURS_MIN MR_FOURS
#define FOURS_PAIRS ((size_t)256)

static void by_fours(const int16_t *b, size_t pairs, __m512i (*to)[4]) {
    for (size_t k = 0; k < pairs; k += 4, b += 4 * 32, to++) {
        __m512i x0 = _mm512_loadu_si512(b), x1 = _mm512_loadu_si512(b + 32), x2 = _mm512_loadu_si512(b + 64),
                x3 = _mm512_loadu_si512(b + 96);
        __m512i low[2] = {_mm512_unpacklo_epi32(x0, x1), _mm512_unpacklo_epi32(x2, x3)},
                high[2] = {_mm512_unpackhi_epi32(x0, x1), _mm512_unpackhi_epi32(x2, x3)};
        (*to)[0] = _mm512_unpacklo_epi64(low[0], low[1]);
        (*to)[1] = _mm512_unpackhi_epi64(low[0], low[1]);
        (*to)[2] = _mm512_unpacklo_epi64(high[0], high[1]);
        (*to)[3] = _mm512_unpackhi_epi64(high[0], high[1]);
    }
}

VEC __m512i dot2_all(__m512i sum, __m512i a, __m512i b) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

/* rows: a constant after inlining. */
VEC void fours(const td_attn16_gemm *g, size_t i0, size_t panel, int rows, const __m512i (*y)[4], prefetch *f) {
    __m512i        sum[MR_FOURS][4];
    const int16_t *a = g->a + i0 * g->lda, *a3 = a + 3 * g->lda;
    const size_t   lda = g->lda, step = step_of(f);
    const char    *ahead = f->at;
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) sum[i][r] = _mm512_setzero_si512();
    for (size_t k = 0; k < g->pairs; k += 4, a += 8, a3 += 8, y++, ahead += step) {
        __m512i y0 = (*y)[0], y1 = (*y)[1], y2 = (*y)[2], y3 = (*y)[3];
        fetch_l2(ahead);
        fetch_l2(ahead + 64);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            __m512i x = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)((i < 3 ? a : a3) + (size_t)(i % 3) * lda)));
            sum[i][0] = dot2_all(sum[i][0], x, y0);
            sum[i][1] = dot2_all(sum[i][1], x, y1);
            sum[i][2] = dot2_all(sum[i][2], x, y2);
            sum[i][3] = dot2_all(sum[i][3], x, y3);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        __m512i *s = sum[i];
        __m512i  first = _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
        __m512i  second = _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
        finish(g, i0 + (size_t)i, panel * 16,
               _mm512_cvtepi32_ps(
                   _mm512_add_epi32(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second))));
    }
    f->at = ahead;
}

#define CASE_FOURS(r) \
    case r: fours(g, i, panel, r, y, &ahead); break;

static void last_panel_by_fours(const td_attn16_gemm *g, size_t panel) {
    __m512i  y[FOURS_PAIRS / 4][4];
    size_t   tiles = (g->m + MR_FOURS - 1) / MR_FOURS;
    prefetch ahead = spread(g, tiles * g->pairs / 4, 2);
    by_fours(g->b + panel * g->panel_stride, g->pairs, y);
    for (size_t t = 0; t < tiles; t++) {
        size_t i = g->m * t / tiles;
        switch (g->m * (t + 1) / tiles - i) {
            CASE_FOURS(1) CASE_FOURS(2) CASE_FOURS(3) CASE_FOURS(4) CASE_FOURS(5) CASE_FOURS(6)
        }
    }
}

#define CASE_ONE(r) \
    case r: one_panel(g, i, panel, r); break;

static void last_panel(const td_attn16_gemm *g, size_t panel) {
    size_t tiles = (g->m + MR_ONE - 1) / MR_ONE;
    for (size_t t = 0; t < tiles; t++) {
        size_t i = g->m * t / tiles;
        switch (g->m * (t + 1) / tiles - i) {
            /* clang-format off */
            CASE_ONE(1) CASE_ONE(2) CASE_ONE(3) CASE_ONE(4) CASE_ONE(5) CASE_ONE(6) CASE_ONE(7) CASE_ONE(8) CASE_ONE(9) CASE_ONE(10) CASE_ONE(11) CASE_ONE(12)
            CASE_ONE(13) CASE_ONE(14) CASE_ONE(15) CASE_ONE(16)
            /* clang-format on */
        }
    }
}

static void gemm(const td_attn16_gemm *g) {
    size_t   panel = 0, tiles = (g->m + MR - 1) / MR; /* of equal height */
    prefetch ahead = spread(g, g->n / 32 * tiles * g->pairs, g->ldb ? 2 : 1);
    for (; panel + 2 <= g->n / 16; panel += 2)
        for (size_t t = 0; t < tiles; t++) {
            size_t i = g->m * t / tiles;
            two_panels(g, i, g->m * (t + 1) / tiles - i, panel, &ahead);
        }
    if (panel == g->n / 16) return;
    if (g->m >= FOURS_MIN && g->pairs % 4 == 0 && g->pairs <= FOURS_PAIRS)
        last_panel_by_fours(g, panel);
    else
        last_panel(g, panel);
}

#include "kernels/attention/attn16_body.inc"

const td_attn16 td_attn16_avx512vnni = {.name = "attn16_avx512vnni", ATTN16_MEMBERS};
