/* Rendering: the evaluator's state, variables, loops and macros. */
#ifndef TD_TEXT_JINJA_EVAL_H
#define TD_TEXT_JINJA_EVAL_H

#include "text/jinja/jinja_ast.h"

typedef struct {
    const jj_str *name;
    jj_value      value;
} jj_var;

/* The variables set in one block. Other names are looked for in the parent scopes, at last in the request. */
typedef struct jj_scope {
    struct jj_scope *parent;
    jj_var          *vars;
    size_t           n, cap;
} jj_scope;

typedef struct jj_render {
    jj_state *s;
    jj_dict  *vars;  /* of the request */
    jj_scope *scope; /* innermost */
    jj_buf   *out;
} jj_render;

struct jj_macro {
    const jj_macro_def *def;
    jj_scope           *scope; /* around its definition */
    jj_render          *render;
};

/* A running loop: jinja2.runtime.LoopContext. Items are drawn one at a time, since a filter may depend on the body. */
struct jj_loop {
    jj_render     *render;
    const jj_stmt *stmt;
    jj_scope      *outer; /* scope around the loop, where the filter is evaluated */
    jj_cursor      cursor;
    jj_value       before, current, after; /* MISSING where there is none, or not yet drawn */
    jj_value       changed;                /* arguments of the last loop.changed() */
    int64_t        index0;
    int64_t        depth0;
    bool           has_length;
    size_t         length;
};

/** Run statements; text goes to r->out. */
void     td_jj_render(jj_render *r, const jj_stmt *body);
jj_value td_jj_eval(jj_render *r, const jj_expr *e);
/** Apply a chain of filters whose innermost operand is NULL to a value. */
jj_value td_jj_eval_filters(jj_render *r, const jj_expr *chain, jj_value v);

void td_jj_scope_set(jj_state *s, jj_scope *scope, const jj_str *name, jj_value v);

/** Call anything; fails for what cannot be called. */
jj_value      td_jj_call_value(jj_state *s, const jj_value *callee, const jj_args *args);
jj_value      td_jj_call_macro(jj_state *s, const jj_macro *m, const jj_args *args);
const jj_str *td_jj_macro_name(const jj_macro *m);

/** loop.name; false: no such attribute. */
bool     td_jj_loop_attr(jj_state *s, jj_loop *loop, const jj_str *name, jj_value *out);
jj_value td_jj_loop_cycle(jj_state *s, const jj_value *self, const jj_args *args);
jj_value td_jj_loop_changed(jj_state *s, const jj_value *self, const jj_args *args);

/* ---- attributes and items (jinja_access.c) ---- */

jj_value td_jj_getattr(jj_state *s, jj_value of, const jj_str *name);  /* of.name: methods first, then items */
jj_value td_jj_getitem(jj_state *s, jj_value of, const jj_value *key); /* of[key]: items first, then methods */
/** of[start:stop:step]; parts that are not given are NONE. */
jj_value td_jj_slice(jj_state *s, const jj_value *of, const jj_value part[3]);
/** A path as the attribute= of filters takes it: "a.b.0", an int, or NONE (v itself). */
jj_value td_jj_getpath(jj_state *s, jj_value v, const jj_value *path);

/** The method of a value, or false. Those that change their object, append and pop apart, are undefined in the sandbox. */
bool     td_jj_find_method(jj_state *s, const jj_value *of, const jj_str *name, jj_value *out);
jj_value td_jj_call_method(jj_state *s, const jj_method *m, const jj_args *args);

/** range, dict, namespace, raise_exception, strftime_now; NULL for another name. */
const jj_function *td_jj_find_global(const jj_str *name);

/** list in the order of keys[k] (stable), as Python's sorted(). */
jj_list *td_jj_sorted(jj_state *s, const jj_list *list, const jj_list *keys, bool reverse);

#endif
