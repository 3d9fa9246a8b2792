/* The tables that an environment is made of (jinja_environment.h). Each ends with a NULL name. */
#ifndef TD_TEXT_JINJA_BUILTINS_H
#define TD_TEXT_JINJA_BUILTINS_H

#include "text/jinja/jinja_environment.h"

extern const jj_filter TD_JJ_FILTERS[];      /* of scalars and texts */
extern const jj_filter TD_JJ_LIST_FILTERS[]; /* of lists and dicts */

extern const jj_test     TD_JJ_TESTS[];
extern const jj_function TD_JJ_FUNCTIONS[]; /* range, dict, namespace, raise_exception, strftime_now */

extern const jj_method_def TD_JJ_STR_METHODS[];
extern const jj_method_def TD_JJ_LIST_METHODS[];
extern const jj_method_def TD_JJ_TUPLE_METHODS[]; /* and of ranges */
extern const jj_method_def TD_JJ_DICT_METHODS[];
extern const jj_method_def TD_JJ_LOOP_METHODS[];

#endif
