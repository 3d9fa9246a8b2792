/*
 * The float arithmetic of the host device, one table per instruction set.
 *
 * Every result depends on its own inputs only. An output of `gemm` is one lane that adds its products in ascending k,
 * whatever tile it falls in. Sums over a row run over 16 lanes by index and end in a fixed tree. Between tiers bits may
 * differ (the scalar table has no fused multiply-add).
 */
#ifndef TD_KERNELS_FLOATS_FLOAT_MATH_H
#define TD_KERNELS_FLOATS_FLOAT_MATH_H

#include <stdbool.h>

#include "core/dtype.h"

#define TD_ATTN_TILE 128 /* keys of a tile: a KV page */
#define TD_ATTN_PANEL 32 /* keys that stand side by side when a tile is transposed */

/** c[i, j] = (accumulate ? c[i, j] : 0) + sum over l = 0 .. k-1, in this order, of a[i, l] * b[l, j]. */
typedef struct {
    size_t       m, n, k;
    const float *a; /* [m, lda] */
    size_t       lda;
    const void  *b; /* [k, ldb] f32 or bf16; nothing beyond column n is read */
    size_t       ldb;
    td_dtype     b_dtype;
    bool         accumulate;
    float       *c; /* [m, ldc] */
    size_t       ldc;
    const char  *ahead; /* or NULL: memory to prefetch meanwhile, k cache lines for every 32 columns */
} td_fgemm_args;

/** The state of one softmax row: the largest score so far, and the sum of exp(score - max). Starts as {-INFINITY, 0}. */
typedef struct {
    float max, sum;
} td_softmax;

typedef struct {
    const char *name; /* "avx512" */

    void (*gemm)(const td_fgemm_args *g);

    /**
     * dst[r / 32][c][r % 32] = src[r, c] for r < rows <= TD_ATTN_TILE, c < cols; a panel of 32 rows is panel_stride floats
     * further. Up to 15 lanes after the last row are overwritten.
     */
    void (*transpose)(float *dst, size_t panel_stride, td_dtype dtype, const void *src, size_t ld, size_t rows, size_t cols);

    /**
     * Take n scores of one tile into a softmax row. s [TD_ATTN_TILE]: in, scores at [0, n); out, exp(s * scale - max) at [0,
     * n) and 0 from there up to n_fill. n >= 1. @return the factor for what was accumulated under the former maximum.
     */
    float (*softmax)(td_softmax *state, float *s, size_t n, size_t n_fill, float scale);

    /** dst[i] = dst[i] * dst_scale + src[i] * src_scale; src may be NULL: scale only. */
    void (*scale_add)(float *dst, float dst_scale, const float *src, float src_scale, size_t n);

    /** out[i] = x[i] / sqrt(mean(x^2) + eps) * gamma[i]; out may be x. */
    void (*rms_norm)(const float *x, const float *gamma, float eps, size_t n, float *out);

    /** x[i] = exp(x[i] - shift); returns the sum. */
    float (*exp_sum)(float *x, float shift, size_t n);

    /** x[i] = 1 / (1 + exp(-x[i])) */
    void (*sigmoid)(float *x, size_t n);

    /** sum of a[i] * b[i] */
    float (*dot)(const float *a, const float *b, size_t n);

    /** out[i] = sum over j < n of w[j] * max(s[i, j], 0), where a NaN counts as 0; s [m, ld] */
    void (*relu_dot)(const float *s, size_t ld, size_t m, const float *w, size_t n, float *out);

    /** x = H x, H orthonormal: blocks of Hadamard's matrix (Sylvester's) of the largest power of two that divides n. Every
     * table gives the same bits. */
    void (*hadamard)(float *x, size_t n);

    /** x[i] += y[i] */
    void (*add)(float *x, const float *y, size_t n);

    /** NeoX halves: (x[i], x[i + h]) -> (x[i] cos[i] - x[i + h] sin[i], x[i + h] cos[i] + x[i] sin[i]), h = dim / 2. table:
     * cos | sin. */
    void (*rope)(float *x, const float *table, size_t dim);
} td_float_math;

extern const td_float_math td_float_math_scalar, td_float_math_avx2, td_float_math_avx512, td_float_math_neon;

#endif
