/* The JSON appender, read back by jansson. */

#include <jansson.h>
#include <math.h>

#include "core/math/rng.h"
#include "server/api/json_writer.h"
#include "tests/td_test.h"

static json_t *read_back(td_jbuf *b) {
    json_error_t e;
    json_t      *doc = json_loadb(b->data, b->len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (!doc) print_message("%s: %.*s\n", e.text, (int)b->len, b->data);
    assert_non_null(doc);
    assert_false(b->failed);
    td_jbuf_free(b);
    return doc;
}

TEST(test_structure) {
    td_jbuf b = {0};
    td_jw_open(&b, '{');
    td_jw_member_str(&b, "s", "x");
    td_jw_member_str(&b, "none", NULL);
    td_jw_member_int(&b, "i", INT64_MIN);
    td_jw_member_bool(&b, "t", true);
    td_jw_key(&b, "list");
    td_jw_open(&b, '[');
    for (int i = 0; i < 3; i++) td_jw_int(&b, i);
    td_jw_open(&b, '[');
    td_jw_close(&b, ']');
    td_jw_open(&b, '{');
    td_jw_close(&b, '}');
    td_jw_real(&b, 0.1, 17);
    td_jw_real(&b, NAN, 17);
    td_jw_real(&b, -INFINITY, 9);
    td_jw_raw(&b, "{\"a\":1}", 7);
    td_jw_str(&b, "ends with a bracket [");
    td_jw_null(&b);
    td_jw_close(&b, ']');
    td_jw_close(&b, '}');
    json_auto_t *doc = read_back(&b),
                *want = json_pack("{s:s, s:n, s:I, s:b, s:[i,i,i,[],{},f,n,n,{s:i},s,n]}", "s", "x", "none", "i",
                                  (json_int_t)INT64_MIN, "t", 1, "list", 0, 1, 2, 0.1, "a", 1, "ends with a bracket [");
    assert_true(json_equal(doc, want));
}

/* A document whose bytes are taken behind every call is the same. */
TEST(test_taken) {
    td_jbuf b = {0}, all = {0};
    for (int i = 0; i < 12; i++) {
        switch (i % 6) {
            case 0: td_jw_open(&b, '['); break;
            case 1: td_jw_int(&b, 7); break;
            case 2: td_jw_text(&b, "[", 1); break;
            case 3: td_jw_open(&b, '{'); break;
            case 4: td_jw_key(&b, "k"); break;
            case 5: td_jw_null(&b); break;
        }
        if (i == 5) td_jw_close(&b, '}');
        td_jbuf_put(&all, b.data, b.len);
        td_jbuf_taken(&b);
        td_jbuf_taken(&b); /* none were left to take */
        assert_int_equal(b.len, 0);
    }
    td_jbuf_puts(&all, "}]]");
    td_jbuf_free(&b);
    json_auto_t *doc = read_back(&all), *want = json_loads("[7,\"[\",{\"k\":null},[7,\"[\",{\"k\":null}]]", 0, NULL);
    assert_true(json_equal(doc, want));
}

/* Every character comes back as it was. */
TEST(test_characters) {
    for (uint32_t c = 0; c < 0x110000; c += c < 0x900 ? 1 : 97) {
        char   text[5];
        size_t n;
        if (c >= 0xd800 && c < 0xe000) continue;
        if (c < 0x80)
            text[0] = (char)c, n = 1;
        else if (c < 0x800)
            text[0] = (char)(0xc0 | c >> 6), n = 2;
        else if (c < 0x10000)
            text[0] = (char)(0xe0 | c >> 12), n = 3;
        else
            text[0] = (char)(0xf0 | c >> 18), n = 4;
        for (size_t i = 1; i < n; i++) text[i] = (char)(0x80 | (c >> 6 * (n - 1 - i) & 0x3f));
        td_jbuf b = {0};
        td_jw_text(&b, text, n);
        json_auto_t *doc = read_back(&b);
        assert_int_equal(json_string_length(doc), n);
        assert_memory_equal(json_string_value(doc), text, n);
    }
}

/* Any bytes make valid JSON: jansson is strict about UTF-8. */
TEST(test_bytes) {
    const uint64_t seed = 20260714;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t i = 0; i < 200000; i++) {
        static const unsigned char edges[] = {0x7f, 0x80, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0,
                                              0xed, 0xef, 0xf0, 0xf4, 0xf5, 0xff, 0x9f, 0xa0};
        unsigned char              raw[8];
        uint64_t                   r = td_rng_u64(seed, 1, i), pick = td_rng_u64(seed, 2, i);
        size_t                     n = pick >> 60;
        for (size_t k = 0; k < 8; k++, r >>= 8) raw[k] = pick >> k & 1 ? edges[r & 15] : (unsigned char)r;
        td_jbuf b = {0};
        td_jw_text(&b, (char *)raw, n < 8 ? n : 8);
        json_decref(read_back(&b));
    }
}
