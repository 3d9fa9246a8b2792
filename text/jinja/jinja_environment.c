/* Looking names up in the tables of an environment. */
#include "text/jinja/jinja_environment.h"

const jj_filter *td_jj_find_filter(const jj_state *s, const jj_str *name) {
    for (size_t k = 0; k < sizeof s->env->filters / sizeof *s->env->filters; k++)
        for (const jj_filter *f = s->env->filters[k]; f->name; f++)
            if (td_jj_str_is(name, f->name)) return f;
    return NULL;
}

const jj_test *td_jj_find_test(const jj_state *s, const jj_str *name) {
    for (const jj_test *t = s->env->tests; t->name; t++)
        if (td_jj_str_is(name, t->name)) return t;
    return NULL;
}

const jj_function *td_jj_find_function(const jj_state *s, const jj_str *name) {
    for (const jj_function *f = s->env->functions; f->name; f++)
        if (td_jj_str_is(name, f->name)) return f;
    return NULL;
}

bool td_jj_find_method(jj_state *s, const jj_value *of, const jj_str *name, jj_value *out) {
    for (const jj_method_def *def = s->env->methods[of->kind]; def && def->name; def++) {
        if (!td_jj_str_is(name, def->name)) continue;
        if (def->call) {
            jj_method *m = td_jj_alloc(s, sizeof *m);
            *m = (jj_method){*of, def};
            *out = (jj_value){JJ_METHOD, {.method = m}};
        } else {
            jj_buf hint = {0};
            td_jj_printf(s, &hint, "access to attribute '%s' of '%s' object is unsafe.", def->name, td_jj_type(of));
            td_jj_put(s, &hint, "", 1);
            *out = td_jj_undefined_hint(s, hint.p);
        }
        return true;
    }
    return false;
}

bool td_jj_apply_test(jj_state *s, const jj_test *test, jj_value v, const jj_args *args) {
    if (args->n != test->n_args || args->n_kw)
        td_jj_fail(s, TD_EINVAL, "the test '%s' takes %zu arguments, %zu were given", test->name, test->n_args,
                   args->n + args->n_kw);
    return test->holds(s, v, args->at);
}

void td_jj_fail_unknown(jj_state *s, const char *what, const jj_str *name) {
    td_jj_fail(s, TD_ENOTSUP, "the %s '%.*s' is not supported", what, (int)(name->n < 100 ? name->n : 100), name->p);
}
