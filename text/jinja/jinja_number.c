/* Numbers of a template: 64-bit integers (an overflow is an error where Python would grow) and doubles. */
#include "text/jinja/jinja_number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/jinja_text.h"
#include "text/jinja/jinja_utf8.h"

static const char *const OP_TEXT[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

_Noreturn static void overflow(jj_state *s) {
    td_jj_fail(s, TD_EINVAL, "an integer does not fit 64 bits");
}

static jj_value floor_div(jj_state *s, int64_t a, int64_t b) {
    if (b == 0) td_jj_fail(s, TD_EINVAL, "integer division or modulo by zero");
    if (a == INT64_MIN && b == -1) overflow(s);
    int64_t q = a / b;
    return jj_int(q - ((a % b != 0) && ((a < 0) != (b < 0))));
}

static jj_value modulo(jj_state *s, int64_t a, int64_t b) {
    if (b == 0) td_jj_fail(s, TD_EINVAL, "integer division or modulo by zero");
    if (b == -1) return jj_int(0);
    int64_t r = a % b;
    return jj_int(r != 0 && (r < 0) != (b < 0) ? r + b : r);
}

static jj_value float_pow(jj_state *s, double a, double b) {
    if (a == 0 && b < 0) td_jj_fail(s, TD_EINVAL, "0.0 cannot be raised to a negative power");
    if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b)) td_jj_fail(s, TD_ENOTSUP, "complex numbers are not supported");
    double r = pow(a, b);
    if (isinf(r) && isfinite(a) && isfinite(b)) td_jj_fail(s, TD_EINVAL, "numerical result out of range");
    return jj_float(r);
}

static jj_value int_pow(jj_state *s, int64_t a, int64_t b) {
    if (b < 0) return float_pow(s, (double)a, (double)b);
    int64_t r = 1, base = a;
    if (a == 0 || a == 1) return jj_int(b == 0 ? 1 : a);
    if (a == -1) return jj_int(b % 2 ? -1 : 1);
    for (; b > 0; b >>= 1) { /* |base| >= 2, so this overflows within 64 rounds */
        if ((b & 1) && __builtin_mul_overflow(r, base, &r)) overflow(s);
        if (b > 1 && __builtin_mul_overflow(base, base, &base)) overflow(s);
    }
    return jj_int(r);
}

static jj_value int_arith(jj_state *s, jj_op op, int64_t a, int64_t b) {
    int64_t r = 0;
    bool    over = false;
    switch (op) {
        case JJ_ADD: over = __builtin_add_overflow(a, b, &r); break;
        case JJ_SUB: over = __builtin_sub_overflow(a, b, &r); break;
        case JJ_MUL: over = __builtin_mul_overflow(a, b, &r); break;
        case JJ_DIV:
            if (b == 0) td_jj_fail(s, TD_EINVAL, "division by zero");
            return jj_float((double)((long double)a / (long double)b));
        case JJ_FLOORDIV: return floor_div(s, a, b);
        case JJ_MOD: return modulo(s, a, b);
        case JJ_POW: return int_pow(s, a, b);
    }
    if (over) overflow(s);
    return jj_int(r);
}

static double float_modulo(double a, double b) {
    double r = fmod(a, b);
    if (r == 0) return copysign(0, b);
    return (r < 0) != (b < 0) ? r + b : r;
}

/* Python's float floor division: from the remainder, so that a == (a // b) * b + a % b. */
static double float_floor_div(double a, double b) {
    double r = fmod(a, b), q = (a - r) / b;
    if (r != 0 && (r < 0) != (b < 0)) q -= 1;
    if (q == 0) return copysign(0, a / b);
    double whole = floor(q);
    return q - whole > 0.5 ? whole + 1 : whole;
}

static jj_value float_arith(jj_state *s, jj_op op, double a, double b) {
    if (b == 0 && op == JJ_DIV) td_jj_fail(s, TD_EINVAL, "float division by zero");
    if (b == 0 && op == JJ_FLOORDIV) td_jj_fail(s, TD_EINVAL, "float floor division by zero");
    if (b == 0 && op == JJ_MOD) td_jj_fail(s, TD_EINVAL, "float modulo");
    switch (op) {
        case JJ_ADD: return jj_float(a + b);
        case JJ_SUB: return jj_float(a - b);
        case JJ_MUL: return jj_float(a * b);
        case JJ_DIV: return jj_float(a / b);
        case JJ_FLOORDIV: return jj_float(float_floor_div(a, b));
        case JJ_MOD: return jj_float(float_modulo(a, b));
        case JJ_POW: return float_pow(s, a, b);
    }
    return JJ_NONE_VALUE;
}

static bool is_sequence(const jj_value *v) {
    return v->kind == JJ_STR || v->kind == JJ_LIST || v->kind == JJ_TUPLE;
}

static jj_value concatenate(jj_state *s, const jj_value *a, const jj_value *b) {
    if (a->kind == JJ_STR) {
        size_t n = a->u.s->n + b->u.s->n;
        td_jj_check_text(s, n);
        char *p = td_jj_alloc(s, n);
        if (a->u.s->n) memcpy(p, a->u.s->p, a->u.s->n);
        if (b->u.s->n) memcpy(p + a->u.s->n, b->u.s->p, b->u.s->n);
        return td_jj_str(s, p, n);
    }
    jj_value list = td_jj_list(s, a->kind);
    for (size_t k = 0; k < a->u.list->n; k++) td_jj_append(s, list.u.list, a->u.list->at[k]);
    for (size_t k = 0; k < b->u.list->n; k++) td_jj_append(s, list.u.list, b->u.list->at[k]);
    return list;
}

static jj_value repeat(jj_state *s, const jj_value *v, int64_t times) {
    if (v->kind == JJ_STR) {
        size_t n = v->u.s->n, total;
        if (times <= 0 || !n) return td_jj_str(s, "", 0);
        td_jj_check_text(s, __builtin_mul_overflow(n, (size_t)times, &total) ? SIZE_MAX : total);
        char *p = td_jj_alloc(s, total);
        memcpy(p, v->u.s->p, n);
        for (size_t done = n; done < total; done *= 2) memcpy(p + done, p, done < total - done ? done : total - done);
        return td_jj_str(s, p, total);
    }
    jj_value list = td_jj_list(s, v->kind);
    size_t   n = v->u.list->n;
    for (int64_t t = 0; t < times && n; t++) {
        td_jj_charge(s, n);
        for (size_t k = 0; k < n; k++) td_jj_append(s, list.u.list, v->u.list->at[k]);
    }
    return list;
}

jj_value td_jj_arith(jj_state *s, jj_op op, const jj_value *a, const jj_value *b) {
    int64_t i, j;
    double  x, y;
    bool    a_int = td_jj_as_int(a, &i), b_int = td_jj_as_int(b, &j);
    if (a_int && b_int) return int_arith(s, op, i, j);
    if (td_jj_is_number(a, &x) && td_jj_is_number(b, &y)) return float_arith(s, op, x, y);
    if (op == JJ_MOD && a->kind == JJ_STR) td_jj_fail(s, TD_ENOTSUP, "formatting strings with %% is not supported");
    if (a->kind == JJ_UNDEFINED) td_jj_fail_undefined(s, a);
    if (b->kind == JJ_UNDEFINED) td_jj_fail_undefined(s, b);
    if (op == JJ_ADD && a->kind == b->kind && is_sequence(a)) return concatenate(s, a, b);
    if (op == JJ_MUL && is_sequence(a) && b_int) return repeat(s, a, j);
    if (op == JJ_MUL && is_sequence(b) && a_int) return repeat(s, b, i);
    if (op == JJ_ADD && a->kind == JJ_STR)
        td_jj_fail(s, TD_EINVAL, "can only concatenate str (not \"%s\") to str", td_jj_type(b));
    td_jj_fail(s, TD_EINVAL, "unsupported operand type(s) for %s: '%s' and '%s'", OP_TEXT[op], td_jj_type(a), td_jj_type(b));
}

jj_value td_jj_negate(jj_state *s, const jj_value *v, bool positive) {
    int64_t i;
    if (td_jj_as_int(v, &i)) {
        if (positive) return jj_int(i);
        if (i == INT64_MIN) overflow(s);
        return jj_int(-i);
    }
    if (v->kind == JJ_FLOAT) return jj_float(positive ? v->u.f : -v->u.f);
    if (v->kind == JJ_UNDEFINED) td_jj_fail_undefined(s, v);
    td_jj_fail(s, TD_EINVAL, "bad operand type for unary %c: '%s'", positive ? '+' : '-', td_jj_type(v));
}

bool td_jj_float_to_int(jj_state *s, double f, int64_t *out) {
    if (isnan(f)) return false;
    if (isinf(f)) td_jj_fail(s, TD_EINVAL, "cannot convert float infinity to integer");
    if (!(f >= -0x1p63 && f < 0x1p63)) overflow(s);
    *out = (int64_t)f;
    return true;
}

/* The text without outer white space. */
static jj_str strip(const jj_str *t) {
    const char *p = t->p, *end = t->p + t->n;
    size_t      size;
    while (p < end && td_jj_is_space(td_jj_utf8_get(p, &size))) p += size;
    while (p < end && td_jj_is_space(td_jj_utf8_last(p, (size_t)(end - p), &size))) end -= size;
    return (jj_str){p, (size_t)(end - p), 0};
}

static int digit_of(uint32_t c) {
    if (c >= 'a' && c <= 'z') return (int)c - 'a' + 10;
    if (c >= 'A' && c <= 'Z') return (int)c - 'A' + 10;
    return td_jj_digit_value(c);
}

bool td_jj_parse_int(jj_state *s, const jj_str *text, int base, int64_t *out) {
    td_jj_charge(s, text->n / 16);
    jj_str      t = strip(text);
    const char *p = t.p, *end = t.p + t.n;
    bool        negative = false, digits = false, underscore = false;
    if (p < end && (*p == '+' || *p == '-')) negative = *p++ == '-';
    if (end - p >= 2 && *p == '0') {
        char x = p[1] | 0x20;
        int  named = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 0;
        if (named && (base == named || base == 0)) {
            base = named;
            p += 2;
            if (p < end && *p == '_') p++;
        }
    }
    bool zero_only = base == 0 && p < end && *p == '0'; /* "010" is no number to int(x, 0) */
    if (base == 0) base = 10;
    int64_t value = 0;
    while (p < end) {
        size_t   size;
        uint32_t c = td_jj_utf8_get(p, &size);
        p += size;
        if (c == '_' && digits && !underscore) {
            underscore = true;
            continue;
        }
        int d = digit_of(c);
        if (d < 0 || d >= base || (zero_only && d)) return false;
        if (__builtin_mul_overflow(value, base, &value) || __builtin_sub_overflow(value, d, &value)) overflow(s);
        digits = true;
        underscore = false;
    }
    if (!digits || underscore) return false;
    if (!negative && value == INT64_MIN) overflow(s);
    *out = negative ? value : -value; /* gathered below zero: INT64_MIN has no positive twin */
    return true;
}

bool td_jj_parse_float(jj_state *s, const jj_str *text, double *out) {
    td_jj_charge(s, text->n / 16);
    jj_str t = strip(text);
    char   ascii[512];
    size_t n = 0;
    if (t.n == 0 || t.n >= sizeof ascii) return false;
    for (size_t k = 0; k < t.n; k++) {
        char c = t.p[k];
        bool digit_before = k && t.p[k - 1] >= '0' && t.p[k - 1] <= '9';
        bool digit_after = k + 1 < t.n && t.p[k + 1] >= '0' && t.p[k + 1] <= '9';
        if (c == '_' && digit_before && digit_after) continue;
        if (c == 0 || c == 'x' || c == 'X' || c == '(' || c == '_') return false; /* what strtod takes and Python does not */
        ascii[n++] = c;
    }
    ascii[n] = 0;
    char *end;
    if (td_jj_is_space((unsigned char)ascii[0])) return false;
    *out = strtod(ascii, &end);
    return end == ascii + n;
}
