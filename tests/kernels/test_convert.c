/* Conversions of all 16-bit patterns by every tier, compared with the definition of the formats. */

#include <math.h>

#include "core/machine/cpu.h"
#include "core/math/rng.h"
#include "kernels/rows/convert.h"
#include "tests/guard_page.h"
#include "tests/kernels/kernel_tables.h"
#include "tests/td_test.h"

#define SEED 7u

TEST(every_half_precision_value) {
    static uint16_t in[65536];
    static float    want[65536], got[65536];
    for (uint32_t i = 0; i < 65536; i++) in[i] = (uint16_t)i;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        td_dtype dtype = bf16 ? TD_DT_BF16 : TD_DT_F16;
        for (uint32_t i = 0; i < 65536; i++) { /* from the definition of the formats */
            uint32_t e = bf16 ? i >> 7 & 255 : i >> 10 & 31, m = bf16 ? i & 127 : i & 1023, e_max = bf16 ? 255 : 31;
            int      bias = bf16 ? 127 : 15, bits = bf16 ? 7 : 10;
            double   v = e ? ldexp(1 + ldexp(m, -bits), (int)e - bias) : ldexp(m, 1 - bias - bits);
            if (e == e_max) v = m ? NAN : INFINITY;
            want[i] = (float)(i >> 15 ? -v : v);
        }
        EACH_TABLE(t, rows) {
            memset(got, 0x55, sizeof got);
            t->rows->to_f32(dtype, in, 65536, got);
            for (uint32_t i = 0; i < 65536; i++)
                if (isnan(want[i]))
                    assert_true(isnan(got[i]));
                else
                    assert_memory_equal(&got[i], &want[i], 4);
        }
    }
}

TEST(f32_to_bf16_is_the_nearest_even) {
    enum { N = 200000 };
    static float   in[N];
    static td_bf16 got[N];
    print_message("seed %u\n", SEED);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t bits = (uint32_t)td_rng_u64(SEED, 1, i);
        if (i % 4 == 1) bits = (bits & 0xffff0000u) | 0x8000u; /* ties */
        if (i % 16 == 2) bits |= 0x7f800000u;                  /* NaN and infinity */
        if (i % 16 == 3) bits &= 0x807fffffu;                  /* subnormals */
        memcpy(&in[i], &bits, 4);
    }
    EACH_TABLE(t, rows) {
        t->rows->to_bf16(in, N, got);
        for (uint32_t i = 0; i < N; i++) {
            if (isnan(in[i])) {
                assert_true(isnan(td_bf16_to_f32(got[i])));
                continue;
            }
            /* among the two neighbours no other is nearer, and a tie took the even one; beyond the largest is infinity */
            uint32_t bits;
            memcpy(&bits, &in[i], 4);
            td_bf16  below = (td_bf16)(bits >> 16);
            double   x = in[i], lo = td_bf16_to_f32(below);
            uint32_t up_bits = ((uint32_t)below + 1) << 16;
            double   step =
                (bits & 0x7f800000u) >> 23 ? ldexp(1, (int)((bits & 0x7f800000u) >> 23) - 127 - 7) : ldexp(1, -126 - 7);
            double  dist = fabs(x) - fabs(lo);
            td_bf16 want = dist * 2 > step || (dist * 2 == step && (below & 1)) ? (td_bf16)(up_bits >> 16) : below;
            if (isinf(in[i])) want = below;
            assert_int_equal(got[i], want);
        }
    }
}

TEST(tails_stay_inside) {
    for (size_t n = 0; n < 70; n++) {
        AT_END(guard_free) guarded h = guard_alloc(n * 2), f = guard_alloc(n * 4);
        EACH_TABLE(t, rows) {
            for (size_t i = 0; i < n; i++) ((td_bf16 *)h.data)[i] = (td_bf16)(0x3f80 + i);
            t->rows->to_f32(TD_DT_BF16, h.data, n, f.data);
            memset(h.data, 0, n * 2);
            t->rows->to_bf16(f.data, n, h.data);
            for (size_t i = 0; i < n; i++) assert_int_equal(((td_bf16 *)h.data)[i], 0x3f80 + i);
            t->rows->to_f32(TD_DT_F16, h.data, n, f.data);
        }
    }
}

/* Every binary16 survives, and what lies between two of them goes to the nearer, ties to the even one. */
TEST(f32_to_f16_is_the_nearest_even) {
    for (uint32_t i = 0; i < 0x7c00; i++) {
        float lo = td_f16_to_f32((td_f16)i), hi = i == 0x7bff ? 65536.0f : td_f16_to_f32((td_f16)(i + 1)),
              middle = lo + (hi - lo) / 2;
        assert_int_equal(td_f32_to_f16(lo), i);
        assert_int_equal(td_f32_to_f16(-lo), i | 0x8000u);
        assert_int_equal(td_f32_to_f16(middle), i + (i & 1));
        assert_int_equal(td_f32_to_f16(nextafterf(middle, 0)), i);
        assert_int_equal(td_f32_to_f16(nextafterf(middle, INFINITY)), i + 1);
    }
    assert_int_equal(td_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(td_f32_to_f16(1e30f), 0x7c00);
    assert_int_equal(td_f32_to_f16(1e-30f), 0);
    assert_true(isnan(td_f16_to_f32(td_f32_to_f16(NAN))));
}
