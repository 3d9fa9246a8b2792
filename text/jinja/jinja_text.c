/* The text of a value: Python's str(), repr() and json.dumps(). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/jinja_eval.h"
#include "text/jinja/jinja_utf8.h"
#include "text/jinja/jinja_value.h"

size_t td_jj_format_float(double f, char out[32]) {
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

static void write_float(jj_state *s, jj_buf *b, double f) {
    char text[32];
    td_jj_put(s, b, text, td_jj_format_float(f, text));
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
        case JJ_FLOAT: write_float(s, b, v->u.f); break;
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
            write_str_repr(s, b, td_jj_macro_name(v->u.macro));
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

/* ---- json.dumps ---- */

typedef struct {
    jj_state     *s;
    jj_buf        out;
    bool          ascii, sort, pretty;
    const jj_str *indent;
    jj_str        item_separator, key_separator;
} json_writer;

static void json_str(json_writer *w, const jj_str *str) {
    static const char *const SHORT[] = {['\b'] = "\\b", ['\t'] = "\\t", ['\n'] = "\\n", ['\f'] = "\\f", ['\r'] = "\\r"};
    jj_state                *s = w->s;
    td_jj_put(s, &w->out, "\"", 1);
    size_t plain = 0; /* start of the bytes that go out as they are */
    for (size_t at = 0, size; at < str->n; at += size) {
        uint32_t c = td_jj_utf8_get(str->p + at, &size);
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7f || !w->ascii)) continue;
        td_jj_put(s, &w->out, str->p + plain, at - plain);
        plain = at + size;
        if (c == '"' || c == '\\')
            td_jj_printf(s, &w->out, "\\%c", (int)c);
        else if (c <= '\r' && SHORT[c])
            td_jj_puts(s, &w->out, SHORT[c]);
        else if (c < 0x10000)
            td_jj_printf(s, &w->out, "\\u%04x", (unsigned)c);
        else
            td_jj_printf(s, &w->out, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((c - 0x10000) >> 10)),
                         (unsigned)(0xdc00 + (c & 0x3ff)));
    }
    td_jj_put(s, &w->out, str->p + plain, str->n - plain);
    td_jj_put(s, &w->out, "\"", 1);
    td_jj_charge(s, str->n / 16);
}

static void json_float(json_writer *w, double f) {
    if (isnan(f))
        td_jj_puts(w->s, &w->out, "NaN");
    else if (isinf(f))
        td_jj_puts(w->s, &w->out, f < 0 ? "-Infinity" : "Infinity");
    else
        write_float(w->s, &w->out, f);
}

/* None, bools and numbers; false for anything else. */
static bool json_scalar(json_writer *w, const jj_value *v) {
    switch (v->kind) {
        case JJ_NONE: td_jj_puts(w->s, &w->out, "null"); return true;
        case JJ_BOOL: td_jj_puts(w->s, &w->out, v->u.b ? "true" : "false"); return true;
        case JJ_INT: td_jj_printf(w->s, &w->out, "%lld", (long long)v->u.i); return true;
        case JJ_FLOAT: json_float(w, v->u.f); return true;
        default: return false;
    }
}

static void json_break(json_writer *w, size_t level) {
    td_jj_put(w->s, &w->out, "\n", 1);
    for (size_t k = 0; k < level; k++) td_jj_put(w->s, &w->out, w->indent->p, w->indent->n);
}

/* The separator before item k of a container, and the line break of a pretty one. */
static void json_before_item(json_writer *w, size_t k, size_t level) {
    if (k) td_jj_put(w->s, &w->out, w->item_separator.p, w->item_separator.n);
    if (w->pretty) json_break(w, level);
}

static void json_key(json_writer *w, const jj_value *key) {
    if (key->kind == JJ_STR) {
        json_str(w, key->u.s);
        return;
    }
    td_jj_put(w->s, &w->out, "\"", 1);
    if (!json_scalar(w, key))
        td_jj_fail(w->s, TD_EINVAL, "keys must be str, int, float, bool or None, not %s", td_jj_type(key));
    td_jj_put(w->s, &w->out, "\"", 1);
}

static void json_value(json_writer *w, const jj_value *v, size_t level) {
    jj_state *s = w->s;
    td_jj_charge(s, 1);
    if (json_scalar(w, v)) return;
    td_jj_enter(s);
    if (v->kind == JJ_STR) {
        json_str(w, v->u.s);
    } else if (v->kind == JJ_LIST || v->kind == JJ_TUPLE) {
        const jj_list *list = v->u.list;
        td_jj_put(s, &w->out, "[", 1);
        for (size_t k = 0; k < list->n; k++) {
            json_before_item(w, k, level + 1);
            json_value(w, &list->at[k], level + 1);
        }
        if (w->pretty && list->n) json_break(w, level);
        td_jj_put(s, &w->out, "]", 1);
    } else if (v->kind == JJ_DICT) {
        const jj_dict *d = v->u.dict;
        const jj_list *order = NULL; /* (key, index) pairs */
        if (w->sort) {
            jj_value pairs = td_jj_list(s, JJ_LIST);
            for (size_t k = 0; k < d->n; k++) td_jj_append(s, pairs.u.list, td_jj_pair(s, d->at[k].key, jj_int((int64_t)k)));
            order = td_jj_sorted(s, pairs.u.list, pairs.u.list, false);
        }
        td_jj_put(s, &w->out, "{", 1);
        for (size_t k = 0; k < d->n; k++) {
            const jj_item *item = &d->at[order ? (size_t)order->at[k].u.list->at[1].u.i : k];
            json_before_item(w, k, level + 1);
            json_key(w, &item->key);
            td_jj_put(s, &w->out, w->key_separator.p, w->key_separator.n);
            json_value(w, &item->value, level + 1);
        }
        if (w->pretty && d->n) json_break(w, level);
        td_jj_put(s, &w->out, "}", 1);
    } else {
        td_jj_fail(s, TD_EINVAL, "Object of type %s is not JSON serializable", td_jj_type(v));
    }
    td_jj_leave(s);
}

static bool given(const jj_value *v) {
    return v->kind != JJ_MISSING && v->kind != JJ_NONE;
}

jj_value td_jj_tojson(jj_state *s, const jj_value *v, const jj_args *args) {
    jj_value a[4];
    td_jj_bind(s, "tojson", args, "ensure_ascii indent separators sort_keys", 0, a);
    json_writer w = {.s = s, .item_separator = {", ", 2, 0}, .key_separator = {": ", 2, 0}};
    w.ascii = a[0].kind != JJ_MISSING && td_jj_truth(&a[0]);
    w.sort = a[3].kind != JJ_MISSING && td_jj_truth(&a[3]);
    if (given(&a[1])) {
        int64_t  width;
        jj_value blank = td_jj_str(s, " ", 1);
        if (td_jj_as_int(&a[1], &width)) {
            jj_value n = jj_int(width < 0 ? 0 : width);
            a[1] = td_jj_arith(s, JJ_MUL, &blank, &n);
        }
        if (a[1].kind != JJ_STR)
            td_jj_fail(s, TD_EINVAL, "tojson: indent is a number or a string, not %s", td_jj_type(&a[1]));
        w.pretty = true;
        w.indent = a[1].u.s;
        w.item_separator.n = 1;
    }
    if (given(&a[2])) {
        const jj_list *pair = a[2].kind == JJ_TUPLE || a[2].kind == JJ_LIST ? a[2].u.list : NULL;
        if (!pair || pair->n != 2 || pair->at[0].kind != JJ_STR || pair->at[1].kind != JJ_STR)
            td_jj_fail(s, TD_EINVAL, "tojson: separators is a pair of strings");
        w.item_separator = *pair->at[0].u.s;
        w.key_separator = *pair->at[1].u.s;
    }
    json_value(&w, v, 0);
    return td_jj_str_buf(s, &w.out);
}
