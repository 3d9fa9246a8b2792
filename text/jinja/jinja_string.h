/* Python's str operations, for methods and filters. Indices are code points. */
#ifndef TD_TEXT_JINJA_STRING_H
#define TD_TEXT_JINJA_STRING_H

#include "text/jinja/jinja_value.h"

enum { JJ_STRIP_LEFT = 1, JJ_STRIP_RIGHT = 2 };

/** chars NULL: white space. */
jj_value td_jj_strip(jj_state *s, const jj_str *str, const jj_str *chars, int sides);
/** count < 0: all. */
jj_value td_jj_replace(jj_state *s, const jj_str *str, const jj_str *old, const jj_str *with, int64_t count);
jj_value td_jj_upper(jj_state *s, const jj_str *str);
jj_value td_jj_lower(jj_state *s, const jj_str *str);
jj_value td_jj_capitalize(jj_state *s, const jj_str *str);
jj_value td_jj_title(jj_state *s, const jj_str *str); /* str.title() */
/** The filter `title`: words end at "-", "(", "{", "[", "<" and spaces. */
jj_value td_jj_title_filter(jj_state *s, const jj_str *str);
/** sep NULL: white space; max < 0: no limit. */
jj_value td_jj_split(jj_state *s, const jj_str *str, const jj_str *sep, int64_t max, bool from_right);
jj_value td_jj_splitlines(jj_state *s, const jj_str *str, bool keep_ends);
jj_value td_jj_join(jj_state *s, const jj_str *sep, jj_value items, bool convert); /* convert: str() of each item */
jj_value td_jj_center(jj_state *s, const jj_str *str, int64_t width);
bool     td_jj_is_cased(jj_state *s, const jj_str *str, bool upper); /* isupper(), islower() */

#endif
