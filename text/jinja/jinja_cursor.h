/* The parser's cursor, which statements and expressions share. */
#ifndef TD_TEXT_JINJA_CURSOR_H
#define TD_TEXT_JINJA_CURSOR_H

#include "text/jinja/jinja_ast.h"
#include "text/jinja/jinja_lex.h"

typedef struct jj_macro_parse { /* a macro whose body is being parsed */
    struct jj_macro_parse *outer;
    jj_macro_def          *def;
} jj_macro_parse;

typedef struct {
    jj_state       *s;
    const jj_token *at;
    uint32_t        depth;
    uint32_t        loops;      /* around this point, within the same macro */
    jj_macro_parse *macro;      /* innermost, or NULL */
    uint32_t        conditions; /* how many conditions this point is in */
    const jj_expr  *unknown;    /* the first filter or test of unknown name outside of all conditions; NULL: none */
} jj_parser;

_Noreturn void td_jj_unexpected(jj_parser *p, const char *expected); /* fails, naming the token at hand */
void           td_jj_next_token(jj_parser *p);
void           td_jj_parse_enter(jj_parser *p); /* one bracket or block deeper */
void           td_jj_parse_leave(jj_parser *p);
bool           td_jj_at_op(const jj_parser *p, int op);
bool           td_jj_skip_op(jj_parser *p, int op);
void           td_jj_expect_op(jj_parser *p, int op, const char *text);
bool           td_jj_at_name(const jj_parser *p, const char *name);
bool           td_jj_skip_name(jj_parser *p, const char *name);
const jj_str  *td_jj_expect_name(jj_parser *p, const char *expected); /* any name */

jj_expr *td_jj_new_expr(jj_parser *p, jj_expr_kind kind);
void     td_jj_add_item(jj_parser *p, jj_expr ***items, size_t *n, size_t *cap, jj_expr *e);

#endif
