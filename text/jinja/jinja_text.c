/* The text of a value: Python's str() and repr(), and the sentence for an undefined one. */
#include "text/jinja/jinja_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/jinja_utf8.h"

/* The shortest digits that read back as f. out has room for 32 bytes; returns the length. */
static size_t format_float(double f, char out[32]) {
    if (isnan(f)) return (size_t)sprintf(out, "nan");
    if (isinf(f)) return (size_t)sprintf(out, f < 0 ? "-inf" : "inf");
    char digits[32];
    for (int precision = 0; precision < 17; precision++) { /* the fewest digits that read back as f */
        snprintf(digits, sizeof digits, "%.*e", precision, f);
        if (strtod(digits, NULL) == f) break;
    }
    char *e = strchr(digits, 'e');
    int   exponent = atoi(e + 1);
    *e = 0;
    const char *sign = digits[0] == '-' ? "-" : "", *d = digits + (digits[0] == '-');
    char        plain[20];
    int         n = 0;
    for (; *d; d++)
        if (*d != '.') plain[n++] = *d;
    plain[n] = 0;
    if (exponent < -4 || exponent >= 16)
        return (size_t)snprintf(out, 32, "%s%c%s%se%c%02d", sign, plain[0], n > 1 ? "." : "", plain + 1,
                                exponent < 0 ? '-' : '+', abs(exponent));
    if (exponent < 0) return (size_t)snprintf(out, 32, "%s0.%.*s%s", sign, -exponent - 1, "000", plain);
    if (exponent + 1 >= n) return (size_t)snprintf(out, 32, "%s%s%.*s.0", sign, plain, exponent + 1 - n, "0000000000000000");
    return (size_t)snprintf(out, 32, "%s%.*s.%s", sign, exponent + 1, plain, plain + exponent + 1);
}

void td_jj_write_float(jj_state *s, jj_buf *b, double f) {
    char text[32];
    td_jj_put(s, b, text, format_float(f, text));
}

static void write_str_repr(jj_state *s, jj_buf *b, const jj_str *str) {
    bool single = str->n && memchr(str->p, '\'', str->n), both = single && memchr(str->p, '"', str->n);
    char quote = single && !both ? '"' : '\'';
    td_jj_put(s, b, &quote, 1);
    for (size_t at = 0, size; at < str->n; at += size) {
        const char *p = str->p + at;
        uint32_t    c = td_jj_utf8_get(p, &size);
        if (c == (uint32_t)quote || c == '\\')
            td_jj_printf(s, b, "\\%c", (int)c);
        else if (c == '\n')
            td_jj_puts(s, b, "\\n");
        else if (c == '\r')
            td_jj_puts(s, b, "\\r");
        else if (c == '\t')
            td_jj_puts(s, b, "\\t");
        else if (td_jj_is_printable(c))
            td_jj_put(s, b, p, size);
        else if (c < 0x100)
            td_jj_printf(s, b, "\\x%02x", (unsigned)c);
        else if (c < 0x10000)
            td_jj_printf(s, b, "\\u%04x", (unsigned)c);
        else
            td_jj_printf(s, b, "\\U%08x", (unsigned)c);
    }
    td_jj_charge(s, str->n / 8);
    td_jj_put(s, b, &quote, 1);
}

static void write_items(jj_state *s, jj_buf *b, const jj_list *list) {
    for (size_t k = 0; k < list->n; k++) {
        if (k) td_jj_puts(s, b, ", ");
        td_jj_write_repr(s, b, &list->at[k]);
    }
}

static void write_dict(jj_state *s, jj_buf *b, const jj_dict *d) {
    td_jj_puts(s, b, "{");
    for (size_t k = 0; k < d->n; k++) {
        if (k) td_jj_puts(s, b, ", ");
        td_jj_write_repr(s, b, &d->at[k].key);
        td_jj_puts(s, b, ": ");
        td_jj_write_repr(s, b, &d->at[k].value);
    }
    td_jj_puts(s, b, "}");
}

void td_jj_write_repr(jj_state *s, jj_buf *b, const jj_value *v) {
    td_jj_charge(s, 1);
    td_jj_enter(s);
    switch (v->kind) {
        case JJ_MISSING: break;
        case JJ_UNDEFINED: td_jj_puts(s, b, "Undefined"); break;
        case JJ_NONE: td_jj_puts(s, b, "None"); break;
        case JJ_BOOL: td_jj_puts(s, b, v->u.b ? "True" : "False"); break;
        case JJ_INT: td_jj_printf(s, b, "%lld", (long long)v->u.i); break;
        case JJ_FLOAT: td_jj_write_float(s, b, v->u.f); break;
        case JJ_STR: write_str_repr(s, b, v->u.s); break;
        case JJ_LIST:
            td_jj_puts(s, b, "[");
            write_items(s, b, v->u.list);
            td_jj_puts(s, b, "]");
            break;
        case JJ_TUPLE:
            td_jj_puts(s, b, "(");
            write_items(s, b, v->u.list);
            td_jj_puts(s, b, v->u.list->n == 1 ? ",)" : ")");
            break;
        case JJ_RANGE: {
            const jj_range *r = v->u.range;
            td_jj_printf(s, b, "range(%lld, %lld", (long long)r->start, (long long)r->stop);
            if (r->step != 1) td_jj_printf(s, b, ", %lld", (long long)r->step);
            td_jj_puts(s, b, ")");
            break;
        }
        case JJ_DICT: write_dict(s, b, v->u.dict); break;
        case JJ_VIEW:
            td_jj_printf(s, b, "%s([", v->u.view->name);
            write_items(s, b, v->u.view->list);
            td_jj_puts(s, b, "])");
            break;
        case JJ_NAMESPACE:
            td_jj_puts(s, b, "<Namespace ");
            write_dict(s, b, v->u.dict);
            td_jj_puts(s, b, ">");
            break;
        case JJ_MACRO:
            td_jj_puts(s, b, "<Macro ");
            write_str_repr(s, b, v->u.macro->name);
            td_jj_puts(s, b, ">");
            break;
        case JJ_ITER:
        case JJ_LOOP:
        case JJ_FUNCTION:
        case JJ_METHOD: td_jj_printf(s, b, "<%s>", td_jj_type(v)); break; /* Python prints an address */
    }
    td_jj_leave(s);
}

void td_jj_write(jj_state *s, jj_buf *b, const jj_value *v) {
    if (v->kind == JJ_STR)
        td_jj_put(s, b, v->u.s->p, v->u.s->n);
    else if (v->kind != JJ_UNDEFINED)
        td_jj_write_repr(s, b, v);
}

jj_value td_jj_to_str(jj_state *s, const jj_value *v) {
    if (v->kind == JJ_STR) return *v;
    jj_buf b = {0};
    td_jj_write(s, &b, v);
    return td_jj_str_buf(s, &b);
}

/* ---- undefined values ---- */

void td_jj_fail_undefined(jj_state *s, const jj_value *v) {
    const jj_undef *u = v->u.undef;
    if (!u) td_jj_fail(s, TD_EINVAL, "a value is undefined");
    if (u->hint) td_jj_fail(s, TD_EINVAL, "%s", u->hint);
    jj_buf name = {0};
    td_jj_write_repr(s, &name, &u->name);
    int n = name.n < 200 ? (int)name.n : 200;
    if (!u->owner) td_jj_fail(s, TD_EINVAL, "%.*s is undefined", n, name.p);
    if (u->name.kind != JJ_STR) td_jj_fail(s, TD_EINVAL, "%s has no element %.*s", u->owner, n, name.p);
    td_jj_fail(s, TD_EINVAL, "'%s' has no attribute %.*s", u->owner, n, name.p);
}
