/* The tests of "x is test". */
#include "text/jinja/jinja_builtins.h"
#include "text/jinja/jinja_compare.h"
#include "text/jinja/jinja_number.h"
#include "text/jinja/jinja_string.h"
#include "text/jinja/jinja_text.h"

static bool is_defined(jj_state *s, jj_value v, const jj_value *arg) {
    (void)s, (void)arg;
    return v.kind != JJ_UNDEFINED;
}
static bool is_undefined(jj_state *s, jj_value v, const jj_value *arg) {
    (void)s, (void)arg;
    return v.kind == JJ_UNDEFINED;
}
static bool is_none(jj_state *s, jj_value v, const jj_value *arg) {
    (void)s, (void)arg;
    return v.kind == JJ_NONE;
}
static bool is_boolean(jj_state *s, jj_value v, const jj_value *arg) {
    (void)s, (void)arg;
    return v.kind == JJ_BOOL;
}
static bool is_true(jj_state *s, jj_value v, const jj_value *arg) {
    (void)s, (void)arg;
    return v.kind == JJ_BOOL && v.u.b;
}
static bool is_false(jj_state *s, jj_value v, const jj_value *arg) {
    (void)s, (void)arg;
    return v.kind == JJ_BOOL && !v.u.b;
}
static bool is_integer(jj_state *s, jj_value v, const jj_value *arg) {
    (void)s, (void)arg;
    return v.kind == JJ_INT;
}
static bool is_float(jj_state *s, jj_value v, const jj_value *arg) {
    (void)s, (void)arg;
    return v.kind == JJ_FLOAT;
}
static bool is_string(jj_state *s, jj_value v, const jj_value *arg) {
    (void)s, (void)arg;
    return v.kind == JJ_STR;
}
static bool is_mapping(jj_state *s, jj_value v, const jj_value *arg) {
    (void)s, (void)arg;
    return v.kind == JJ_DICT;
}
static bool is_iterable(jj_state *s, jj_value v, const jj_value *arg) {
    (void)s, (void)arg;
    return td_jj_iterable(&v);
}

static bool is_number(jj_state *s, jj_value v, const jj_value *arg) {
    double f;
    (void)s, (void)arg;
    return td_jj_is_number(&v, &f);
}

static bool is_sequence(jj_state *s, jj_value v, const jj_value *arg) {
    size_t len;
    (void)s, (void)arg;
    return v.kind != JJ_VIEW && td_jj_len(&v, &len);
}

static bool is_callable(jj_state *s, jj_value v, const jj_value *arg) {
    (void)s, (void)arg;
    return v.kind == JJ_MACRO || v.kind == JJ_FUNCTION || v.kind == JJ_METHOD || v.kind == JJ_UNDEFINED || v.kind == JJ_LOOP;
}

static bool is_escaped(jj_state *s, jj_value v, const jj_value *arg) {
    (void)s, (void)v, (void)arg;
    return false;
}

static bool is_lower(jj_state *s, jj_value v, const jj_value *arg) {
    (void)arg;
    return td_jj_is_cased(s, td_jj_to_str(s, &v).u.s, false);
}

static bool is_upper(jj_state *s, jj_value v, const jj_value *arg) {
    (void)arg;
    return td_jj_is_cased(s, td_jj_to_str(s, &v).u.s, true);
}

/* v % n, for any numbers. */
static bool remainder_is(jj_state *s, jj_value v, jj_value n, int64_t expected) {
    jj_value r = td_jj_arith(s, JJ_MOD, &v, &n), e = jj_int(expected);
    return td_jj_equal(s, &r, &e);
}

static bool is_odd(jj_state *s, jj_value v, const jj_value *arg) {
    (void)arg;
    return remainder_is(s, v, jj_int(2), 1);
}
static bool is_even(jj_state *s, jj_value v, const jj_value *arg) {
    (void)arg;
    return remainder_is(s, v, jj_int(2), 0);
}
static bool is_divisibleby(jj_state *s, jj_value v, const jj_value *arg) {
    return remainder_is(s, v, arg[0], 0);
}

static bool is_equal(jj_state *s, jj_value v, const jj_value *arg) {
    return td_jj_equal(s, &v, &arg[0]);
}
static bool is_not_equal(jj_state *s, jj_value v, const jj_value *arg) {
    return !td_jj_equal(s, &v, &arg[0]);
}
static bool is_less(jj_state *s, jj_value v, const jj_value *arg) {
    return td_jj_less(s, &v, &arg[0], "<");
}
static bool is_at_most(jj_state *s, jj_value v, const jj_value *arg) {
    return td_jj_less(s, &v, &arg[0], "<=");
}
static bool is_greater(jj_state *s, jj_value v, const jj_value *arg) {
    return td_jj_less(s, &arg[0], &v, ">");
}
static bool is_at_least(jj_state *s, jj_value v, const jj_value *arg) {
    return td_jj_less(s, &arg[0], &v, ">=");
}
static bool is_in(jj_state *s, jj_value v, const jj_value *arg) {
    return td_jj_contains(s, arg[0], &v);
}

/* Identity. Python keeps small integers and many strings once, so equal scalars count as the same object. */
static bool is_sameas(jj_state *s, jj_value v, const jj_value *arg) {
    if (v.kind != arg[0].kind) return false;
    if (v.kind == JJ_LIST || v.kind == JJ_TUPLE) return v.u.list == arg[0].u.list;
    if (v.kind == JJ_DICT) return v.u.dict == arg[0].u.dict;
    return td_jj_equal(s, &v, &arg[0]);
}

static bool names_filter(jj_state *s, jj_value v, const jj_value *arg) {
    (void)arg;
    return v.kind == JJ_STR && td_jj_find_filter(s, v.u.s);
}

static bool names_test(jj_state *s, jj_value v, const jj_value *arg) {
    (void)arg;
    return v.kind == JJ_STR && td_jj_find_test(s, v.u.s);
}

const jj_test TD_JJ_TESTS[] = {
    {"defined", is_defined, 0},   {"undefined", is_undefined, 0},
    {"none", is_none, 0},         {"boolean", is_boolean, 0},
    {"true", is_true, 0},         {"false", is_false, 0},
    {"integer", is_integer, 0},   {"float", is_float, 0},
    {"number", is_number, 0},     {"string", is_string, 0},
    {"mapping", is_mapping, 0},   {"iterable", is_iterable, 0},
    {"sequence", is_sequence, 0}, {"callable", is_callable, 0},
    {"escaped", is_escaped, 0},   {"lower", is_lower, 0},
    {"upper", is_upper, 0},       {"odd", is_odd, 0},
    {"even", is_even, 0},         {"divisibleby", is_divisibleby, 1},
    {"eq", is_equal, 1},          {"equalto", is_equal, 1},
    {"==", is_equal, 1},          {"ne", is_not_equal, 1},
    {"!=", is_not_equal, 1},      {"lt", is_less, 1},
    {"lessthan", is_less, 1},     {"<", is_less, 1},
    {"le", is_at_most, 1},        {"<=", is_at_most, 1},
    {"gt", is_greater, 1},        {"greaterthan", is_greater, 1},
    {">", is_greater, 1},         {"ge", is_at_least, 1},
    {">=", is_at_least, 1},       {"in", is_in, 1},
    {"sameas", is_sameas, 1},     {"filter", names_filter, 0},
    {"test", names_test, 0},      {NULL, NULL, 0},
};
