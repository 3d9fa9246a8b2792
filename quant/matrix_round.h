/*
 * Rounds a weight matrix W to integers so that the layer's outputs change least. H = X^T X over inputs X of the layer,
 * damped by damping * mean of its diagonal. Q is the matrix that codes and scales stand for. The methods lower
 *
 *   error(W, Q) = tr((W - Q) H (W - Q)^T)
 *
 *   nearest   no inputs; the codes and scales of quant/weight_quant.h
 *   clip      scales by search: a row's (group's) scale shrunk until the error, with the diagonal of H alone, is least, then
 *             refitted in closed form; codes by rounding to nearest
 *   gptq      codes one column after the other, each correcting the errors of those before (Frantar et al., arXiv 2210.17323,
 *             in the equivalent form of QuIP's LDLQ, arXiv 2307.13304 theorem 6, which needs a Cholesky factor of H and no
 *             inverse); with nearest's scales, clip's and some near both, of which each row keeps the best; then sweeps over
 *             single codes, and refits of scales, that only ever lower the error
 *
 * Rows do not depend on each other: matrices of the same inputs (gate and up) are best rounded as one, stacked.
 * The same input gives the same bits as long as OpenBLAS runs the same kernels (core/math/blas.h: by instruction set);
 * nearest and clip do not use it.
 */
#ifndef TD_QUANT_MATRIX_ROUND_H
#define TD_QUANT_MATRIX_ROUND_H

#include <math.h>

#include "kernels/rounding/round_panel.h"

typedef enum { TD_ROUND_NEAREST, TD_ROUND_CLIP, TD_ROUND_GPTQ } td_round_method;

typedef struct {
    td_round_method method;
    uint32_t bits;  /* 4: codes in [-8, 7], and scales of both signs; of whole rows by nearest [-7, 7]; 8: [-127, 127] */
    size_t   group; /* weights that share a scale, with 4 bits; 0: the whole row */
    td_dtype scale_dtype;  /* of groups' scales: F32, BF16 or F16. A row's is F32 */
    float    damping;      /* > 0; of gptq and of clip with a Hessian */
    bool     act_order;    /* gptq: columns by falling diagonal of H */
    uint32_t scale_trials; /* gptq: 1: nearest's scales; 2: or clip's; up to TD_ROUND_TRIALS_MAX: others near both; a row's
                              best */
    uint32_t sweeps;       /* gptq: sweeps over the codes afterwards; they end early when none changes */
} td_round_options;

/**
 * The damping for inputs of k values whose Hessian is the sum over n_rows of them. By a Hessian of few rows many
 * directions cost nothing, and gptq pushes its errors there. On other inputs of the same layer it is then worse than clip.
 * Fitted to SmolLM2's experts on held-out tokens, for n_rows from a quarter of k to 20 k; a factor of 2 either way costs
 * about 2 % of the error.
 */
static inline float td_round_damping(size_t k, size_t n_rows) {
    return 0.6f * sqrtf((float)k / (float)(n_rows ? n_rows : 1));
}

/** What is best where nothing else is said; set damping by the number of rows. */
static inline td_round_options td_round_options_of(td_round_method method, uint32_t bits, size_t group) {
    return (td_round_options){.method = method,
                              .bits = bits,
                              .group = group,
                              .scale_dtype = group ? TD_DT_BF16 : TD_DT_F32,
                              .damping = 0.3f,
                              .act_order = true,
                              .scale_trials = 3,
                              .sweeps = 4};
}

/** Scales of a row: 1, or one per group; the last group may be shorter. */
static inline size_t td_round_scales(const td_round_options *o, size_t k) {
    return o->group ? (k + o->group - 1) / o->group : 1;
}

/**
 * Round w.
 * @param b     not needed (NULL) unless the method is gptq.
 * @param w     [n, k] f32 dense.
 * @param h     [k, k] f32, symmetric, sums of squares and products of inputs (quant/hessian.h); NULL: none, all weights
 * count alike; not for gptq. An input that is always 0 counts by the damping alone.
 * @param q     [n, k] out: signed codes; weight = code * scale.
 * @param scale [n, td_round_scales] out: finite. Below zero only with 4 bits, whose codes reach further on one side. 0 only
 * for a group of zeros, or of weights too small for the type of its scale.
 * @return TD_EINVAL for options that do not go together, or an H that is no Hessian; TD_EFORMAT for a weight that is
 * infinite or NaN, or too large for the scales; TD_ENOMEM. Thread-safe; takes memory for the length of the call.
 */
TD_NODISCARD td_status td_round_matrix(const td_blas *b, const float *w, size_t n, size_t k, const float *h,
                                       const td_round_options *o, int8_t *q, float *scale, td_error *err);

/** What rounding knows of the inputs, the same for all rows: a matrix's rows may be rounded in parts, by several threads. */
typedef struct {
    const td_blas   *blas;
    const float     *h;
    size_t           k;
    td_round_options o;
    float            damp;
    float           *weight; /* [k] diagonal of h with damp, or ones */
    float           *l, *d;  /* gptq: [k, k], [k] */
    size_t          *column; /* gptq: [k] */
    void            *base;
} td_rounding;

/** Rows that are rounded together: parts of a matrix for threads. Where a matrix is cut changes the last bits of the
 * result, so the cuts must not depend on the number of threads. */
#define TD_ROUND_ROWS 512

/** As td_round_matrix for the inputs; b and h stay the caller's until close. On failure there is nothing to close. */
TD_NODISCARD td_status td_rounding_open(const td_blas *b, size_t k, const float *h, const td_round_options *o,
                                        td_rounding *p, td_error *err);
void                   td_rounding_close(td_rounding *p);

/** As td_round_matrix, of n rows w [n, k]. */
TD_NODISCARD td_status td_round_rows(const td_rounding *p, const float *w, size_t n, int8_t *q, float *scale, td_error *err);

/** Memory that a rounding has, and that a call of td_round_rows takes; td_round_matrix takes both. */
size_t td_rounding_bytes(size_t k, const td_round_options *o);
size_t td_round_rows_bytes(size_t n, size_t k, const td_round_options *o);

/** Rows that an error is measured on, evenly spaced; all where there are no more: a product with H for each error of all
 * would be a third of gptq's time. */
#define TD_ROUND_ERROR_ROWS 512

/**
 * *error = error(W, Q) of rows as above, with h as it is; products in f32, sums over them in f64.
 * @param q NULL, and scale: codes that are all 0, error(W, 0).
 * @return TD_ENOMEM.
 */
TD_NODISCARD td_status td_round_loss(const td_blas *b, const float *w, size_t n, size_t k, const float *h,
                                     const td_round_options *o, const int8_t *q, const float *scale, double *error,
                                     td_error *err);

/** *relative = error(W, Q) / error(W, 0) of those rows; 0 when the denominator is. @return TD_ENOMEM. */
TD_NODISCARD td_status td_round_error(const td_blas *b, const float *w, size_t n, size_t k, const float *h,
                                      const td_round_options *o, const int8_t *q, const float *scale, double *relative,
                                      td_error *err);

#endif
