/* A value as JSON. */
#ifndef TD_TEXT_JINJA_JSON_H
#define TD_TEXT_JINJA_JSON_H

#include "text/jinja/jinja_value.h"

/** json.dumps(v, ensure_ascii, indent, separators, sort_keys); args as transformers' tojson filter takes them. */
jj_value td_jj_tojson(jj_state *s, const jj_value *v, const jj_args *args);

#endif
