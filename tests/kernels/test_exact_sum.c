/* Exact sums (kernels/exact_sum.h), compared with integers of 128 bits: in every order, in any parts, and by every
 * instruction set. */
#include <math.h>

#include "core/math/rng.h"
#include "kernels/exact_sum.h"
#include "tests/kernels/kernel_tables.h"
#include "tests/td_test.h"

#define SEED 2718u
#define N 83 /* values of a row: whole blocks, and a rest that is no multiple of any vector */

/* A term in units of 2^-26, by way of double, which holds all of it. */
static int64_t units_of(float weight, float y) {
    const float  product = weight * y;
    const double limited = fmin(fmax((double)product, -(double)TD_EXACT_MAX), (double)TD_EXACT_MAX),
                 high = nearbyint(limited * 0x1p4);
    return (int64_t)high * (1 << TD_EXACT_CARRY_BITS) + (int64_t)nearbyint((limited - high * 0x1p-4) * 0x1p26);
}

/* Of all sizes, from what vanishes to what is limited; half of them near the middle. */
static float value_at(uint64_t i) {
    double size =
        td_rng_uniform(SEED, 1, i) < 0.5 ? td_rng_uniform(SEED, 2, i) * 8 - 4 : td_rng_uniform(SEED, 2, i) * 60 - 35;
    double sign = td_rng_uniform(SEED, 3, i) < 0.5 ? -1 : 1;
    return (float)(sign * exp2(size) * (1 + td_rng_uniform(SEED, 4, i)));
}

static float weight_at(uint64_t i) {
    return (float)td_rng_uniform(SEED, 5, i) * 2.5f;
}

TEST(a_sum_is_that_of_the_terms_in_integers) {
    enum { TRIALS = 2000 };
    for (uint64_t trial = 0; trial < TRIALS; trial++) {
        const uint32_t terms = 1 + (uint32_t)(td_rng_u64(SEED, 6, trial) % TD_EXACT_TERMS);
        int32_t        sum[2 * TD_EXACT_BLOCK];
        int64_t        want = 0;
        td_exact_begin(sum, 1, terms);
        for (uint64_t i = trial * TD_EXACT_TERMS; i < trial * TD_EXACT_TERMS + terms; i++) {
            td_exact_add_one(weight_at(i), value_at(i), sum);
            want += units_of(weight_at(i), value_at(i));
        }
        assert_int_equal((int64_t)sum[0] * (1 << TD_EXACT_CARRY_BITS) + sum[TD_EXACT_BLOCK], want);
        const double exact = (double)want * 0x1p-26, got = (double)td_exact_value(sum);
        assert_true(fabs(got - exact) <= fabs(exact) * 0x1p-23);
        if (fabs(exact) < 0x1p20) assert_true((float)exact == (float)got); /* rounded once */
    }
}

TEST(a_term_is_near_to_what_it_stands_for) {
    for (uint64_t i = 0; i < 100000; i++) {
        int32_t     sum[2 * TD_EXACT_BLOCK];
        const float product = weight_at(i) * value_at(i);
        td_exact_begin(sum, 1, 1);
        td_exact_add_one(weight_at(i), value_at(i), sum);
        if (fabsf(product) <= TD_EXACT_MAX)
            assert_true(fabs((double)td_exact_value(sum) - (double)product) <= 0x1p-27 + fabs((double)product) * 0x1p-24);
        else
            assert_true(td_exact_value(sum) == copysignf(TD_EXACT_MAX, product));
    }
}

/* Of one row by every set: terms in two orders, and in two parts whose words are added. */
TEST(every_set_gives_the_same_words_in_any_order_and_parts) {
    enum { TERMS = 11, FIRST_PART = 4 };
    float   y[TERMS][N], want[N];
    int32_t words[2 * 6 * TD_EXACT_BLOCK], part[2][2 * 6 * TD_EXACT_BLOCK], first[2 * 6 * TD_EXACT_BLOCK];
    assert_int_equal(td_exact_words(N), sizeof words / sizeof *words);
    for (uint64_t i = 0; i < TERMS * N; i++) y[i / N][i % N] = value_at(i);
    td_exact_begin(first, N, TERMS);
    for (size_t t = 0; t < TERMS; t++)
        for (size_t i = 0; i < N; i++) td_exact_add_one(weight_at(t), y[t][i], first + td_exact_at(i));
    for (size_t i = 0; i < N; i++) want[i] = td_exact_value(first + td_exact_at(i));
    EACH_TABLE(t, rows) {
        float out[N];
        td_exact_begin(words, N, TERMS);
        for (size_t i = TERMS; i-- > 0;) t->rows->exact_add(weight_at(i), y[i], N, words);
        assert_memory_equal(words, first, sizeof words);
        td_exact_begin(part[0], N, FIRST_PART);
        td_exact_begin(part[1], N, TERMS - FIRST_PART);
        for (size_t i = 0; i < TERMS; i++) t->rows->exact_add(weight_at(i), y[i], N, part[i >= FIRST_PART]);
        for (size_t i = 0; i < td_exact_words(N); i++) words[i] = (int32_t)((uint32_t)part[0][i] + (uint32_t)part[1][i]);
        /* words behind the N values have no terms, only what stands for them */
        for (size_t i = 0; i < N; i++) assert_int_equal(words[td_exact_at(i)], first[td_exact_at(i)]);
        t->rows->exact_end(words, N, out);
        assert_memory_equal(out, want, sizeof out);
    }
}

/* Of any number of NaNs with either sign, some of them as a CUDA card makes them, beside terms as large as there are. */
TEST(a_nan_is_never_lost) {
    const uint32_t bits = 0x7fffffff;
    float          of_card;
    memcpy(&of_card, &bits, sizeof of_card);
    for (uint32_t nans = 1; nans <= TD_EXACT_TERMS; nans++)
        for (uint32_t negative = 0; negative <= nans; negative++)
            for (int other = -1; other <= 1; other++) EACH_TABLE(t, rows) {
                    int32_t sum[2 * TD_EXACT_BLOCK];
                    float   y[TD_EXACT_BLOCK], out[TD_EXACT_BLOCK];
                    td_exact_begin(sum, TD_EXACT_BLOCK, TD_EXACT_TERMS);
                    for (uint32_t i = 0; i < TD_EXACT_TERMS; i++) {
                        for (size_t j = 0; j < TD_EXACT_BLOCK; j++)
                            y[j] = i >= nans ? (float)other * 1e9f : i < negative ? -NAN : i & 1 ? of_card : NAN;
                        t->rows->exact_add(1, y, TD_EXACT_BLOCK, sum);
                    }
                    t->rows->exact_end(sum, TD_EXACT_BLOCK, out);
                    for (size_t j = 0; j < TD_EXACT_BLOCK; j++) assert_true(isnan(out[j]) && isnan(td_exact_value(sum + j)));
                }
}
