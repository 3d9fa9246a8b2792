/* Random expressions on texts longer than a window: every match is that of PCRE2 on the whole text. */
#include "text/tokenizer/pretok_regex.h"

#include "core/math/rng.h"
#include "tests/td_test.h"

#define PATTERNS 800
#define TEXTS 4
#define TEXT_BYTES 1200
#define PATTERN_BYTES 600

#define SEED 20261127

static size_t below(size_t n) {
    static uint64_t drawn;
    return (size_t)(td_rng_u64(SEED, 0, drawn++) % n);
}

#define PICK(list) ((list)[below(sizeof(list) / sizeof *(list))])

static void add(char *pattern, const char *s) {
    if (strlen(pattern) + strlen(s) < PATTERN_BYTES) strcat(pattern, s);
}

static void add_item(char *pattern, int depth) {
    static const char *const SINGLE[] = {"a",   "b",   "\u00e9", " ",      "[ab]", "[^a]", ".",
                                         "\\s", "\\S", "^",      "\\p{L}", "$",    "\\z",  "[^\\s\\p{L}]"};
    static const char *const GROUPS[] = {"(?:", "(?=", "(?!", "(?>", "(", "(?i:", "(?<=", "(?<!"};
    static const char *const BEHIND[] = {"a)", "b)", "\\s)"};
    static const char *const REPEATS[] = {"", "", "*", "+", "?", "*?", "+?", "{1,3}", "++"};
    if (depth > 3 || below(3)) {
        add(pattern, PICK(SINGLE));
        return;
    }
    const char *group = PICK(GROUPS);
    add(pattern, group);
    if (!strncmp(group, "(?<", 3)) {
        add(pattern, PICK(BEHIND));
        return;
    }
    for (size_t i = 0, n = 1 + below(3); i < n; i++) {
        if (i && !below(4)) add(pattern, "|");
        add_item(pattern, depth + 1);
        add(pattern, PICK(REPEATS));
    }
    add(pattern, ")");
}

/* Runs of one character, some of them longer than a window. */
static size_t make_text(char *text) {
    static const char *const UNITS[] = {"a", "b", "\u00e9", " ", "\n", "A", "1"};
    size_t                   n = 0;
    while (n < TEXT_BYTES) {
        const char *unit = PICK(UNITS);
        size_t      run = below(4) ? 1 + below(4) : 1 + below(400);
        for (size_t len = strlen(unit); run && n + len <= TEXT_BYTES + 8; run--, n += len) memcpy(text + n, unit, len);
    }
    return n;
}

/* What td_regex_find is to find. @return false: PCRE2's own limits say nothing about this pattern and text. */
static bool reference(const pcre2_code *code, pcre2_match_context *context, pcre2_match_data *match, const char *s,
                      size_t len, size_t from, size_t *start, size_t *end) {
    for (; from < len; from++) {
        if (((unsigned char)s[from] & 0xC0) == 0x80) continue;
        int rc = pcre2_match(code, (PCRE2_SPTR)s, len, from, PCRE2_NO_UTF_CHECK, match, context);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0) return false;
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(match);
        *start = span[0];
        *end = span[1];
        if (*end > *start) return true;
        from = *start > from ? *start : from;
    }
    *start = *end = len;
    return true;
}

static size_t compare(const td_regex *re, const pcre2_code *code, pcre2_match_context *context, pcre2_match_data *match,
                      const char *pattern, const char *s, size_t len) {
    td_tokenizer_scratch *scratch = td_tokenizer_scratch_get();
    size_t                n = 0;
    td_encode_work_begin(&scratch->work, len);
    for (size_t at = 0, start, end, right_start, right_end; at < len; at = end, n++) {
        if (!reference(code, context, match, s, len, at, &right_start, &right_end)) break;
        td_status st = td_regex_find(re, scratch, s, len, at, &start, &end);
        if (st == TD_ELIMIT) break;
        if (st != TD_OK || start != right_start || end != right_end)
            fail_msg("'%s' at %zu of %zu: status %d, %zu to %zu in place of %zu to %zu", pattern, at, len, st, start, end,
                     right_start, right_end);
    }
    return n;
}

TEST(windows_change_no_match) {
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_match_data    *match = pcre2_match_data_create(1, NULL);
    size_t               compared = 0;
    pcre2_set_match_limit(context, 20000);
    for (int i = 0; i < PATTERNS; i++) {
        char      pattern[PATTERN_BYTES] = "", text[TEXT_BYTES + 16], *translated = NULL;
        td_regex *re;
        td_error  err = {0};
        int       code_error;
        size_t    offset;
        for (size_t k = 0, n = 1 + below(4); k < n; k++) {
            static const char *const REPEATS[] = {"", "*", "+", "?", "+?", "|", "*|"};
            add_item(pattern, 0);
            add(pattern, k + 1 < n ? PICK(REPEATS) : "");
        }
        if (td_regex_compile(pattern, strlen(pattern), &re, &err) != TD_OK) continue;
        OK(td_regex_translate(pattern, strlen(pattern), &translated, &err));
        pcre2_code *code =
            pcre2_compile((PCRE2_SPTR)translated, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code_error, &offset, NULL);
        assert_non_null(code);
        pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
        for (int t = 0; t < TEXTS; t++) compared += compare(re, code, context, match, pattern, text, make_text(text));
        pcre2_code_free(code);
        td_regex_free(re);
        free(translated);
    }
    assert_true(compared > 20000);
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
}
