/* The lexer. Rules: jinja2/lexer.py 3.1, trim_blocks and lstrip_blocks on. */
#include "text/jinja/jinja_lex.h"

#include <string.h>

#include "text/jinja/jinja_compare.h"
#include "text/jinja/jinja_number.h"
#include "text/jinja/jinja_utf8.h"

typedef struct {
    jj_state   *s;
    const char *p, *end; /* rest of the source, line ends normalised to \n */
    jj_token   *tokens;
    size_t      n, cap;
    uint32_t    line;
    bool        at_line_start; /* what was consumed last ended a line */
} lexer;

static void emit(lexer *x, jj_token_kind kind, int op, jj_value value) {
    x->tokens = td_jj_grow(x->s, x->tokens, x->n, &x->cap, sizeof *x->tokens);
    x->tokens[x->n++] = (jj_token){kind, x->line, op, value};
}

/* Go on to `to`, counting lines. */
static void advance(lexer *x, const char *to) {
    if (to > x->p) x->at_line_start = to[-1] == '\n';
    for (; x->p < to; x->p++)
        if (*x->p == '\n') x->line++;
    x->s->line = x->line;
}

static const char *skip_space(const char *p, const char *end) {
    size_t size;
    while (p < end && td_jj_is_space(td_jj_utf8_get(p, &size))) p += size;
    return p;
}

static const char *strip_end(const char *p, const char *end) {
    size_t size;
    while (end > p && td_jj_is_space(td_jj_utf8_last(p, (size_t)(end - p), &size))) end -= size;
    return end;
}

static bool starts(const char *p, const char *end, const char *with) {
    size_t n = strlen(with);
    return (size_t)(end - p) >= n && !memcmp(p, with, n);
}

/* After a tag's closing bytes: "-" eats white space, a block's or comment's end eats one newline unless "+". */
static const char *after_close(const char *p, const char *end, char sign, bool block) {
    if (sign == '-') return skip_space(p, end);
    if (block && sign != '+' && p < end && *p == '\n') return p + 1;
    return p;
}

/* The end of text [p, tag) once the tag's sign is applied. */
static const char *text_end(const lexer *x, const char *p, const char *tag, char sign, bool print) {
    if (sign == '-') return strip_end(p, tag);
    if (sign == '+' || print) return tag;
    const char *line = tag; /* lstrip_blocks: nothing but white space between the start of the line and the tag */
    while (line > p && line[-1] != '\n') line--;
    if (line == p && !x->at_line_start) return tag;
    return skip_space(line, tag) == tag ? line : tag;
}

static void emit_text(lexer *x, const char *from, const char *to) {
    if (to > from) emit(x, JJ_T_TEXT, 0, td_jj_str(x->s, from, (size_t)(to - from)));
}

/* Bytes of a name's character at p; 0: none. */
static size_t name_char(const char *p, const char *end, bool first) {
    size_t size;
    return p < end && td_jj_is_name_char(td_jj_utf8_get(p, &size), first) ? size : 0;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* ---- inside tags ---- */

static int hex_value(char c) {
    if (is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* \xHH, \uHHHH or \UHHHHHHHH at p (after the letter). */
static const char *hex_escape(lexer *x, const char *p, const char *end, int digits, uint32_t *c) {
    *c = 0;
    for (int k = 0; k < digits; k++, p++) {
        int h = p < end ? hex_value(*p) : -1;
        if (h < 0) td_jj_fail(x->s, TD_EFORMAT, "truncated \\x, \\u or \\U escape in a string");
        *c = *c << 4 | (uint32_t)h;
    }
    if (*c > 0x10ffff || (*c >= 0xd800 && *c < 0xe000))
        td_jj_fail(x->s, TD_EFORMAT, "an escape in a string is not a character");
    return p;
}

/* Python's unicode-escape. */
static jj_value unescape(lexer *x, const char *p, const char *end) {
    static const char FROM[] = "\\'\"abfnrtv", TO[] = "\\'\"\a\b\f\n\r\t\v";
    jj_buf            b = {0};
    while (p < end) {
        const char *slash = memchr(p, '\\', (size_t)(end - p));
        if (!slash) slash = end;
        td_jj_put(x->s, &b, p, (size_t)(slash - p));
        if (slash == end) break;
        p = slash + 1; /* a string never ends in a lone backslash: it would have escaped the quote */
        const char *simple = memchr(FROM, *p, sizeof FROM - 1);
        uint32_t    c = 0;
        char        utf8[4];
        if (simple) {
            td_jj_put(x->s, &b, &TO[simple - FROM], 1);
            p++;
        } else if (*p == '\n') {
            p++;
        } else if (*p == 'x' || *p == 'u' || *p == 'U') {
            p = hex_escape(x, p + 1, end, *p == 'x' ? 2 : *p == 'u' ? 4 : 8, &c);
            td_jj_put(x->s, &b, utf8, td_jj_utf8_put(c, utf8));
        } else if (*p >= '0' && *p <= '7') {
            for (int k = 0; k < 3 && p < end && *p >= '0' && *p <= '7'; k++) c = c * 8 + (uint32_t)(*p++ - '0');
            td_jj_put(x->s, &b, utf8, td_jj_utf8_put(c, utf8));
        } else if (*p == 'N') {
            td_jj_fail(x->s, TD_ENOTSUP, "\\N escapes are not supported");
        } else {
            td_jj_put(x->s, &b, slash, 1);
        }
    }
    return td_jj_str_buf(x->s, &b);
}

static void lex_string(lexer *x) {
    char        quote = *x->p;
    const char *p = x->p + 1;
    while (p < x->end && *p != quote) p += *p == '\\' && p + 1 < x->end ? 2 : 1;
    if (p >= x->end) td_jj_fail(x->s, TD_EFORMAT, "a string is not closed");
    jj_value value = unescape(x, x->p + 1, p);
    td_jj_hash((jj_str *)value.u.s);
    emit(x, JJ_T_STRING, 0, value);
    advance(x, p + 1);
}

/* digits, possibly separated by single underscores */
static const char *skip_digits(const char *p, const char *end) {
    while (p < end && (is_digit(*p) || (*p == '_' && p + 1 < end && is_digit(p[1])))) p++;
    return p;
}

static void lex_number(lexer *x) {
    const char *p = x->p, *digits_end, *end = x->end;
    bool        after_dot = x->n && x->tokens[x->n - 1].kind == JJ_T_OP && x->tokens[x->n - 1].op == '.'; /* a.1.2 */
    bool        is_float = false;
    if (*p == '0' && p + 1 < end && strchr("xXoObB", p[1]) && p[1]) {
        p += 2;
        while (p < end && (hex_value(*p) >= 0 || *p == '_')) p++;
        digits_end = p;
    } else {
        digits_end = skip_digits(p, end);
        p = digits_end;
        if (!after_dot && p + 1 < end && *p == '.' && is_digit(p[1])) {
            is_float = true;
            p = skip_digits(p + 1, end);
        }
        const char *e = p;
        if (!after_dot && e < end && (*e == 'e' || *e == 'E')) {
            e++;
            if (e < end && (*e == '+' || *e == '-')) e++;
            if (e < end && is_digit(*e)) {
                is_float = true;
                p = skip_digits(e, end);
            }
        }
    }
    jj_str   text = {x->p, (size_t)(p - x->p), 0};
    jj_value value;
    double   f;
    int64_t  i;
    if (is_float && td_jj_parse_float(x->s, &text, &f))
        value = jj_float(f);
    else if (!is_float && td_jj_parse_int(x->s, &text, 0, &i))
        value = jj_int(i);
    else
        td_jj_fail(x->s, TD_EFORMAT, "'%.*s' is not a number", (int)(text.n < 60 ? text.n : 60), text.p);
    emit(x, JJ_T_NUMBER, 0, value);
    advance(x, p);
}

static void lex_name(lexer *x) {
    const char *p = x->p;
    for (size_t size; (size = name_char(p, x->end, false)); p += size) {
    }
    jj_value value = td_jj_str(x->s, x->p, (size_t)(p - x->p));
    td_jj_hash((jj_str *)value.u.s);
    emit(x, JJ_T_NAME, 0, value);
    advance(x, p);
}

static int operator_at(const char *p, const char *end) {
    static const struct {
        const char *text;
        int         op;
    } TWO[] = {{"//", JJ_OP_FLOORDIV}, {"**", JJ_OP_POW}, {"==", JJ_OP_EQ},
               {"!=", JJ_OP_NE},       {">=", JJ_OP_GE},  {"<=", JJ_OP_LE}};
    for (size_t k = 0; k < sizeof TWO / sizeof *TWO; k++)
        if (starts(p, end, TWO[k].text)) return TWO[k].op;
    return *p && strchr("+-/*%~[](){}><=.:|,;", *p) ? *p : 0;
}

static void lex_operator(lexer *x, jj_buf *brackets) {
    int op = operator_at(x->p, x->end);
    if (!op) td_jj_fail(x->s, TD_EFORMAT, "unexpected character '%.*s'", (int)td_jj_utf8_size(*x->p), x->p);
    char open = op == '}' ? '{' : op == ')' ? '(' : op == ']' ? '[' : 0;
    if (op == '{' || op == '(' || op == '[') {
        char c = (char)op;
        td_jj_put(x->s, brackets, &c, 1);
    } else if (open) {
        if (!brackets->n || brackets->p[brackets->n - 1] != open) td_jj_fail(x->s, TD_EFORMAT, "unexpected '%c'", op);
        brackets->n--;
    }
    emit(x, JJ_T_OP, op, JJ_NONE_VALUE);
    advance(x, x->p + (op < 256 ? 1 : 2));
}

/* Lex a tag, from behind "{{" or "{%" to behind the closing bytes. */
static void lex_tag(lexer *x, bool block) {
    const char *close = block ? "%}" : "}}";
    jj_buf      brackets = {0};
    uint32_t    start = x->line;
    for (;;) {
        advance(x, skip_space(x->p, x->end));
        if (x->p >= x->end) {
            x->s->line = start;
            td_jj_fail(x->s, TD_EFORMAT, "'%s' is not closed", block ? "{%" : "{{");
        }
        char sign = *x->p == '-' || (block && *x->p == '+') ? *x->p : 0;
        if (!brackets.n && starts(x->p + (sign != 0), x->end, close)) {
            emit(x, block ? JJ_T_BLOCK_END : JJ_T_PRINT_END, 0, JJ_NONE_VALUE);
            advance(x, after_close(x->p + (sign != 0) + 2, x->end, sign, block));
            return;
        }
        if (*x->p == '"' || *x->p == '\'')
            lex_string(x);
        else if (is_digit(*x->p))
            lex_number(x);
        else if (name_char(x->p, x->end, true))
            lex_name(x);
        else
            lex_operator(x, &brackets);
    }
}

/* ---- comments and raw blocks ---- */

static void lex_comment(lexer *x) {
    const char *close = memmem(x->p, (size_t)(x->end - x->p), "#}", 2);
    if (!close) td_jj_fail(x->s, TD_EFORMAT, "a comment is not closed");
    char sign = close > x->p && (close[-1] == '-' || close[-1] == '+') ? close[-1] : 0;
    advance(x, after_close(close + 2, x->end, sign, true));
}

/* The end of "[-+]? name [-+]? %}" if it stands at p, behind "{%"; else NULL. *sign is the closing sign. */
static const char *bare_tag(const char *p, const char *end, const char *name, char *open_sign, char *sign) {
    *open_sign = p < end && (*p == '-' || *p == '+') ? *p++ : 0;
    p = skip_space(p, end);
    if (!starts(p, end, name)) return NULL;
    p = skip_space(p + strlen(name), end);
    *sign = p < end && (*p == '-' || *p == '+') ? *p++ : 0;
    return starts(p, end, "%}") ? p + 2 : NULL;
}

/* x->p is after the opening raw tag. */
static void lex_raw(lexer *x) {
    for (const char *p = x->p;; p += 2) {
        char open_sign, sign;
        p = memmem(p, (size_t)(x->end - p), "{%", 2);
        if (!p) td_jj_fail(x->s, TD_EFORMAT, "a raw block is not closed");
        const char *close = bare_tag(p + 2, x->end, "endraw", &open_sign, &sign);
        if (!close) continue;
        emit_text(x, x->p, text_end(x, x->p, p, open_sign, false));
        advance(x, after_close(close, x->end, sign, true));
        return;
    }
}

/* ---- */

/* Line ends become \n; one at the very end is dropped. */
static void normalise(lexer *x, const char *source, size_t len) {
    char  *out = td_jj_alloc(x->s, len + 1);
    size_t n = 0;
    for (size_t k = 0; k < len; k++) {
        if (source[k] == '\r') {
            out[n++] = '\n';
            if (k + 1 < len && source[k + 1] == '\n') k++;
        } else {
            out[n++] = source[k];
        }
    }
    if (n && out[n - 1] == '\n') n--;
    out[n] = 0;
    x->p = out;
    x->end = out + n;
}

const jj_token *td_jj_lex(jj_state *s, const char *source, size_t len) {
    lexer x = {.s = s, .line = 1, .at_line_start = true};
    normalise(&x, source, len);
    s->line = 1;
    while (x.p < x.end) {
        const char *tag = x.p;
        do {
            tag = memchr(tag, '{', (size_t)(x.end - tag));
        } while (tag && !(tag + 1 < x.end && strchr("{%#", tag[1]) && tag[1]) && ++tag);
        if (!tag) {
            emit_text(&x, x.p, x.end);
            advance(&x, x.end);
            break;
        }
        char        kind = tag[1], open_sign, raw_sign;
        const char *raw = kind == '%' ? bare_tag(tag + 2, x.end, "raw", &open_sign, &raw_sign) : NULL;
        if (raw && raw_sign == '+') raw = NULL; /* "{% raw +%}" is no raw tag to Jinja */
        char sign = tag + 2 < x.end && (tag[2] == '-' || tag[2] == '+') ? tag[2] : 0;
        emit_text(&x, x.p, text_end(&x, x.p, tag, sign, kind == '{'));
        advance(&x, tag);
        if (raw) {
            advance(&x, raw_sign == '-' ? skip_space(raw, x.end) : raw);
            lex_raw(&x);
            continue;
        }
        if (kind != '#') emit(&x, kind == '{' ? JJ_T_PRINT_BEGIN : JJ_T_BLOCK_BEGIN, 0, JJ_NONE_VALUE);
        advance(&x, tag + 2 + (sign != 0));
        if (kind == '#')
            lex_comment(&x);
        else
            lex_tag(&x, kind == '%');
    }
    emit(&x, JJ_T_EOF, 0, JJ_NONE_VALUE);
    return x.tokens;
}
