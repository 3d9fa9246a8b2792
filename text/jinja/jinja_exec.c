/* Running statements: text, conditions, loops, assignments, macros. */
#include "text/jinja/jinja_exec.h"

#include "text/jinja/jinja_compare.h"
#include "text/jinja/jinja_loop.h"
#include "text/jinja/jinja_text.h"

typedef enum { DONE, BREAK, CONTINUE } outcome;

static outcome run(jj_render *r, const jj_stmt *st);

/* ---- assignment ---- */

static void assign(jj_render *r, const jj_expr *target, jj_value v) {
    jj_state *s = r->s;
    if (target->kind == JJ_E_NAME) {
        td_jj_scope_set(s, r->scope, target->name, v);
        return;
    }
    jj_value list = td_jj_to_list(s, v);
    if (list.u.list->n != target->n_items)
        td_jj_fail(s, TD_EINVAL, "%s values to unpack (expected %zu, got %zu)",
                   list.u.list->n < target->n_items ? "not enough" : "too many", target->n_items, list.u.list->n);
    td_jj_enter(s);
    for (size_t k = 0; k < target->n_items; k++) assign(r, target->items[k], list.u.list->at[k]);
    td_jj_leave(s);
}

static void set_attribute(jj_render *r, const jj_stmt *st) {
    jj_expr  name = {.kind = JJ_E_NAME, .line = st->line, .name = st->name};
    jj_value v = td_jj_eval(r, st->expr), ns = td_jj_eval(r, &name);
    if (ns.kind != JJ_NAMESPACE) td_jj_fail(r->s, TD_EINVAL, "cannot assign attribute on non-namespace object");
    td_jj_dict_set(r->s, ns.u.dict, (jj_value){JJ_STR, {.s = st->attr}}, v);
}

/* ---- scopes and captured text ---- */

static jj_scope *new_scope(jj_state *s, jj_scope *parent) {
    jj_scope *scope = td_jj_calloc(s, 1, sizeof *scope);
    scope->parent = parent;
    return scope;
}

static outcome run_in_scope(jj_render *r, const jj_stmt *body, jj_scope *scope) {
    jj_scope *outer = r->scope;
    r->scope = scope;
    outcome o = run(r, body);
    r->scope = outer;
    return o;
}

/* Run a body in a scope of its own and take its text. */
static outcome capture(jj_render *r, const jj_stmt *body, jj_scope *scope, jj_value *text) {
    jj_buf b = {0}, *outer = r->out;
    r->out = &b;
    outcome o = run_in_scope(r, body, scope);
    r->out = outer;
    *text = td_jj_str_buf(r->s, &b);
    return o;
}

static outcome run_set_block(jj_render *r, const jj_stmt *st) {
    jj_value text;
    outcome  o = capture(r, st->body, new_scope(r->s, r->scope), &text);
    if (o != DONE) return o; /* a break drops the block */
    if (st->expr) text = td_jj_eval_filters(r, st->expr, text);
    assign(r, st->target, text);
    return DONE;
}

static outcome run_filter_block(jj_render *r, const jj_stmt *st) {
    jj_value text;
    outcome  o = capture(r, st->body, new_scope(r->s, r->scope), &text);
    if (o != DONE) return o;
    text = td_jj_eval_filters(r, st->expr, text);
    td_jj_write(r->s, r->out, &text);
    return DONE;
}

static outcome run_with(jj_render *r, const jj_stmt *st) {
    jj_scope *scope = new_scope(r->s, r->scope);
    for (size_t k = 0; k + 1 < st->n_items; k += 2)
        td_jj_scope_set(r->s, scope, st->items[k]->name, td_jj_eval(r, st->items[k + 1]));
    return run_in_scope(r, st->body, scope);
}

/* ---- loops ---- */

/* Whether the loop's filter holds for an item, in the scope around the loop. */
static bool passes(jj_loop *loop, jj_value item) {
    jj_render *r = loop->render;
    jj_scope  *inner = r->scope;
    r->scope = new_scope(r->s, loop->outer);
    assign(r, loop->stmt->target, item);
    jj_value holds = td_jj_eval(r, loop->stmt->filter);
    r->scope = inner;
    return td_jj_truth(&holds);
}

static outcome run_for(jj_render *r, const jj_stmt *st) {
    static const jj_str LOOP = {"loop", 4, 0};
    jj_state           *s = r->s;
    jj_loop            *loop = td_jj_loop_begin(s, td_jj_eval(r, st->expr));
    loop->passes = st->filter ? passes : NULL;
    loop->stmt = st;
    loop->outer = r->scope;
    loop->render = r;
    jj_scope *scope = new_scope(s, r->scope);
    bool      any = false;
    while (td_jj_loop_advance(s, loop)) {
        scope->n = 0; /* every turn starts with fresh variables */
        td_jj_scope_set(s, scope, &LOOP, (jj_value){JJ_LOOP, {.loop = loop}});
        r->scope = scope;
        assign(r, st->target, loop->current);
        r->scope = loop->outer;
        outcome o = run_in_scope(r, st->body, scope);
        any |= o == DONE; /* as in jinja2: a loop whose every turn was cut short runs its else */
        if (o == BREAK) break;
    }
    if (!any && st->orelse) return run_in_scope(r, st->orelse, new_scope(s, r->scope));
    return DONE;
}

/* ---- macros ---- */

/* Argument k by position or by name; MISSING: not given. */
static jj_value macro_arg(jj_state *s, const jj_macro_def *def, const jj_args *args, size_t k) {
    if (k < args->n) return args->at[k];
    td_jj_charge(s, args->n_kw / 8);
    for (size_t j = 0; j < args->n_kw; j++)
        if (td_jj_str_equal(args->kw[j].key.u.s, def->params[k])) return args->kw[j].value;
    return (jj_value){JJ_MISSING, {.i = 0}};
}

/* Extra arguments: an error, unless the body asks for varargs and kwargs. */
static void bind_extra(jj_state *s, jj_scope *scope, const jj_macro_def *def, const jj_args *args) {
    static const jj_str VARARGS = {"varargs", 7, 0}, KWARGS = {"kwargs", 6, 0};
    jj_value            more = td_jj_list(s, JJ_TUPLE), named = td_jj_dict(s, JJ_DICT);
    for (size_t k = def->n_params; k < args->n; k++) td_jj_append(s, more.u.list, args->at[k]);
    for (size_t j = 0; j < args->n_kw; j++) {
        td_jj_charge(s, def->n_params / 8);
        size_t k = args->n; /* a parameter given by position as well is left over here, as in jinja2 */
        while (k < def->n_params && !td_jj_str_equal(args->kw[j].key.u.s, def->params[k])) k++;
        if (k >= def->n_params) td_jj_dict_add(s, named.u.dict, args->kw[j].key, args->kw[j].value);
    }
    int n = def->name->n < 100 ? (int)def->name->n : 100;
    if (named.u.dict->n && !def->kwargs)
        td_jj_fail(s, TD_EINVAL, "macro '%.*s' takes no keyword argument '%.*s'", n, def->name->p,
                   (int)(named.u.dict->at[0].key.u.s->n < 100 ? named.u.dict->at[0].key.u.s->n : 100),
                   named.u.dict->at[0].key.u.s->p);
    if (more.u.list->n && !def->varargs)
        td_jj_fail(s, TD_EINVAL, "macro '%.*s' takes not more than %zu argument(s)", n, def->name->p, def->n_params);
    if (def->varargs) td_jj_scope_set(s, scope, &VARARGS, more);
    if (def->kwargs) td_jj_scope_set(s, scope, &KWARGS, named);
}

static jj_value not_provided(jj_state *s, const jj_str *param) {
    jj_buf hint = {0};
    td_jj_puts(s, &hint, "parameter ");
    td_jj_write_repr(s, &hint, &(jj_value){JJ_STR, {.s = param}});
    td_jj_put(s, &hint, " was not provided", sizeof " was not provided");
    return td_jj_undefined_hint(s, hint.p);
}

static jj_value call_macro(jj_state *s, const jj_macro *m, const jj_args *args) {
    const jj_macro_def *def = m->def;
    jj_render          *r = m->render;
    jj_scope           *scope = new_scope(s, m->scope), *caller = r->scope;
    jj_value            text;
    uint32_t            line = s->line;
    td_jj_enter(s);
    bind_extra(s, scope, def, args);
    for (size_t k = 0; k < def->n_params; k++) {
        jj_value v = macro_arg(s, def, args, k);
        if (v.kind == JJ_MISSING && def->defaults[k]) {
            r->scope = scope; /* a default may use the parameters before it */
            v = td_jj_eval(r, def->defaults[k]);
            r->scope = caller;
        }
        td_jj_scope_set(s, scope, def->params[k], v.kind == JJ_MISSING ? not_provided(s, def->params[k]) : v);
    }
    capture(r, def->body, scope, &text);
    td_jj_leave(s);
    s->line = line;
    return text;
}

static void define_macro(jj_render *r, const jj_macro_def *def) {
    jj_macro *m = td_jj_alloc(r->s, sizeof *m);
    *m = (jj_macro){def->name, call_macro, def, r->scope, r};
    td_jj_scope_set(r->s, r->scope, def->name, (jj_value){JJ_MACRO, {.macro = m}});
}

/* ---- */

static outcome run_if(jj_render *r, const jj_stmt *st) {
    for (;;) {
        jj_value test = td_jj_eval(r, st->expr);
        if (td_jj_truth(&test)) return run(r, st->body);
        const jj_stmt *orelse = st->orelse;
        if (!orelse || orelse->kind != JJ_S_IF || orelse->next) return run(r, orelse);
        st = orelse; /* an elif, or an if alone in the else, which is the same */
    }
}

static outcome run_one(jj_render *r, const jj_stmt *st) {
    jj_value v;
    switch (st->kind) {
        case JJ_S_TEXT: td_jj_put(r->s, r->out, st->text.p, st->text.n); return DONE;
        case JJ_S_PRINT:
            v = td_jj_eval(r, st->expr);
            td_jj_write(r->s, r->out, &v);
            return DONE;
        case JJ_S_IF: return run_if(r, st);
        case JJ_S_FOR: return run_for(r, st);
        case JJ_S_SET: assign(r, st->target, td_jj_eval(r, st->expr)); return DONE;
        case JJ_S_SET_ATTR: set_attribute(r, st); return DONE;
        case JJ_S_SET_BLOCK: return run_set_block(r, st);
        case JJ_S_MACRO: define_macro(r, st->macro); return DONE;
        case JJ_S_WITH: return run_with(r, st);
        case JJ_S_FILTER: return run_filter_block(r, st);
        case JJ_S_SCOPE: return run_in_scope(r, st->body, new_scope(r->s, r->scope));
        case JJ_S_BREAK: return BREAK;
        case JJ_S_CONTINUE: return CONTINUE;
    }
    return DONE;
}

static outcome run(jj_render *r, const jj_stmt *st) {
    outcome o = DONE;
    td_jj_enter(r->s);
    for (; st && o == DONE; st = st->next) {
        td_jj_charge(r->s, 1);
        r->s->line = st->line;
        o = run_one(r, st);
    }
    td_jj_leave(r->s);
    return o;
}

void td_jj_render(jj_render *r, const jj_stmt *body) {
    r->scope = new_scope(r->s, NULL);
    run(r, body);
}
