/* The filters of lists and dicts. */
#ifndef TD_TEXT_JINJA_FILTERS_LIST_H
#define TD_TEXT_JINJA_FILTERS_LIST_H

#include "text/jinja/jinja_ast.h"

extern const jj_filter TD_JJ_LIST_FILTERS[]; /* ends with a NULL name */

/** An iterator over item.path of all items; fallback (may be NULL) where that is undefined. */
jj_value td_jj_map_path(jj_state *s, jj_value items, const jj_value *path, const jj_value *fallback);

#endif
