/* 8- and 4-bit floats. Every code is compared with the definition of the formats; the codes of every bf16 and of the
 * neighbours of midpoints are compared with those of a search. */

#include <math.h>

#include "core/dtype.h"
#include "core/math/small_float.h"
#include "tests/td_test.h"

/* A float of so many exponent and mantissa bits, as every OCP format has it. */
static double by_definition(unsigned code, int exponent_bits, int mantissa_bits, int bias) {
    int    e = (int)(code >> mantissa_bits) & ((1 << exponent_bits) - 1), m = (int)code & ((1 << mantissa_bits) - 1);
    double fraction = (double)m / (1 << mantissa_bits),
           v = e ? (1 + fraction) * pow(2, e - bias) : fraction * pow(2, 1 - bias);
    return code >> (exponent_bits + mantissa_bits) & 1 ? -v : v;
}

static double e4m3(unsigned code) {
    return (code & 0x7f) == 0x7f ? NAN : by_definition(code, 4, 3, 7);
}
static double e2m1(unsigned code) {
    return by_definition(code, 2, 1, 1);
}

TEST(codes_have_their_values) {
    uint8_t codes[256];
    float   values[256];
    for (unsigned c = 0; c < 256; c++) codes[c] = (uint8_t)c;
    td_e4m3_to_f32_n(codes, 256, values);
    for (unsigned c = 0; c < 256; c++) {
        float one = td_e4m3_to_f32((uint8_t)c), want = (float)e4m3(c), exponent = td_e8m0_to_f32((uint8_t)c);
        assert_memory_equal(&one, &values[c], sizeof one);
        if (isnan(want))
            assert_true(isnan(one));
        else
            assert_memory_equal(&one, &want, sizeof one); /* the sign of zero too */
        if (c == 255)
            assert_true(isnan(exponent));
        else
            assert_true(exponent == pow(2, (int)c - 127));
        assert_true(td_e2m1_twice((uint8_t)c) == 2 * e2m1(c & 15));
    }
    assert_true(e4m3(0x7e) == 448 && e4m3(1) == pow(2, -9) &&
                e2m1(7) == (double)TD_E2M1_MAX); /* what the specifications print */
}

/* The nearest of magnitudes [0, n), ties to the even code. */
static unsigned nearest(double v, double (*value)(unsigned), unsigned n) {
    unsigned best = 0;
    for (unsigned c = 1; c < n; c++) {
        double d = fabs(value(c) - v), least = fabs(value(best) - v);
        if (d < least || (d == least && c % 2 == 0)) best = c;
    }
    return best;
}

static void check_rounding(float v) {
    if (isnan(v)) {
        assert_int_equal(td_f32_to_e4m3(v), 0x7f);
        assert_int_equal(td_f32_to_e8m0_floor(v), 255);
        return;
    }
    double   clipped = fmin(fabs((double)v), 1000);
    unsigned sign = signbit(v) != 0;
    assert_int_equal(td_f32_to_e4m3(v), nearest(clipped, e4m3, 0x7f) | sign << 7);
    assert_int_equal(td_f32_to_e2m1(v), nearest(clipped, e2m1, 8) | sign << 3);
    uint8_t power = td_f32_to_e8m0_floor(v);
    if (v <= 0 || v < pow(2, -127))
        assert_int_equal(power, 0);
    else if (isinf(v))
        assert_int_equal(power, 255);
    else
        assert_true(pow(2, power - 127) <= v && v < pow(2, power - 126));
}

TEST(values_have_the_nearest_codes) {
    for (unsigned i = 0; i < 65536; i++) check_rounding(td_bf16_to_f32((td_bf16)i));
    for (unsigned c = 0; c < 0x7f; c++) {
        double values[] = {e4m3(c), c < 0x7e ? (e4m3(c) + e4m3(c + 1)) / 2 : 464, c < 7 ? (e2m1(c) + e2m1(c + 1)) / 2 : 0};
        for (size_t i = 0; i < 3; i++)
            for (int sign = -1; sign <= 1; sign += 2) {
                float v = (float)(sign * values[i]);
                check_rounding(v);
                check_rounding(nextafterf(v, INFINITY));
                check_rounding(nextafterf(v, -INFINITY));
            }
    }
    for (int e = -127; e < 128; e++) {
        check_rounding(ldexpf(1, e));
        check_rounding(nextafterf(ldexpf(1, e), 0));
    }
}
