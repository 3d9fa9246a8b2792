/*
 * 16-bit attention with AMX-INT8: a product of integers of 16 bits as four of bytes.
 *
 * Why it is shaped so. With a = 256 ah + al and b = 256 bh + bl, high bytes signed and low ones not,
 *   sum of a b = 65536 sum of ah bh + 256 sum of (ah bl + al bh) + sum of al bl
 * and the tile instructions exist for all four mixtures of signs. Sums wrap in 32 bits, where the whole one is exact
 * (attn16.h): so these are vpdpwssd's integers. Three sums and four operands of a 16 x 16 block take seven of the eight
 * tiles; four loads for four products. The planes of high and low bytes cost two loads, shifts, selections and stores for 64
 * integers, as many instructions for 32 rows as their products with 32 columns take cycles: so the caller keeps those of
 * what is multiplied more than once (split_rows, split_panel), and only others are made in a call. A block's sums become
 * floats while the tiles multiply the next block. Few rows, few columns, and values that are read as they lie, which is
 * generation, are AVX512-VNNI's.
 *
 * Order of k. A step takes 64 k. A row's first 32 and last 32 integers are two vectors, whose bytes are put beside each
 * other by a selection within 16 bits: four neighbouring bytes are of k = 2q, 32 + 2q, 2q + 1, 33 + 2q. So are those of the
 * panels, of which lines q and 16 + q of a step hold these pairs.
 */
#include "kernels/vec/vec_avx512.h"

#include <stdbool.h>
#include <string.h>

#include "core/memory/mem.h"
#include "kernels/attention/attn16.h"
#include "kernels/attention/attn16_zmm.inc"
#include "kernels/vec/amx.h"
#include "kernels/vec/fetch.h"

#define TILE 1024 /* bytes */
#define STEP 64   /* k */
#define K_MAX 1024
#define STEPS_MAX (K_MAX / STEP)
#define PANEL_PAIRS (STEP / 2)                /* lines of a panel in a step */
#define PLANES_ROWS ((size_t)2 * TD_AMX_ROWS) /* rows, and columns, whose planes are there at a time */
#define ROWS_MIN TD_AMX_ROWS
#define COLUMNS_MIN PLANES_ROWS

/* Of a step. */
typedef uint8_t high_and_low[2][TILE];

/* Of two tiles of rows, or of two panels. */
typedef struct {
    _Alignas(64) high_and_low of[2][STEPS_MAX];
} planes;

static size_t planes_bytes(size_t pairs) {
    return (pairs + PANEL_PAIRS - 1) / PANEL_PAIRS * sizeof(high_and_low);
}

/* A block's sums: of each panel those of high bytes, of mixed ones, of low ones. */
typedef struct {
    _Alignas(64) int32_t of[2][3][TD_AMX_ROWS * TD_AMX_ROWS];
} block_sums;

/* Two vectors of 32 integers: their high and their low bytes. */
VEC void split(__m512i x, __m512i y, uint8_t (*to)[TILE], size_t line) {
    const __m512i even = _mm512_set1_epi16(0xff); /* 0xca: where the mask has ones the second, else the third */
    _mm512_store_si512(to[0] + 64 * line, _mm512_ternarylogic_epi64(even, _mm512_srli_epi16(x, 8), y, 0xca));
    _mm512_store_si512(to[1] + 64 * line, _mm512_ternarylogic_epi64(even, x, _mm512_slli_epi16(y, 8), 0xca));
}

/* Lanes of the n integers that there are of 32. */
VEC __mmask32 there(size_t n) {
    return n >= 32 ? 0xffffffffu : (1u << n) - 1;
}

static void split_rows(const int16_t *a, size_t lda, size_t n, size_t pairs, void *out) {
    high_and_low *to = out;
    for (size_t at = 0; at < 2 * pairs; at += STEP, to++) {
        const size_t    left = 2 * pairs - at;
        const __mmask32 first = there(left), second = there(left > 32 ? left - 32 : 0);
        for (size_t r = 0; r < TD_AMX_ROWS; r++) {
            if (r >= n) { /* sums of no row */
                memset((*to)[0] + 64 * r, 0, 64);
                memset((*to)[1] + 64 * r, 0, 64);
                continue;
            }
            const int16_t *x = a + r * lda + at;
            split(_mm512_maskz_loadu_epi16(first, x), _mm512_maskz_loadu_epi16(second, x + 32), *to, r);
        }
    }
}

static void split_panel(const int16_t *b, size_t pairs, void *out) {
    high_and_low *to = out;
    for (size_t at = 0; at < pairs; at += PANEL_PAIRS, to++)
        for (size_t q = 0; q < TD_AMX_ROWS; q++) {
            const size_t i = at + q, j = i + TD_AMX_ROWS;
            split(i < pairs ? _mm512_loadu_si512(b + 32 * i) : _mm512_setzero_si512(),
                  j < pairs ? _mm512_loadu_si512(b + 32 * j) : _mm512_setzero_si512(), *to, q);
        }
}

/* Tile 0 sums of high bytes, 1 of mixed ones, 2 of low ones; 3 and 4 rows, 5 and 6 columns. */
VEC void multiply(const high_and_low *a, const high_and_low *b, size_t steps, int32_t (*sums)[TD_AMX_ROWS * TD_AMX_ROWS]) {
    td_amx_zero(0);
    td_amx_zero(1);
    td_amx_zero(2);
    for (size_t s = 0; s < steps; s++) {
        td_amx_load(3, a[s][0], 64);
        td_amx_load(5, b[s][0], 64);
        td_amx_dot_ss(0, 3, 5);
        td_amx_load(6, b[s][1], 64);
        td_amx_dot_su(1, 3, 6);
        td_amx_load(4, a[s][1], 64);
        td_amx_dot_uu(2, 4, 6);
        td_amx_dot_us(1, 4, 5);
    }
    td_amx_store(0, sums[0], 64);
    td_amx_store(1, sums[1], 64);
    td_amx_store(2, sums[2], 64);
}

VEC __m512i whole_sum(const int32_t (*sums)[TD_AMX_ROWS * TD_AMX_ROWS], size_t r) {
    const __m512i high = _mm512_load_si512(sums[0] + 16 * r), mixed = _mm512_load_si512(sums[1] + 16 * r),
                  low = _mm512_load_si512(sums[2] + 16 * r);
    return _mm512_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(high, 16), _mm512_slli_epi32(mixed, 8)), low);
}

/* A block that was multiplied: rows i .. i + rows, columns from j on, of one panel or two. */
typedef struct {
    size_t            i, rows, j, panels;
    const block_sums *sums; /* NULL: none yet */
} block;

static void finish_block(const td_attn16_gemm *g, const block *b) {
    for (size_t r = 0; b->sums && r < b->rows; r++)
        if (b->panels == 2)
            finish_two(g, b->i + r, b->j, whole_sum(b->sums->of[0], r), whole_sum(b->sums->of[1], r), g->crossed);
        else
            finish(g, b->i + r, b->j, _mm512_cvtepi32_ps(whole_sum(b->sums->of[0], r)));
}

static void configure(void) {
    td_amx_config c = {.palette = 1};
    for (int t = 0; t < 8; t++) c.rows[t] = TD_AMX_ROWS, c.bytes[t] = TD_AMX_BYTES;
    td_amx_configure(&c);
}

/* Planes number i that were kept, or those made in this call. */
VEC const high_and_low *planes_at(const td_attn16_planes *kept, size_t i, const high_and_low *made) {
    return kept->at ? (const high_and_low *)(const void *)(kept->at + i * kept->stride) : made;
}

static void gemm(const td_attn16_gemm *g) {
    const size_t k = 2 * g->pairs, steps = (k + STEP - 1) / STEP, blocks = (g->m + PLANES_ROWS - 1) / PLANES_ROWS;
    planes       rows, columns;
    block_sums   sums[2];
    block        before = {0};
    size_t       turn = 0;
    if (g->ldb || g->m < ROWS_MIN || g->n < COLUMNS_MIN || k > K_MAX) {
        td_attn16_avx512vnni.gemm(g);
        return;
    }
    const size_t fetch = (g->ahead_bytes / 64 + g->n / 16) / (g->n / 16); /* lines for a panel */
    const char  *ahead = g->ahead, *ahead_end = ahead ? ahead + g->ahead_bytes : NULL;
    configure();
    for (size_t j = 0; j < g->n; j += PLANES_ROWS) {
        const size_t panels = g->n - j < PLANES_ROWS ? 1 : 2;
        for (size_t p = 0; p < panels; p++) {
            if (!g->b_planes.at) split_panel(g->b + (j / 16 + p) * g->panel_stride, g->pairs, columns.of[p]);
            for (size_t l = 0; l < fetch && ahead < ahead_end; l++, ahead += 64) fetch_l2(ahead);
        }
        for (size_t i = 0; i < g->m; i += TD_AMX_ROWS, turn ^= 1) {
            const size_t tile = i / TD_AMX_ROWS, n = g->m - i < TD_AMX_ROWS ? g->m - i : TD_AMX_ROWS;
            if (!g->a_planes.at && (j == 0 || blocks > 1))
                split_rows(g->a + i * g->lda, g->lda, n, g->pairs, rows.of[tile % 2]);
            for (size_t p = 0; p < panels; p++)
                multiply(planes_at(&g->a_planes, tile, rows.of[tile % 2]),
                         planes_at(&g->b_planes, j / 16 + p, columns.of[p]), steps, sums[turn].of[p]);
            finish_block(g, &before); /* beside the products just begun */
            before = (block){i, n, j, panels, &sums[turn]};
        }
    }
    finish_block(g, &before);
    td_amx_release();
}

#include "kernels/attention/attn16_body.inc"

const td_attn16 td_attn16_amx = {.name = "attn16_amx",
                                 ATTN16_MEMBERS,
                                 .planes_bytes = planes_bytes,
                                 .split_rows = split_rows,
                                 .split_panel = split_panel};
