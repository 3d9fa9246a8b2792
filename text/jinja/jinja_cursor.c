/* The parser's cursor: the token at hand, and new nodes of the tree. */
#include "text/jinja/jinja_cursor.h"

#include <string.h>

void td_jj_next_token(jj_parser *p) {
    if (p->at->kind != JJ_T_EOF) p->at++;
    p->s->line = p->at->line;
}

void td_jj_unexpected(jj_parser *p, const char *expected) {
    const jj_token          *t = p->at;
    static const char *const KIND[] = {
        [JJ_T_EOF] = "the end of the template",
        [JJ_T_TEXT] = "text",
        [JJ_T_PRINT_BEGIN] = "'{{'",
        [JJ_T_PRINT_END] = "'}}'",
        [JJ_T_BLOCK_BEGIN] = "'{%'",
        [JJ_T_BLOCK_END] = "'%}'",
        [JJ_T_STRING] = "a string",
        [JJ_T_NUMBER] = "a number",
    };
    static const char *const OPERATOR[] = {"//", "**", "==", "!=", ">=", "<="};
    if (t->kind == JJ_T_NAME)
        td_jj_fail(p->s, TD_EFORMAT, "expected %s, not '%.*s'", expected,
                   (int)(t->value.u.s->n < 100 ? t->value.u.s->n : 100), t->value.u.s->p);
    if (t->kind == JJ_T_OP && t->op < 256) td_jj_fail(p->s, TD_EFORMAT, "expected %s, not '%c'", expected, t->op);
    td_jj_fail(p->s, TD_EFORMAT, "expected %s, not %s", expected,
               t->kind == JJ_T_OP ? OPERATOR[t->op - JJ_OP_FLOORDIV] : KIND[t->kind]);
}

void td_jj_parse_enter(jj_parser *p) {
    if (p->depth >= JJ_PARSE_DEPTH_MAX) td_jj_fail(p->s, TD_EFORMAT, "nested deeper than %u levels", JJ_PARSE_DEPTH_MAX);
    p->depth++;
}

void td_jj_parse_leave(jj_parser *p) {
    p->depth--;
}

bool td_jj_at_op(const jj_parser *p, int op) {
    return p->at->kind == JJ_T_OP && p->at->op == op;
}

bool td_jj_skip_op(jj_parser *p, int op) {
    if (!td_jj_at_op(p, op)) return false;
    td_jj_next_token(p);
    return true;
}

void td_jj_expect_op(jj_parser *p, int op, const char *text) {
    if (td_jj_skip_op(p, op)) return;
    char expected[8] = "'";
    strcat(strcat(expected, text), "'");
    td_jj_unexpected(p, expected);
}

bool td_jj_at_name(const jj_parser *p, const char *name) {
    return p->at->kind == JJ_T_NAME && td_jj_str_is(p->at->value.u.s, name);
}

bool td_jj_skip_name(jj_parser *p, const char *name) {
    if (!td_jj_at_name(p, name)) return false;
    td_jj_next_token(p);
    return true;
}

const jj_str *td_jj_expect_name(jj_parser *p, const char *expected) {
    if (p->at->kind != JJ_T_NAME) td_jj_unexpected(p, expected);
    const jj_str *name = p->at->value.u.s;
    td_jj_next_token(p);
    return name;
}

jj_expr *td_jj_new_expr(jj_parser *p, jj_expr_kind kind) {
    jj_expr *e = td_jj_calloc(p->s, 1, sizeof *e);
    e->kind = kind;
    e->line = p->at->line;
    return e;
}

void td_jj_add_item(jj_parser *p, jj_expr ***items, size_t *n, size_t *cap, jj_expr *e) {
    *items = td_jj_grow(p->s, *items, *n, cap, sizeof e);
    (*items)[(*n)++] = e;
}
