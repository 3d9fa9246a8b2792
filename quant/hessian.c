#include "quant/hessian.h"

#include <math.h>

#include "core/error.h"

#define FACTOR_TRIES 5

void td_hessian_add_rows(const td_blas *b, const float *x, size_t n_rows, size_t k, size_t x_stride, size_t i0, size_t i1,
                         float *h) {
    int n = (int)(i1 - i0), stride = (int)x_stride;
    if (i0)
        b->sgemm(TD_BLAS_ROWS, TD_BLAS_TRANS, TD_BLAS_PLAIN, n, (int)i0, (int)n_rows, 1, x + i0, stride, x, stride, 1,
                 h + i0 * k, (int)k);
    b->ssyrk(TD_BLAS_ROWS, TD_BLAS_LOWER, TD_BLAS_TRANS, n, (int)n_rows, 1, x + i0, stride, 1, h + i0 * k + i0, (int)k);
}

void td_hessian_add(const td_blas *b, const float *x, size_t n_rows, size_t k, size_t x_stride, float *h) {
    td_hessian_add_rows(b, x, n_rows, k, x_stride, 0, k, h);
}

bool td_hessian_mirror(float *h, size_t k) {
    enum { TILE = 32 };
    bool good = true;
    for (size_t i0 = 0; i0 < k; i0 += TILE)
        for (size_t j0 = 0; j0 <= i0; j0 += TILE)
            for (size_t i = i0; i < k && i < i0 + TILE; i++)
                for (size_t j = j0; j <= i && j < j0 + TILE; j++) {
                    float v = h[i * k + j];
                    good = good && isfinite(v) && (i != j || v >= 0);
                    h[j * k + i] = v;
                }
    return good;
}

float td_hessian_damp(const float *h, size_t k, float damping) {
    double sum = 0;
    for (size_t i = 0; i < k; i++) sum += h[i * k + i];
    float damp = (float)(damping * sum / (double)k);
    return sum > 0 ? damp : 1;
}

static void gather(const float *h, size_t k, const size_t *order, float damp, float *a) {
    for (size_t i = 0; i < k; i++) {
        const float *row = h + order[i] * k;
        for (size_t j = 0; j <= i; j++) a[i * k + j] = row[order[j]];
        a[i * k + i] += damp;
    }
}

td_status td_hessian_factor(const td_blas *b, const float *h, size_t k, const size_t *order, float damp, float *a,
                            td_error *err) {
    int n = (int)k, info = 0;
    for (int t = 0; t < FACTOR_TRIES; t++, damp *= 10) {
        gather(h, k, order, damp, a);
        b->spotrf("U", &n, a, &n, &info); /* upper by columns is lower by rows */
        bool good = info == 0;
        for (size_t i = 0; good && i < k; i++) good = a[i * k + i] > 0 && isfinite(a[i * k + i]);
        if (good) return TD_OK;
    }
    return td_fail(err, TD_EINVAL, "the Hessian of %zu inputs is not positive definite, whatever is added to its diagonal",
                   k);
}
