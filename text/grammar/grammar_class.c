#include "text/grammar/grammar_class.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/tokenizer_utf8.h"

#define TEXT_MAX ((size_t)1 << 20)
#define SPANS_MAX 65536

/* ---- sets ------------------------------------------------------------------------------------ */

void td_gr_class_add(td_gr_builder *b, td_gr_class *c, uint32_t lo, uint32_t hi) {
    if (b->status != TD_OK) return;
    if (c->n == c->room) {
        size_t      room = c->room ? 2 * c->room : 8;
        td_gr_span *at = room > SPANS_MAX ? NULL : realloc(c->at, room * sizeof *at);
        if (!at) {
            td_gr_fail(b, room > SPANS_MAX ? TD_EINVAL : TD_ENOMEM, "a character class is too large");
            return;
        }
        c->at = at;
        c->room = room;
    }
    c->at[c->n++] = (td_gr_span){lo, hi};
}

static int by_lo(const void *x, const void *y) {
    uint32_t a = ((const td_gr_span *)x)->lo, b = ((const td_gr_span *)y)->lo;
    return (a > b) - (a < b);
}

void td_gr_class_sort(td_gr_class *c) {
    size_t n = 0;
    if (c->n) qsort(c->at, c->n, sizeof *c->at, by_lo);
    for (size_t i = 0; i < c->n; i++) {
        td_gr_span s = c->at[i];
        if (n && s.lo <= c->at[n - 1].hi + 1)
            c->at[n - 1].hi = s.hi > c->at[n - 1].hi ? s.hi : c->at[n - 1].hi;
        else
            c->at[n++] = s;
    }
    c->n = n;
}

void td_gr_class_negate(td_gr_builder *b, td_gr_class *c) {
    td_gr_class out = {0};
    uint32_t    next = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (c->at[i].lo > next) td_gr_class_add(b, &out, next, c->at[i].lo - 1);
        next = c->at[i].hi + 1;
    }
    if (next <= TD_GR_CHAR_MAX) td_gr_class_add(b, &out, next, TD_GR_CHAR_MAX);
    td_gr_class_free(c);
    *c = out;
}

void td_gr_class_free(td_gr_class *c) {
    free(c->at);
    *c = (td_gr_class){0};
}

static bool class_has(const td_gr_class *c, uint32_t lo, uint32_t hi) {
    for (size_t i = 0; i < c->n; i++)
        if (c->at[i].lo <= lo && hi <= c->at[i].hi) return true;
    return false;
}

/* ---- as bytes -------------------------------------------------------------------------------- */

static size_t utf8_put(uint32_t c, uint8_t out[4]) {
    if (c < 0x80) return out[0] = (uint8_t)c, 1;
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; --i > 0; c >>= 6) out[i] = (uint8_t)(0x80 | (c & 0x3F));
    out[0] = (uint8_t)((n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0) | c);
    return n;
}

/* Puts numbers lo..hi that share a shape. Spans are split until all digits behind the first that differs run over their
 * whole range, so that the digits are independent of each other. */
typedef void (*put_span)(td_gr_builder *b, td_gr_items *alternatives, uint32_t lo, uint32_t hi);

static void split_span(td_gr_builder *b, td_gr_items *alternatives, uint32_t lo, uint32_t hi, unsigned bits, unsigned digits,
                       put_span put) {
    for (unsigned i = 1; i < digits; i++) {
        uint32_t low = ((uint32_t)1 << (bits * i)) - 1;
        if ((lo & ~low) == (hi & ~low)) continue;
        uint32_t cut = lo & low ? lo | low : (hi & low) != low ? (hi & ~low) - 1 : hi;
        if (cut == hi) continue;
        split_span(b, alternatives, lo, cut, bits, digits, put);
        split_span(b, alternatives, cut + 1, hi, bits, digits, put);
        return;
    }
    put(b, alternatives, lo, hi);
}

static void put_utf8(td_gr_builder *b, td_gr_items *alternatives, uint32_t lo, uint32_t hi) {
    uint8_t     low[4], high[4];
    size_t      n = utf8_put(lo, low);
    td_gr_items seq = {0};
    utf8_put(hi, high);
    for (size_t i = 0; i < n; i++) td_gr_add(b, &seq, td_gr_byte(b, low[i], high[i]));
    td_gr_add(b, alternatives, td_gr_of(b, TD_GR_SEQ, &seq));
    td_gr_items_free(&seq);
}

/* Call back for the part of the span that lies in from..to. */
static void clip_span(td_gr_builder *b, td_gr_items *alternatives, td_gr_span s, uint32_t from, uint32_t to, unsigned bits,
                      unsigned digits, put_span put) {
    uint32_t lo = s.lo > from ? s.lo : from, hi = s.hi < to ? s.hi : to;
    if (lo <= hi) split_span(b, alternatives, lo, hi, bits, digits, put);
}

static void add_utf8(td_gr_builder *b, td_gr_items *alternatives, td_gr_span s) {
    clip_span(b, alternatives, s, 0, 0x7F, 6, 1, put_utf8);
    clip_span(b, alternatives, s, 0x80, 0x7FF, 6, 2, put_utf8);
    clip_span(b, alternatives, s, 0x800, 0xD7FF, 6, 3, put_utf8);
    clip_span(b, alternatives, s, 0xE000, 0xFFFF, 6, 3, put_utf8);
    clip_span(b, alternatives, s, 0x10000, TD_GR_CHAR_MAX, 6, 4, put_utf8);
}

uint32_t td_gr_class_utf8(td_gr_builder *b, const td_gr_class *c) {
    td_gr_items alternatives = {0};
    for (size_t i = 0; i < c->n; i++) add_utf8(b, &alternatives, c->at[i]);
    uint32_t node = td_gr_of(b, TD_GR_ALT, &alternatives);
    td_gr_items_free(&alternatives);
    return node;
}

/* A hexadecimal digit of lo..hi in either case. */
static uint32_t hex_digit(td_gr_builder *b, uint32_t lo, uint32_t hi) {
    td_gr_items alternatives = {0};
    if (lo < 10) td_gr_add(b, &alternatives, td_gr_byte(b, (uint8_t)('0' + lo), (uint8_t)('0' + (hi < 10 ? hi : 9))));
    if (hi >= 10) {
        uint8_t from = (uint8_t)(lo > 10 ? lo - 10 : 0), to = (uint8_t)(hi - 10);
        td_gr_add(b, &alternatives, td_gr_byte(b, (uint8_t)('a' + from), (uint8_t)('a' + to)));
        td_gr_add(b, &alternatives, td_gr_byte(b, (uint8_t)('A' + from), (uint8_t)('A' + to)));
    }
    uint32_t node = td_gr_of(b, TD_GR_ALT, &alternatives);
    td_gr_items_free(&alternatives);
    return node;
}

/* \uXXXX of numbers whose digits are independent. */
static uint32_t unicode_escape(td_gr_builder *b, uint32_t lo, uint32_t hi) {
    td_gr_items seq = {0};
    td_gr_add(b, &seq, td_gr_text(b, "\\u", 2));
    for (int shift = 12; shift >= 0; shift -= 4) td_gr_add(b, &seq, hex_digit(b, lo >> shift & 15, hi >> shift & 15));
    uint32_t node = td_gr_of(b, TD_GR_SEQ, &seq);
    td_gr_items_free(&seq);
    return node;
}

static void put_escape(td_gr_builder *b, td_gr_items *alternatives, uint32_t lo, uint32_t hi) {
    td_gr_add(b, alternatives, unicode_escape(b, lo, hi));
}

static uint32_t surrogate_pair(td_gr_builder *b) {
    td_gr_items high = {0}, low = {0};
    split_span(b, &high, 0xD800, 0xDBFF, 4, 4, put_escape);
    split_span(b, &low, 0xDC00, 0xDFFF, 4, 4, put_escape);
    uint32_t node = td_gr_pair(b, TD_GR_SEQ, td_gr_of(b, TD_GR_ALT, &high), td_gr_of(b, TD_GR_ALT, &low));
    td_gr_items_free(&high);
    td_gr_items_free(&low);
    return node;
}

static const struct {
    char     letter;
    uint32_t meaning;
} SHORT_ESCAPES[] = {{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', '\b'}, {'f', '\f'}, {'n', '\n'}, {'r', '\r'}, {'t', '\t'}};

static void add_json_raw(td_gr_builder *b, td_gr_items *alternatives, td_gr_span s) {
    static const td_gr_span plain[] = {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, TD_GR_CHAR_MAX}};
    for (size_t k = 0; k < sizeof plain / sizeof *plain; k++) {
        td_gr_span part = {s.lo > plain[k].lo ? s.lo : plain[k].lo, s.hi < plain[k].hi ? s.hi : plain[k].hi};
        if (part.lo <= part.hi) add_utf8(b, alternatives, part);
    }
}

uint32_t td_gr_class_json(td_gr_builder *b, const td_gr_class *c) {
    td_gr_items alternatives = {0};
    for (size_t i = 0; i < c->n; i++) {
        add_json_raw(b, &alternatives, c->at[i]);
        clip_span(b, &alternatives, c->at[i], 0, 0x1F, 4, 4, put_escape);
        clip_span(b, &alternatives, c->at[i], 0x7F, 0xD7FF, 4, 4, put_escape);
        clip_span(b, &alternatives, c->at[i], 0xE000, 0xFFFF, 4, 4, put_escape);
    }
    for (size_t k = 0; k < sizeof SHORT_ESCAPES / sizeof *SHORT_ESCAPES; k++)
        if (class_has(c, SHORT_ESCAPES[k].meaning, SHORT_ESCAPES[k].meaning))
            td_gr_add(b, &alternatives, td_gr_text(b, (const char[]){'\\', SHORT_ESCAPES[k].letter}, 2));
    if (class_has(c, 0x10000, TD_GR_CHAR_MAX)) td_gr_add(b, &alternatives, surrogate_pair(b));
    uint32_t node = td_gr_of(b, TD_GR_ALT, &alternatives);
    td_gr_items_free(&alternatives);
    return node;
}

uint32_t td_gr_json_char(td_gr_builder *b) {
    td_gr_items alternatives = {0};
    add_json_raw(b, &alternatives, (td_gr_span){0, TD_GR_CHAR_MAX});
    for (size_t k = 0; k < sizeof SHORT_ESCAPES / sizeof *SHORT_ESCAPES; k++)
        td_gr_add(b, &alternatives, td_gr_text(b, (const char[]){'\\', SHORT_ESCAPES[k].letter}, 2));
    split_span(b, &alternatives, 0, 0xD7FF, 4, 4, put_escape);
    split_span(b, &alternatives, 0xE000, 0xFFFF, 4, 4, put_escape);
    td_gr_add(b, &alternatives, surrogate_pair(b));
    uint32_t node = td_gr_of(b, TD_GR_ALT, &alternatives);
    td_gr_items_free(&alternatives);
    return node;
}

/* \uXXXX of each of the two, whose digits are given. */
static uint32_t escaped_pair(td_gr_builder *b, uint32_t high, uint32_t low) {
    return td_gr_pair(b, TD_GR_SEQ, unicode_escape(b, high, high), unicode_escape(b, low, low));
}

uint32_t td_gr_json_text(td_gr_builder *b, const char *text, size_t len) {
    td_gr_items seq = {0};
    const char *end = text + len;
    td_gr_add(b, &seq, td_gr_byte(b, '"', '"'));
    while (text < end && b->status == TD_OK) {
        const char *from = text;
        while (text < end && *text >= ' ' && *text < 0x7F && !memchr("\"\\/", *text, 3)) text++;
        if (text > from) td_gr_add(b, &seq, td_gr_text(b, from, (size_t)(text - from)));
        if (text == end) break;
        from = text;
        uint32_t    ch = td_utf8_next(&text);
        td_gr_class c = {0};
        td_gr_class_add(b, &c, ch, ch);
        uint32_t spelled = td_gr_class_json(b, &c);
        if (ch > 0xFFFF)
            spelled = td_gr_pair(b, TD_GR_ALT, spelled, escaped_pair(b, 0xD7C0 + (ch >> 10), 0xDC00 + (ch & 0x3FF)));
        td_gr_add(b, &seq, spelled);
        td_gr_class_free(&c);
    }
    td_gr_add(b, &seq, td_gr_byte(b, '"', '"'));
    uint32_t node = td_gr_of(b, TD_GR_SEQ, &seq);
    td_gr_items_free(&seq);
    return node;
}

/* ---- reading --------------------------------------------------------------------------------- */

bool td_gr_read_open(td_gr_builder *b, td_gr_reader *r, const char *what, const char *text, size_t len) {
    *r = (td_gr_reader){text, text, text + len, what};
    if (len > TEXT_MAX)
        td_gr_fail(b, TD_EINVAL, "the %s has %zu bytes; at most %zu are allowed", what, len, TEXT_MAX);
    else if (td_utf8_valid_prefix(text, len) != len || memchr(text, 0, len))
        td_gr_fail(b, TD_EINVAL, "the %s is not UTF-8 text without NUL", what);
    return b->status == TD_OK;
}

uint32_t td_gr_read_fail(td_gr_builder *b, const td_gr_reader *r, const char *fmt, ...) {
    char    text[TD_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return td_gr_fail(b, TD_EINVAL, "%s, byte %zu: %s", r->what, (size_t)(r->at - r->start), text);
}

bool td_gr_take(td_gr_reader *r, const char *token) {
    size_t n = strlen(token);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, token, n) != 0) return false;
    r->at += n;
    return true;
}

uint32_t td_gr_take_char(td_gr_reader *r) {
    return td_utf8_next(&r->at);
}

static int hex_value(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Read so many hexadecimal digits, or, with `braces`, any number of them in braces. */
static uint32_t read_hex(td_gr_builder *b, td_gr_reader *r, unsigned digits, bool braces) {
    bool     open = braces && td_gr_take(r, "{");
    uint32_t value = 0;
    unsigned n = 0;
    while (r->at < r->end && hex_value(*r->at) >= 0 && n < (open ? 8 : digits)) {
        value = value << 4 | (uint32_t)hex_value(*r->at++);
        n++;
    }
    if ((open ? n == 0 : n != digits) || (open && !td_gr_take(r, "}")))
        return td_gr_read_fail(b, r, "an escape lacks hexadecimal digits");
    if (value > TD_GR_CHAR_MAX || (value >= 0xD800 && value <= 0xDFFF))
        return td_gr_read_fail(b, r, "an escape is no character");
    return value;
}

static void add_letter_class(td_gr_builder *b, td_gr_class *c, char letter) {
    static const td_gr_span digit[] = {{'0', '9'}}, word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                            space[] = {{'\t', '\r'}, {' ', ' '}};
    char              kind = (char)(letter | 0x20);
    const td_gr_span *spans = kind == 'd' ? digit : kind == 'w' ? word : space;
    size_t            n = kind == 'd' ? 1 : kind == 'w' ? 4 : 2;
    td_gr_class       own = {0};
    for (size_t i = 0; i < n; i++) td_gr_class_add(b, &own, spans[i].lo, spans[i].hi);
    if (letter != kind) td_gr_class_negate(b, &own);
    for (size_t i = 0; i < own.n; i++) td_gr_class_add(b, c, own.at[i].lo, own.at[i].hi);
    td_gr_class_free(&own);
}

uint32_t td_gr_read_escape(td_gr_builder *b, td_gr_reader *r, td_gr_class *c) {
    static const char letters[] = "ntrfvae0", meanings[] = "\n\t\r\f\v\a\x1b";
    if (r->at == r->end) return td_gr_read_fail(b, r, "a backslash ends it");
    uint32_t e = td_gr_take_char(r);
    if (e == 'x') return read_hex(b, r, 2, true);
    if (e == 'u') return read_hex(b, r, 4, true);
    if (e == 'U') return read_hex(b, r, 8, false);
    if (e < 0x80 && c && strchr("dwsDWS", (int)e)) {
        add_letter_class(b, c, (char)e);
        return UINT32_MAX;
    }
    if (e < 0x80 && strchr(letters, (int)e)) return (uint8_t)meanings[strchr(letters, (int)e) - letters];
    if ((e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z') || (e >= '0' && e <= '9'))
        return td_gr_read_fail(b, r, "'\\%c' is not supported", (char)e);
    return e;
}

void td_gr_read_class(td_gr_builder *b, td_gr_reader *r, td_gr_class *c) {
    bool negated = td_gr_take(r, "^"), first = true;
    for (; b->status == TD_OK && (first || !td_gr_take(r, "]")); first = false) {
        if (r->at == r->end) {
            td_gr_read_fail(b, r, "a character class has no end");
            return;
        }
        uint32_t lo = td_gr_take(r, "\\") ? td_gr_read_escape(b, r, c) : td_gr_take_char(r), hi = lo;
        if (lo == UINT32_MAX) continue;
        if (r->end - r->at >= 2 && r->at[0] == '-' && r->at[1] != ']') {
            r->at++;
            hi = td_gr_take(r, "\\") ? td_gr_read_escape(b, r, NULL) : td_gr_take_char(r);
            if (hi < lo) td_gr_read_fail(b, r, "a range in a character class ends before it begins");
        }
        td_gr_class_add(b, c, lo, hi);
    }
    td_gr_class_sort(c);
    if (negated) td_gr_class_negate(b, c);
}

/* Digits up to TD_GR_COUNT_MAX + 1, which stands for all larger numbers. */
static bool read_count(td_gr_reader *r, uint32_t *count) {
    const char *from = r->at;
    for (*count = 0; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++)
        if (*count <= TD_GR_COUNT_MAX) *count = *count * 10 + (uint32_t)(*r->at - '0');
    return r->at > from;
}

bool td_gr_read_quantifier(td_gr_builder *b, td_gr_reader *r, uint32_t *min, uint32_t *max) {
    const char *from = r->at;
    *min = 0;
    *max = TD_GR_NO_MAX;
    if (td_gr_take(r, "*")) return true;
    if (td_gr_take(r, "+")) return *min = 1, true;
    if (td_gr_take(r, "?")) return *max = 1, true;
    if (!td_gr_take(r, "{")) return false;
    bool has_min = read_count(r, min), comma = td_gr_take(r, ","), has_max = comma && read_count(r, max);
    if (!td_gr_take(r, "}") || !(has_min || has_max)) {
        r->at = from; /* an ordinary brace */
        return false;
    }
    if (!comma) *max = *min;
    if (comma && !has_max) *max = TD_GR_NO_MAX;
    if (*min > TD_GR_COUNT_MAX || (*max != TD_GR_NO_MAX && *max > TD_GR_COUNT_MAX))
        td_gr_read_fail(b, r, "it repeats more than %u times", TD_GR_COUNT_MAX);
    else if (*max < *min)
        td_gr_read_fail(b, r, "a repetition's largest count is below its smallest");
    return true;
}
