/*
 * The float arithmetic of gated DeltaNet and of Kimi delta attention (td_delta_desc), one table per instruction set, beside float_math.h.
 *
 * Every result depends on its own inputs only. A sum of `lower` or `fold` is one lane that adds its products in ascending s,
 * whatever tile it falls in; it may be cut into several calls. Between sets bits may differ, as those of float_math.h.
 */
#ifndef TD_KERNELS_FLOATS_DELTA_MATH_H
#define TD_KERNELS_FLOATS_DELTA_MATH_H

#include "kernels/floats/float_math.h"

/** c[i, j] += sum over s = 0 .. keys + i - 1, in this order, of a[i, s] * u[s, j], for one i after the other: rows of c may
 * be those of u that later ones read. */
typedef struct {
    size_t       m, n, keys;
    const float *a; /* [m, lda] */
    size_t       lda;
    const float *u; /* [keys + m - 1, ldu] */
    size_t       ldu;
    float       *c; /* [m, ldc] */
    size_t       ldc;
} td_lower_args;

/** out[i, j] = in[i, j] * scale + sum over s = 0 .. keys - 1, in this order, of k[s, i] * u[s, j]. */
typedef struct {
    size_t       m, n, keys;
    const float *k; /* [keys, ldk] */
    size_t       ldk;
    const float *u; /* [keys, ldu] */
    size_t       ldu;
    const float *in; /* [m, ld], or NULL: zeros */
    float        scale;
    float       *out; /* [m, ld]; may be in */
    size_t       ld;
} td_fold_args;

typedef struct {
    const char *name; /* "avx512" */

    /** out[c] = silu(sum over j = 0 .. taps - 1, in this order, of w[j, c] * x[j][c]), c < n. w [taps, ldw] */
    void (*conv)(const float *const *x, const float *w, size_t ldw, size_t taps, size_t n, float *out);

    /** x[i] = x[i] / sqrt(sum of x^2 + eps) * scale */
    void (*unit)(float *x, float eps, float scale, size_t n);

    /** decay[i] = -exp(a_log[i]) * softplus(a[i] + dt_bias[i]), beta[i] = sigmoid(b[i]). Relative error of softplus below
     * 4e-7. */
    void (*gates)(const float *a, const float *b, const float *a_log, const float *dt_bias, size_t n, float *decay,
                  float *beta);

    /** out[t] = exp(sum[t]), sum at most 0. Below e^-40 it is 0, here and in fade. */
    void (*decays)(const float *sum, size_t n, float *out);

    /** With f = exp(last - sum[s]): x[s] = x[s] * f * scale, y[s] = y[s] * f; y may be NULL. last is at most sum[s]. */
    void (*fade)(float last, const float *sum, size_t n, float *x, float scale, float *y);

    /** sum[c] = before[c] + max(-exp(a_log) * softplus(a[c] + dt_bias[c]), -40): log decays of a head's channels, of all rows
     * up to this one. before NULL: zeros. With a floor below 0 the second term is floor * sigmoid(exp(a_log) * (a[c] +
     * dt_bias[c])). */
    void (*channel_gates)(const float *a, const float *dt_bias, float a_log, float floor, const float *before, size_t n,
                          float *sum);

    /** out[i] = sigmoid(x[i]) */
    void (*sigmoid)(const float *x, size_t n, float *out);

    /** out[i, c] = x[i, c] * exp(last[c] - sum[c]), last at most sum; x, out [rows, n]. sum NULL: zeros; x NULL: a row of
     * ones. Below e^-40 the factor is 0. */
    void (*fade_channels)(const float *last, const float *sum, const float *x, size_t rows, size_t n, float *out);

    /** Of a row's q and k, which lie behind one another: of_q[j] = sum over c of q[c] * keys[j, c] * exp(sum[c] - sums[j, c]),
     * and so of_k. keys, sums [m, n]; sum is at most each of sums. The factor as in fade_channels. */
    void (*meet_channels)(const float *qk, const float *sum, const float *keys, const float *sums, size_t m, size_t n,
                          float *of_q, float *of_k);

    /** out[i] = a * x[i] + b * y[i]; y NULL: without the second. */
    void (*mix)(float *out, float a, const float *x, float b, const float *y, size_t n);

    /** td_float_math.gemm over f32 without `accumulate`, with its bits: for few rows, and for a b that is read from memory;
     * rows of b, and the next b behind it, lie side by side. */
    void (*few)(const td_fgemm_args *g);

    void (*lower)(const td_lower_args *l);
    void (*fold)(const td_fold_args *f);

    /** x[i] = x[i] / sqrt(mean(x^2) + eps) * gamma[i] * silu(gate[i]) */
    void (*gated_norm)(float *x, const float *gamma, const float *gate, float eps, size_t n);
    /** The same with sigmoid(gate[i]). */
    void (*sigmoid_norm)(float *x, const float *gamma, const float *gate, float eps, size_t n);
} td_delta_math;

extern const td_delta_math td_delta_math_scalar, td_delta_math_avx2, td_delta_math_avx512, td_delta_math_neon;

#endif
