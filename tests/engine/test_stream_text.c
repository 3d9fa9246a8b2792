/*
 * Stop strings. Every text over a small alphabet, with every set of stop strings and cut in every way, is compared with a
 * search in the whole text. No text is sent that a stop string takes back later.
 */

#include "engine/requests/stream_text.h"
#include "tests/td_test.h"

/* What the whole text comes to: the length kept, and the stop string (or -1). */
static size_t plain_cut(const char *text, size_t len, const char *const *stop, size_t n_stop, bool include, int *which) {
    for (size_t end = 1; end <= len; end++) {
        *which = -1;
        for (size_t i = 0; i < n_stop; i++) {
            size_t n = strlen(stop[i]);
            if (n <= end && !memcmp(text + end - n, stop[i], n) && (*which < 0 || n > strlen(stop[*which]))) *which = (int)i;
        }
        if (*which >= 0) return include ? end : end - strlen(stop[*which]);
    }
    *which = -1;
    return len;
}

/* Feed the text in pieces: bit i of cuts ends a piece after character i (width bytes each). */
static void feed(const char *text, size_t chars, size_t width, uint32_t cuts, const char *const *stop, size_t n_stop,
                 bool include) {
    AT_END(td_stream_text_close) td_stream_text s;
    char                                        got[256];
    size_t                                      n_got = 0, begin = 0, n = 0;
    int                                         match = -1, expected;
    const char                                 *out;
    size_t                                      keep = plain_cut(text, chars * width, stop, n_stop, include, &expected);
    OK(td_stream_text_open(&s, stop, n_stop, include, NULL));
    for (size_t i = 0; i < chars && match < 0; i++) {
        if (i + 1 < chars && !(cuts >> i & 1)) continue;
        OK(td_stream_text_add(&s, text + begin * width, (i + 1 - begin) * width, true, &out, &n, &match));
        begin = i + 1;
        memcpy(got + n_got, out, n);
        n_got += n;
        assert_int_equal(n_got % width, 0);
        assert_true(n_got <= keep); /* never ahead of a match still to come */
    }
    if (match < 0) {
        n_got -= n; /* finish gives the last piece again, with what follows it */
        OK(td_stream_text_finish(&s, "!", 1, &out, &n));
        memcpy(got + n_got, out, n);
        n_got += n - 1;
        assert_int_equal(got[n_got], '!');
    }
    assert_int_equal(match, expected);
    assert_int_equal(n_got, keep);
    assert_memory_equal(got, text, keep);
}

TEST(every_text_cut_everywhere) {
    static const char *const sets[][3] = {{"ab", NULL, NULL},   {"aab", NULL, NULL},      {"aaa", "ab", NULL},
                                          {"abab", "bb", NULL}, {"b", "ab", "aab"},       {"ba", "aba", "bab"},
                                          {"abc", "bca", "c"},  {"aabaa", "abb", "aaaa"}, {"abcabc", "cab", NULL},
                                          {"a", NULL, NULL},    {NULL, NULL, NULL}};
    for (size_t set = 0; set < sizeof sets / sizeof sets[0]; set++) {
        size_t n_stop = 0;
        while (n_stop < 3 && sets[set][n_stop]) n_stop++;
        for (uint32_t code = 0; code < 2187; code++) { /* 3^7 */
            char text[7];
            for (uint32_t i = 0, c = code; i < 7; i++, c /= 3) text[i] = (char)('a' + c % 3);
            for (uint32_t cuts = 0; cuts < 64; cuts++) feed(text, 7, 1, cuts, sets[set], n_stop, cuts & 1);
        }
    }
}

/* U+4F60 e4 bd a0, U+4F61 e4 bd a1, U+4FA0 e4 be a0: bytes in common, characters not. */
TEST(whole_characters) {
    static const char *const letter[3] = {"\xe4\xbd\xa0", "\xe4\xbd\xa1", "\xe4\xbe\xa0"};
    const char *const        stop[] = {"\xe4\xbd\xa0\xe4\xbd\xa1", "\xe4\xbd\xa1\xe4\xbd\xa1\xe4\xbe\xa0"};
    for (uint32_t code = 0; code < 729; code++) {
        char text[18];
        for (uint32_t i = 0, c = code; i < 6; i++, c /= 3) memcpy(text + 3 * i, letter[c % 3], 3);
        for (uint32_t cuts = 0; cuts < 32; cuts++) feed(text, 6, 3, cuts, stop, 2, false);
    }
}

TEST(unarmed_text_passes) {
    const char *const                           stop[] = {"xy"};
    AT_END(td_stream_text_close) td_stream_text s;
    const char                                 *out;
    size_t                                      n;
    int                                         match;
    OK(td_stream_text_open(&s, stop, 1, false, NULL));
    OK(td_stream_text_add(&s, "xyx", 3, false, &out, &n, &match));
    assert_int_equal(match, -1);
    assert_int_equal(n, 3);
    OK(td_stream_text_add(&s, "yaxy", 4, true, &out, &n, &match));
    assert_int_equal(match, 0);
    assert_int_equal(n, 2);
    assert_memory_equal(out, "ya", 2);
}

TEST(long_pieces_fit) {
    const char *const                           stop[] = {"#"};
    AT_END(td_stream_text_close) td_stream_text s;
    const char                                 *out;
    size_t                                      n, big = 100000;
    int                                         match;
    FREED char                                 *text = malloc(big);
    memset(text, 'q', big);
    OK(td_stream_text_open(&s, stop, 1, false, NULL));
    for (int i = 0; i < 3; i++) {
        OK(td_stream_text_add(&s, text, big, true, &out, &n, &match));
        assert_int_equal(n, big);
        assert_memory_equal(out, text, big);
    }
}

TEST(bad_stops_are_refused) {
    const char       *many[TD_STOP_MAX + 1];
    char              longest[TD_STOP_BYTES_MAX + 2];
    td_stream_text    s;
    td_error          err = {0};
    const char *const empty[] = {""}, *const half[] = {"\x80q"}, *const too_long[] = {longest};
    for (int i = 0; i <= TD_STOP_MAX; i++) many[i] = "s";
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(td_stream_text_open(&s, many, TD_STOP_MAX + 1, false, &err), TD_EINVAL);
    assert_int_equal(td_stream_text_open(&s, empty, 1, false, &err), TD_EINVAL);
    assert_int_equal(td_stream_text_open(&s, half, 1, false, &err), TD_EINVAL);
    assert_int_equal(td_stream_text_open(&s, too_long, 1, false, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "stop"));
}
