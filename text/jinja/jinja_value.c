/* Values of a template: making, comparing, passing over, binding arguments. */
#include "text/jinja/jinja_value.h"

#include <math.h>
#include <string.h>

#include "text/jinja/jinja_utf8.h"

static uint64_t hash_bytes(const char *p, size_t n) { /* FNV-1a */
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)p[i]) * 1099511628211u;
    return h;
}

/* ---- making ---- */

jj_value td_jj_str(jj_state *s, const char *p, size_t n) {
    td_jj_check_text(s, n);
    jj_str *str = td_jj_alloc(s, sizeof *str);
    *str = (jj_str){p ? p : "", n, 0};
    return (jj_value){JJ_STR, {.s = str}};
}

jj_value td_jj_str_copy(jj_state *s, const char *p, size_t n) {
    char *copy = td_jj_alloc(s, n + 1);
    if (n) memcpy(copy, p, n);
    copy[n] = 0;
    return td_jj_str(s, copy, n);
}

jj_value td_jj_str_buf(jj_state *s, const jj_buf *b) {
    return td_jj_str(s, b->p, b->n);
}

jj_value td_jj_list(jj_state *s, jj_kind kind) {
    return (jj_value){kind, {.list = td_jj_calloc(s, 1, sizeof(jj_list))}};
}

void td_jj_append(jj_state *s, jj_list *list, jj_value v) {
    list->at = td_jj_grow(s, list->at, list->n, &list->cap, sizeof v);
    list->at[list->n++] = v;
}

jj_value td_jj_pair(jj_state *s, jj_value a, jj_value b) {
    jj_value pair = td_jj_list(s, JJ_TUPLE);
    td_jj_append(s, pair.u.list, a);
    td_jj_append(s, pair.u.list, b);
    return pair;
}

jj_value td_jj_iter_over(jj_state *s, const jj_list *list) {
    jj_iter *it = td_jj_alloc(s, sizeof *it);
    *it = (jj_iter){list, 0};
    return (jj_value){JJ_ITER, {.iter = it}};
}

jj_value td_jj_dict(jj_state *s, jj_kind kind) {
    return (jj_value){kind, {.dict = td_jj_calloc(s, 1, sizeof(jj_dict))}};
}

jj_value td_jj_undefined(jj_state *s, const char *owner, jj_value name) {
    jj_undef *u = td_jj_alloc(s, sizeof *u);
    *u = (jj_undef){NULL, owner, name};
    return (jj_value){JJ_UNDEFINED, {.undef = u}};
}

jj_value td_jj_undefined_hint(jj_state *s, const char *hint) {
    jj_undef *u = td_jj_alloc(s, sizeof *u);
    *u = (jj_undef){hint, NULL, JJ_NONE_VALUE};
    return (jj_value){JJ_UNDEFINED, {.undef = u}};
}

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

/* ---- looking ---- */

bool td_jj_len(const jj_value *v, size_t *len) {
    switch (v->kind) {
        case JJ_UNDEFINED: *len = 0; return true;
        case JJ_STR: *len = td_jj_utf8_len(v->u.s->p, v->u.s->n); return true;
        case JJ_LIST:
        case JJ_TUPLE: *len = v->u.list->n; return true;
        case JJ_RANGE: *len = v->u.range->n; return true;
        case JJ_DICT: *len = v->u.dict->n; return true;
        case JJ_VIEW: *len = v->u.view->list->n; return true;
        default: return false;
    }
}

bool td_jj_truth(const jj_value *v) {
    size_t len;
    switch (v->kind) {
        case JJ_NONE: return false;
        case JJ_BOOL: return v->u.b;
        case JJ_INT: return v->u.i != 0;
        case JJ_FLOAT: return v->u.f != 0;
        case JJ_STR: return v->u.s->n != 0;
        default: return td_jj_len(v, &len) ? len != 0 : true;
    }
}

const char *td_jj_type(const jj_value *v) {
    switch (v->kind) {
        case JJ_MISSING: return "missing";
        case JJ_UNDEFINED: return "Undefined";
        case JJ_NONE: return "NoneType";
        case JJ_BOOL: return "bool";
        case JJ_INT: return "int";
        case JJ_FLOAT: return "float";
        case JJ_STR: return "str";
        case JJ_LIST: return "list";
        case JJ_TUPLE: return "tuple";
        case JJ_RANGE: return "range";
        case JJ_DICT: return "dict";
        case JJ_VIEW: return v->u.view->name;
        case JJ_ITER: return "generator";
        case JJ_NAMESPACE: return "Namespace";
        case JJ_LOOP: return "LoopContext";
        case JJ_MACRO: return "Macro";
        case JJ_FUNCTION: return "function";
        case JJ_METHOD: return "builtin_function_or_method";
    }
    return "object";
}

bool td_jj_as_int(const jj_value *v, int64_t *i) {
    if (v->kind == JJ_INT)
        *i = v->u.i;
    else if (v->kind == JJ_BOOL)
        *i = v->u.b;
    else
        return false;
    return true;
}

bool td_jj_is_number(const jj_value *v, double *f) {
    int64_t i;
    if (td_jj_as_int(v, &i))
        *f = (double)i;
    else if (v->kind == JJ_FLOAT)
        *f = v->u.f;
    else
        return false;
    return true;
}

bool td_jj_str_is(const jj_str *a, const char *b) {
    return a->n == strlen(b) && !memcmp(a->p, b, a->n);
}

bool td_jj_str_equal(const jj_str *a, const jj_str *b) {
    return a == b || (a->n == b->n && (a->n == 0 || !memcmp(a->p, b->p, a->n)));
}

/* Order of two numbers; false where one is NaN. */
static bool compare_numbers(const jj_value *a, const jj_value *b, int *order) {
    int64_t i, j;
    bool    a_int = td_jj_as_int(a, &i), b_int = td_jj_as_int(b, &j);
    if (a_int && b_int) {
        *order = (i > j) - (i < j);
    } else if (a_int) {
        if (isnan(b->u.f)) return false;
        *order = td_jj_compare_int_float(i, b->u.f);
    } else if (b_int) {
        if (isnan(a->u.f)) return false;
        *order = -td_jj_compare_int_float(j, a->u.f);
    } else {
        if (isnan(a->u.f) || isnan(b->u.f)) return false;
        *order = (a->u.f > b->u.f) - (a->u.f < b->u.f);
    }
    return true;
}

static bool equal_items(jj_state *s, const jj_list *a, const jj_list *b) {
    if (a == b) return true;
    if (a->n != b->n) return false;
    for (size_t k = 0; k < a->n; k++)
        if (!td_jj_equal(s, &a->at[k], &b->at[k])) return false;
    return true;
}

static bool equal_dicts(jj_state *s, const jj_dict *a, const jj_dict *b) {
    if (a == b) return true;
    if (a->n != b->n) return false;
    for (size_t k = 0; k < a->n; k++) {
        const jj_value *other = td_jj_dict_get(s, b, &a->at[k].key);
        if (!other || !td_jj_equal(s, &a->at[k].value, other)) return false;
    }
    return true;
}

static bool equal_ranges(const jj_range *a, const jj_range *b) {
    if (a->n != b->n) return false;
    if (a->n == 0) return true;
    return a->start == b->start && (a->n == 1 || a->step == b->step);
}

bool td_jj_equal(jj_state *s, const jj_value *a, const jj_value *b) {
    double x, y;
    int    order;
    td_jj_charge(s, 1);
    if (td_jj_is_number(a, &x) && td_jj_is_number(b, &y)) return compare_numbers(a, b, &order) && order == 0;
    if (a->kind != b->kind) return false;
    bool same;
    switch (a->kind) {
        case JJ_UNDEFINED:
        case JJ_NONE: return true;
        case JJ_STR: td_jj_charge(s, a->u.s->n / 64); return td_jj_str_equal(a->u.s, b->u.s);
        case JJ_RANGE: return equal_ranges(a->u.range, b->u.range);
        case JJ_LIST:
        case JJ_TUPLE:
            td_jj_enter(s);
            same = equal_items(s, a->u.list, b->u.list);
            td_jj_leave(s);
            return same;
        case JJ_DICT:
            td_jj_enter(s);
            same = equal_dicts(s, a->u.dict, b->u.dict);
            td_jj_leave(s);
            return same;
        default: return a->u.list == b->u.list; /* identity */
    }
}

static bool less_items(jj_state *s, const jj_list *a, const jj_list *b, const char *op, bool or_equal) {
    size_t n = a->n < b->n ? a->n : b->n;
    for (size_t k = 0; k < n; k++)
        if (!td_jj_equal(s, &a->at[k], &b->at[k])) return td_jj_less(s, &a->at[k], &b->at[k], op);
    return or_equal ? a->n <= b->n : a->n < b->n;
}

bool td_jj_less(jj_state *s, const jj_value *a, const jj_value *b, const char *op) {
    double x, y;
    int    order;
    bool   or_equal = op[1] == '=';
    td_jj_charge(s, 1);
    if (a->kind == JJ_UNDEFINED) td_jj_fail_undefined(s, a);
    if (b->kind == JJ_UNDEFINED) td_jj_fail_undefined(s, b);
    if (td_jj_is_number(a, &x) && td_jj_is_number(b, &y))
        return compare_numbers(a, b, &order) && (order < 0 || (or_equal && order == 0));
    if (a->kind == b->kind && a->kind == JJ_STR) { /* the order of UTF-8 bytes is that of code points */
        const jj_str *p = a->u.s, *q = b->u.s;
        size_t        n = p->n < q->n ? p->n : q->n;
        td_jj_charge(s, n / 64);
        order = n ? memcmp(p->p, q->p, n) : 0;
        if (order == 0) order = (p->n > q->n) - (p->n < q->n);
        return order < 0 || (or_equal && order == 0);
    }
    if (a->kind == b->kind && (a->kind == JJ_LIST || a->kind == JJ_TUPLE)) {
        td_jj_enter(s);
        bool less = less_items(s, a->u.list, b->u.list, op, or_equal);
        td_jj_leave(s);
        return less;
    }
    td_jj_fail(s, TD_EINVAL, "'%s' not supported between instances of '%s' and '%s'", op, td_jj_type(a), td_jj_type(b));
}

bool td_jj_contains(jj_state *s, jj_value container, const jj_value *item) {
    if (container.kind == JJ_STR) {
        if (item->kind != JJ_STR)
            td_jj_fail(s, TD_EINVAL, "'in <string>' requires string as left operand, not %s", td_jj_type(item));
        td_jj_charge(s, container.u.s->n / 64);
        return item->u.s->n == 0 || memmem(container.u.s->p, container.u.s->n, item->u.s->p, item->u.s->n);
    }
    if (container.kind == JJ_DICT) {
        if (!td_jj_hashable(s, item)) td_jj_fail(s, TD_EINVAL, "unhashable type: '%s'", td_jj_type(item));
        return td_jj_dict_get(s, container.u.dict, item) != NULL;
    }
    if (!td_jj_iterable(&container))
        td_jj_fail(s, TD_EINVAL, "argument of type '%s' is not iterable", td_jj_type(&container));
    jj_value  v;
    jj_cursor c = td_jj_begin(s, container);
    while (td_jj_next(s, &c, &v))
        if (td_jj_equal(s, &v, item)) return true;
    return false;
}

/* ---- dicts ---- */

bool td_jj_hashable(jj_state *s, const jj_value *v) {
    if (v->kind == JJ_LIST || v->kind == JJ_DICT || v->kind == JJ_VIEW) return false;
    if (v->kind != JJ_TUPLE) return true;
    bool all = true;
    td_jj_enter(s);
    for (size_t k = 0; k < v->u.list->n && all; k++) all = td_jj_hashable(s, &v->u.list->at[k]);
    td_jj_leave(s);
    return all;
}

void td_jj_hash(jj_str *str) {
    str->hash = hash_bytes(str->p, str->n) | 1;
}

/* Equal values have equal hashes; 1, 1.0 and True are equal. */
static uint64_t hash_of(const jj_value *v) {
    double f;
    if (v->kind == JJ_STR) {
        if (!v->u.s->hash)
            td_jj_hash((jj_str *)v->u.s); /* a string of this rendering: a template's own were hashed while compiling */
        return v->u.s->hash;
    }
    if (td_jj_is_number(v, &f)) return f >= 0 && f < 1e18 ? (uint64_t)f : 7;
    return (uint64_t)v->kind;
}

static jj_value *find(jj_state *s, const jj_dict *d, const jj_value *key, uint64_t hash) {
    td_jj_charge(s, d->n / 16);
    for (size_t k = 0; k < d->n; k++)
        if (d->at[k].hash == hash && td_jj_equal(s, &d->at[k].key, key)) return &d->at[k].value;
    return NULL;
}

jj_value *td_jj_dict_get(jj_state *s, const jj_dict *d, const jj_value *key) {
    if (!d->n) return NULL;
    if (key->kind == JJ_STR && !key->u.s->hash) td_jj_charge(s, key->u.s->n / 64);
    return find(s, d, key, hash_of(key));
}

jj_value *td_jj_dict_get_str(jj_state *s, const jj_dict *d, const jj_str *key) {
    jj_value v = {JJ_STR, {.s = key}};
    return td_jj_dict_get(s, d, &v);
}

void td_jj_dict_add(jj_state *s, jj_dict *d, jj_value key, jj_value value) {
    d->at = td_jj_grow(s, d->at, d->n, &d->cap, sizeof *d->at);
    d->at[d->n++] = (jj_item){key, value, hash_of(&key)};
}

void td_jj_dict_set(jj_state *s, jj_dict *d, jj_value key, jj_value value) {
    if (!td_jj_hashable(s, &key)) td_jj_fail(s, TD_EINVAL, "unhashable type: '%s'", td_jj_type(&key));
    jj_value *old = td_jj_dict_get(s, d, &key);
    if (old)
        *old = value;
    else
        td_jj_dict_add(s, d, key, value);
}

/* ---- passing over ---- */

bool td_jj_iterable(const jj_value *v) {
    switch (v->kind) {
        case JJ_UNDEFINED:
        case JJ_STR:
        case JJ_LIST:
        case JJ_TUPLE:
        case JJ_RANGE:
        case JJ_DICT:
        case JJ_VIEW:
        case JJ_ITER: return true;
        default: return false;
    }
}

jj_cursor td_jj_begin(jj_state *s, jj_value v) {
    if (!td_jj_iterable(&v)) td_jj_fail(s, TD_EINVAL, "'%s' object is not iterable", td_jj_type(&v));
    return (jj_cursor){v, 0};
}

bool td_jj_next(jj_state *s, jj_cursor *c, jj_value *out) {
    td_jj_charge(s, 1);
    const jj_list *list = NULL;
    switch (c->over.kind) {
        case JJ_STR: {
            const jj_str *str = c->over.u.s;
            if (c->pos >= str->n) return false;
            size_t n = td_jj_utf8_size(str->p[c->pos]);
            *out = td_jj_str(s, str->p + c->pos, n);
            c->pos += n;
            return true;
        }
        case JJ_LIST:
        case JJ_TUPLE: list = c->over.u.list; break;
        case JJ_VIEW: list = c->over.u.view->list; break;
        case JJ_RANGE:
            if (c->pos >= c->over.u.range->n) return false;
            *out = jj_int(c->over.u.range->start + (int64_t)c->pos++ * c->over.u.range->step);
            return true;
        case JJ_DICT:
            if (c->pos >= c->over.u.dict->n) return false;
            *out = c->over.u.dict->at[c->pos++].key;
            return true;
        case JJ_ITER: {
            jj_iter *it = c->over.u.iter;
            if (it->pos >= it->list->n) return false;
            *out = it->list->at[it->pos++];
            return true;
        }
        default: return false; /* undefined: empty */
    }
    if (c->pos >= list->n) return false;
    *out = list->at[c->pos++];
    return true;
}

jj_value td_jj_to_list(jj_state *s, jj_value v) {
    jj_value  item, list = td_jj_list(s, JJ_LIST);
    jj_cursor c = td_jj_begin(s, v);
    while (td_jj_next(s, &c, &item)) td_jj_append(s, list.u.list, item);
    return list;
}

/* ---- arguments ---- */

void td_jj_bind(jj_state *s, const char *what, const jj_args *args, const char *params, size_t n_required, jj_value *out) {
    size_t   n = 0;
    uint64_t taken = 0; /* keywords that named a parameter */
    for (const char *p = params; *p; n++) {
        size_t len = strcspn(p, " ");
        out[n] = n < args->n ? args->at[n] : (jj_value){JJ_MISSING, {.i = 0}};
        for (size_t k = 0; k < args->n_kw; k++) {
            const jj_str *key = args->kw[k].key.u.s;
            if (key->n != len || memcmp(key->p, p, len)) continue;
            if (n < args->n) td_jj_fail(s, TD_EINVAL, "%s() got multiple values for argument '%.*s'", what, (int)len, p);
            out[n] = args->kw[k].value;
            taken |= (uint64_t)1 << (k & 63);
        }
        if (n < n_required && out[n].kind == JJ_MISSING)
            td_jj_fail(s, TD_EINVAL, "%s() missing the argument '%.*s'", what, (int)len, p);
        p += len;
        if (*p) p++;
    }
    if (args->n > n) td_jj_fail(s, TD_EINVAL, "%s() takes at most %zu arguments, %zu were given", what, n, args->n);
    for (size_t k = 0; k < args->n_kw; k++)
        if (k > 63 || !(taken >> k & 1))
            td_jj_fail(s, TD_EINVAL, "%s() got an unexpected keyword argument '%.*s'", what,
                       (int)(args->kw[k].key.u.s->n < 100 ? args->kw[k].key.u.s->n : 100), args->kw[k].key.u.s->p);
}
