/* Attributes, items and slices, with the rules of jinja2's sandboxed environment. */
#include "text/jinja/jinja_access.h"

#include <string.h>

#include "text/jinja/jinja_compare.h"
#include "text/jinja/jinja_environment.h"
#include "text/jinja/jinja_loop.h"
#include "text/jinja/jinja_number.h"
#include "text/jinja/jinja_text.h"
#include "text/jinja/jinja_utf8.h"

/* How jinja2 names an object that lacks an attribute. */
static const char *owner_name(jj_state *s, const jj_value *v) {
    if (v->kind == JJ_NONE) return "None";
    jj_buf b = {0};
    td_jj_printf(s, &b, "%s object", td_jj_type(v));
    td_jj_put(s, &b, "", 1);
    return b.p;
}

static jj_value lacking(jj_state *s, const jj_value *of, jj_value name) {
    return td_jj_undefined(s, owner_name(s, of), name);
}

/* What Python's getattr finds; false: no such attribute. */
static bool attribute_of(jj_state *s, const jj_value *of, const jj_str *name, jj_value *out) {
    if (of->kind == JJ_NAMESPACE) {
        const jj_value *v = td_jj_dict_get_str(s, of->u.dict, name);
        if (v) *out = *v;
        return v != NULL;
    }
    if (of->kind == JJ_LOOP && td_jj_loop_attr(s, of->u.loop, name, out)) return true;
    if (of->kind == JJ_MACRO && td_jj_str_is(name, "name")) {
        *out = (jj_value){JJ_STR, {.s = of->u.macro->name}};
        return true;
    }
    return td_jj_find_method(s, of, name, out);
}

jj_value td_jj_getattr(jj_state *s, jj_value of, const jj_str *name) {
    jj_value        v, key = {JJ_STR, {.s = name}};
    const jj_value *item;
    if (of.kind == JJ_UNDEFINED) td_jj_fail_undefined(s, &of);
    if (attribute_of(s, &of, name, &v)) return v;
    if (of.kind == JJ_DICT && (item = td_jj_dict_get(s, of.u.dict, &key))) return *item;
    return lacking(s, &of, key);
}

/* Item number i of a sequence. */
static bool item_at(jj_state *s, const jj_value *of, int64_t i, jj_value *out) {
    size_t len;
    if (of->kind == JJ_VIEW || !td_jj_len(of, &len)) return false;
    if (i < 0) i += (int64_t)len;
    if (i < 0 || (uint64_t)i >= len) return false;
    if (of->kind == JJ_STR) {
        td_jj_charge(s, of->u.s->n / 32);
        size_t at = td_jj_utf8_offset(of->u.s->p, of->u.s->n, (size_t)i);
        *out = td_jj_str(s, of->u.s->p + at, td_jj_utf8_size(of->u.s->p[at]));
    } else if (of->kind == JJ_RANGE) {
        *out = jj_int(of->u.range->start + i * of->u.range->step);
    } else {
        *out = of->u.list->at[i];
    }
    return true;
}

jj_value td_jj_getitem(jj_state *s, jj_value of, const jj_value *key) {
    int64_t         i;
    jj_value        v;
    const jj_value *item;
    if (of.kind == JJ_UNDEFINED) td_jj_fail_undefined(s, &of);
    if (of.kind == JJ_DICT) {
        if (td_jj_hashable(s, key) && (item = td_jj_dict_get(s, of.u.dict, key))) return *item;
    } else if (td_jj_as_int(key, &i) && item_at(s, &of, i, &v)) {
        return v;
    }
    if (key->kind == JJ_STR && attribute_of(s, &of, key->u.s, &v)) return v;
    return lacking(s, &of, *key);
}

jj_value td_jj_getpath(jj_state *s, jj_value v, const jj_value *path) {
    if (path->kind == JJ_NONE || path->kind == JJ_MISSING) return v;
    if (path->kind != JJ_STR) return td_jj_getitem(s, v, path);
    const char *p = path->u.s->p, *end = p + path->u.s->n;
    td_jj_charge(s, path->u.s->n / 16);
    for (;;) {
        const char *dot = memchr(p, '.', (size_t)(end - p));
        if (!dot) dot = end;
        jj_str   word = {p, (size_t)(dot - p), 0};
        jj_value key = td_jj_str(s, word.p, word.n);
        int64_t  i;
        bool     digits = word.n > 0;
        for (size_t k = 0; k < word.n; k++) digits &= word.p[k] >= '0' && word.p[k] <= '9';
        if (digits && td_jj_parse_int(s, &word, 10, &i)) key = jj_int(i);
        v = td_jj_getitem(s, v, &key);
        if (dot == end) return v;
        p = dot + 1;
    }
}

/* ---- slices ---- */

/* Python's slice.indices(len): the first index and how many follow by step. */
typedef struct {
    int64_t start, step;
    size_t  n;
} span;

static int64_t bound(jj_state *s, const jj_value *v, int64_t len, int64_t lowest, int64_t highest, int64_t otherwise) {
    int64_t i;
    if (v->kind == JJ_NONE) return otherwise;
    if (!td_jj_as_int(v, &i)) td_jj_fail(s, TD_EINVAL, "slice indices must be integers or None");
    if (i < 0) i = i < -len ? -1 : i + len;
    return i < lowest ? lowest : i > highest ? highest : i;
}

static span span_of(jj_state *s, int64_t len, const jj_value part[3]) {
    span    sp = {.step = 1};
    int64_t stop;
    if (part[2].kind != JJ_NONE && !td_jj_as_int(&part[2], &sp.step))
        td_jj_fail(s, TD_EINVAL, "slice indices must be integers or None");
    if (sp.step == 0) td_jj_fail(s, TD_EINVAL, "slice step cannot be zero");
    if (sp.step == INT64_MIN) sp.step++; /* so that it can be negated; no sequence is that long */
    if (sp.step > 0) {
        sp.start = bound(s, &part[0], len, 0, len, 0);
        stop = bound(s, &part[1], len, 0, len, len);
        sp.n = stop > sp.start ? (size_t)((stop - sp.start - 1) / sp.step + 1) : 0;
    } else {
        sp.start = bound(s, &part[0], len, -1, len - 1, len - 1);
        stop = bound(s, &part[1], len, -1, len - 1, -1);
        sp.n = sp.start > stop ? (size_t)((sp.start - stop - 1) / -sp.step + 1) : 0;
    }
    return sp;
}

static jj_value slice_str(jj_state *s, const jj_str *str, span sp) {
    td_jj_charge(s, str->n / 16);
    if (sp.step == 1) {
        size_t from = td_jj_utf8_offset(str->p, str->n, (size_t)sp.start);
        return td_jj_str(s, str->p + from, td_jj_utf8_offset(str->p + from, str->n - from, sp.n));
    }
    size_t *offset = td_jj_alloc(s, (str->n + 1) * sizeof *offset), len = 0; /* of every character */
    jj_buf  b = {0};
    for (size_t at = 0; at < str->n; at += td_jj_utf8_size(str->p[at])) offset[len++] = at;
    for (size_t k = 0; k < sp.n; k++) {
        const char *c = str->p + offset[sp.start + (int64_t)k * sp.step];
        td_jj_put(s, &b, c, td_jj_utf8_size(*c));
    }
    return td_jj_str_buf(s, &b);
}

static jj_value slice_range(jj_state *s, const jj_range *of, span sp) {
    jj_range *r = td_jj_alloc(s, sizeof *r);
    int64_t   step = of->step, stop;
    r->n = sp.n;
    /* With at most 100000 items only a step can leave 64 bits. */
    if (__builtin_mul_overflow(step, sp.step, &r->step)) td_jj_fail(s, TD_EINVAL, "an integer does not fit 64 bits");
    if (__builtin_mul_overflow(sp.start, step, &r->start) || __builtin_add_overflow(r->start, of->start, &r->start) ||
        __builtin_mul_overflow((int64_t)sp.n, r->step, &stop) || __builtin_add_overflow(stop, r->start, &r->stop))
        td_jj_fail(s, TD_EINVAL, "an integer does not fit 64 bits");
    return (jj_value){JJ_RANGE, {.range = r}};
}

jj_value td_jj_slice(jj_state *s, const jj_value *of, const jj_value part[3]) {
    size_t len;
    if (of->kind == JJ_UNDEFINED) td_jj_fail_undefined(s, of);
    bool sliceable = of->kind == JJ_STR || of->kind == JJ_LIST || of->kind == JJ_TUPLE || of->kind == JJ_RANGE;
    if (!sliceable || !td_jj_len(of, &len)) td_jj_fail(s, TD_EINVAL, "'%s' object cannot be sliced", td_jj_type(of));
    span sp = span_of(s, (int64_t)len, part);
    if (of->kind == JJ_STR) return slice_str(s, of->u.s, sp);
    if (of->kind == JJ_RANGE) return slice_range(s, of->u.range, sp);
    jj_value list = td_jj_list(s, of->kind);
    td_jj_charge(s, sp.n);
    for (size_t k = 0; k < sp.n; k++) td_jj_append(s, list.u.list, of->u.list->at[sp.start + (int64_t)k * sp.step]);
    return list;
}
