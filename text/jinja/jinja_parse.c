/* Statements of a template: jinja2/parser.py 3.1 without the constructs that docs/templates.md refuses. */
#include "text/jinja/jinja_parse.h"

#include "text/jinja/jinja_parse_expr.h"

static jj_stmt *new_stmt(jj_parser *p, jj_stmt_kind kind) {
    jj_stmt *st = td_jj_calloc(p->s, 1, sizeof *st);
    st->kind = kind;
    st->line = p->at->line;
    return st;
}

static void expect_block_end(jj_parser *p) {
    if (p->at->kind != JJ_T_BLOCK_END) td_jj_unexpected(p, "'%}'");
    td_jj_next_token(p);
}

static jj_stmt *parse_nodes(jj_parser *p, const char *const *ends);

/* After a tag's words: "%}", the body, "{%", one of the end words, which stays the token at hand. */
static jj_stmt *parse_body(jj_parser *p, const char *const *ends) {
    td_jj_skip_op(p, ':');
    expect_block_end(p);
    return parse_nodes(p, ends);
}

static jj_stmt *parse_whole_body(jj_parser *p, const char *end) {
    jj_stmt *body = parse_body(p, (const char *const[]){end, NULL});
    td_jj_next_token(p);
    return body;
}

static jj_stmt *parse_if(jj_parser *p) {
    static const char *const ENDS[] = {"elif", "else", "endif", NULL};
    jj_stmt                 *first = new_stmt(p, JJ_S_IF), *st = first;
    p->conditions++;
    for (;;) {
        td_jj_next_token(p); /* if, elif */
        st->expr = td_jj_parse_tuple(p, false, NULL);
        st->body = parse_body(p, ENDS);
        if (!td_jj_at_name(p, "elif")) break;
        st->orelse = new_stmt(p, JJ_S_IF);
        st = st->orelse;
    }
    if (td_jj_skip_name(p, "else"))
        st->orelse = parse_whole_body(p, "endif");
    else
        td_jj_next_token(p);
    p->conditions--;
    return first;
}

static jj_stmt *parse_for(jj_parser *p) {
    static const char *const ENDS[] = {"else", "endfor", NULL};
    jj_stmt                 *st = new_stmt(p, JJ_S_FOR);
    td_jj_next_token(p);
    st->target = td_jj_parse_target(p, "in");
    if (!td_jj_skip_name(p, "in")) td_jj_unexpected(p, "'in'");
    st->expr = td_jj_parse_tuple(p, false, "recursive");
    if (td_jj_skip_name(p, "if")) st->filter = td_jj_parse_expression(p, true);
    if (td_jj_at_name(p, "recursive")) td_jj_fail(p->s, TD_ENOTSUP, "recursive loops are not supported");
    p->loops++;
    st->body = parse_body(p, ENDS);
    p->loops--;
    if (td_jj_skip_name(p, "else"))
        st->orelse = parse_whole_body(p, "endfor");
    else
        td_jj_next_token(p);
    return st;
}

static jj_stmt *parse_set(jj_parser *p) {
    jj_stmt *st = new_stmt(p, JJ_S_SET);
    td_jj_next_token(p);
    if (p->at->kind == JJ_T_NAME && p->at[1].kind == JJ_T_OP && p->at[1].op == '.') {
        st->kind = JJ_S_SET_ATTR;
        st->name = td_jj_expect_name(p, "a name");
        td_jj_next_token(p);
        st->attr = td_jj_expect_name(p, "the name of an attribute");
    } else {
        st->target = td_jj_parse_target(p, NULL);
    }
    if (td_jj_skip_op(p, '=')) {
        st->expr = td_jj_parse_tuple(p, true, NULL);
        return st;
    }
    if (st->kind == JJ_S_SET_ATTR) td_jj_fail(p->s, TD_ENOTSUP, "a block set of an attribute is not supported");
    st->kind = JJ_S_SET_BLOCK;
    st->expr = td_jj_parse_filters(p, NULL, false);
    st->body = parse_whole_body(p, "endset");
    return st;
}

static jj_stmt *parse_with(jj_parser *p) {
    jj_stmt *st = new_stmt(p, JJ_S_WITH);
    size_t   cap = 0;
    td_jj_next_token(p);
    while (p->at->kind != JJ_T_BLOCK_END) {
        if (st->n_items) td_jj_expect_op(p, ',', ",");
        jj_expr *target = td_jj_new_expr(p, JJ_E_NAME);
        target->name = td_jj_expect_name(p, "a name");
        td_jj_expect_op(p, '=', "=");
        td_jj_add_item(p, &st->items, &st->n_items, &cap, target);
        td_jj_add_item(p, &st->items, &st->n_items, &cap, td_jj_parse_expression(p, true));
    }
    st->body = parse_whole_body(p, "endwith");
    return st;
}

static void parse_params(jj_parser *p, jj_macro_def *def) {
    size_t params_cap = 0, defaults_cap = 0;
    bool   optional = false;
    td_jj_expect_op(p, '(', "(");
    while (!td_jj_at_op(p, ')')) {
        size_t n = def->n_params;
        if (n) td_jj_expect_op(p, ',', ",");
        def->params = td_jj_grow(p->s, def->params, n, &params_cap, sizeof *def->params);
        def->params[n] = td_jj_expect_name(p, "the name of a parameter");
        for (size_t k = 0; k < n; k++)
            if (td_jj_str_equal(def->params[k], def->params[n]))
                td_jj_fail(p->s, TD_EFORMAT, "a parameter's name is repeated");
        td_jj_charge(p->s, n);
        jj_expr *value = NULL;
        if (td_jj_skip_op(p, '=')) {
            value = td_jj_parse_expression(p, true);
            optional = true;
        } else if (optional) {
            td_jj_fail(p->s, TD_EFORMAT, "a parameter without a default follows one with a default");
        }
        td_jj_add_item(p, &def->defaults, &def->n_params, &defaults_cap, value);
    }
    td_jj_expect_op(p, ')', ")");
}

static jj_stmt *parse_macro(jj_parser *p) {
    jj_stmt       *st = new_stmt(p, JJ_S_MACRO);
    jj_macro_def  *def = td_jj_calloc(p->s, 1, sizeof *def);
    jj_macro_parse frame = {p->macro, def};
    td_jj_next_token(p);
    def->name = td_jj_expect_name(p, "the name of a macro");
    parse_params(p, def);
    uint32_t loops = p->loops;
    p->loops = 0;
    p->macro = &frame;
    def->body = parse_whole_body(p, "endmacro");
    p->macro = frame.outer;
    p->loops = loops;
    st->macro = def;
    return st;
}

static jj_stmt *parse_filter_block(jj_parser *p) {
    jj_stmt *st = new_stmt(p, JJ_S_FILTER);
    td_jj_next_token(p);
    st->expr = td_jj_parse_filters(p, NULL, true);
    st->body = parse_whole_body(p, "endfilter");
    return st;
}

/* Hugging Face's mark for the assistant's turns. In transformers it is a call block: a function of its own. */
static jj_stmt *parse_generation(jj_parser *p) {
    jj_stmt *st = new_stmt(p, JJ_S_SCOPE);
    td_jj_next_token(p);
    uint32_t loops = p->loops;
    p->loops = 0;
    st->body = parse_whole_body(p, "endgeneration");
    p->loops = loops;
    return st;
}

static jj_stmt *parse_print_tag(jj_parser *p) {
    jj_stmt *first = NULL, **tail = &first;
    td_jj_next_token(p);
    while (p->at->kind != JJ_T_BLOCK_END) {
        if (first) td_jj_expect_op(p, ',', ",");
        jj_stmt *st = new_stmt(p, JJ_S_PRINT);
        st->expr = td_jj_parse_expression(p, true);
        *tail = st;
        tail = &st->next;
    }
    return first;
}

static jj_stmt *parse_loop_control(jj_parser *p, jj_stmt_kind kind) {
    if (!p->loops) td_jj_fail(p->s, TD_EFORMAT, "'break' or 'continue' outside of a loop");
    jj_stmt *st = new_stmt(p, kind);
    td_jj_next_token(p);
    return st;
}

static jj_stmt *parse_break(jj_parser *p) {
    return parse_loop_control(p, JJ_S_BREAK);
}
static jj_stmt *parse_continue(jj_parser *p) {
    return parse_loop_control(p, JJ_S_CONTINUE);
}

static const struct {
    const char *name;
    jj_stmt *(*parse)(jj_parser *p);
} TAGS[] = {
    {"if", parse_if},           {"for", parse_for},           {"set", parse_set},
    {"macro", parse_macro},     {"with", parse_with},         {"filter", parse_filter_block},
    {"break", parse_break},     {"continue", parse_continue}, {"generation", parse_generation},
    {"print", parse_print_tag},
};

static jj_stmt *parse_tag(jj_parser *p) {
    static const char *const CLOSING[] = {"elif",     "else",    "endif",     "endfor",       "endset",
                                          "endmacro", "endwith", "endfilter", "endgeneration"};
    if (p->at->kind != JJ_T_NAME) td_jj_unexpected(p, "the name of a tag");
    const jj_str *name = p->at->value.u.s;
    for (size_t k = 0; k < sizeof TAGS / sizeof *TAGS; k++)
        if (td_jj_str_is(name, TAGS[k].name)) return TAGS[k].parse(p);
    for (size_t k = 0; k < sizeof CLOSING / sizeof *CLOSING; k++)
        if (td_jj_str_is(name, CLOSING[k])) td_jj_fail(p->s, TD_EFORMAT, "'%s' closes nothing here", CLOSING[k]);
    td_jj_fail(p->s, TD_ENOTSUP, "the tag '%.*s' is not supported", (int)(name->n < 100 ? name->n : 100), name->p);
}

static bool at_end_word(const jj_parser *p, const char *const *ends) {
    for (; ends && *ends; ends++)
        if (td_jj_at_name(p, *ends)) return true;
    return false;
}

static jj_stmt *parse_nodes(jj_parser *p, const char *const *ends) {
    jj_stmt *first = NULL, **tail = &first;
    uint32_t start = ends ? p->at[-1].line : 0; /* of the tag that opened it */
    td_jj_parse_enter(p);
    while (p->at->kind != JJ_T_EOF) {
        if (p->at->kind == JJ_T_TEXT) {
            *tail = new_stmt(p, JJ_S_TEXT);
            (*tail)->text = *p->at->value.u.s;
            td_jj_next_token(p);
        } else if (p->at->kind == JJ_T_PRINT_BEGIN) {
            *tail = new_stmt(p, JJ_S_PRINT);
            td_jj_next_token(p);
            (*tail)->expr = td_jj_parse_tuple(p, true, NULL);
            if (p->at->kind != JJ_T_PRINT_END) td_jj_unexpected(p, "'}}'");
            td_jj_next_token(p);
        } else {
            td_jj_next_token(p); /* {% */
            if (at_end_word(p, ends)) {
                td_jj_parse_leave(p);
                return first;
            }
            *tail = parse_tag(p);
            expect_block_end(p);
        }
        while (*tail) tail = &(*tail)->next;
    }
    if (ends) {
        const char *last = ends[0];
        for (; *ends; ends++) last = *ends;
        p->s->line = start;
        td_jj_fail(p->s, TD_EFORMAT, "a block that starts here lacks its '%s'", last);
    }
    td_jj_parse_leave(p);
    return first;
}

void td_jj_parse(jj_state *s, const char *source, size_t len, jj_stmt **out) {
    jj_parser p = {.s = s, .at = td_jj_lex(s, source, len)};
    s->line = p.at->line;
    *out = parse_nodes(&p, NULL);
    if (!p.unknown) return;
    s->line = p.unknown->line;
    td_jj_fail_unknown(s, p.unknown->kind == JJ_E_TEST ? "test" : "filter", p.unknown->name);
}
