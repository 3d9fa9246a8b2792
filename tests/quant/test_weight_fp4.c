/* Weights rounded to FP4. Scales are compared with the rules of OCP MX and NVFP4 in double precision, and every code is the
 * nearest by a search. */

#include <math.h>

#include "core/math/rng.h"
#include "core/math/small_float.h"
#include "kernels/rows/convert.h"
#include "quant/weight_quant.h"
#include "tests/td_test.h"

#define SEED 99u
enum { ROWS = 40, K = 150, STRIDE = 160 };

static const double E2M1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

static double distance(double v, unsigned code) {
    return fabs(v - (code & 8 ? -E2M1[code & 7] : E2M1[code & 7]));
}

static void check(td_dtype scale_dtype, size_t size, const float *w, float factor) {
    static uint8_t q[ROWS * STRIDE];
    static float   scale[ROWS * STRIDE / 16], tmp[K];
    size_t         n_groups = STRIDE / size;
    assert_true(td_quantize_weight_fp4_groups(TD_DT_F32, w, ROWS, K, size, scale_dtype, factor, q, STRIDE, scale, tmp));
    for (size_t r = 0; r < ROWS; r++)
        for (size_t g = 0; g < n_groups; g++) {
            double amax = 0, s = (double)scale[r * n_groups + g];
            for (size_t i = g * size; i < (g + 1) * size && i < K; i++) amax = fmax(amax, fabs((double)w[r * K + i]));
            if (scale_dtype == TD_DT_F8_E8M0)
                assert_true(g * size >= K ? s == 0 : s == (amax < 0x1p-125 ? 0x1p-127 : pow(2, floor(log2(amax)) - 2)));
            else
                assert_true(s == (double)td_e4m3_to_f32(td_f32_to_e4m3((float)(amax / 6 / (double)factor))));
            for (size_t i = g * size; i < (g + 1) * size; i++) {
                unsigned code = q[r * STRIDE + i];
                double   v = s == 0 || i >= K ? 0 : (double)w[r * K + i] / (s * (double)factor), got = distance(v, code);
                assert_true(code < 16 && (i < K || code == 0));
                for (unsigned c = 0; c < 16; c++)
                    assert_true(got <= distance(v, c) + 1e-6 * fabs(v)); /* the quotient is rounded before */
            }
        }
}

TEST(codes_and_scales_follow_the_rules) {
    static float w[ROWS * K];
    print_message("seed %u\n", SEED);
    for (size_t i = 0; i < ROWS * K; i++)
        w[i] = (float)((td_rng_uniform(SEED, 0, i) - 0.5) * pow(4, (double)(i / K % 16) - 8));
    memset(w, 0, K * sizeof *w);                       /* a row of zeros */
    for (size_t i = K; i < 2 * K; i++) w[i] *= 1e-38f; /* subnormals */
    for (size_t i = 2 * K; i < 3 * K; i++) w[i] = 7;   /* beyond 6 times a power of two: clipped by MX */
    float amax = td_amax(TD_DT_F32, w, ROWS * K), most = 0;
    for (size_t i = 0; i < ROWS * K; i++) most = fmaxf(most, fabsf(w[i]));
    assert_true(amax == most && td_fp4_factor(amax) == amax / 2688);
    check(TD_DT_F8_E8M0, 32, w, 1);
    check(TD_DT_F8_E8M0, 16, w, 1);
    check(TD_DT_F8_E4M3, 16, w, td_fp4_factor(amax));
    check(TD_DT_F8_E4M3, 32, w, td_fp4_factor(amax));
}

TEST(nothing_but_zeros_and_what_is_not_finite) {
    static float w[ROWS * K];
    uint8_t      q[STRIDE];
    float        scale[STRIDE / 16], tmp[K];
    assert_true(td_amax(TD_DT_F32, w, 0) == 0 && td_fp4_factor(0) == 1 && td_fp4_factor(1e-40f) == 1);
    check(TD_DT_F8_E8M0, 32, w, 1);
    check(TD_DT_F8_E4M3, 16, w, 1);
    for (int nan = 0; nan < 2; nan++) {
        w[77] = nan ? NAN : -INFINITY;
        float amax = td_amax(TD_DT_F32, w, K);
        assert_false(isfinite(amax));
        assert_false(td_quantize_weight_fp4_groups(TD_DT_F32, w, 1, K, 32, TD_DT_F8_E8M0, 1, q, STRIDE, scale, tmp));
        assert_false(td_quantize_weight_fp4_groups(TD_DT_F32, w, 1, K, 16, TD_DT_F8_E4M3, td_fp4_factor(amax), q, STRIDE,
                                                   scale, tmp));
    }
}

/* 2100 numbers and fewer, the largest magnitude anywhere among them, in each type. */
TEST(the_largest_magnitude_of_every_type) {
    enum { N = 2100 };
    static const td_dtype TYPES[] = {TD_DT_BF16, TD_DT_F16, TD_DT_F32};
    static const float    LARGEST[] = {-3.5f, 3.5f, INFINITY, -INFINITY, NAN, -NAN};
    static float          v[N];
    static uint16_t       half[N];
    for (size_t trial = 0; trial < 300; trial++) {
        td_dtype dtype = TYPES[trial % 3];
        size_t   n = trial < 30 ? 1 + trial / 3 : 1 + td_rng_u64(SEED, 1, trial) % N, at = td_rng_u64(SEED, 2, trial) % n;
        float    largest = LARGEST[td_rng_u64(SEED, 3, trial) % (sizeof LARGEST / sizeof *LARGEST)];
        for (size_t i = 0; i < n; i++)
            v[i] = i == at ? largest : (float)((int)(td_rng_u64(SEED, 4 + trial, i) % 385) - 192) / 64;
        for (size_t i = 0; i < n && dtype != TD_DT_F32; i++)
            half[i] = dtype == TD_DT_BF16 ? td_f32_to_bf16(v[i]) : td_f32_to_f16(v[i]);
        float amax = td_amax(dtype, dtype == TD_DT_F32 ? (const void *)v : half, n);
        if (!(isnan(largest) ? isnan(amax) : amax == fabsf(largest)))
            fail_msg("trial %zu: %g where %g is the largest", trial, (double)amax, (double)largest);
    }
}
