/* Evaluating expressions. */
#include "text/jinja/jinja_eval.h"

#include "text/jinja/jinja_access.h"
#include "text/jinja/jinja_compare.h"
#include "text/jinja/jinja_text.h"

/* ---- names ---- */

void td_jj_scope_set(jj_state *s, jj_scope *scope, const jj_str *name, jj_value v) {
    td_jj_charge(s, scope->n / 16);
    for (size_t k = 0; k < scope->n; k++)
        if (td_jj_str_equal(scope->vars[k].name, name)) {
            scope->vars[k].value = v;
            return;
        }
    scope->vars = td_jj_grow(s, scope->vars, scope->n, &scope->cap, sizeof *scope->vars);
    scope->vars[scope->n++] = (jj_var){name, v};
}

static jj_value eval_name(jj_render *r, const jj_str *name) {
    for (const jj_scope *scope = r->scope; scope; scope = scope->parent) {
        td_jj_charge(r->s, scope->n / 16 + 1);
        for (size_t k = 0; k < scope->n; k++)
            if (td_jj_str_equal(scope->vars[k].name, name)) return scope->vars[k].value;
    }
    const jj_value *v = td_jj_dict_get_str(r->s, r->vars, name);
    if (v) return *v;
    const jj_function *f = td_jj_find_function(r->s, name);
    if (f) return (jj_value){JJ_FUNCTION, {.function = f}};
    return td_jj_undefined(r->s, NULL, (jj_value){JJ_STR, {.s = name}});
}

/* ---- calls ---- */

static void add_keyword(jj_state *s, jj_dict *kw, const jj_str *name, jj_value v) {
    if (td_jj_dict_get_str(s, kw, name)) td_jj_fail(s, TD_EINVAL, "a keyword argument is given twice");
    td_jj_dict_add(s, kw, (jj_value){JJ_STR, {.s = name}}, v);
}

static jj_args eval_args(jj_render *r, const jj_call *call) {
    jj_state *s = r->s;
    jj_list   at = {0};
    jj_dict   kw = {0};
    if (call->n_args) {
        at.at = td_jj_alloc(s, call->n_args * sizeof *at.at);
        at.cap = call->n_args;
    }
    for (size_t k = 0; k < call->n_args; k++) at.at[at.n++] = td_jj_eval(r, call->args[k]);
    if (call->star) {
        jj_value  v;
        jj_cursor c = td_jj_begin(s, td_jj_eval(r, call->star));
        while (td_jj_next(s, &c, &v)) td_jj_append(s, &at, v);
    }
    for (size_t k = 0; k < call->n_kw; k++) add_keyword(s, &kw, call->kw_names[k], td_jj_eval(r, call->kw_values[k]));
    if (call->star_star) {
        jj_value more = td_jj_eval(r, call->star_star);
        if (more.kind != JJ_DICT)
            td_jj_fail(s, TD_EINVAL, "the argument after ** must be a mapping, not %s", td_jj_type(&more));
        for (size_t k = 0; k < more.u.dict->n; k++) {
            const jj_item *item = &more.u.dict->at[k];
            if (item->key.kind != JJ_STR) td_jj_fail(s, TD_EINVAL, "keywords must be strings");
            add_keyword(s, &kw, item->key.u.s, item->value);
        }
    }
    return (jj_args){at.at, at.n, kw.at, kw.n};
}

/* Call anything; fails for what cannot be called. */
static jj_value call_value(jj_state *s, const jj_value *callee, const jj_args *args) {
    switch (callee->kind) {
        case JJ_FUNCTION: return callee->u.function->call(s, args);
        case JJ_METHOD: return callee->u.method->def->call(s, &callee->u.method->self, args);
        case JJ_MACRO: return callee->u.macro->call(s, callee->u.macro, args);
        case JJ_UNDEFINED: td_jj_fail_undefined(s, callee);
        case JJ_LOOP: td_jj_fail(s, TD_EINVAL, "the loop must have the 'recursive' marker to be called recursively.");
        default: td_jj_fail(s, TD_EINVAL, "'%s' object is not callable", td_jj_type(callee));
    }
}

jj_value td_jj_eval_filters(jj_render *r, const jj_expr *chain, jj_value v) {
    td_jj_enter(r->s);
    if (!chain->filter) {
        r->s->line = chain->line;
        td_jj_fail_unknown(r->s, "filter", chain->name);
    }
    if (chain->a) v = td_jj_eval_filters(r, chain->a, v);
    jj_args args = eval_args(r, chain->call);
    v = chain->filter->apply(r->s, v, &args);
    td_jj_leave(r->s);
    return v;
}

/* ---- operators ---- */

static bool compare(jj_state *s, jj_cmp cmp, const jj_value *a, const jj_value *b) {
    switch (cmp) {
        case JJ_EQ: return td_jj_equal(s, a, b);
        case JJ_NE: return !td_jj_equal(s, a, b);
        case JJ_LT: return td_jj_less(s, a, b, "<");
        case JJ_LE: return td_jj_less(s, a, b, "<=");
        case JJ_GT: return td_jj_less(s, b, a, ">");
        case JJ_GE: return td_jj_less(s, b, a, ">=");
        case JJ_IN: return td_jj_contains(s, *b, a);
        case JJ_NOT_IN: return !td_jj_contains(s, *b, a);
    }
    return false;
}

static jj_value eval_compare(jj_render *r, const jj_expr *e) {
    jj_value left = td_jj_eval(r, e->a);
    for (size_t k = 0; k < e->n_items; k++) {
        jj_value right = td_jj_eval(r, e->items[k]);
        if (!compare(r->s, e->ops[k], &left, &right)) return jj_bool(false);
        left = right;
    }
    return jj_bool(true);
}

static jj_value eval_concat(jj_render *r, const jj_expr *e) {
    jj_buf b = {0};
    for (size_t k = 0; k < e->n_items; k++) {
        jj_value v = td_jj_eval(r, e->items[k]);
        td_jj_write(r->s, &b, &v);
    }
    return td_jj_str_buf(r->s, &b);
}

static jj_value eval_list(jj_render *r, const jj_expr *e) {
    jj_value list = td_jj_list(r->s, e->kind == JJ_E_TUPLE ? JJ_TUPLE : JJ_LIST);
    for (size_t k = 0; k < e->n_items; k++) td_jj_append(r->s, list.u.list, td_jj_eval(r, e->items[k]));
    return list;
}

static jj_value eval_dict(jj_render *r, const jj_expr *e) {
    jj_value dict = td_jj_dict(r->s, JJ_DICT);
    for (size_t k = 0; k + 1 < e->n_items; k += 2) {
        jj_value key = td_jj_eval(r, e->items[k]);
        td_jj_dict_set(r->s, dict.u.dict, key, td_jj_eval(r, e->items[k + 1]));
    }
    return dict;
}

static jj_value eval_slice(jj_render *r, const jj_expr *e) {
    jj_value of = td_jj_eval(r, e->a), part[3];
    for (size_t k = 0; k < 3; k++) part[k] = e->items[k] ? td_jj_eval(r, e->items[k]) : JJ_NONE_VALUE;
    return td_jj_slice(r->s, &of, part);
}

static jj_value eval_cond(jj_render *r, const jj_expr *e) {
    jj_value test = td_jj_eval(r, e->b);
    if (td_jj_truth(&test)) return td_jj_eval(r, e->a);
    if (e->c) return td_jj_eval(r, e->c);
    return td_jj_undefined_hint(r->s, "the inline if-expression evaluated to false and no else section was defined.");
}

static jj_value eval_inner(jj_render *r, const jj_expr *e) {
    jj_value a, b;
    jj_args  args;
    switch (e->kind) {
        case JJ_E_CONST: return e->value;
        case JJ_E_NAME: return eval_name(r, e->name);
        case JJ_E_TUPLE:
        case JJ_E_LIST: return eval_list(r, e);
        case JJ_E_DICT: return eval_dict(r, e);
        case JJ_E_GETATTR: return td_jj_getattr(r->s, td_jj_eval(r, e->a), e->name);
        case JJ_E_GETITEM:
            a = td_jj_eval(r, e->a);
            b = td_jj_eval(r, e->b);
            return td_jj_getitem(r->s, a, &b);
        case JJ_E_SLICE: return eval_slice(r, e);
        case JJ_E_CALL:
            a = td_jj_eval(r, e->a);
            args = eval_args(r, e->call);
            return call_value(r->s, &a, &args);
        case JJ_E_FILTER:
            if (!e->filter) td_jj_fail_unknown(r->s, "filter", e->name);
            a = td_jj_eval(r, e->a);
            args = eval_args(r, e->call);
            return e->filter->apply(r->s, a, &args);
        case JJ_E_TEST:
            if (!e->test) td_jj_fail_unknown(r->s, "test", e->name);
            a = td_jj_eval(r, e->a);
            args = eval_args(r, e->call);
            return jj_bool(td_jj_apply_test(r->s, e->test, a, &args));
        case JJ_E_NOT: a = td_jj_eval(r, e->a); return jj_bool(!td_jj_truth(&a));
        case JJ_E_NEG:
        case JJ_E_POS: a = td_jj_eval(r, e->a); return td_jj_negate(r->s, &a, e->kind == JJ_E_POS);
        case JJ_E_BINARY:
            a = td_jj_eval(r, e->a);
            b = td_jj_eval(r, e->b);
            return td_jj_arith(r->s, e->op, &a, &b);
        case JJ_E_AND: a = td_jj_eval(r, e->a); return td_jj_truth(&a) ? td_jj_eval(r, e->b) : a;
        case JJ_E_OR: a = td_jj_eval(r, e->a); return td_jj_truth(&a) ? a : td_jj_eval(r, e->b);
        case JJ_E_CONCAT: return eval_concat(r, e);
        case JJ_E_COMPARE: return eval_compare(r, e);
        case JJ_E_COND: return eval_cond(r, e);
    }
    return JJ_UNDEF_VALUE;
}

jj_value td_jj_eval(jj_render *r, const jj_expr *e) {
    td_jj_enter(r->s);
    td_jj_charge(r->s, 1);
    r->s->line = e->line;
    jj_value v = eval_inner(r, e);
    td_jj_leave(r->s);
    return v;
}
