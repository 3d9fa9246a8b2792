/* Rows of logits. Sums and divergences are compared with double precision, and the 16-bit form with its bound. Also rows
 * with NaN or infinities. */
#include <math.h>

#include "core/math/rng.h"
#include "eval/logit_rows.h"
#include "tests/td_test.h"

#define N 1000
#define SEED 11

static void random_row(uint64_t row, double spread, float *x) {
    for (uint64_t i = 0; i < N; i++) x[i] = (float)(spread * (2 * td_rng_uniform(SEED, row, i) - 1));
}

static double exact_lse(const float *x) {
    double sum = 0;
    for (int i = 0; i < N; i++) sum += exp(x[i]);
    return log(sum);
}

TEST(sums_and_divergences) {
    print_message("    seed %d\n", SEED);
    for (uint64_t row = 0; row < 40; row++) {
        float  p[N], q[N];
        double kl = 0;
        random_row(2 * row, 0.5 + row, p);
        random_row(2 * row + 1, 0.5 + row, q);
        double lp = exact_lse(p), lq = exact_lse(q);
        for (int i = 0; i < N; i++) kl += exp(p[i] - lp) * ((p[i] - lp) - (q[i] - lq));
        assert_true(fabs(td_log_sum_exp(p, N) - lp) < 1e-6);
        assert_true(fabs(td_kl_divergence(p, lp, q, lq, N) - kl) < 2e-6 * (1 + kl));
        assert_true(td_kl_divergence(p, lp, p, lp, N) == 0);
    }
}

TEST(coded_rows) {
    for (uint64_t row = 0; row < 40; row++) {
        float    x[N], back[N], range;
        uint16_t code[N];
        random_row(row, 0.5 + row, x);
        double lse = td_log_sum_exp(x, N);
        td_logprobs_encode(x, lse, N, &range, code);
        td_logprobs_decode(range, code, N, back);
        for (int i = 0; i < N; i++) {
            double log_p = x[i] - lse, step = sqrt(-log_p * range) / 65535 + range / 65535 / 65535;
            assert_true(fabs(back[i] - log_p) <= step + 4e-6 + 3e-7 * range);
        }
        assert_true(fabs(td_kl_divergence(x, lse, back, td_log_sum_exp(back, N), N)) < 1e-6);
    }
    float    sure[3] = {0, -INFINITY, -1e30f}, back[3], range;
    uint16_t code[3];
    td_logprobs_encode(sure, 0, 3, &range, code);
    td_logprobs_decode(range, code, 3, back);
    assert_true(range == TD_CODE_RANGE_MAX && back[0] == 0 && back[1] == -range && back[2] == -range);
}

TEST(rows_that_are_no_numbers) {
    assert_true(isnan(td_log_sum_exp((float[]){0, NAN, 1}, 3)));
    assert_true(isnan(td_log_sum_exp((float[]){NAN, 0}, 2)));
    assert_true(isnan(td_log_sum_exp((float[]){0, INFINITY}, 2)));
    assert_true(isnan(td_log_sum_exp((float[]){-INFINITY, -INFINITY}, 2)));
    assert_true(td_log_sum_exp((float[]){3, -INFINITY}, 2) == 3);
    assert_int_equal(td_row_best((float[]){1, 2, 2, 0}, 4), 1);
}
