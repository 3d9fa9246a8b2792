/* The filters of "x | filter": scalars and texts. Those of lists are in jinja_filters_list.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/jinja_access.h"
#include "text/jinja/jinja_builtins.h"
#include "text/jinja/jinja_filters_list.h"
#include "text/jinja/jinja_json.h"
#include "text/jinja/jinja_loop.h"
#include "text/jinja/jinja_number.h"
#include "text/jinja/jinja_string.h"
#include "text/jinja/jinja_text.h"

static bool given(const jj_value *v) {
    return v->kind != JJ_MISSING && v->kind != JJ_NONE;
}
static bool flag(const jj_value *v) {
    return v->kind != JJ_MISSING && td_jj_truth(v);
}

static int64_t int_arg(jj_state *s, const char *what, const jj_value *v, int64_t otherwise) {
    int64_t i;
    if (v->kind == JJ_MISSING) return otherwise;
    if (!td_jj_as_int(v, &i)) td_jj_fail(s, TD_EINVAL, "%s: an integer is required, not '%s'", what, td_jj_type(v));
    return i;
}

static const jj_str *text_of(jj_state *s, const jj_value *v) {
    return td_jj_to_str(s, v).u.s;
}

/* ---- any value ---- */

static jj_value f_default(jj_state *s, jj_value v, const jj_args *args) {
    jj_value a[2];
    td_jj_bind(s, "default", args, "default_value boolean", 0, a);
    if (v.kind != JJ_UNDEFINED && !(flag(&a[1]) && !td_jj_truth(&v))) return v;
    return a[0].kind == JJ_MISSING ? td_jj_str(s, "", 0) : a[0];
}

static jj_value f_string(jj_state *s, jj_value v, const jj_args *args) {
    td_jj_bind(s, "string", args, "", 0, NULL);
    return td_jj_to_str(s, &v);
}

static jj_value f_length(jj_state *s, jj_value v, const jj_args *args) {
    size_t len;
    td_jj_bind(s, "length", args, "", 0, NULL);
    if (v.kind == JJ_LOOP) return jj_int((int64_t)td_jj_loop_length(s, v.u.loop));
    if (!td_jj_len(&v, &len)) td_jj_fail(s, TD_EINVAL, "object of type '%s' has no len()", td_jj_type(&v));
    td_jj_charge(s, v.kind == JJ_STR ? v.u.s->n / 64 : 0);
    return jj_int((int64_t)len);
}

static jj_value f_attr(jj_state *s, jj_value v, const jj_args *args) {
    jj_value name;
    td_jj_bind(s, "attr", args, "name", 1, &name);
    if (name.kind != JJ_STR) td_jj_fail(s, TD_EINVAL, "attr: the name of an attribute must be a string");
    if (v.kind == JJ_DICT) { /* attributes only, no items */
        jj_value method;
        if (td_jj_find_method(s, &v, name.u.s, &method)) return method;
        return td_jj_undefined(s, "dict object", name);
    }
    return td_jj_getattr(s, v, name.u.s);
}

/* ---- numbers ---- */

static jj_value f_abs(jj_state *s, jj_value v, const jj_args *args) {
    int64_t i;
    td_jj_bind(s, "abs", args, "", 0, NULL);
    if (v.kind == JJ_FLOAT) return jj_float(fabs(v.u.f));
    if (td_jj_as_int(&v, &i)) return i < 0 ? td_jj_negate(s, &v, false) : jj_int(i);
    td_jj_fail(s, TD_EINVAL, "bad operand type for abs(): '%s'", td_jj_type(&v));
}

static bool to_float(jj_state *s, const jj_value *v, double *f) {
    if (v->kind == JJ_UNDEFINED) td_jj_fail_undefined(s, v);
    return td_jj_is_number(v, f) || (v->kind == JJ_STR && td_jj_parse_float(s, v->u.s, f));
}

static jj_value f_int(jj_state *s, jj_value v, const jj_args *args) {
    jj_value a[2];
    int64_t  i;
    double   f;
    td_jj_bind(s, "int", args, "default base", 0, a);
    int64_t base = int_arg(s, "int", &a[1], 10);
    if (base != 0 && (base < 2 || base > 36)) td_jj_fail(s, TD_EINVAL, "int: the base must be 0 or 2 to 36");
    if (td_jj_as_int(&v, &i)) return jj_int(i);
    if (v.kind == JJ_STR && td_jj_parse_int(s, v.u.s, (int)base, &i)) return jj_int(i);
    if (to_float(s, &v, &f) && td_jj_float_to_int(s, f, &i)) return jj_int(i);
    return a[0].kind == JJ_MISSING ? jj_int(0) : a[0];
}

static jj_value f_float(jj_state *s, jj_value v, const jj_args *args) {
    jj_value a;
    double   f;
    td_jj_bind(s, "float", args, "default", 0, &a);
    if (to_float(s, &v, &f)) return jj_float(f);
    return a.kind == JJ_MISSING ? jj_float(0) : a;
}

/* round(i, -digits) for an integer: to tens, hundreds, …, a tie to even. */
static jj_value round_int(jj_state *s, int64_t i, int64_t digits) {
    jj_value n = jj_int(i), ten = jj_int(10), power = jj_int(digits);
    if (digits <= 0) return n;
    if (digits > 18) return jj_int(0);
    jj_value unit = td_jj_arith(s, JJ_POW, &ten, &power);
    int64_t  below = td_jj_arith(s, JJ_MOD, &n, &unit).u.i, up = unit.u.i - below;
    jj_value floor_part = jj_int(i < INT64_MIN + below ? 0 : i - below);
    bool     odd = (floor_part.u.i / unit.u.i) % 2 != 0;
    return below > up || (below == up && odd) ? td_jj_arith(s, JJ_ADD, &floor_part, &unit) : floor_part;
}

/* round(f, digits): correctly rounded, a tie of the exact binary value to even, which is what printf does. */
static double round_float(double f, int64_t digits) {
    char text[400];
    if (!isfinite(f) || digits > 300) return f;
    if (digits >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)(digits > 60 ? 60 : digits), f);
        return digits > 60 ? f : strtod(text, NULL);
    }
    if (digits < -308) return copysign(0, f);
    double unit = pow(10, (double)-digits);
    return nearbyint(f / unit) * unit;
}

static jj_value f_round(jj_state *s, jj_value v, const jj_args *args) {
    jj_value a[2];
    int64_t  i;
    double   f;
    td_jj_bind(s, "round", args, "precision method", 0, a);
    int64_t digits = int_arg(s, "round", &a[0], 0);
    bool    ceiling = a[1].kind == JJ_STR && td_jj_str_is(a[1].u.s, "ceil");
    bool    floored = a[1].kind == JJ_STR && td_jj_str_is(a[1].u.s, "floor");
    bool    common = a[1].kind == JJ_MISSING || (a[1].kind == JJ_STR && td_jj_str_is(a[1].u.s, "common"));
    if (!ceiling && !floored && !common) td_jj_fail(s, TD_EINVAL, "method must be common, ceil or floor");
    if (v.kind == JJ_UNDEFINED) td_jj_fail_undefined(s, &v);
    if (!td_jj_is_number(&v, &f)) td_jj_fail(s, TD_EINVAL, "type %s doesn't define __round__ method", td_jj_type(&v));
    if (common && td_jj_as_int(&v, &i)) return round_int(s, i, digits < -18 ? 19 : -digits);
    if (common) return jj_float(round_float(f, digits));
    double unit = pow(10, (double)digits);
    if (!isfinite(f * unit) || unit == 0) td_jj_fail(s, TD_EINVAL, "round: the number is out of range");
    double whole = ceiling ? ceil(f * unit) : floor(f * unit);
    return jj_float((whole == 0 ? 0 : whole) / unit); /* Python's ceil gives an int, which has no -0 */
}

/* ---- texts ---- */

static jj_value f_trim(jj_state *s, jj_value v, const jj_args *args) {
    jj_value a;
    td_jj_bind(s, "trim", args, "chars", 0, &a);
    if (given(&a) && a.kind != JJ_STR) td_jj_fail(s, TD_EINVAL, "strip arg must be None or str");
    return td_jj_strip(s, text_of(s, &v), given(&a) ? a.u.s : NULL, JJ_STRIP_LEFT | JJ_STRIP_RIGHT);
}

static jj_value f_upper(jj_state *s, jj_value v, const jj_args *args) {
    td_jj_bind(s, "upper", args, "", 0, NULL);
    return td_jj_upper(s, text_of(s, &v));
}

static jj_value f_lower(jj_state *s, jj_value v, const jj_args *args) {
    td_jj_bind(s, "lower", args, "", 0, NULL);
    return td_jj_lower(s, text_of(s, &v));
}

static jj_value f_capitalize(jj_state *s, jj_value v, const jj_args *args) {
    td_jj_bind(s, "capitalize", args, "", 0, NULL);
    return td_jj_capitalize(s, text_of(s, &v));
}

static jj_value f_title(jj_state *s, jj_value v, const jj_args *args) {
    td_jj_bind(s, "title", args, "", 0, NULL);
    return td_jj_title_filter(s, text_of(s, &v));
}

static jj_value f_center(jj_state *s, jj_value v, const jj_args *args) {
    jj_value a;
    td_jj_bind(s, "center", args, "width", 0, &a);
    return td_jj_center(s, text_of(s, &v), int_arg(s, "center", &a, 80));
}

static jj_value f_replace(jj_state *s, jj_value v, const jj_args *args) {
    jj_value a[3];
    td_jj_bind(s, "replace", args, "old new count", 2, a);
    return td_jj_replace(s, text_of(s, &v), text_of(s, &a[0]), text_of(s, &a[1]),
                         given(&a[2]) ? int_arg(s, "replace", &a[2], -1) : -1);
}

static jj_value f_indent(jj_state *s, jj_value v, const jj_args *args) {
    jj_value a[3], blank = td_jj_str(s, " ", 1);
    jj_buf   b = {0};
    td_jj_bind(s, "indent", args, "width first blank", 0, a);
    if (v.kind == JJ_UNDEFINED) td_jj_fail_undefined(s, &v);
    if (v.kind != JJ_STR) td_jj_fail(s, TD_EINVAL, "indent: a str is required, not '%s'", td_jj_type(&v));
    jj_value width = a[0].kind == JJ_MISSING ? jj_int(4) : a[0];
    jj_value indention = width.kind == JJ_STR ? width : td_jj_arith(s, JJ_MUL, &blank, &width);
    jj_value ended = td_jj_str(s, "\n", 1);
    ended = td_jj_arith(s, JJ_ADD, &v, &ended); /* so that an empty last line counts */
    const jj_list *lines = td_jj_splitlines(s, ended.u.s, false).u.list;
    for (size_t k = 0; k < lines->n; k++) {
        const jj_str *line = lines->at[k].u.s;
        if (k) td_jj_put(s, &b, "\n", 1);
        if (k ? line->n || flag(&a[2]) : flag(&a[1])) td_jj_put(s, &b, indention.u.s->p, indention.u.s->n);
        td_jj_put(s, &b, line->p, line->n);
    }
    return td_jj_str_buf(s, &b);
}

static jj_value f_escape(jj_state *s, jj_value v, const jj_args *args) {
    const jj_str *str = text_of(s, &v);
    jj_buf        b = {0};
    td_jj_bind(s, "escape", args, "", 0, NULL);
    td_jj_charge(s, str->n / 8);
    for (size_t k = 0; k < str->n; k++) {
        switch (str->p[k]) {
            case '&': td_jj_puts(s, &b, "&amp;"); break;
            case '<': td_jj_puts(s, &b, "&lt;"); break;
            case '>': td_jj_puts(s, &b, "&gt;"); break;
            case '"': td_jj_puts(s, &b, "&#34;"); break;
            case '\'': td_jj_puts(s, &b, "&#39;"); break;
            default: td_jj_put(s, &b, &str->p[k], 1);
        }
    }
    return td_jj_str_buf(s, &b);
}

static jj_value f_join(jj_state *s, jj_value v, const jj_args *args) {
    jj_value a[2];
    td_jj_bind(s, "join", args, "d attribute", 0, a);
    if (given(&a[1])) v = td_jj_map_path(s, v, &a[1], NULL);
    return td_jj_join(s, a[0].kind == JJ_MISSING ? td_jj_str(s, "", 0).u.s : text_of(s, &a[0]), v, true);
}

static jj_value f_tojson(jj_state *s, jj_value v, const jj_args *args) {
    return td_jj_tojson(s, &v, args);
}

const jj_filter TD_JJ_FILTERS[] = {
    {"abs", f_abs},       {"attr", f_attr},     {"capitalize", f_capitalize}, {"center", f_center},
    {"count", f_length},  {"d", f_default},     {"default", f_default},       {"e", f_escape},
    {"escape", f_escape}, {"float", f_float},   {"indent", f_indent},         {"int", f_int},
    {"join", f_join},     {"length", f_length}, {"lower", f_lower},           {"replace", f_replace},
    {"round", f_round},   {"safe", f_string},   {"string", f_string},         {"title", f_title},
    {"tojson", f_tojson}, {"trim", f_trim},     {"upper", f_upper},           {NULL, NULL},
};
