/*
 * The rounding methods' common ground: a panel of rows of the matrix, transposed, so that every loop runs over rows beside
 * each other, which are independent. Sums over columns have the columns' order on every CPU.
 */
#ifndef TD_KERNELS_ROUNDING_ROUND_PANEL_H
#define TD_KERNELS_ROUNDING_ROUND_PANEL_H

#include <math.h>
#include <stdbool.h>

#include "core/math/blas.h"
#include "core/math/small_float.h"

#define ROUND_BLOCK 128 /* columns whose corrections of all others are one matrix product */
#define ROUND_CHUNK 16  /* columns within a block, likewise */

#define TD_ROUND_TRIALS_MAX 7 /* of scales, by error feedback */

typedef struct {
    const td_blas *blas;
    size_t         k, nr;           /* columns; rows, padded to ROUND_CHUNK with rows of zeros */
    size_t         group, n_groups; /* columns of a scale: k for one per row */
    td_dtype       scale_dtype;
    bool           symmetric; /* codes in [-span / 2, span / 2]; else [-8, 7] or, until they are stored, [-7, 8] */
    float          span;      /* codes of a row's group are in [lo, lo + span] */
    const float   *h;         /* [k, k] or NULL */
    float          damp;      /* what h's diagonal lacks */
    const float   *weight;    /* [k] diagonal of h with it, or ones */
    float         *w;         /* [k, nr] */
    int8_t        *q;         /* [k, nr] */
    float         *s;         /* [n_groups, nr]; 0: all codes are 0 */
    float         *lo;        /* [n_groups, nr] */
    float         *err;       /* [nr] error of q and s, as far as the method knows */
} round_panel;

/** Memory of the methods, for one panel at a time. */
typedef struct {
    float  *full[3]; /* [k, nr] each */
    float  *block;   /* [4 * ROUND_BLOCK, nr] */
    float  *scales;  /* [4 * n_groups, nr] */
    float  *rows;    /* [ROUND_SCRATCH_ROWS, nr] */
    int8_t *codes;   /* [k, nr] */
} round_scratch;

#define ROUND_SCRATCH_ROWS 10

/** What error feedback needs of H; the same for all panels. */
typedef struct {
    const size_t *column; /* [k] column i of the factor is this one of the matrix; the last is rounded first */
    const float  *l;      /* [k, k] H = L D L^T in that order, L unit lower triangular */
    const float  *d;      /* [k] */
} round_factor;

/**
 * The methods over a panel, compiled for each instruction set (round_methods.c): their loops run over rows beside each
 * other and have no sums across them, so all give the same bits.
 *   clip      better scales for the diagonal of H than nearest's, which p has, and their codes. Uses rows
 *   feedback  codes by error feedback with nearest's scales, which p has, and n_trials - 1 others; each row takes its best
 *             trial's codes and scales
 *   descend   sweeps over single codes, each set to the best value while all others stay, and refits of the scales in between
 */
typedef struct {
    void (*clip)(round_panel *p, const round_scratch *w);
    void (*feedback)(round_panel *p, const round_factor *f, uint32_t n_trials, const round_scratch *w);
    void (*descend)(round_panel *p, uint32_t sweeps, const round_scratch *w);
} td_round_methods;

extern const td_round_methods td_round_methods_scalar, td_round_methods_avx2, td_round_methods_avx512;

/** The code of x, which is in units of the scale. As rint: to the even one halfway. */
static inline float round_code(float x, float lo, float hi) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: the sum has no bits behind the point */
    x = x > lo ? x : lo;             /* NaN becomes lo */
    x = x < hi ? x : hi;
    return (x + magic) - magic;
}

static inline float round_inverse(float s) {
    return s > 0 ? 1.0f / s : 0.0f;
}

/** c [m, nr] += alpha * a^T b with a [len, m], rows k apart (a column block of H or of L), and b [len, nr]. */
static inline void round_gemm(const round_panel *p, float alpha, const float *a, const float *b, size_t m, size_t len,
                              float *c) {
    if (len)
        p->blas->sgemm(TD_BLAS_ROWS, TD_BLAS_TRANS, TD_BLAS_PLAIN, (int)m, (int)p->nr, (int)len, alpha, a, (int)p->k, b,
                       (int)p->nr, 1, c, (int)p->nr);
}

#endif
