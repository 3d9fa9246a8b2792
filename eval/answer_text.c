#include "eval/answer_text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#define MATCH_LIMIT 1000000 /* steps of one search: the pattern may be anything */

td_status td_answer_rule_open(td_answer_rule *r, const char *spec, td_error *err) {
    *r = (td_answer_rule){0};
    if (!strcmp(spec, "last-number")) return TD_OK;
    r->kind = TD_ANSWER_WHOLE;
    if (!strcmp(spec, "whole")) return TD_OK;
    if (strncmp(spec, "regex:", 6))
        return td_fail(err, TD_EINVAL, "extract must be last-number, whole or regex:PATTERN, not '%.60s'", spec);
    int        code;
    PCRE2_SIZE at;
    char       why[128];
    r->kind = TD_ANSWER_REGEX;
    r->regex = pcre2_compile((PCRE2_SPTR)spec + 6, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_MULTILINE, &code, &at, NULL);
    if (r->regex) return TD_OK;
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    return td_fail(err, TD_EINVAL, "the pattern of extract: %s at offset %zu", why, at);
}

void td_answer_rule_close(td_answer_rule *r) {
    pcre2_code_free(r->regex);
    *r = (td_answer_rule){0};
}

static bool digit(char c) {
    return c >= '0' && c <= '9';
}

/* A number's digits: no thousands separators, zeros that say nothing, or sign of zero. */
static char *plain_number(const char *p, const char *end) {
    char *out = malloc((size_t)(end - p) + 2), *to = out;
    if (!out) return NULL;
    bool minus = *p == '-', point = false;
    for (p += minus; p + 1 < end && *p == '0' && p[1] != '.'; p++) {
    }
    if (minus) *to++ = '-';
    for (; p < end; p++) {
        if (*p == ',') continue;
        if (*p == '.') point = true;
        *to++ = *p;
    }
    while (point && to[-1] == '0') to--;
    if (point && to[-1] == '.') to--;
    *to = 0;
    if (!strcmp(out, "-0")) strcpy(out, "0");
    return out;
}

/* [-]digits[,digits…][.digits], the last of a text. A '-' after a letter or digit is a dash. */
static td_status last_number(const char *text, size_t len, char **answer) {
    size_t begin = len, end = len;
    for (size_t i = 0; i < len; i++) {
        if (!digit(text[i])) continue;
        begin = i && text[i - 1] == '-' && (i < 2 || !isalnum((unsigned char)text[i - 2])) ? i - 1 : i;
        while (i < len && (digit(text[i]) || (text[i] == ',' && i + 1 < len && digit(text[i + 1])))) i++;
        if (i + 1 < len && text[i] == '.' && digit(text[i + 1]))
            for (i++; i < len && digit(text[i]);) i++;
        end = i;
    }
    if (begin == len) return TD_OK;
    *answer = plain_number(text + begin, text + end);
    return *answer ? TD_OK : TD_ENOMEM;
}

static td_status whole(const char *text, size_t len, char **answer) {
    while (len && isspace((unsigned char)*text)) text++, len--;
    while (len && isspace((unsigned char)text[len - 1])) len--;
    if (!len) return TD_OK;
    *answer = strndup(text, len);
    return *answer ? TD_OK : TD_ENOMEM;
}

static td_status last_match(const pcre2_code *regex, const char *text, size_t len, char **answer) {
    pcre2_match_data    *m = pcre2_match_data_create_from_pattern(regex, NULL);
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    td_status            st = m && limits ? TD_OK : TD_ENOMEM;
    PCRE2_SIZE           begin = 0, end = 0, at = 0;
    bool                 found = false;
    if (st == TD_OK) pcre2_set_match_limit(limits, MATCH_LIMIT);
    while (st == TD_OK && at <= len) {
        int n = pcre2_match(regex, (PCRE2_SPTR)text, len, at, 0, m, limits);
        if (n < 0) break; /* no match, a text that is not UTF-8, or a search without end: no answer from here on */
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(m);
        int               group = n > 1 && v[2] != PCRE2_UNSET ? 1 : 0;
        begin = v[2 * group];
        end = v[2 * group + 1];
        found = end >= begin;
        for (at = v[1] > at ? v[1] : at + 1; at < len && ((unsigned char)text[at] & 0xc0) == 0x80;)
            at++; /* not into a character */
    }
    pcre2_match_data_free(m);
    pcre2_match_context_free(limits);
    return st == TD_OK && found ? whole(text + begin, end - begin, answer) : st;
}

td_status td_answer_find(const td_answer_rule *r, const char *text, size_t len, char **answer) {
    *answer = NULL;
    switch (r->kind) {
        case TD_ANSWER_LAST_NUMBER: return last_number(text, len, answer);
        case TD_ANSWER_WHOLE: return whole(text, len, answer);
        default: return last_match(r->regex, text, len, answer);
    }
}
