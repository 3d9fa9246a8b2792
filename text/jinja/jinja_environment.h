/*
 * What names mean in a template: filters, tests, functions and the methods of values, as jinja2.Environment has them.
 *
 * DESIGN. A name is looked up in the environment of the state, because what has a name may look up others. The filter `map`
 * applies a filter by name and `select` a test. str.format gets attributes, and these may be methods. All of them call the
 * look-up, which stands below them. Their tables (jinja_builtins.h) come in from above: chat_template.c makes an
 * environment of the tables and gives it to each state that it makes.
 */
#ifndef TD_TEXT_JINJA_ENVIRONMENT_H
#define TD_TEXT_JINJA_ENVIRONMENT_H

#include "text/jinja/jinja_value.h"

typedef struct {
    const char *name;
    jj_value (*apply)(jj_state *s, jj_value v, const jj_args *args);
} jj_filter;

typedef struct {
    const char *name;
    bool (*holds)(jj_state *s, jj_value v, const jj_value *arg); /* arg: [n_args] */
    size_t n_args;
} jj_test;

typedef struct {
    const char *name;
    jj_value (*call)(jj_state *s, const jj_value *self, const jj_args *args); /* NULL: the sandbox hides it */
} jj_method_def;

struct jj_method { /* of one value */
    jj_value             self;
    const jj_method_def *def;
};

/* Tables, each of which ends with a NULL name. */
typedef struct jj_environment {
    const jj_filter     *filters[2];
    const jj_test       *tests;
    const jj_function   *functions;
    const jj_method_def *methods[JJ_METHOD + 1]; /* by the kind of the value; NULL: it has none */
} jj_environment;

/* NULL: there is none of this name. */
const jj_filter   *td_jj_find_filter(const jj_state *s, const jj_str *name);
const jj_test     *td_jj_find_test(const jj_state *s, const jj_str *name);
const jj_function *td_jj_find_function(const jj_state *s, const jj_str *name);

/** The method of a value, or false. What the sandbox hides is an undefined value. */
bool td_jj_find_method(jj_state *s, const jj_value *of, const jj_str *name, jj_value *out);

bool td_jj_apply_test(jj_state *s, const jj_test *test, jj_value v, const jj_args *args);

/** Fail because there is no filter or test of a name. @param what "filter" or "test". */
_Noreturn void td_jj_fail_unknown(jj_state *s, const char *what, const jj_str *name);

#endif
