/* td_json_load compared with json_loadb: the same trees and the same errors, wherever the text is cut into pieces.
 * tests/fault shows that both survive a lack of memory. */
#include <math.h>

#include "core/files/json_text.h"
#include "core/math/rng.h"
#include "tests/td_test.h"

#define SEED 20260801u

static uint64_t g_draws;
static uint32_t draw(uint32_t n) {
    return (uint32_t)(td_rng_u64(SEED, 0, g_draws++) % n);
}

static void same(const char *text, size_t len, size_t flags) {
    json_error_t want = {0}, got = {0};
    json_auto_t *a = json_loadb(text, len, flags, &want), *b;
    td_status    st = td_json_load(text, len, flags, &b, &got);
    assert_int_equal(st, a ? TD_OK : TD_EFORMAT);
    assert_true(a ? json_equal(a, b) : b == NULL);
    if (!a) {
        assert_string_equal(got.text, want.text);
        assert_int_equal(got.line, want.line);
        assert_int_equal(got.column, want.column);
        assert_int_equal(got.position, want.position);
    }
}

TEST(known_texts) {
    static const char *const texts[] = {"",
                                        "{",
                                        "{}",
                                        "[1,2.5e3,\"\\u00e9\\ud83d\\udc09\",null]",
                                        "{\"a\":1,\"a\":2}",
                                        "[1,]",
                                        "\"alone\"",
                                        "{\"a\":\"\xff\"}",
                                        "{\"a\":\"\\u0000\"}",
                                        "{} x"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        same(texts[i], strlen(texts[i]), 0);
        same(texts[i], strlen(texts[i]), JSON_REJECT_DUPLICATES);
        same(texts[i], strlen(texts[i]), JSON_ALLOW_NUL | JSON_DECODE_ANY);
    }
}

/* Random documents, whole and damaged: strings, numbers and names lie across the pieces in which the text is read. */
static size_t write_value(char *to, int depth) {
    char *p = to;
    switch (draw(depth > 0 ? 5 : 3)) {
        case 0: return (size_t)sprintf(to, "%d", (int)draw(1000000) - 500000);
        case 1: return (size_t)sprintf(to, "%.17g", draw(1000000) / 7.0);
        case 2:
            *p++ = '"';
            for (uint32_t n = draw(draw(8) ? 20 : 400); n > 0; n--)
                p += sprintf(p, "%s", draw(6) ? "x" : draw(2) ? "\\n" : "\xc3\xa9");
            *p++ = '"';
            return (size_t)(p - to);
        case 3:
            *p++ = '[';
            for (uint32_t i = 0, n = draw(6); i < n; i++) {
                if (i) *p++ = ',';
                p += write_value(p, depth - 1);
            }
            *p++ = ']';
            return (size_t)(p - to);
        default:
            *p++ = '{';
            for (uint32_t i = 0, n = draw(6); i < n; i++)
                p += sprintf(p, "%s\"k%u\": ", i ? ",\n" : "", i), p += write_value(p, depth - 1);
            *p++ = '}';
            return (size_t)(p - to);
    }
}

TEST(random_texts) {
    static char text[1 << 20];
    print_message("seed %u\n", SEED);
    for (int i = 0; i < 3000; i++) {
        size_t n = write_value(text, 4);
        same(text, n, JSON_DECODE_ANY);
        same(text, draw((uint32_t)n + 1), JSON_DECODE_ANY);
        text[draw((uint32_t)n)] = (char)draw(128);
        same(text, n, JSON_DECODE_ANY);
    }
}

TEST(dumps) {
    json_auto_t *o = json_pack("{s:[i,s]}", "a", 7, "\xc3\xa9");
    FREED char  *text = td_json_dump(o, JSON_COMPACT);
    assert_string_equal(text, "{\"a\":[7,\"\xc3\xa9\"]}");
    assert_null(td_json_dump(NULL, 0));
}

/* Reals come with the fewest digits that give them again; integers and strings are left alone. */
TEST(reals) {
    static const struct {
        double      value;
        const char *text;
    } cases[] = {{0.1, "0.1"},
                 {-0.1, "-0.1"},
                 {0.0, "0.0"},
                 {-0.0, "-0.0"},
                 {1.5, "1.5"},
                 {4.35, "4.35"},
                 {100000, "100000.0"},
                 {1e15, "1000000000000000.0"},
                 {1e16, "10000000000000000.0"},
                 {1.25e17, "1.25e17"},
                 {0.0001, "0.0001"},
                 {0.00125, "0.00125"},
                 {0.05, "0.05"},
                 {1e-5, "1e-5"},
                 {2.5e-7, "2.5e-7"},
                 {5e-324, "5e-324"},
                 {1.7976931348623157e308, "1.7976931348623157e308"},
                 {0.1 + 0.2, "0.30000000000000004"},
                 {123456.789, "123456.789"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_auto_t *list = json_pack("[s,f,I,f]", "1.10000000000000009\\\"2.2", cases[i].value,
                                      (json_int_t)9007199254740993, cases[i].value);
        char         want[200], *text = td_json_dump(list, 0);
        snprintf(want, sizeof want, "[\"1.10000000000000009\\\\\\\"2.2\", %s, 9007199254740993, %s]", cases[i].text,
                 cases[i].text);
        assert_non_null(text);
        assert_string_equal(text, want);
        free(text);
    }
    json_auto_t *tenth = json_real(0.123456789);
    FREED char  *rounded = td_json_dump(tenth, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    assert_string_equal(rounded, "0.123457");
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = td_rng_u64(SEED, 1, (uint64_t)i);
        double   value;
        memcpy(&value, &bits, sizeof value);
        if (i % 2) value = (double)(int64_t)bits / (double)(1 + (i % 50) * 1000);
        if (!isfinite(value)) continue;
        json_auto_t *real = json_real(value);
        FREED char  *text = td_json_dump(real, JSON_ENCODE_ANY);
        assert_non_null(text);
        assert_true(strtod(text, NULL) == value && strlen(text) < 25 && strpbrk(text, ".e"));
    }
}
