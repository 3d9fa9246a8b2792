/* Filters of lists and dicts. What Python gives as a generator is passed over once here too, but computed at once. */
#include "text/jinja/jinja_filters_list.h"

#include "text/jinja/jinja_access.h"
#include "text/jinja/jinja_builtins.h"
#include "text/jinja/jinja_compare.h"
#include "text/jinja/jinja_number.h"
#include "text/jinja/jinja_string.h"
#include "text/jinja/jinja_text.h"

static bool given(const jj_value *v) {
    return v->kind != JJ_MISSING && v->kind != JJ_NONE;
}
static bool flag(const jj_value *v) {
    return v->kind != JJ_MISSING && td_jj_truth(v);
}

/* ---- sorting ---- */

static jj_value ignore_case(jj_state *s, jj_value v, bool case_sensitive) {
    return !case_sensitive && v.kind == JJ_STR ? td_jj_lower(s, v.u.s) : v;
}

/* The sort key of an item: the values at comma-separated paths. */
static jj_value sort_key(jj_state *s, jj_value item, const jj_value *attribute, bool case_sensitive) {
    jj_value key = td_jj_list(s, JJ_LIST);
    if (attribute->kind != JJ_STR) {
        td_jj_append(s, key.u.list, ignore_case(s, td_jj_getpath(s, item, attribute), case_sensitive));
        return key;
    }
    const jj_list *paths = td_jj_split(s, attribute->u.s, &(jj_str){",", 1, 0}, -1, false).u.list;
    for (size_t k = 0; k < paths->n; k++)
        td_jj_append(s, key.u.list, ignore_case(s, td_jj_getpath(s, item, &paths->at[k]), case_sensitive));
    return key;
}

static jj_value f_sort(jj_state *s, jj_value v, const jj_args *args) {
    jj_value a[3], list = td_jj_to_list(s, v), keys = td_jj_list(s, JJ_LIST);
    td_jj_bind(s, "sort", args, "reverse case_sensitive attribute", 0, a);
    for (size_t k = 0; k < list.u.list->n; k++)
        td_jj_append(s, keys.u.list, sort_key(s, list.u.list->at[k], &a[2], flag(&a[1])));
    return (jj_value){JJ_LIST, {.list = td_jj_sorted(s, list.u.list, keys.u.list, flag(&a[0]))}};
}

static jj_value f_dictsort(jj_state *s, jj_value v, const jj_args *args) {
    jj_value a[3], pairs = td_jj_list(s, JJ_LIST), keys = td_jj_list(s, JJ_LIST);
    td_jj_bind(s, "dictsort", args, "case_sensitive by reverse", 0, a);
    bool by_value = a[1].kind == JJ_STR && td_jj_str_is(a[1].u.s, "value");
    if (a[1].kind != JJ_MISSING && !by_value && !(a[1].kind == JJ_STR && td_jj_str_is(a[1].u.s, "key")))
        td_jj_fail(s, TD_EINVAL, "You can only sort by either \"key\" or \"value\"");
    if (v.kind == JJ_UNDEFINED) td_jj_fail_undefined(s, &v);
    if (v.kind != JJ_DICT) td_jj_fail(s, TD_EINVAL, "'%s' object has no attribute 'items'", td_jj_type(&v));
    const jj_dict *d = v.u.dict;
    for (size_t k = 0; k < d->n; k++) {
        td_jj_append(s, pairs.u.list, td_jj_pair(s, d->at[k].key, d->at[k].value));
        td_jj_append(s, keys.u.list, ignore_case(s, by_value ? d->at[k].value : d->at[k].key, flag(&a[0])));
    }
    return (jj_value){JJ_LIST, {.list = td_jj_sorted(s, pairs.u.list, keys.u.list, flag(&a[2]))}};
}

static jj_value extreme(jj_state *s, jj_value v, const jj_args *args, bool largest) {
    jj_value a[2], item, best = JJ_UNDEF_VALUE, best_key = JJ_UNDEF_VALUE;
    td_jj_bind(s, largest ? "max" : "min", args, "case_sensitive attribute", 0, a);
    jj_cursor c = td_jj_begin(s, v);
    bool      any = false;
    while (td_jj_next(s, &c, &item)) {
        jj_value key = ignore_case(s, td_jj_getpath(s, item, &a[1]), flag(&a[0]));
        if (!any || (largest ? td_jj_less(s, &best_key, &key, ">") : td_jj_less(s, &key, &best_key, "<"))) {
            best = item;
            best_key = key;
        }
        any = true;
    }
    return any ? best : td_jj_undefined_hint(s, "No aggregated item, sequence was empty.");
}

static jj_value f_min(jj_state *s, jj_value v, const jj_args *args) {
    return extreme(s, v, args, false);
}
static jj_value f_max(jj_state *s, jj_value v, const jj_args *args) {
    return extreme(s, v, args, true);
}

/* ---- choosing ---- */

static jj_value f_first(jj_state *s, jj_value v, const jj_args *args) {
    jj_value item;
    td_jj_bind(s, "first", args, "", 0, NULL);
    jj_cursor c = td_jj_begin(s, v);
    return td_jj_next(s, &c, &item) ? item : td_jj_undefined_hint(s, "No first item, sequence was empty.");
}

static void check_reversible(jj_state *s, const jj_value *v) {
    if (v->kind == JJ_ITER || !td_jj_iterable(v)) td_jj_fail(s, TD_EINVAL, "'%s' object is not reversible", td_jj_type(v));
}

static jj_value f_last(jj_state *s, jj_value v, const jj_args *args) {
    td_jj_bind(s, "last", args, "", 0, NULL);
    check_reversible(s, &v);
    const jj_list *list = td_jj_to_list(s, v).u.list;
    return list->n ? list->at[list->n - 1] : td_jj_undefined_hint(s, "No last item, sequence was empty.");
}

static jj_value f_reverse(jj_state *s, jj_value v, const jj_args *args) {
    td_jj_bind(s, "reverse", args, "", 0, NULL);
    if (v.kind == JJ_STR) {
        jj_value part[3] = {JJ_NONE_VALUE, JJ_NONE_VALUE, jj_int(-1)};
        return td_jj_slice(s, &v, part);
    }
    bool     generator = v.kind == JJ_ITER; /* Python's reversed() refuses it, so Jinja makes a list */
    jj_value list = td_jj_to_list(s, v);
    jj_list *l = list.u.list;
    for (size_t i = 0, j = l->n; i + 1 < j; i++) {
        jj_value t = l->at[i];
        l->at[i] = l->at[--j];
        l->at[j] = t;
    }
    return generator ? list : td_jj_iter_over(s, l);
}

static jj_value f_list(jj_state *s, jj_value v, const jj_args *args) {
    td_jj_bind(s, "list", args, "", 0, NULL);
    return td_jj_to_list(s, v);
}

static jj_value f_items(jj_state *s, jj_value v, const jj_args *args) {
    jj_value pairs = td_jj_list(s, JJ_LIST);
    td_jj_bind(s, "items", args, "", 0, NULL);
    if (v.kind != JJ_DICT && v.kind != JJ_UNDEFINED) td_jj_fail(s, TD_EINVAL, "Can only get item pairs from a mapping.");
    for (size_t k = 0; v.kind == JJ_DICT && k < v.u.dict->n; k++)
        td_jj_append(s, pairs.u.list, td_jj_pair(s, v.u.dict->at[k].key, v.u.dict->at[k].value));
    return td_jj_iter_over(s, pairs.u.list);
}

static jj_value f_unique(jj_state *s, jj_value v, const jj_args *args) {
    jj_value a[2], item, kept = td_jj_list(s, JJ_LIST), seen = td_jj_dict(s, JJ_DICT);
    td_jj_bind(s, "unique", args, "case_sensitive attribute", 0, a);
    jj_cursor c = td_jj_begin(s, v);
    while (td_jj_next(s, &c, &item)) {
        jj_value key = ignore_case(s, td_jj_getpath(s, item, &a[1]), flag(&a[0]));
        size_t   before = seen.u.dict->n;
        td_jj_dict_set(s, seen.u.dict, key, JJ_NONE_VALUE);
        if (seen.u.dict->n > before) td_jj_append(s, kept.u.list, item);
    }
    return td_jj_iter_over(s, kept.u.list);
}

static jj_value f_sum(jj_state *s, jj_value v, const jj_args *args) {
    jj_value a[2], item;
    td_jj_bind(s, "sum", args, "attribute start", 0, a);
    jj_value  sum = a[1].kind == JJ_MISSING ? jj_int(0) : a[1];
    jj_cursor c = td_jj_begin(s, v);
    if (sum.kind == JJ_STR) td_jj_fail(s, TD_EINVAL, "sum() can't sum strings");
    while (td_jj_next(s, &c, &item)) {
        item = td_jj_getpath(s, item, &a[0]);
        sum = td_jj_arith(s, JJ_ADD, &sum, &item);
    }
    return sum;
}

/* ---- map, select ---- */

jj_value td_jj_map_path(jj_state *s, jj_value items, const jj_value *path, const jj_value *fallback) {
    jj_value  item, mapped = td_jj_list(s, JJ_LIST);
    jj_cursor c = td_jj_begin(s, items);
    while (td_jj_next(s, &c, &item)) {
        jj_value v = td_jj_getpath(s, item, path);
        td_jj_append(s, mapped.u.list, v.kind == JJ_UNDEFINED && fallback ? *fallback : v);
    }
    return td_jj_iter_over(s, mapped.u.list);
}

/* The name of a filter or test in the arguments. */
static const jj_str *name_arg(jj_state *s, const char *what, const jj_args *args, size_t k) {
    if (k >= args->n || args->at[k].kind != JJ_STR)
        td_jj_fail(s, TD_EINVAL, "%s requires the name of a filter or test", what);
    return args->at[k].u.s;
}

static jj_args rest_of(const jj_args *args, size_t from) {
    return (jj_args){from ? args->at + from : args->at, args->n - from, args->kw, args->n_kw};
}

static jj_value f_map(jj_state *s, jj_value v, const jj_args *args) {
    jj_value mapped = td_jj_list(s, JJ_LIST);
    if (!td_jj_truth(&v)) return td_jj_iter_over(s, mapped.u.list);
    for (size_t k = 0; k < args->n_kw && !args->n; k++) {
        if (!td_jj_str_is(args->kw[k].key.u.s, "attribute")) continue;
        jj_value a[2];
        td_jj_bind(s, "map", args, "attribute default", 1, a);
        return td_jj_map_path(s, v, &a[0], given(&a[1]) ? &a[1] : NULL);
    }
    const jj_str    *name = name_arg(s, "map", args, 0);
    const jj_filter *filter = td_jj_find_filter(s, name);
    if (!filter) td_jj_fail_unknown(s, "filter", name);
    jj_args   rest = rest_of(args, 1);
    jj_value  item;
    jj_cursor c = td_jj_begin(s, v);
    td_jj_enter(s); /* map may name map */
    while (td_jj_next(s, &c, &item)) td_jj_append(s, mapped.u.list, filter->apply(s, item, &rest));
    td_jj_leave(s);
    return td_jj_iter_over(s, mapped.u.list);
}

static jj_value choose(jj_state *s, jj_value v, const jj_args *args, const char *what, bool by_attribute, bool wanted) {
    jj_value       item, kept = td_jj_list(s, JJ_LIST), path = JJ_NONE_VALUE;
    const jj_test *test = NULL;
    size_t         at = by_attribute;
    if (!td_jj_truth(&v)) return td_jj_iter_over(s, kept.u.list);
    if (by_attribute) {
        if (!args->n) td_jj_fail(s, TD_EINVAL, "Missing parameter for attribute name");
        path = args->at[0];
    }
    if (args->n > at) {
        const jj_str *name = name_arg(s, what, args, at);
        test = td_jj_find_test(s, name);
        if (!test) td_jj_fail_unknown(s, "test", name);
        at++;
    }
    jj_args   rest = rest_of(args, at);
    jj_cursor c = td_jj_begin(s, v);
    while (td_jj_next(s, &c, &item)) {
        jj_value x = td_jj_getpath(s, item, &path);
        bool     holds = test ? td_jj_apply_test(s, test, x, &rest) : td_jj_truth(&x);
        if (holds == wanted) td_jj_append(s, kept.u.list, item);
    }
    return td_jj_iter_over(s, kept.u.list);
}

static jj_value f_select(jj_state *s, jj_value v, const jj_args *args) {
    return choose(s, v, args, "select", false, true);
}
static jj_value f_reject(jj_state *s, jj_value v, const jj_args *args) {
    return choose(s, v, args, "reject", false, false);
}
static jj_value f_selectattr(jj_state *s, jj_value v, const jj_args *args) {
    return choose(s, v, args, "selectattr", true, true);
}
static jj_value f_rejectattr(jj_state *s, jj_value v, const jj_args *args) {
    return choose(s, v, args, "rejectattr", true, false);
}

/* ---- cutting into rows ---- */

static int64_t count_arg(jj_state *s, const char *what, const jj_value *v) {
    int64_t n;
    if (!td_jj_as_int(v, &n) || n < 1) td_jj_fail(s, TD_EINVAL, "%s takes a positive number", what);
    return n;
}

static jj_value f_batch(jj_state *s, jj_value v, const jj_args *args) {
    jj_value a[2], item, rows = td_jj_list(s, JJ_LIST), row = td_jj_list(s, JJ_LIST);
    td_jj_bind(s, "batch", args, "linecount fill_with", 1, a);
    int64_t   n = count_arg(s, "batch", &a[0]);
    jj_cursor c = td_jj_begin(s, v);
    while (td_jj_next(s, &c, &item)) {
        if ((int64_t)row.u.list->n == n) {
            td_jj_append(s, rows.u.list, row);
            row = td_jj_list(s, JJ_LIST);
        }
        td_jj_append(s, row.u.list, item);
    }
    if (row.u.list->n) {
        for (; given(&a[1]) && (int64_t)row.u.list->n < n; td_jj_charge(s, 1)) td_jj_append(s, row.u.list, a[1]);
        td_jj_append(s, rows.u.list, row);
    }
    return td_jj_iter_over(s, rows.u.list);
}

const jj_filter TD_JJ_LIST_FILTERS[] = {
    {"batch", f_batch},
    {"dictsort", f_dictsort},
    {"first", f_first},
    {"items", f_items},
    {"last", f_last},
    {"list", f_list},
    {"map", f_map},
    {"max", f_max},
    {"min", f_min},
    {"reject", f_reject},
    {"rejectattr", f_rejectattr},
    {"reverse", f_reverse},
    {"select", f_select},
    {"selectattr", f_selectattr},
    {"sort", f_sort},
    {"sum", f_sum},
    {"unique", f_unique},
    {NULL, NULL},
};
