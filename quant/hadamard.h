/*
 * Orthonormal Hadamard matrices: every element is 1 / sqrt(k) or its negative, and H H^T = I. They spread what is loud in
 * few columns over all, which is what integers with one scale for all of them want.
 *
 *   H = H_2 (x) H_2 (x) … (x) H_b      k = 2^m * b;  b = 1, or a multiple of 4 with a construction of Paley's from a prime:
 *   order q + 1 for q = 3 mod 4 (12, 20, 24, 44, 60, …), order 2 (q + 1) for q = 1 mod 4 (28, 36, 76, …)
 *
 * That covers 576 = 2^4 * 36, 1408 = 2^5 * 44, 1536 = 2^7 * 12, 2048, 5120 = 2^8 * 20 and 7168 = 2^8 * 28.
 */
#ifndef TD_QUANT_HADAMARD_H
#define TD_QUANT_HADAMARD_H

#include <stddef.h>

#include "tandem.h"

typedef struct {
    size_t k, b;  /* order; of the factor that is not a power of two, or 1 */
    float *base;  /* [b, b] elements 1 and -1; NULL for b = 1 */
    float *signs; /* [k] 1 and -1, or NULL: the rotation is R = diag(signs) H */
} td_hadamard;

#define TD_HADAMARD_BASE_MAX 1024

/**
 * @param seed of the signs, without which inputs that have a mean put all of it into one column; 0: no signs.
 * @return TD_ENOTSUP with a sentence for an order without a construction (an odd one, say); TD_ENOMEM.
 */
TD_NODISCARD td_status td_hadamard_open(td_hadamard *h, size_t k, uint64_t seed, td_error *err);
void                   td_hadamard_close(td_hadamard *h);

/** x = x R in place: inputs of a layer as rows, x [n, k] dense, or a weight whose columns are those inputs: (x R)(w R)^T = x
 * w^T. Thread-safe. */
void td_hadamard_rows(const td_hadamard *h, float *x, size_t n);

/** w = R^T w in place, w [k, n] dense: a weight whose outputs are to be rotated; x (R^T w)^T = (x w^T) R. Thread-safe. */
void td_hadamard_columns(const td_hadamard *h, float *w, size_t n);

#endif
