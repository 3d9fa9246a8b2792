/* The Hessian of a layer's squared output error, H = X^T X: all that rounding needs to know of the layer's inputs X. */
#ifndef TD_QUANT_HESSIAN_H
#define TD_QUANT_HESSIAN_H

#include <stdbool.h>
#include <stddef.h>

#include "core/math/blas.h"

/** Lower triangle of h [k, k] += x^T x; x [n_rows, k] f32, rows x_stride apart. Sums, no means: the rounding's results do
 * not depend on the number of rows. Thread-safe for different h. */
void td_hessian_add(const td_blas *b, const float *x, size_t n_rows, size_t k, size_t x_stride, float *h);

/** The same for rows [i0, i1) of h alone, so that threads share a large one. */
void td_hessian_add_rows(const td_blas *b, const float *x, size_t n_rows, size_t k, size_t x_stride, size_t i0, size_t i1,
                         float *h);

/** Copy the lower triangle to the upper. @return false when an element is infinite or NaN, or a diagonal one negative. */
bool td_hessian_mirror(float *h, size_t k);

/**
 * a [k, k] = lower Cholesky factor of P H P^T + damp I; the upper triangle of a is left as it is.
 * @param order row i of P H P^T is row order[i] of H.
 * @param damp  > 0; where rounding errors make it too little, ten times as much, and so on.
 * @return TD_EINVAL when even 10^4 times damp does not make it positive definite.
 */
TD_NODISCARD td_status td_hessian_factor(const td_blas *b, const float *h, size_t k, const size_t *order, float damp,
                                         float *a, td_error *err);

/** damping * mean diagonal of H; 1 where that is not above zero (no inputs at all), so that every weight counts alike. */
float td_hessian_damp(const float *h, size_t k, float damping);

#endif
