/* str.format. */
#ifndef TD_TEXT_JINJA_FORMAT_H
#define TD_TEXT_JINJA_FORMAT_H

#include "text/jinja/jinja_value.h"

jj_value td_jj_format(jj_state *s, const jj_str *str, const jj_args *args); /* without format specifications */

#endif
