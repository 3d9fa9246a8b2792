/* Attributes, items and slices. */
#ifndef TD_TEXT_JINJA_ACCESS_H
#define TD_TEXT_JINJA_ACCESS_H

#include "text/jinja/jinja_value.h"

jj_value td_jj_getattr(jj_state *s, jj_value of, const jj_str *name);  /* of.name: methods first, then items */
jj_value td_jj_getitem(jj_state *s, jj_value of, const jj_value *key); /* of[key]: items first, then methods */
/** of[start:stop:step]; parts that are not given are NONE. */
jj_value td_jj_slice(jj_state *s, const jj_value *of, const jj_value part[3]);
/** A path as the attribute= of filters takes it: "a.b.0", an int, or NONE (v itself). */
jj_value td_jj_getpath(jj_state *s, jj_value v, const jj_value *path);

#endif
