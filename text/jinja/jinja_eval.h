/*
 * Rendering: its state and variables, and the values of expressions.
 *
 * DESIGN. Of these files each calls those in lines above its own, and in its line those before it:
 *
 *   jinja_state utf8 value text compare number string              values and what Python does with them
 *   jinja_environment loop access format methods                   names and attributes
 *   jinja_json tests filters_list filters globals                  what names stand for
 *   jinja_eval jinja_exec                                          expressions, statements
 *   chat_template                                                  a template: these, and the parser of jinja_parse.h
 *
 * A template is recursive all the same: an expression calls a macro, whose body is statements with expressions in them. The
 * recursion enters by three pointers, each set where both sides of it are known:
 *
 *   jj_macro.call    set by {% macro %} in jinja_exec.c: an expression calls a macro
 *   jj_loop.passes   set by {% for %} in jinja_exec.c: loop.last draws an item, so the loop's filter is evaluated
 *   jj_state.env     set by chat_template.c: what has a name looks up other names (jinja_environment.h)
 */
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

jj_value td_jj_eval(jj_render *r, const jj_expr *e);
/** Apply a chain of filters whose innermost operand is NULL to a value. */
jj_value td_jj_eval_filters(jj_render *r, const jj_expr *chain, jj_value v);

void td_jj_scope_set(jj_state *s, jj_scope *scope, const jj_str *name, jj_value v);

#endif
