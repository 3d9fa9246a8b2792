/* The text of a value: Python's str() and repr(). */
#ifndef TD_TEXT_JINJA_TEXT_H
#define TD_TEXT_JINJA_TEXT_H

#include "text/jinja/jinja_value.h"

void     td_jj_write(jj_state *s, jj_buf *b, const jj_value *v); /* str(v) */
void     td_jj_write_repr(jj_state *s, jj_buf *b, const jj_value *v);
void     td_jj_write_float(jj_state *s, jj_buf *b, double f); /* the shortest digits that read back as f */
jj_value td_jj_to_str(jj_state *s, const jj_value *v);        /* str(v); v itself where it is a string */

/** Fail as Python does when an undefined value is used. */
_Noreturn void td_jj_fail_undefined(jj_state *s, const jj_value *v);

#endif
