/* The functions that every template may call: range, dict, namespace, raise_exception, strftime_now. */
#include <string.h>
#include <time.h>

#include "text/jinja/jinja_builtins.h"
#include "text/jinja/jinja_compare.h"
#include "text/jinja/jinja_text.h"
#include "text/jinja/jinja_utf8.h"

static jj_value call_range(jj_state *s, const jj_args *args) {
    jj_range r = {.step = 1};
    int64_t  v[3];
    if (args->n_kw) td_jj_fail(s, TD_EINVAL, "range() takes no keyword arguments");
    if (args->n < 1 || args->n > 3) td_jj_fail(s, TD_EINVAL, "range() takes 1 to 3 arguments, %zu were given", args->n);
    for (size_t k = 0; k < args->n; k++)
        if (!td_jj_as_int(&args->at[k], &v[k]))
            td_jj_fail(s, TD_EINVAL, "'%s' object cannot be interpreted as an integer", td_jj_type(&args->at[k]));
    r.stop = v[args->n > 1];
    if (args->n > 1) r.start = v[0];
    if (args->n > 2) r.step = v[2];
    if (r.step == 0) td_jj_fail(s, TD_EINVAL, "range() arg 3 must not be zero");
    __int128 distance = r.step > 0 ? (__int128)r.stop - r.start : (__int128)r.start - r.stop;
    __int128 step = r.step > 0 ? r.step : -(__int128)r.step;
    __int128 n = distance > 0 ? (distance - 1) / step + 1 : 0;
    if (n > JJ_RANGE_ITEMS_MAX) td_jj_fail(s, TD_EINVAL, "range() of more than %d items", JJ_RANGE_ITEMS_MAX);
    r.n = (size_t)n;
    jj_range *kept = td_jj_alloc(s, sizeof *kept);
    *kept = r;
    return (jj_value){JJ_RANGE, {.range = kept}};
}

/* dict(mapping or pairs, key=value, …) into a DICT or NAMESPACE. */
static jj_value make_dict(jj_state *s, const jj_args *args, jj_kind kind) {
    jj_value made = td_jj_dict(s, kind);
    if (args->n > 1) td_jj_fail(s, TD_EINVAL, "at most one argument without a name is taken, %zu were given", args->n);
    if (args->n && args->at[0].kind == JJ_DICT) {
        const jj_dict *d = args->at[0].u.dict;
        for (size_t k = 0; k < d->n; k++) td_jj_dict_set(s, made.u.dict, d->at[k].key, d->at[k].value);
    } else if (args->n) {
        jj_value  item;
        jj_cursor c = td_jj_begin(s, args->at[0]);
        while (td_jj_next(s, &c, &item)) {
            jj_value pair = td_jj_to_list(s, item);
            if (pair.u.list->n != 2) td_jj_fail(s, TD_EINVAL, "a dict is made of pairs");
            td_jj_dict_set(s, made.u.dict, pair.u.list->at[0], pair.u.list->at[1]);
        }
    }
    for (size_t k = 0; k < args->n_kw; k++) td_jj_dict_set(s, made.u.dict, args->kw[k].key, args->kw[k].value);
    return made;
}

static jj_value call_dict(jj_state *s, const jj_args *args) {
    return make_dict(s, args, JJ_DICT);
}
static jj_value call_namespace(jj_state *s, const jj_args *args) {
    return make_dict(s, args, JJ_NAMESPACE);
}

static jj_value call_raise_exception(jj_state *s, const jj_args *args) {
    jj_value message;
    td_jj_bind(s, "raise_exception", args, "message", 1, &message);
    message = td_jj_to_str(s, &message);
    td_jj_raise(s, message.u.s->p, message.u.s->n);
}

static jj_value call_strftime_now(jj_state *s, const jj_args *args) {
    jj_value  format;
    char      text[1024], zero_ended[256];
    time_t    now = time(NULL);
    struct tm tm;
    td_jj_bind(s, "strftime_now", args, "format", 1, &format);
    if (format.kind != JJ_STR || format.u.s->n >= sizeof zero_ended || memchr(format.u.s->p, 0, format.u.s->n))
        td_jj_fail(s, TD_EINVAL, "strftime_now takes a format of at most %zu bytes", sizeof zero_ended - 1);
    memcpy(zero_ended, format.u.s->p, format.u.s->n);
    zero_ended[format.u.s->n] = 0;
    if (!localtime_r(&now, &tm)) td_jj_fail(s, TD_EINVAL, "the time is not known");
    size_t n = strftime(text, sizeof text, zero_ended, &tm);
    if (!td_jj_utf8_valid(text, n)) td_jj_fail(s, TD_EINVAL, "the locale's names are not UTF-8");
    return td_jj_str_copy(s, text, n);
}

const jj_function TD_JJ_FUNCTIONS[] = {
    {"range", call_range},
    {"dict", call_dict},
    {"namespace", call_namespace},
    {"raise_exception", call_raise_exception},
    {"strftime_now", call_strftime_now},
    {NULL, NULL},
};
