/* Values of a template: making, looking, passing over, binding arguments. */
#include "text/jinja/jinja_value.h"

#include <string.h>

#include "text/jinja/jinja_utf8.h"

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
