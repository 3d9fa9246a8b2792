/* json.dumps, as transformers' tojson filter calls it. */
#include "text/jinja/jinja_json.h"

#include <math.h>

#include "text/jinja/jinja_compare.h"
#include "text/jinja/jinja_number.h"
#include "text/jinja/jinja_text.h"
#include "text/jinja/jinja_utf8.h"

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
        td_jj_write_float(w->s, &w->out, f);
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
