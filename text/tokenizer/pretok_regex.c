/* Translation of tokenizer regexes to PCRE2, compilation and matching. */
#include "text/tokenizer/pretok_regex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#define PATTERN_BYTES_MAX 8192
#define REPEAT_MAX 1000
#define PROPERTY_NAME_MAX 40

/* Unicode White_Space, as members of a class, and the rest of Unicode. */
#define SPACE_MEMBERS \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_SPACE_MEMBERS                                                                                              \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}" \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"

/* A growing string; `failed` once memory ran out, and then later appends do nothing. */
typedef struct {
    char  *s;
    size_t n, room;
    bool   failed;
} text_buf;

static void append(text_buf *b, const char *s, size_t n) {
    if (b->failed) return;
    if (b->room - b->n <= n) {
        size_t room = 2 * b->room + n + 64;
        char  *grown = realloc(b->s, room);
        if (!grown) {
            b->failed = true;
            return;
        }
        b->s = grown;
        b->room = room;
    }
    memcpy(b->s + b->n, s, n);
    b->n += n;
    b->s[b->n] = 0;
}

static void append_text(text_buf *b, const char *s) {
    append(b, s, strlen(s));
}

typedef struct {
    const char *p, *end;
    td_error   *err;
} source;

static bool at(const source *in, const char *s) {
    size_t n = strlen(s);
    return (size_t)(in->end - in->p) >= n && !memcmp(in->p, s, n);
}

static td_status refuse(const source *in, const char *from, const char *why) {
    int n = (int)(in->end - from < 24 ? in->end - from : 24);
    return td_fail(in->err, TD_ENOTSUP, "regular expression: %s at '%.*s'", why, n, from);
}

static bool is_hex(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* General categories by the long names that Oniguruma and Rust know. */
static const struct {
    const char *name, *category;
} CATEGORIES[] = {
    {"Letter", "L"},
    {"Mark", "M"},
    {"Number", "N"},
    {"Punctuation", "P"},
    {"Symbol", "S"},
    {"Separator", "Z"},
    {"Other", "C"},
    {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"},
    {"Titlecase_Letter", "Lt"},
    {"Modifier_Letter", "Lm"},
    {"Other_Letter", "Lo"},
    {"Decimal_Number", "Nd"},
    {"Letter_Number", "Nl"},
    {"Other_Number", "No"},
};

/*
 * PCRE2 10.42 knows Unicode 14, the libraries that tokenizer files are written for Unicode 16: a positive property gets what
 * was assigned in between (a newer PCRE2 has it twice, which changes nothing).
 */
static const struct {
    uint32_t first, last;
    char     category[3];
} ASSIGNED_LATER[] = {
#include "text/tokenizer/pretok_unicode.inc"
    /* Script Han: CJK Unified Ideographs Extensions H and I */
    {0x2EBF0, 0x2EE5D, "Ha"},
    {0x31350, 0x323AF, "Ha"},
};

/* A positive property as members of a class: \p{name} and the later additions to that category. */
static void append_property(text_buf *out, const char *name, size_t n) {
    append_text(out, "\\p{");
    append(out, name, n);
    append_text(out, "}");
    size_t compared = n <= 2 ? n : 2;
    if (n > 2 && strncmp(name, "sc:Han", n) != 0) return;
    for (size_t i = 0; i < sizeof ASSIGNED_LATER / sizeof *ASSIGNED_LATER; i++) {
        char range[32];
        if (strncmp(ASSIGNED_LATER[i].category, n > 2 ? "Ha" : name, compared) != 0) continue;
        snprintf(range, sizeof range, "\\x{%x}-\\x{%x}", ASSIGNED_LATER[i].first, ASSIGNED_LATER[i].last);
        append_text(out, range);
    }
}

/* in->p is at 'p' or 'P' of a property escape. */
static td_status property(source *in, bool in_class, text_buf *out) {
    const char *from = in->p - 1, *name;
    bool        negated = *in->p++ == 'P';
    size_t      n;
    if (in->p < in->end && is_letter(*in->p)) {
        name = in->p++;
        n = 1;
    } else {
        if (in->p == in->end || *in->p++ != '{') return refuse(in, from, "a malformed property");
        if (at(in, "^")) {
            negated = !negated;
            in->p++;
        }
        name = in->p;
        while (in->p < in->end && (is_letter(*in->p) || *in->p == '_')) in->p++;
        n = (size_t)(in->p - name);
        if (in->p == in->end || *in->p++ != '}' || n == 0 || n > PROPERTY_NAME_MAX)
            return refuse(in, from, "a malformed property");
    }
    char resolved[PROPERTY_NAME_MAX + 8]; /* a category, or a script */
    snprintf(resolved, sizeof resolved, n <= 2 ? "%.*s" : "sc:%.*s", (int)n, name);
    for (size_t i = 0; i < sizeof CATEGORIES / sizeof *CATEGORIES; i++)
        if (strlen(CATEGORIES[i].name) == n && !memcmp(CATEGORIES[i].name, name, n))
            strcpy(resolved, CATEGORIES[i].category);
    if (!in_class) {
        append_text(out, negated ? "[^" : "[");
        append_property(out, resolved, strlen(resolved));
        append_text(out, "]");
    } else if (negated) { /* the rest of a category cannot lose members inside a class */
        append_text(out, "\\P{");
        append_text(out, resolved);
        append_text(out, "}");
    } else {
        append_property(out, resolved, strlen(resolved));
    }
    return TD_OK;
}

/* Translate an escape that means one character or one set, inside a class or outside; in->p is at its backslash. */
static td_status escape(source *in, bool in_class, text_buf *out) {
    const char *from = in->p++;
    if (in->p == in->end) return refuse(in, from, "a lone backslash");
    char c = *in->p;
    switch (c) {
        case 's':
            in->p++;
            append_text(out, in_class ? SPACE_MEMBERS : "[" SPACE_MEMBERS "]");
            return TD_OK;
        case 'S':
            in->p++;
            append_text(out, in_class ? NOT_SPACE_MEMBERS : "[^" SPACE_MEMBERS "]");
            return TD_OK;
        case 'p':
        case 'P': return property(in, in_class, out);
        case 'd':
            in->p++;
            if (!in_class) append_text(out, "[");
            append_property(out, "Nd", 2);
            if (!in_class) append_text(out, "]");
            return TD_OK;
        case 'D':
        case 'r':
        case 'n':
        case 't':
        case 'f':
        case 'e':
        case 'a':
            in->p++;
            append(out, from, 2);
            return TD_OK;
        case 'v':
            in->p++;
            append_text(out, "\\x{b}");
            return TD_OK;
        case 'A':
        case 'z':
        case 'Z':
            if (in_class) return refuse(in, from, "an unknown escape");
            in->p++;
            append(out, from, 2);
            return TD_OK;
        case 'u':
        case 'x': {
            in->p++;
            bool        braced = in->p < in->end && *in->p == '{';
            const char *digits = in->p += braced;
            while (in->p < in->end && is_hex(*in->p) && in->p - digits < (braced ? 6 : c == 'u' ? 4 : 2)) in->p++;
            size_t n = (size_t)(in->p - digits);
            if (n == 0 || (c == 'u' && !braced && n != 4) || (braced && (in->p == in->end || *in->p++ != '}')))
                return refuse(in, from, "a malformed character code");
            append_text(out, "\\x{");
            append(out, digits, n);
            append_text(out, "}");
            return TD_OK;
        }
        default: break;
    }
    if (is_letter(c) || is_digit(c)) return refuse(in, from, "an escape without a translation");
    if ((unsigned char)c < 0x80) append(out, "\\", 1);
    append(out, in->p++, 1); /* of a longer character, the rest follows as literals */
    return TD_OK;
}

/* One bracketed class without its brackets. */
typedef struct {
    bool     negated;
    text_buf members;
    text_buf conditions; /* lookaheads that stand for the right sides of && */
} class_set;

static td_status class_body(source *in, int depth, class_set *set);

/* in->p is at '[' of a class inside a class; its members join the outer class, or, after &&, become a condition. */
static td_status nested_class(source *in, int depth, class_set *outer, bool intersect) {
    const char *from = in->p;
    class_set   inner = {0};
    td_status   st = TD_OK;
    if (depth >= 4) st = refuse(in, from, "classes nested too deeply");
    if (st == TD_OK) st = class_body(in, depth + 1, &inner);
    if (st == TD_OK && inner.conditions.n) st = refuse(in, from, "an intersection inside a nested class");
    if (st == TD_OK && !intersect && inner.negated) st = refuse(in, from, "a negated class inside a class");
    if (st == TD_OK) {
        text_buf *to = intersect ? &outer->conditions : &outer->members;
        if (intersect) append_text(to, inner.negated ? "(?![" : "(?=[");
        append(to, inner.members.s, inner.members.n);
        if (intersect) append_text(to, "])");
        to->failed |= inner.members.failed;
    }
    free(inner.members.s);
    free(inner.conditions.s);
    return st;
}

/* in->p is at '['; leaves it after the matching ']'. */
static td_status class_body(source *in, int depth, class_set *set) {
    const char *from = in->p++;
    if (at(in, "^")) {
        set->negated = true;
        in->p++;
    }
    while (in->p < in->end && *in->p != ']') {
        if (at(in, "[:")) return refuse(in, in->p, "a posix class");
        if (at(in, "&&")) {
            in->p += 2;
            if (set->negated || !at(in, "[") || set->members.n == 0) return refuse(in, from, "an intersection of this form");
            TD_TRY(nested_class(in, depth, set, true));
            if (!at(in, "&&") && !at(in, "]")) return refuse(in, from, "an intersection of this form");
        } else if (*in->p == '[') {
            TD_TRY(nested_class(in, depth, set, false));
        } else if (*in->p == '\\') {
            TD_TRY(escape(in, true, &set->members));
        } else {
            append(&set->members, in->p++, 1);
        }
    }
    if (in->p == in->end) return refuse(in, from, "a class without its ']'");
    if (set->members.n == 0 && !set->members.failed) return refuse(in, from, "an empty class");
    in->p++;
    return TD_OK;
}

static td_status bracket(source *in, text_buf *out) {
    class_set set = {0};
    td_status st = class_body(in, 0, &set);
    if (st == TD_OK) {
        if (set.conditions.n) {
            append_text(out, "(?:");
            append(out, set.conditions.s, set.conditions.n);
        }
        append_text(out, set.negated ? "[^" : "[");
        append(out, set.members.s, set.members.n);
        append_text(out, set.conditions.n ? "])" : "]");
        out->failed |= set.members.failed || set.conditions.failed;
    }
    free(set.members.s);
    free(set.conditions.s);
    return st;
}

/* in->p is at '('. */
static td_status group(source *in, bool first, text_buf *out) {
    static const char *const KNOWN[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    if (at(in, "(*")) return refuse(in, in->p, "a group of this kind");
    if (!at(in, "(?")) {
        append(out, in->p++, 1);
        return TD_OK;
    }
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (at(in, KNOWN[i])) {
            append_text(out, KNOWN[i]);
            in->p += strlen(KNOWN[i]);
            return TD_OK;
        }
    if (!at(in, "(?i)") || !first) return refuse(in, in->p, "a group of this kind");
    append_text(out, "(?i)");
    in->p += 4;
    return TD_OK;
}

/* in->p is at '{'; a brace that opens no interval is a literal. */
static td_status interval(source *in, text_buf *out) {
    const char *from = in->p, *p = in->p + 1;
    unsigned    bound[2] = {0, 0};
    size_t      digits[2] = {0, 0};
    int         k = 0;
    for (; p < in->end && (is_digit(*p) || (*p == ',' && k == 0)); p++) {
        if (*p == ',') {
            k = 1;
        } else {
            digits[k]++;
            bound[k] = bound[k] * 10 + (unsigned)(*p - '0');
            if (bound[k] > REPEAT_MAX) return refuse(in, from, "too large a repeat");
        }
    }
    if (p == in->end || *p != '}' || digits[0] + digits[1] == 0) {
        append_text(out, "\\{");
        in->p++;
        return TD_OK;
    }
    if (p + 1 < in->end && (p[1] == '+' || (p[1] == '?' && k == 0))) return refuse(in, from, "a possessive interval");
    append_text(out, digits[0] ? "{" : "{0");
    append(out, from + 1, (size_t)(p + 1 - (from + 1)));
    in->p = p + 1;
    return TD_OK;
}

static td_status translate(source *in, text_buf *out) {
    const char *start = in->p;
    while (in->p < in->end) {
        switch (*in->p) {
            case '\\': TD_TRY(escape(in, false, out)); break;
            case '[': TD_TRY(bracket(in, out)); break;
            case '(': TD_TRY(group(in, in->p == start, out)); break;
            case '{': TD_TRY(interval(in, out)); break;
            case '^':
                append_text(out, "(?m:^)");
                in->p++;
                break;
            case '$':
                append_text(out, "(?m:$)");
                in->p++;
                break;
            default: append(out, in->p++, 1);
        }
    }
    return TD_OK;
}

td_status td_regex_translate(const char *pattern, size_t len, char **out, td_error *err) {
    if (len > PATTERN_BYTES_MAX)
        return td_fail(err, TD_ENOTSUP, "regular expression: longer than %d bytes", PATTERN_BYTES_MAX);
    source    in = {.p = pattern, .end = pattern + len, .err = err};
    text_buf  b = {0};
    td_status st = translate(&in, &b);
    append(&b, "", 0); /* an empty pattern is a string too */
    if (st == TD_OK && b.failed) st = td_fail(err, TD_ENOMEM, "regular expression: out of memory");
    if (st != TD_OK) {
        free(b.s);
        return st;
    }
    *out = b.s;
    return TD_OK;
}

/*
 * A match is looked for twice at most, by two programs made of the pattern:
 *
 *   windowed   on a window of the text; ends as soon as it would look behind the window's end (PCRE2_PARTIAL_HARD), or
 *              backtracks often. Whatever the pattern is, that takes a bounded time a byte, and nearly all words need no more
 *   counted    on the whole text, with a callout before every item of the pattern: its steps are counted, and so the work on
 *              a text is bounded
 */
#define WINDOW_BYTES 256

struct td_regex {
    pcre2_code *windowed, *counted;
    bool        jit;         /* of both */
    bool        has_windows; /* else only the second program is used */
};

/* PCRE2 10.42 takes the end of a window for the end of the text after '^', and with JIT in atomic groups. Published
 * tokenizers have neither. */
static bool has_windows(const char *translated) {
    return !strstr(translated, "(?m:^)") && !strstr(translated, "(?>");
}

static td_status compile(const char *translated, uint32_t options, pcre2_compile_context *context, pcre2_code **out,
                         td_error *err) {
    int        code = 0;
    PCRE2_SIZE offset = 0;
    *out = pcre2_compile((PCRE2_SPTR)translated, PCRE2_ZERO_TERMINATED,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | options, &code, &offset, context);
    if (*out) return TD_OK;
    PCRE2_UCHAR why[128] = "";
    pcre2_get_error_message(code, why, sizeof why);
    return td_fail(err, TD_EFORMAT, "%s", (char *)why);
}

td_status td_regex_compile(const char *pattern, size_t len, td_regex **out, td_error *err) {
    char    *translated;
    td_error why = {0};
    TD_TRY(td_regex_translate(pattern, len, &translated, err));
    td_regex              *re = calloc(1, sizeof *re);
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    td_status              st = TD_ENOMEM;
    if (re && context) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        st = compile(translated, 0, context, &re->windowed, &why);
        if (st == TD_OK) st = compile(translated, PCRE2_AUTO_CALLOUT | PCRE2_NO_START_OPTIMIZE, context, &re->counted, &why);
    }
    if (re) re->has_windows = has_windows(translated);
    pcre2_compile_context_free(context);
    free(translated);
    if (st != TD_OK) {
        td_regex_free(re);
        if (st == TD_ENOMEM) return td_fail(err, st, "regular expression: out of memory");
        return td_fail(err, st, "regular expression '%.*s': %s", (int)(len < 200 ? len : 200), pattern, why.text);
    }
    re->jit = pcre2_jit_compile(re->windowed, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0 &&
              pcre2_jit_compile(re->counted, PCRE2_JIT_COMPLETE) == 0;
    *out = re;
    return TD_OK;
}

void td_regex_free(td_regex *re) {
    if (!re) return;
    pcre2_code_free(re->windowed);
    pcre2_code_free(re->counted);
    free(re);
}

/* Match in the window that begins at *from. Where there is no match, *from goes to the window's end. */
static int match_window(const td_regex *re, td_tokenizer_scratch *scratch, const char *s, size_t len, size_t *from) {
    size_t   end = len;
    uint32_t options = 0;
    if (len - *from > WINDOW_BYTES) {
        end = *from + WINDOW_BYTES;
        while (((unsigned char)s[end] & 0xC0) == 0x80) end--;
        options = PCRE2_PARTIAL_HARD;
    }
    int rc = re->jit ? pcre2_jit_match(re->windowed, (PCRE2_SPTR)s, end, *from, options, scratch->match, scratch->windowed)
                     : pcre2_match(re->windowed, (PCRE2_SPTR)s, end, *from, options | PCRE2_NO_UTF_CHECK, scratch->match,
                                   scratch->windowed);
    if (rc == PCRE2_ERROR_NOMATCH) *from = end;
    return rc;
}

static int match_counted(const td_regex *re, td_tokenizer_scratch *scratch, const char *s, size_t len, size_t from) {
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    scratch->work.at = from;
    if (re->jit) rc = pcre2_jit_match(re->counted, (PCRE2_SPTR)s, len, from, 0, scratch->match, scratch->counted);
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    return pcre2_match(re->counted, (PCRE2_SPTR)s, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, scratch->match,
                       scratch->counted);
}

td_status td_regex_find(const td_regex *re, td_tokenizer_scratch *scratch, const char *s, size_t len, size_t from,
                        size_t *start, size_t *end) {
    while (from < len) {
        TD_TRY(td_encode_work_done(&scratch->work, 1));
        size_t next = from;
        int    rc = re->has_windows ? match_window(re, scratch, s, len, &next) : PCRE2_ERROR_PARTIAL;
        if (rc == PCRE2_ERROR_NOMATCH && next < len) {
            TD_TRY(td_encode_work_done(&scratch->work, next - from));
            from = next;
            continue;
        }
        if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) rc = match_counted(re, scratch, s, len, from);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT) return TD_ENOMEM;
        if (rc == PCRE2_ERROR_CALLOUT) return scratch->work.end;
        if (rc < 0) return TD_ELIMIT; /* the interpreter's own limit of depth */
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(scratch->match);
        TD_TRY(td_encode_work_done(&scratch->work, span[0] - from));
        if (span[1] > span[0]) {
            *start = span[0];
            *end = span[1];
            return TD_OK;
        }
        /* An empty match: look on from the next character. */
        from = span[0] > from ? span[0] : from;
        do from++;
        while (from < len && ((unsigned char)s[from] & 0xC0) == 0x80);
    }
    *start = *end = len;
    return TD_OK;
}
