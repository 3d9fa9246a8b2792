/* Expressions of a template, by recursive descent with the precedences of jinja2/parser.py 3.1. */
#include "text/jinja/jinja_parse_expr.h"

#include "text/jinja/jinja_compare.h"

static jj_expr *parse_unary(jj_parser *p, bool with_filter);

static jj_expr *constant(jj_parser *p, jj_value v) {
    jj_expr *e = td_jj_new_expr(p, JJ_E_CONST);
    e->value = v;
    return e;
}

/* ---- literals and names ---- */

static void note_name(jj_parser *p, const jj_str *name) {
    for (jj_macro_parse *m = p->macro; m; m = m->outer) {
        m->def->varargs |= td_jj_str_is(name, "varargs");
        m->def->kwargs |= td_jj_str_is(name, "kwargs");
    }
}

static jj_expr *parse_name(jj_parser *p) {
    static const char *const UNSUPPORTED[] = {"cycler", "joiner", "lipsum", "self", "super", "caller"};
    const jj_str            *name = p->at->value.u.s;
    jj_expr                 *e;
    if (td_jj_str_is(name, "true") || td_jj_str_is(name, "True")) {
        e = constant(p, jj_bool(true));
    } else if (td_jj_str_is(name, "false") || td_jj_str_is(name, "False")) {
        e = constant(p, jj_bool(false));
    } else if (td_jj_str_is(name, "none") || td_jj_str_is(name, "None")) {
        e = constant(p, JJ_NONE_VALUE);
    } else {
        for (size_t k = 0; k < sizeof UNSUPPORTED / sizeof *UNSUPPORTED; k++)
            if (td_jj_str_is(name, UNSUPPORTED[k])) td_jj_fail(p->s, TD_ENOTSUP, "'%s' is not supported", UNSUPPORTED[k]);
        note_name(p, name);
        e = td_jj_new_expr(p, JJ_E_NAME);
        e->name = name;
    }
    td_jj_next_token(p);
    return e;
}

/* Adjacent strings are one. */
static jj_expr *parse_strings(jj_parser *p) {
    jj_expr *e = constant(p, p->at->value);
    td_jj_next_token(p);
    if (p->at->kind != JJ_T_STRING) return e;
    jj_buf b = {0};
    td_jj_put(p->s, &b, e->value.u.s->p, e->value.u.s->n);
    for (; p->at->kind == JJ_T_STRING; td_jj_next_token(p)) td_jj_put(p->s, &b, p->at->value.u.s->p, p->at->value.u.s->n);
    e->value = td_jj_str_buf(p->s, &b);
    td_jj_hash((jj_str *)e->value.u.s);
    return e;
}

static jj_expr *parse_list(jj_parser *p) {
    jj_expr *e = td_jj_new_expr(p, JJ_E_LIST);
    size_t   cap = 0;
    td_jj_expect_op(p, '[', "[");
    while (!td_jj_at_op(p, ']')) {
        if (e->n_items) td_jj_expect_op(p, ',', ",");
        if (td_jj_at_op(p, ']')) break;
        td_jj_add_item(p, &e->items, &e->n_items, &cap, td_jj_parse_expression(p, true));
    }
    td_jj_expect_op(p, ']', "]");
    return e;
}

static jj_expr *parse_dict(jj_parser *p) {
    jj_expr *e = td_jj_new_expr(p, JJ_E_DICT);
    size_t   cap = 0;
    td_jj_expect_op(p, '{', "{");
    while (!td_jj_at_op(p, '}')) {
        if (e->n_items) td_jj_expect_op(p, ',', ",");
        if (td_jj_at_op(p, '}')) break;
        td_jj_add_item(p, &e->items, &e->n_items, &cap, td_jj_parse_expression(p, true));
        td_jj_expect_op(p, ':', ":");
        td_jj_add_item(p, &e->items, &e->n_items, &cap, td_jj_parse_expression(p, true));
    }
    td_jj_expect_op(p, '}', "}");
    return e;
}

/* Is this the end of a tuple without brackets? */
static bool at_tuple_end(const jj_parser *p, const char *end_name) {
    return p->at->kind == JJ_T_PRINT_END || p->at->kind == JJ_T_BLOCK_END || td_jj_at_op(p, ')') ||
           (end_name && td_jj_at_name(p, end_name));
}

static jj_expr *parse_primary(jj_parser *p);

typedef enum { ITEM_EXPRESSION, ITEM_WITHOUT_COND, ITEM_PRIMARY } item_kind;

static jj_expr *parse_tuple_of(jj_parser *p, item_kind kind, const char *end_name, bool in_brackets) {
    jj_expr *tuple = td_jj_new_expr(p, JJ_E_TUPLE);
    size_t   cap = 0;
    bool     comma = false;
    for (;;) {
        if (tuple->n_items) td_jj_expect_op(p, ',', ",");
        if (at_tuple_end(p, end_name)) break;
        jj_expr *item = kind == ITEM_PRIMARY ? parse_primary(p) : td_jj_parse_expression(p, kind == ITEM_EXPRESSION);
        td_jj_add_item(p, &tuple->items, &tuple->n_items, &cap, item);
        if (!td_jj_at_op(p, ',')) break;
        comma = true;
    }
    if (comma) return tuple;
    if (tuple->n_items) return tuple->items[0];
    if (!in_brackets) td_jj_unexpected(p, "an expression");
    return tuple;
}

jj_expr *td_jj_parse_tuple(jj_parser *p, bool with_cond, const char *end_name) {
    return parse_tuple_of(p, with_cond ? ITEM_EXPRESSION : ITEM_WITHOUT_COND, end_name, false);
}

static void check_target(jj_parser *p, const jj_expr *e) {
    if (e->kind == JJ_E_TUPLE) {
        td_jj_parse_enter(p);
        for (size_t k = 0; k < e->n_items; k++) check_target(p, e->items[k]);
        td_jj_parse_leave(p);
    } else if (e->kind != JJ_E_NAME) {
        td_jj_fail(p->s, TD_EFORMAT, "cannot assign to this expression");
    }
}

jj_expr *td_jj_parse_target(jj_parser *p, const char *end_name) {
    jj_expr *e = parse_tuple_of(p, ITEM_PRIMARY, end_name, false);
    check_target(p, e);
    return e;
}

static jj_expr *parse_primary(jj_parser *p) {
    jj_expr *e;
    td_jj_parse_enter(p);
    if (p->at->kind == JJ_T_NAME) {
        e = parse_name(p);
    } else if (p->at->kind == JJ_T_STRING) {
        e = parse_strings(p);
    } else if (p->at->kind == JJ_T_NUMBER) {
        e = constant(p, p->at->value);
        td_jj_next_token(p);
    } else if (td_jj_skip_op(p, '(')) {
        e = parse_tuple_of(p, ITEM_EXPRESSION, NULL, true);
        td_jj_expect_op(p, ')', ")");
    } else if (td_jj_at_op(p, '[')) {
        e = parse_list(p);
    } else if (td_jj_at_op(p, '{')) {
        e = parse_dict(p);
    } else {
        td_jj_unexpected(p, "an expression");
    }
    td_jj_parse_leave(p);
    return e;
}

/* ---- what follows a primary: attributes, items, calls, filters, tests ---- */

static jj_expr *slice_part(jj_parser *p) {
    if (td_jj_at_op(p, ':') || td_jj_at_op(p, ']') || td_jj_at_op(p, ',')) return NULL;
    return td_jj_parse_expression(p, true);
}

static jj_expr *parse_item(jj_parser *p, jj_expr *of) {
    jj_expr *e = td_jj_new_expr(p, JJ_E_GETITEM);
    e->a = of;
    td_jj_expect_op(p, '[', "[");
    if (!td_jj_at_op(p, ':')) e->b = td_jj_parse_expression(p, true);
    if (td_jj_skip_op(p, ':')) {
        e->kind = JJ_E_SLICE;
        e->items = td_jj_calloc(p->s, 3, sizeof *e->items);
        e->items[0] = e->b;
        e->items[1] = slice_part(p);
        if (td_jj_skip_op(p, ':')) e->items[2] = slice_part(p);
    } else if (td_jj_at_op(p, ',')) { /* x[1, 2]: a tuple as the key */
        jj_expr *tuple = td_jj_new_expr(p, JJ_E_TUPLE);
        size_t   cap = 0;
        td_jj_add_item(p, &tuple->items, &tuple->n_items, &cap, e->b);
        while (td_jj_skip_op(p, ','))
            td_jj_add_item(p, &tuple->items, &tuple->n_items, &cap, td_jj_parse_expression(p, true));
        e->b = tuple;
    }
    td_jj_expect_op(p, ']', "]");
    return e;
}

static jj_expr *parse_attribute(jj_parser *p, jj_expr *of) {
    td_jj_expect_op(p, '.', ".");
    jj_expr *e = td_jj_new_expr(p, JJ_E_GETATTR);
    e->a = of;
    if (p->at->kind == JJ_T_NUMBER && p->at->value.kind == JJ_INT) { /* x.0 is x[0] */
        e->kind = JJ_E_GETITEM;
        e->b = constant(p, p->at->value);
        td_jj_next_token(p);
    } else {
        e->name = td_jj_expect_name(p, "the name of an attribute");
    }
    return e;
}

static const jj_call NO_ARGS;

static const jj_call *parse_call_args(jj_parser *p) {
    jj_call *c = td_jj_calloc(p->s, 1, sizeof *c);
    size_t   args_cap = 0, names_cap = 0, values_cap = 0;
    bool     first = true;
    td_jj_parse_enter(p);
    td_jj_expect_op(p, '(', "(");
    while (!td_jj_at_op(p, ')')) {
        if (!first) td_jj_expect_op(p, ',', ",");
        if (td_jj_at_op(p, ')')) break;
        first = false;
        if (td_jj_skip_op(p, '*')) {
            if (c->star || c->star_star) td_jj_fail(p->s, TD_EFORMAT, "invalid arguments of a call");
            c->star = td_jj_parse_expression(p, true);
        } else if (td_jj_skip_op(p, JJ_OP_POW)) {
            if (c->star_star) td_jj_fail(p->s, TD_EFORMAT, "invalid arguments of a call");
            c->star_star = td_jj_parse_expression(p, true);
        } else if (p->at->kind == JJ_T_NAME && p->at[1].kind == JJ_T_OP && p->at[1].op == '=') {
            if (c->star_star) td_jj_fail(p->s, TD_EFORMAT, "invalid arguments of a call");
            size_t n = c->n_kw;
            c->kw_names = td_jj_grow(p->s, c->kw_names, n, &names_cap, sizeof *c->kw_names);
            c->kw_names[n] = p->at->value.u.s;
            for (size_t k = 0; k < n; k++)
                if (td_jj_str_equal(c->kw_names[k], c->kw_names[n]))
                    td_jj_fail(p->s, TD_EFORMAT, "keyword argument repeated");
            td_jj_next_token(p);
            td_jj_next_token(p);
            td_jj_add_item(p, &c->kw_values, &c->n_kw, &values_cap, td_jj_parse_expression(p, true));
            td_jj_charge(p->s, n);
        } else {
            if (c->star || c->star_star || c->n_kw) td_jj_fail(p->s, TD_EFORMAT, "invalid arguments of a call");
            td_jj_add_item(p, &c->args, &c->n_args, &args_cap, td_jj_parse_expression(p, true));
        }
    }
    td_jj_expect_op(p, ')', ")");
    td_jj_parse_leave(p);
    return c;
}

static jj_expr *parse_call(jj_parser *p, jj_expr *callee) {
    jj_expr *e = td_jj_new_expr(p, JJ_E_CALL);
    e->a = callee;
    e->call = parse_call_args(p);
    return e;
}

static jj_expr *parse_postfix(jj_parser *p, jj_expr *e) {
    for (;;) {
        if (td_jj_at_op(p, '.'))
            e = parse_attribute(p, e);
        else if (td_jj_at_op(p, '['))
            e = parse_item(p, e);
        else if (td_jj_at_op(p, '('))
            e = parse_call(p, e);
        else
            return e;
    }
}

/* Note an unknown filter or test. As in Jinja, one within a condition is an error only when it is evaluated. */
static void note_unknown(jj_parser *p, const jj_expr *e) {
    if (!p->conditions && !p->unknown) p->unknown = e;
}

jj_expr *td_jj_parse_filters(jj_parser *p, jj_expr *e, bool first) {
    while (first || td_jj_skip_op(p, '|')) {
        jj_expr      *filter = td_jj_new_expr(p, JJ_E_FILTER);
        const jj_str *name = td_jj_expect_name(p, "the name of a filter");
        filter->a = e;
        filter->name = name;
        filter->filter = td_jj_find_filter(p->s, name);
        if (!filter->filter) note_unknown(p, filter);
        filter->call = td_jj_at_op(p, '(') ? parse_call_args(p) : &NO_ARGS;
        e = filter;
        first = false;
    }
    return e;
}

/* The argument of a test may go without brackets: "x is divisibleby 3". */
static bool at_bare_argument(const jj_parser *p) {
    if (p->at->kind == JJ_T_STRING || p->at->kind == JJ_T_NUMBER || td_jj_at_op(p, '[') || td_jj_at_op(p, '{')) return true;
    return p->at->kind == JJ_T_NAME && !td_jj_at_name(p, "else") && !td_jj_at_name(p, "or") && !td_jj_at_name(p, "and");
}

static jj_expr *parse_test(jj_parser *p, jj_expr *of) {
    jj_expr *e = td_jj_new_expr(p, JJ_E_TEST);
    td_jj_next_token(p); /* is */
    bool          negated = td_jj_skip_name(p, "not");
    const jj_str *name = td_jj_expect_name(p, "the name of a test");
    e->a = of;
    e->name = name;
    e->test = td_jj_find_test(p->s, name);
    if (!e->test) note_unknown(p, e);
    if (td_jj_at_op(p, '(')) {
        e->call = parse_call_args(p);
    } else if (at_bare_argument(p)) {
        if (td_jj_at_name(p, "is")) td_jj_fail(p->s, TD_EFORMAT, "tests cannot be chained with 'is'");
        jj_call *c = td_jj_calloc(p->s, 1, sizeof *c);
        size_t   cap = 0;
        td_jj_add_item(p, &c->args, &c->n_args, &cap, parse_postfix(p, parse_primary(p)));
        e->call = c;
    } else {
        e->call = &NO_ARGS;
    }
    if (!negated) return e;
    jj_expr *not = td_jj_new_expr(p, JJ_E_NOT);
    not ->a = e;
    return not ;
}

static jj_expr *parse_filters_and_tests(jj_parser *p, jj_expr *e) {
    for (;;) {
        if (td_jj_at_op(p, '|'))
            e = td_jj_parse_filters(p, e, false);
        else if (td_jj_at_name(p, "is"))
            e = parse_test(p, e);
        else if (td_jj_at_op(p, '('))
            e = parse_call(p, e);
        else
            return e;
    }
}

/* ---- operators, tightest first ---- */

static jj_expr *parse_unary(jj_parser *p, bool with_filter) {
    jj_expr *e;
    td_jj_parse_enter(p);
    if (td_jj_at_op(p, '-') || td_jj_at_op(p, '+')) {
        e = td_jj_new_expr(p, td_jj_at_op(p, '-') ? JJ_E_NEG : JJ_E_POS);
        td_jj_next_token(p);
        e->a = parse_unary(p, false);
    } else {
        e = parse_primary(p);
    }
    e = parse_postfix(p, e);
    if (with_filter) e = parse_filters_and_tests(p, e);
    td_jj_parse_leave(p);
    return e;
}

static jj_expr *binary(jj_parser *p, jj_op op, jj_expr *a) {
    jj_expr *e = td_jj_new_expr(p, JJ_E_BINARY);
    e->op = op;
    e->a = a;
    td_jj_next_token(p);
    return e;
}

static jj_expr *parse_pow(jj_parser *p) { /* to the left, as Jinja has it */
    jj_expr *e = parse_unary(p, true);
    while (td_jj_at_op(p, JJ_OP_POW)) {
        e = binary(p, JJ_POW, e);
        e->b = parse_unary(p, true);
    }
    return e;
}

static jj_expr *parse_product(jj_parser *p) {
    jj_expr *e = parse_pow(p);
    for (;;) {
        if (td_jj_at_op(p, '*'))
            e = binary(p, JJ_MUL, e);
        else if (td_jj_at_op(p, '/'))
            e = binary(p, JJ_DIV, e);
        else if (td_jj_at_op(p, JJ_OP_FLOORDIV))
            e = binary(p, JJ_FLOORDIV, e);
        else if (td_jj_at_op(p, '%'))
            e = binary(p, JJ_MOD, e);
        else
            return e;
        e->b = parse_pow(p);
    }
}

static jj_expr *parse_concat(jj_parser *p) {
    jj_expr *first = parse_product(p);
    if (!td_jj_at_op(p, '~')) return first;
    jj_expr *e = td_jj_new_expr(p, JJ_E_CONCAT);
    size_t   cap = 0;
    td_jj_add_item(p, &e->items, &e->n_items, &cap, first);
    while (td_jj_skip_op(p, '~')) td_jj_add_item(p, &e->items, &e->n_items, &cap, parse_product(p));
    return e;
}

static jj_expr *parse_sum(jj_parser *p) {
    jj_expr *e = parse_concat(p);
    for (;;) {
        if (td_jj_at_op(p, '+'))
            e = binary(p, JJ_ADD, e);
        else if (td_jj_at_op(p, '-'))
            e = binary(p, JJ_SUB, e);
        else
            return e;
        e->b = parse_concat(p);
    }
}

static bool skip_comparison(jj_parser *p, jj_cmp *cmp) {
    static const struct {
        int    op;
        jj_cmp cmp;
    } OPS[] = {{JJ_OP_EQ, JJ_EQ}, {JJ_OP_NE, JJ_NE}, {'<', JJ_LT}, {JJ_OP_LE, JJ_LE}, {'>', JJ_GT}, {JJ_OP_GE, JJ_GE}};
    for (size_t k = 0; k < sizeof OPS / sizeof *OPS; k++) {
        *cmp = OPS[k].cmp;
        if (td_jj_skip_op(p, OPS[k].op)) return true;
    }
    *cmp = JJ_IN;
    if (td_jj_skip_name(p, "in")) return true;
    *cmp = JJ_NOT_IN;
    if (!td_jj_at_name(p, "not") || p->at[1].kind != JJ_T_NAME || !td_jj_str_is(p->at[1].value.u.s, "in")) return false;
    td_jj_next_token(p);
    td_jj_next_token(p);
    return true;
}

static jj_expr *parse_compare(jj_parser *p) {
    jj_expr *first = parse_sum(p), *e = NULL;
    size_t   ops_cap = 0, items_cap = 0;
    jj_cmp   cmp;
    while (skip_comparison(p, &cmp)) {
        if (!e) {
            e = td_jj_new_expr(p, JJ_E_COMPARE);
            e->a = first;
        }
        e->ops = td_jj_grow(p->s, e->ops, e->n_items, &ops_cap, sizeof *e->ops);
        e->ops[e->n_items] = cmp;
        td_jj_add_item(p, &e->items, &e->n_items, &items_cap, parse_sum(p));
    }
    return e ? e : first;
}

static jj_expr *parse_not(jj_parser *p) {
    if (!td_jj_at_name(p, "not")) return parse_compare(p);
    jj_expr *e = td_jj_new_expr(p, JJ_E_NOT);
    td_jj_next_token(p);
    td_jj_parse_enter(p);
    e->a = parse_not(p);
    td_jj_parse_leave(p);
    return e;
}

static jj_expr *parse_and(jj_parser *p) {
    jj_expr *e = parse_not(p);
    while (td_jj_at_name(p, "and")) {
        jj_expr *both = td_jj_new_expr(p, JJ_E_AND);
        td_jj_next_token(p);
        both->a = e;
        both->b = parse_not(p);
        e = both;
    }
    return e;
}

static jj_expr *parse_or(jj_parser *p) {
    jj_expr *e = parse_and(p);
    while (td_jj_at_name(p, "or")) {
        jj_expr *either = td_jj_new_expr(p, JJ_E_OR);
        td_jj_next_token(p);
        either->a = e;
        either->b = parse_and(p);
        e = either;
    }
    return e;
}

jj_expr *td_jj_parse_expression(jj_parser *p, bool with_cond) {
    td_jj_parse_enter(p);
    const jj_expr *unknown = p->unknown;
    jj_expr       *e = parse_or(p);
    while (with_cond && td_jj_skip_name(p, "if")) {
        p->unknown = unknown; /* what was parsed is left out where the condition does not hold */
        jj_expr *cond = td_jj_new_expr(p, JJ_E_COND);
        cond->a = e;
        p->conditions++;
        cond->b = parse_or(p);
        if (td_jj_skip_name(p, "else")) cond->c = td_jj_parse_expression(p, true);
        p->conditions--;
        e = cond;
    }
    td_jj_parse_leave(p);
    return e;
}
