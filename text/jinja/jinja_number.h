/* Python's arithmetic, with integers of 64 bits, and numbers out of texts. */
#ifndef TD_TEXT_JINJA_NUMBER_H
#define TD_TEXT_JINJA_NUMBER_H

#include "text/jinja/jinja_value.h"

typedef enum { JJ_ADD, JJ_SUB, JJ_MUL, JJ_DIV, JJ_FLOORDIV, JJ_MOD, JJ_POW } jj_op;

jj_value td_jj_arith(jj_state *s, jj_op op, const jj_value *a, const jj_value *b);
jj_value td_jj_negate(jj_state *s, const jj_value *v, bool positive); /* -v, or +v */
bool     td_jj_parse_int(jj_state *s, const jj_str *text, int base, int64_t *out);
bool     td_jj_parse_float(jj_state *s, const jj_str *text, double *out);
bool     td_jj_float_to_int(jj_state *s, double f, int64_t *out); /* truncates; false for NaN */

#endif
