/* Parsing expressions. They hold no statements, so nothing here calls jinja_parse.c. */
#ifndef TD_TEXT_JINJA_PARSE_EXPR_H
#define TD_TEXT_JINJA_PARSE_EXPR_H

#include "text/jinja/jinja_cursor.h"

jj_expr *td_jj_parse_expression(jj_parser *p, bool with_cond);
/** An expression, or a tuple where commas follow. end_name: a name that ends it ("in"), or NULL. */
jj_expr *td_jj_parse_tuple(jj_parser *p, bool with_cond, const char *end_name);
/** The target of an assignment: a name or a tuple of targets. */
jj_expr *td_jj_parse_target(jj_parser *p, const char *end_name);
/** A chain of filters around inner (may be NULL). @param first the first name has no "|" before it. NULL: none here. */
jj_expr *td_jj_parse_filters(jj_parser *p, jj_expr *inner, bool first);

#endif
