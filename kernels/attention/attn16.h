/*
 * Attention in integers of 16 bits, one table per instruction set: what a quantised device computes scores and weighted
 * values with.
 *
 * A row x becomes integers and a scale: x[i] ~ scale * q[i], with scale = |x| / 32767 (the Euclidean norm). By the
 * inequality of Cauchy and Schwarz every sum of products of two such rows, and every part of it, stays below 2^31: products
 * are exact in int32 in any order. Weights of values are scaled by what their products can sum to (softmax).
 *
 * Sixteen query rows stand side by side in the lanes of a vector: scores are [keys][16], a softmax goes down the keys, and a
 * row's result depends on its own lane only. Given the same arguments all tables compute the same integers; floats may
 * differ in the last bits.
 */
#ifndef TD_KERNELS_ATTENTION_ATTN16_H
#define TD_KERNELS_ATTENTION_ATTN16_H

#include <stdbool.h>

#include "core/dtype.h"

#define TD_ATTN16_LANES 16
#define TD_ATTN16_MAX 32767.0f
#define TD_ATTN16_KEYS 128 /* of a tile */

/** Rows that become integers: n elements each, and where n2 is not 0 as many of x2 behind them, under one scale. */
typedef struct {
    size_t         rows, n, n2;
    td_dtype       dtype; /* of x: BF16 or F32 */
    const void    *x;     /* [rows, ld] */
    size_t         ld;
    const int16_t *x2; /* [rows, ld2]: integers already, of scale x2_scale */
    size_t         ld2;
    const float   *x2_scale; /* [rows] */
    int16_t       *out;      /* [rows, ld_out] */
    size_t         ld_out;
    float         *scale; /* [rows] out, > 0 */
    float         *max;   /* [rows] out: the largest |x| of the n; or NULL */
} td_attn16_rows;

/** 16 rows each, or a panel each, as split_rows and split_panel leave them. */
typedef struct {
    const char *at;     /* NULL: there are none */
    size_t      stride; /* bytes from one to the next */
} td_attn16_planes;

/**
 * c[i, j] = keep[i] * c[i, j] + scale[i] * column[j] * sum over l of a[i, l] * b[l, j], the sum in int32.
 * If ldb is 0, b is in panels of 16 columns, [n / 16][panel_stride], each [pairs][16][2]: two following l of a column side
 * by side. Otherwise b has plain rows, [2 * pairs][ldb], pairs <= TD_ATTN16_KEYS / 2, of which n columns are read.
 */
typedef struct {
    size_t         m, n, pairs; /* n: a multiple of 16, of 32 when crossed or in rows */
    size_t         used;        /* columns that are wanted, others may be left as they are; 0: all */
    const int16_t *a;           /* [m, lda], 2 * pairs of them used */
    size_t         lda;
    const float   *scale; /* [m] */
    const int16_t *b;
    size_t         panel_stride; /* int16s */
    bool           crossed;      /* panels 2i and 2i + 1 hold 32 columns four by four in turn, as `pair` leaves them */
    size_t         ldb;
    const float   *column; /* [n], or NULL: 1 */
    const float   *keep;   /* [m], or NULL: c is written, not read */
    float         *c;      /* [m, ldc] */
    size_t         ldc;
    /** The same rows and panels once more, for a set that has planes, where they are multiplied more than once; b's may be
     * of more pairs. */
    td_attn16_planes a_planes, b_planes;
    const char      *ahead; /* memory to prefetch meanwhile */
    size_t           ahead_bytes;
} td_attn16_gemm;

/** One tile of keys for 16 query rows. A score is x * row_scale, in units of ln 2. */
typedef struct {
    float         *x;               /* [n, ldx]: 16 lanes each; overwritten */
    size_t         ldx, n;          /* n >= 1 */
    size_t         used;            /* rows that are wanted, for others nothing needs to be written; 0: all */
    const int32_t *seen;            /* [16]: how many of the n keys a row sees; NULL: all */
    const int32_t *from;            /* [16], with seen: the first of them, keys before it are not; NULL: 0 */
    const float   *row_scale;       /* [16], > 0 */
    const float   *v_scale, *v_max; /* [n]: of the keys' value rows */
    float         *max, *sum; /* [16]: the largest score so far and the sum of 2^(score - max); start as -INFINITY and 0 */
    float         *keep;      /* [16] out: the factor for what was accumulated under the former maximum */
    int16_t *p; /* [16, TD_ATTN16_KEYS] out: 2^(score - max) * v_scale as integers, 0 for what is not seen; [0, n] written */
    float   *p_scale; /* [16] out: of p */
} td_attn16_softmax;

typedef struct {
    const char *name; /* "attn16_avx512vnni" */

    /** q = x * (32767 / norm), rounded to nearest, half to even; rows of less than 1e-18 become zeros. */
    void (*convert)(const td_attn16_rows *c);

    /** to[i] = from[i] for i < n. The two do not overlap. */
    void (*widen)(const int8_t *from, size_t n, int16_t *to);

    /**
     * Writes two rows of n as one row of pairs in panels of 16 columns, at out + panel * panel_stride. Of the columns [32 i,
     * 32 i + 32), panel 2i gets the first four and every second four after them; panel 2i + 1 gets the others. Of a and b, n
     * rounded up to 32 are read. b NULL: zeros.
     */
    void (*pair)(const int16_t *a, const int16_t *b, size_t n, int16_t *out, size_t panel_stride);

    /** dst[c, r] = src[r, c] for r < rows, c < cols; lanes after the last row, up to a multiple of 16, become 0. */
    void (*transpose)(int32_t *dst, size_t ld_dst, const int32_t *src, size_t ld_src, size_t rows, size_t cols);

    void (*gemm)(const td_attn16_gemm *g);
    void (*softmax)(const td_attn16_softmax *s);

    /** Operands as planes of high and of low bytes, for a set that multiplies bytes; NULL: it multiplies integers as they
     * are. planes_bytes: of up to 16 rows or a panel, of so many pairs, a multiple of 64; to: 64-byte aligned. */
    size_t (*planes_bytes)(size_t pairs);
    void (*split_rows)(const int16_t *a, size_t lda, size_t rows, size_t pairs, void *to);
    void (*split_panel)(const int16_t *b, size_t pairs, void *to);
} td_attn16;

extern const td_attn16 td_attn16_scalar, td_attn16_avx2, td_attn16_avxvnni, td_attn16_avx512vnni, td_attn16_amx,
    td_attn16_neon;

#endif
