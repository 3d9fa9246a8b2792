/* Comparing values as Python does, and what rests on it: membership, dicts, sorting. */
#ifndef TD_TEXT_JINJA_COMPARE_H
#define TD_TEXT_JINJA_COMPARE_H

#include "text/jinja/jinja_value.h"

bool td_jj_equal(jj_state *s, const jj_value *a, const jj_value *b);
/** Python's a < b; fails where Python raises TypeError. */
bool td_jj_less(jj_state *s, const jj_value *a, const jj_value *b, const char *op);
bool td_jj_contains(jj_state *s, jj_value container, const jj_value *item);

/** The item of a key, or NULL. */
jj_value *td_jj_dict_get(jj_state *s, const jj_dict *d, const jj_value *key);
jj_value *td_jj_dict_get_str(jj_state *s, const jj_dict *d, const jj_str *key);
/** Fails for a key that Python cannot hash. */
void td_jj_dict_set(jj_state *s, jj_dict *d, jj_value key, jj_value value);
/** Append without looking for the key: the caller knows it is new. */
void td_jj_dict_add(jj_state *s, jj_dict *d, jj_value key, jj_value value);
bool td_jj_hashable(jj_state *s, const jj_value *v);
/** Fill in the hash. A string that several renderings share must have its hash before they begin. */
void td_jj_hash(jj_str *str);

/** list in the order of keys[k] (stable), as Python's sorted(). */
jj_list *td_jj_sorted(jj_state *s, const jj_list *list, const jj_list *keys, bool reverse);

#endif
