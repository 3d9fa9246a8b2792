/* Row quantisation by every tier, compared with a plain loop by its rule, with tails, corner cases and guard pages. */

#include <math.h>

#include "core/machine/cpu.h"
#include "core/math/rng.h"
#include "kernels/rows/convert.h"
#include "kernels/rows/row_quant.h"
#include "quant/weight_quant.h"
#include "tests/guard_page.h"
#include "tests/kernels/kernel_tables.h"
#include "tests/td_test.h"

#define SEED 20260101u

typedef int32_t (*row_fn)(td_dtype, const void *, size_t, float, int8_t *, float *);

static void set_value(td_dtype dtype, void *x, size_t i, float v) {
    if (dtype == TD_DT_F32)
        ((float *)x)[i] = v;
    else if (dtype == TD_DT_BF16)
        ((td_bf16 *)x)[i] = td_f32_to_bf16(v);
    else
        ((td_f16 *)x)[i] = (td_f16)(td_rng_u64(SEED, 3, i) & 0xbbff); /* any finite half */
}

static float get_value(td_dtype dtype, const void *x, size_t i) {
    if (dtype == TD_DT_F32) return ((const float *)x)[i];
    if (dtype == TD_DT_BF16) return td_bf16_to_f32(((const td_bf16 *)x)[i]);
    return td_f16_to_f32(((const td_f16 *)x)[i]);
}

/* numpy: s = abs(x).max() / qmax or 1; q = rint(x * (1 / s)). nearbyint in double of the f32 product is the same number. */
static void model(td_dtype dtype, const void *x, size_t k, float qmax, int8_t *q, float *scale, int32_t *sum) {
    float amax = 0;
    for (size_t i = 0; i < k; i++) amax = fmaxf(amax, fabsf(get_value(dtype, x, i)));
    *scale = amax == 0 ? 1.0f : amax / qmax;
    float inv = 1.0f / *scale;
    *sum = 0;
    for (size_t i = 0; i < k; i++) {
        float p = get_value(dtype, x, i) * inv;
        q[i] = (int8_t)nearbyint((double)p);
        *sum += q[i];
    }
}

TEST(tiers_match_the_rule) {
    static const size_t   sizes[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 255, 1408, 7168};
    static const td_dtype dtypes[] = {TD_DT_F32, TD_DT_BF16, TD_DT_F16};
    print_message("seed %u\n", SEED);
    for (size_t d = 0; d < 3; d++)
        for (size_t z = 0; z < sizeof sizes / sizeof sizes[0]; z++)
            for (int limit = 0; limit < 2; limit++) {
                size_t                     k = sizes[z];
                float                      qmax = limit ? 7.0f : 127.0f, want_scale;
                AT_END(guard_free) guarded x = guard_alloc(k * td_dtype_bytes(dtypes[d])), q = guard_alloc(k);
                int8_t                     want[7168];
                int32_t                    want_sum;
                for (size_t i = 0; i < k; i++) set_value(dtypes[d], x.data, i, (float)(td_rng_uniform(SEED, z, i) * 6 - 3));
                model(dtypes[d], x.data, k, qmax, want, &want_scale, &want_sum);
                EACH_TABLE(t, rows) {
                    float   scale = -1;
                    int32_t sum;
                    memset(q.data, 0x55, k);
                    sum = t->rows->quantize(dtypes[d], x.data, k, qmax, q.data, &scale);
                    assert_memory_equal(q.data, want, k);
                    assert_memory_equal(&scale, &want_scale, sizeof scale);
                    assert_int_equal(sum, want_sum);
                }
            }
}

TEST(ties_round_to_even) {
    /* rowmax 127: scale 1, so the values are the codes before rounding */
    float        x[20] = {127,     0.5f,   1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f,
                          -126.5f, 125.5f, 3.5f, 4.5f, -127,  0,     -0.0f, 0.49999997f};
    const int8_t want[20] = {127, 0, 2, 2, 0, -2, -2, 126, -126, 126, 4, 4, -127, 0, 0, 0};
    EACH_TABLE(t, rows) {
        int8_t q[20];
        float  scale;
        t->rows->quantize(TD_DT_F32, x, 20, 127, q, &scale);
        assert_memory_equal(q, want, 20);
        assert_true(scale == 1.0f);
    }
}

TEST(corner_rows) {
    EACH_TABLE(t, rows) {
        for (size_t at = 0; at < 37; at += 9) {
            float  x[37] = {0}, scale;
            int8_t q[37], zero[37] = {0};
            assert_int_equal(t->rows->quantize(TD_DT_F32, x, 37, 127, q, &scale), 0); /* all zero */
            assert_true(scale == 1.0f);
            assert_memory_equal(q, zero, 37);
            x[at] = 1e-44f; /* 1 / scale overflows */
            t->rows->quantize(TD_DT_F32, x, 37, 127, q, &scale);
            assert_true(scale == 1.0f);
            assert_memory_equal(q, zero, 37);
            x[at] = 1e-35f; /* the scale is subnormal, its inverse is not infinite */
            t->rows->quantize(TD_DT_F32, x, 37, 127, q, &scale);
            assert_int_equal(q[at], 127);
            x[at] = at % 2 ? INFINITY : NAN;
            t->rows->quantize(TD_DT_F32, x, 37, 127, q, &scale);
            assert_true(isnan(scale));
            assert_memory_equal(q, zero, 37);
            x[at] = -3.4028235e38f;
            t->rows->quantize(TD_DT_F32, x, 37, 127, q, &scale);
            assert_int_equal(q[at], -127);
        }
    }
}

TEST(rows_are_padded_with_zeros) {
    float   x[2 * 5] = {1, 2, 3, 4, 99, -1, -2, -3, -4, 99}; /* stride 5, k 4 */
    int8_t  q[2 * 8], want[2 * 8] = {32, 64, 95, 127, 0, 0, 0, 0, -32, -64, -95, -127, 0, 0, 0, 0};
    float   scale[2];
    int32_t sum[2];
    memset(q, 0x55, sizeof q);
    td_quantize_rows_i8(TD_DT_F32, x, 2, 4, 5, q, 8, scale, sum);
    assert_memory_equal(q, want, sizeof q);
    assert_true(scale[0] == 4.0f / 127 && scale[1] == scale[0]);
    assert_int_equal(sum[0], 318);
    assert_int_equal(sum[1], -318);
}

TEST(codes_may_overwrite_an_f32_row) {
    enum { K = 1411 };
    static float  x[K], y[K];
    static int8_t want[K];
    for (size_t i = 0; i < K; i++) x[i] = (float)td_rng_uniform(SEED, 77, i) - 0.5f;
    EACH_TABLE(t, rows) {
        float a, b;
        memcpy(y, x, sizeof x);
        t->rows->quantize(TD_DT_F32, x, K, 127, want, &a);
        t->rows->quantize(TD_DT_F32, y, K, 127, (int8_t *)y, &b);
        assert_memory_equal(y, want, K);
        assert_true(a == b);
    }
}

TEST(weights_have_a_scale_per_row) {
    float  w[3 * 3] = {7, -3.5f, 1, 0, 0, 0, -14, 2, 1}, scale[3];
    int8_t q[3 * 4];
    assert_true(td_quantize_weight_i4(TD_DT_F32, w, 3, 3, q, 4, scale));
    const int8_t want[3 * 4] = {7, -4, 1, 0, 0, 0, 0, 0, -7, 1, 0, 0};
    assert_memory_equal(q, want, sizeof q);
    assert_true(scale[0] == 1 && scale[1] == 1 && scale[2] == 2);
    assert_true(td_quantize_weight_i8(TD_DT_F32, w, 3, 3, q, 4, scale));
    assert_int_equal(q[0], 127);
    assert_int_equal(q[8], -127);
    w[4] = NAN;
    assert_false(td_quantize_weight_i8(TD_DT_F32, w, 3, 3, q, 4, scale));
    assert_true(isnan(scale[1]));
}

/* A row taken over is the row that was quantised, padding and sum included. */
TEST(codes_made_before_are_taken_over) {
    for (size_t k = 1; k <= 600; k += k < 20 ? 1 : 37)
        for (size_t stride = k; stride <= k + 130; stride += 13) {
            float   x[600], scale;
            int8_t  codes[600], want[730], got[730];
            int32_t want_sum, sum;
            for (size_t i = 0; i < k; i++) x[i] = (float)((i * 7919 + k) % 255) - (i % 3 ? 127 : 0);
            td_quantize_rows_i8(TD_DT_F32, x, 1, k, k, want, stride, &scale, &want_sum);
            td_quantize_rows_i8(TD_DT_F32, x, 1, k, k, codes, k, &scale, NULL);
            memset(got, 99, sizeof got);
            td_place_row_i8(codes, k, got, stride, &sum);
            assert_memory_equal(got, want, stride);
            assert_int_equal(sum, want_sum);
        }
}
