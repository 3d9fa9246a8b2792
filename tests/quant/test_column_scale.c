/* Scales of columns leave the result the same, and reduce errors if columns differ in size. */

#include <math.h>

#include "core/math/rng.h"
#include "quant/column_scale.h"
#include "quant/hessian.h"
#include "tests/td_test.h"

#define SEED 20260113u
#define N 48
#define K 128
#define TOKENS 300

static td_blas blas;

BEFORE_ALL {
    td_error err = {0};
    if (td_blas_open(&blas, &err) != TD_OK) fail_msg("%s", err.text);
}

static float normal(uint64_t stream, uint64_t i) {
    return (float)(sqrt(-2 * log(1 - td_rng_uniform(SEED, stream, 2 * i))) *
                   cos(6.283185307179586 * td_rng_uniform(SEED, stream, 2 * i + 1)));
}

static float x[TOKENS * K], w[N * K], h[K * K];

/* Inputs loud by f_j, weights large by g_j. */
static void make_layer(const float *f, const float *g) {
    for (size_t i = 0; i < TOKENS * K; i++) x[i] = normal(1, i) * f[i % K];
    for (size_t i = 0; i < N * K; i++) w[i] = 0.05f * normal(2, i) * g[i % K];
    memset(h, 0, sizeof h);
    td_hessian_add(&blas, x, TOKENS, K, K, h);
    assert_true(td_hessian_mirror(h, K));
}

/* Squared error of the outputs, by the definition: weights rounded after scaling, inputs too if wanted. */
static double measured(const td_round_options *o, const float *s, bool round_inputs) {
    static float  ws[N * K], hs[K * K], scale[N * K];
    static int8_t q[N * K];
    td_scale_columns(w, N, K, s, ws);
    td_scale_hessian(h, K, s, hs);
    OK(td_round_matrix(&blas, ws, N, K, hs, o, q, scale, NULL));
    size_t n_scales = td_round_scales(o, K), group = o->group ? o->group : K;
    double sum = 0;
    for (size_t t = 0; t < TOKENS; t++) {
        float amax = 0, in[K];
        for (size_t j = 0; j < K; j++) amax = fmaxf(amax, fabsf(x[t * K + j] / s[j]));
        for (size_t j = 0; j < K; j++) {
            in[j] = x[t * K + j] / s[j];
            if (round_inputs) in[j] = rintf(in[j] / (amax / 127)) * (amax / 127);
        }
        for (size_t r = 0; r < N; r++) {
            double want = 0, got = 0;
            for (size_t j = 0; j < K; j++) {
                want += (double)x[t * K + j] * w[r * K + j];
                got += (double)in[j] * q[r * K + j] * scale[r * n_scales + j / group];
            }
            sum += (want - got) * (want - got);
        }
    }
    return sum;
}

TEST(columns_that_differ_are_found) {
    float ones[K], loud[K], s[K];
    print_message("seed %u\n", SEED);
    for (size_t j = 0; j < K; j++) {
        ones[j] = 1;
        loud[j] = expf(normal(3, j));
    }
    static const struct {
        uint32_t bits;
        size_t   group;
    } formats[] = {{4, 0}, {4, 32}, {8, 0}};
    for (size_t f = 0; f < 3; f++)
        for (int m = TD_ROUND_NEAREST; m <= TD_ROUND_CLIP; m++)
            for (int which = 0; which < 3; which++) { /* loud inputs; large weights; both even */
                td_round_options o = td_round_options_of((td_round_method)m, formats[f].bits, formats[f].group);
                double           gain;
                make_layer(which == 0 ? loud : ones, which == 1 ? loud : ones);
                OK(td_column_scales(&blas, w, N, K, h, NULL, 0, &o, s, &gain, NULL));
                double before = measured(&o, ones, false), after = measured(&o, s, false);
                assert_true(fabs(after / before - gain) < 1e-3);
                assert_true(gain <= (which == 1 ? 0.3 : which == 2 ? 1 : m == TD_ROUND_NEAREST ? 0.75 : 0.98));
                /* inputs in int8 as well: the expected error is what happens */
                OK(td_column_scales(&blas, w, N, K, h, x, TOKENS, &o, s, &gain, NULL));
                before = measured(&o, ones, true);
                after = measured(&o, s, true);
                assert_true(fabs(after / before - gain) < 0.08);
            }
}

/* SmoothQuant's case: one input so loud that the others drown in int8, and weights of 8 bits that have room. */
TEST(loud_inputs_are_smoothed) {
    float ones[K], loud[K], s[K];
    for (size_t j = 0; j < K; j++) {
        ones[j] = 1;
        loud[j] = j == 17 ? 60 : 1;
    }
    td_round_options o = td_round_options_of(TD_ROUND_NEAREST, 8, 0);
    double           gain;
    make_layer(loud, ones);
    OK(td_column_scales(&blas, w, N, K, h, x, TOKENS, &o, s, &gain, NULL));
    assert_true(gain < 0.3);
    assert_true(measured(&o, s, true) < 0.3 * measured(&o, ones, true));
    assert_true(s[17] > 4 * s[16]);
}

TEST(columns_of_zeros_do_no_harm) {
    float f[K], g[K], s[K];
    for (size_t j = 0; j < K; j++) {
        f[j] = j % 5 == 0 ? 0 : expf(normal(3, j));
        g[j] = j % 7 == 0 ? 0 : expf(normal(4, j));
    }
    td_round_options o = td_round_options_of(TD_ROUND_GPTQ, 4, 0);
    double           gain;
    make_layer(f, g);
    OK(td_column_scales(&blas, w, N, K, h, x, TOKENS, &o, s, &gain, NULL));
    for (size_t j = 0; j < K; j++) assert_true(isfinite(s[j]) && s[j] > 0);
    assert_true(gain < 1);
    memset(h, 0, sizeof h); /* no inputs at all */
    OK(td_column_scales(&blas, w, N, K, h, NULL, 0, &o, s, &gain, NULL));
    assert_true(gain == 1);
    w[3] = NAN;
    assert_int_equal(td_column_scales(&blas, w, N, K, h, NULL, 0, &o, s, &gain, NULL), TD_EFORMAT);
}
