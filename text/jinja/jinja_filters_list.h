/* What filters of texts need of those of lists. */
#ifndef TD_TEXT_JINJA_FILTERS_LIST_H
#define TD_TEXT_JINJA_FILTERS_LIST_H

#include "text/jinja/jinja_value.h"

/** An iterator over item.path of all items; fallback (may be NULL) where that is undefined. */
jj_value td_jj_map_path(jj_state *s, jj_value items, const jj_value *path, const jj_value *fallback);

#endif
