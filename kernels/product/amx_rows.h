/*
 * Rows of activations times weights in bytes with AMX-INT8: 32 rows, two tiles of them, times 32 outputs. Weights lie as [k / 4][32][4], so
 * a tile of them, 16 rows of four k of 16 outputs, is read where it lies.
 */
#ifndef TD_KERNELS_PRODUCT_AMX_ROWS_H
#define TD_KERNELS_PRODUCT_AMX_ROWS_H

#include <immintrin.h>

#include "kernels/vec/amx.h"

#define AMX_NR       32 /* outputs */
#define AMX_PAIR     (2 * TD_AMX_ROWS)
#define AMX_STEP     64 /* k of a whole tile */
#define AMX_ROWS_MIN 16 /* fewer rows are AVX512-VNNI's */

/* Tiles t and t + 1 of a call's rows, which are cut into tiles of equal height; there may be no second. */
typedef struct {
    const int8_t *x;      /* of the first row */
    size_t        stride; /* bytes from a row to the next */
    size_t        first;  /* its number in the call */
    size_t        n[2];   /* rows of each tile */
} amx_rows;

static inline amx_rows amx_rows_of(const void *x, size_t stride, size_t m, size_t t) {
    size_t tiles = (m + TD_AMX_ROWS - 1) / TD_AMX_ROWS, begin = m * t / tiles, middle = m * (t + 1) / tiles;
    size_t end = t + 1 < tiles ? m * (t + 2) / tiles : middle;
    return (amx_rows){(const int8_t *)x + begin * stride, stride, begin, {middle - begin, end - middle}};
}

/* What the tiles are configured for; zero: nothing yet. */
typedef struct {
    size_t n[2], step;
} amx_shape;

/* Tiles 0 .. 3 sums, 4 and 5 rows, 6 and 7 weights, for steps of so many k, a multiple of 4. */
static inline void amx_take_shape(amx_shape *now, const amx_rows *r, size_t step) {
    td_amx_config c = {.palette = 1};
    if (now->step == step && now->n[0] == r->n[0] && now->n[1] == r->n[1]) return;
    for (int t = 0; t < 8; t++) {
        c.rows[t] = (uint8_t)(t >= 6 ? step / 4 : r->n[t == 2 || t == 3 || t == 5]);
        c.bytes[t] = (uint16_t)(!c.rows[t] ? 0 : t == 4 || t == 5 ? step : TD_AMX_BYTES);
    }
    td_amx_configure(&c);
    *now = (amx_shape){{r->n[0], r->n[1]}, step};
}

/* Sums c0 and c1 += rows a times the two tiles of weights; the numbers of tiles are parts of the instructions. */
#define AMX_DOTS(w_signed, c0, c1, a) \
    do {                              \
        if (w_signed) {               \
            td_amx_dot_s8(c0, a, 6);  \
            td_amx_dot_s8(c1, a, 7);  \
        } else {                      \
            td_amx_dot_u8(c0, a, 6);  \
            td_amx_dot_u8(c1, a, 7);  \
        }                             \
    } while (0)

/* sums [rows, AMX_NR] += k of the rows from k0 on times weights, in steps that divide k; fresh: there are no sums yet. */
static inline __attribute__((always_inline)) void amx_steps(const amx_rows *r, size_t k0, size_t k, size_t step, const uint8_t *w, const bool w_signed,
                                                            int32_t *sums, bool fresh, size_t ahead) {
    const size_t  stride = AMX_NR * sizeof *sums;
    const bool    two = r->n[1] > 0;
    const int8_t *x0 = r->x + k0, *x1 = x0 + r->n[0] * r->stride;
    int32_t      *sums1 = sums + r->n[0] * AMX_NR;
    if (fresh) {
        td_amx_zero(0);
        td_amx_zero(1);
        if (two) {
            td_amx_zero(2);
            td_amx_zero(3);
        }
    } else {
        td_amx_load(0, sums, stride);
        td_amx_load(1, sums + 16, stride);
        if (two) {
            td_amx_load(2, sums1, stride);
            td_amx_load(3, sums1 + 16, stride);
        }
    }
    for (size_t j = 0; j < k; j += step, w += step * AMX_NR) {
        for (size_t line = 0; ahead && line < step * AMX_NR; line += 64) _mm_prefetch((const char *)w + ahead + line, _MM_HINT_T1);
        td_amx_load(6, w, 4 * AMX_NR);
        td_amx_load(7, w + 64, 4 * AMX_NR);
        td_amx_load(4, x0 + j, r->stride);
        AMX_DOTS(w_signed, 0, 1, 4);
        if (!two) continue;
        td_amx_load(5, x1 + j, r->stride);
        AMX_DOTS(w_signed, 2, 3, 5);
    }
    td_amx_store(0, sums, stride);
    td_amx_store(1, sums + 16, stride);
    if (two) {
        td_amx_store(2, sums1, stride);
        td_amx_store(3, sums1 + 16, stride);
    }
}

/*
 * sums [rows, AMX_NR] = k of the rows from k0 on times weights that begin at k0, added to what is there unless fresh; k a multiple of 4.
 * ahead: how far ahead of the weights memory is brought to L2; 0: nothing is.
 */
static inline __attribute__((always_inline)) void amx_product(amx_shape *shape, const amx_rows *r, size_t k0, size_t k, const uint8_t *w,
                                                              const bool w_signed, int32_t *sums, bool fresh, size_t ahead) {
    size_t rest = k % AMX_STEP, whole = k - rest;
    if (whole) {
        amx_take_shape(shape, r, AMX_STEP);
        amx_steps(r, k0, whole, AMX_STEP, w, w_signed, sums, fresh, ahead);
    }
    if (rest) {
        amx_take_shape(shape, r, rest);
        amx_steps(r, k0 + whole, rest, rest, w + whole * AMX_NR, w_signed, sums, fresh && !whole, ahead);
    }
}

#endif
