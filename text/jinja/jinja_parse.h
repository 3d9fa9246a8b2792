/* Parsing a template: statements (jinja_parse.c) out of expressions (jinja_parse_expr.c) out of tokens (jinja_lex.c). */
#ifndef TD_TEXT_JINJA_PARSE_H
#define TD_TEXT_JINJA_PARSE_H

#include "text/jinja/jinja_ast.h"

/** Parse a template into the arena of s. *out is NULL for an empty one. */
void td_jj_parse(jj_state *s, const char *source, size_t len, jj_stmt **out);

#endif
