/* Running the statements of a template. */
#ifndef TD_TEXT_JINJA_EXEC_H
#define TD_TEXT_JINJA_EXEC_H

#include "text/jinja/jinja_eval.h"

/** Run statements; text goes to r->out. */
void td_jj_render(jj_render *r, const jj_stmt *body);

#endif
