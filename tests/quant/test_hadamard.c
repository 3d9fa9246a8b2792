/* Hadamard matrices meet their definition, and rotations leave unchanged what they must. */

#include <math.h>

#include "core/math/rng.h"
#include "quant/hadamard.h"
#include "tests/td_test.h"

#define SEED 20260112u

/* Rows of the identity become the matrix: elements of one size, rows of length 1 that are orthogonal. */
TEST(matrices_are_orthonormal) {
    static const size_t orders[] = {1,  2,  4,  12, 20,  24,  28,  36,  40,  44,  56,
                                    60, 64, 76, 96, 112, 144, 192, 352, 576, 896, 1408};
    for (size_t z = 0; z < sizeof orders / sizeof orders[0]; z++)
        for (uint64_t seed = 0; seed < 2; seed++) {
            size_t                                k = orders[z];
            AT_END(td_hadamard_close) td_hadamard h;
            FREED float                          *m = calloc(k * k, sizeof *m);
            OK(td_hadamard_open(&h, k, seed, NULL));
            for (size_t i = 0; i < k; i++) m[i * k + i] = 1;
            td_hadamard_rows(&h, m, k);
            float element = 1 / sqrtf((float)k);
            for (size_t i = 0; i < k * k; i++) assert_true(fabsf(fabsf(m[i]) - element) <= 1e-6f * element);
            for (size_t i = 0; i<k; i += k> 200 ? 7 : 1)
                for (size_t j = 0; j < i; j++) {
                    double dot = 0;
                    for (size_t c = 0; c < k; c++) dot += (double)m[i * k + c] * m[j * k + c];
                    assert_true(fabs(dot) < 1e-6);
                }
        }
}

TEST(orders_of_models_are_there) {
    static const size_t orders[] = {576,  768,  896,  1408, 1536, 2048,  2560,  2816, 3584,
                                    4096, 5120, 5632, 6144, 7168, 10944, 14336, 18432};
    for (size_t z = 0; z < sizeof orders / sizeof orders[0]; z++) {
        AT_END(td_hadamard_close) td_hadamard h;
        OK(td_hadamard_open(&h, orders[z], 0, NULL));
    }
    static const size_t none[] = {0, 3, 6, 18, 92, 1000001};
    for (size_t z = 0; z < sizeof none / sizeof none[0]; z++) {
        td_hadamard h;
        td_error    err = {0};
        assert_int_equal(td_hadamard_open(&h, none[z], 0, &err), TD_ENOTSUP);
        assert_non_null(strstr(err.text, "cannot be rotated"));
    }
}

static float *random_matrix(uint64_t stream, size_t n) {
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = (float)td_rng_uniform(SEED, stream, i) - 0.5f;
    return x;
}

/* x w^T, in double. */
static double dot(const float *x, const float *w, size_t k) {
    double sum = 0;
    for (size_t i = 0; i < k; i++) sum += (double)x[i] * w[i];
    return sum;
}

TEST(rotations_cancel) {
    enum { K = 576, T = 5, N = 11 };
    AT_END(td_hadamard_close) td_hadamard h;
    FREED float *x = random_matrix(1, T * K), *w = random_matrix(2, N * K), *v = random_matrix(3, K * N),
                *y = random_matrix(4, T * N);
    double want[T][N];
    OK(td_hadamard_open(&h, K, SEED, NULL));
    for (size_t t = 0; t < T; t++)
        for (size_t n = 0; n < N; n++) want[t][n] = dot(x + t * K, w + n * K, K);
    td_hadamard_rows(&h, x, T);
    td_hadamard_rows(&h, w, N);
    for (size_t t = 0; t < T; t++)
        for (size_t n = 0; n < N; n++) assert_true(fabs(dot(x + t * K, w + n * K, K) - want[t][n]) < 1e-5);
    /* outputs of v [K, N] on y, rotated afterwards or in the weight */
    FREED float *out = calloc(T * K, sizeof *out);
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < K; i++) out[t * K + i] = (float)dot(y + t * N, v + i * N, N);
    td_hadamard_rows(&h, out, T);
    td_hadamard_columns(&h, v, N);
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < K; i++) assert_true(fabs(dot(y + t * N, v + i * N, N) - out[t * K + i]) < 1e-5);
}

/* What they are for: one loud column becomes even; and with signs a mean does not become one. */
TEST(spikes_are_spread) {
    enum { K = 1536 };
    static float x[2 * K];
    for (size_t j = 0; j < K; j++) x[K + j] = 1;
    x[700] = 100;
    AT_END(td_hadamard_close) td_hadamard h;
    OK(td_hadamard_open(&h, K, SEED, NULL));
    td_hadamard_rows(&h, x, 2);
    for (size_t j = 0; j < K; j++) {
        assert_true(fabsf(x[j]) < 100 / 39.0f);
        assert_true(fabsf(x[K + j]) < 6);
    }
}
