/* Methods of str, list, tuple, dict and range. */
#include <string.h>

#include "text/jinja/jinja_builtins.h"
#include "text/jinja/jinja_compare.h"
#include "text/jinja/jinja_format.h"
#include "text/jinja/jinja_string.h"
#include "text/jinja/jinja_utf8.h"

/* ---- helpers ---- */

static bool given(const jj_value *v) {
    return v->kind != JJ_MISSING && v->kind != JJ_NONE;
}

static const jj_str *str_arg(jj_state *s, const char *what, const jj_value *v) {
    if (v->kind != JJ_STR) td_jj_fail(s, TD_EINVAL, "%s: a str is required, not '%s'", what, td_jj_type(v));
    return v->u.s;
}

static int64_t int_arg(jj_state *s, const char *what, const jj_value *v) {
    int64_t i;
    if (!td_jj_as_int(v, &i)) td_jj_fail(s, TD_EINVAL, "%s: an integer is required, not '%s'", what, td_jj_type(v));
    return i;
}

/* Arguments by position only, as most methods of Python's built-in types take them. */
static void positional(jj_state *s, const char *what, const jj_args *args, size_t min, size_t max, jj_value *out) {
    if (args->n_kw) td_jj_fail(s, TD_EINVAL, "%s() takes no keyword arguments", what);
    if (args->n < min || args->n > max)
        td_jj_fail(s, TD_EINVAL, "%s() takes %zu to %zu arguments, %zu were given", what, min, max, args->n);
    for (size_t k = 0; k < max; k++) out[k] = k < args->n ? args->at[k] : (jj_value){JJ_MISSING, {.i = 0}};
}

/* A part [from, to) of a string in bytes and where it starts in code points. */
typedef struct {
    size_t  from, to;
    int64_t first;
    bool    empty; /* start lies beyond the end: not even "" is found */
} part;

static part part_of(jj_state *s, const char *what, const jj_str *str, const jj_value *start, const jj_value *end) {
    int64_t n = (int64_t)td_jj_utf8_len(str->p, str->n);
    int64_t i = given(start) ? int_arg(s, what, start) : 0, j = given(end) ? int_arg(s, what, end) : n;
    if (j > n) j = n;
    if (j < 0) j = j + n < 0 ? 0 : j + n;
    if (i < 0) i = i + n < 0 ? 0 : i + n;
    td_jj_charge(s, str->n / 64);
    if (i > j) return (part){.empty = true};
    size_t from = td_jj_utf8_offset(str->p, str->n, (size_t)i);
    return (part){from, from + td_jj_utf8_offset(str->p + from, str->n - from, (size_t)(j - i)), i, false};
}

/* ---- str ---- */

static jj_value strip_with(jj_state *s, const jj_value *self, const jj_args *args, int sides) {
    jj_value a;
    positional(s, "strip", args, 0, 1, &a);
    return td_jj_strip(s, self->u.s, given(&a) ? str_arg(s, "strip", &a) : NULL, sides);
}

static jj_value str_strip(jj_state *s, const jj_value *self, const jj_args *args) {
    return strip_with(s, self, args, JJ_STRIP_LEFT | JJ_STRIP_RIGHT);
}
static jj_value str_lstrip(jj_state *s, const jj_value *self, const jj_args *args) {
    return strip_with(s, self, args, JJ_STRIP_LEFT);
}
static jj_value str_rstrip(jj_state *s, const jj_value *self, const jj_args *args) {
    return strip_with(s, self, args, JJ_STRIP_RIGHT);
}

static jj_value split_with(jj_state *s, const jj_value *self, const jj_args *args, bool from_right) {
    jj_value a[2];
    td_jj_bind(s, "split", args, "sep maxsplit", 0, a);
    int64_t max = a[1].kind == JJ_MISSING ? -1 : int_arg(s, "split", &a[1]);
    return td_jj_split(s, self->u.s, given(&a[0]) ? str_arg(s, "split", &a[0]) : NULL, max, from_right);
}

static jj_value str_split(jj_state *s, const jj_value *self, const jj_args *args) {
    return split_with(s, self, args, false);
}
static jj_value str_rsplit(jj_state *s, const jj_value *self, const jj_args *args) {
    return split_with(s, self, args, true);
}

static jj_value str_splitlines(jj_state *s, const jj_value *self, const jj_args *args) {
    jj_value a;
    td_jj_bind(s, "splitlines", args, "keepends", 0, &a);
    return td_jj_splitlines(s, self->u.s, a.kind != JJ_MISSING && td_jj_truth(&a));
}

static jj_value partition_with(jj_state *s, const jj_value *self, const jj_args *args, bool from_right) {
    jj_value a, triple = td_jj_list(s, JJ_TUPLE), empty = td_jj_str(s, "", 0);
    positional(s, "partition", args, 1, 1, &a);
    jj_value pieces = td_jj_split(s, self->u.s, str_arg(s, "partition", &a), 1, from_right);
    bool     found = pieces.u.list->n == 2;
    jj_value head = pieces.u.list->at[0], tail = pieces.u.list->at[pieces.u.list->n - 1];
    td_jj_append(s, triple.u.list, found || !from_right ? head : empty);
    td_jj_append(s, triple.u.list, found ? a : empty);
    td_jj_append(s, triple.u.list, found || from_right ? tail : empty);
    return triple;
}

static jj_value str_partition(jj_state *s, const jj_value *self, const jj_args *args) {
    return partition_with(s, self, args, false);
}
static jj_value str_rpartition(jj_state *s, const jj_value *self, const jj_args *args) {
    return partition_with(s, self, args, true);
}

static bool has_affix(jj_state *s, const jj_str *str, part in, const jj_str *affix, bool at_end) {
    td_jj_charge(s, affix->n / 64 + 1);
    if (in.empty || in.to - in.from < affix->n) return false;
    return affix->n == 0 || !memcmp(str->p + (at_end ? in.to - affix->n : in.from), affix->p, affix->n);
}

static jj_value affix_test(jj_state *s, const jj_value *self, const jj_args *args, const char *what, bool at_end) {
    jj_value a[3];
    positional(s, what, args, 1, 3, a);
    part in = part_of(s, what, self->u.s, &a[1], &a[2]);
    if (a[0].kind != JJ_TUPLE) return jj_bool(has_affix(s, self->u.s, in, str_arg(s, what, &a[0]), at_end));
    for (size_t k = 0; k < a[0].u.list->n; k++)
        if (has_affix(s, self->u.s, in, str_arg(s, what, &a[0].u.list->at[k]), at_end)) return jj_bool(true);
    return jj_bool(false);
}

static jj_value str_startswith(jj_state *s, const jj_value *self, const jj_args *args) {
    return affix_test(s, self, args, "startswith", false);
}
static jj_value str_endswith(jj_state *s, const jj_value *self, const jj_args *args) {
    return affix_test(s, self, args, "endswith", true);
}

static jj_value str_removeprefix(jj_state *s, const jj_value *self, const jj_args *args) {
    jj_value      a;
    const jj_str *str = self->u.s;
    positional(s, "removeprefix", args, 1, 1, &a);
    if (!has_affix(s, str, (part){0, str->n, 0, false}, str_arg(s, "removeprefix", &a), false)) return *self;
    return td_jj_str(s, str->p + a.u.s->n, str->n - a.u.s->n);
}

static jj_value str_removesuffix(jj_state *s, const jj_value *self, const jj_args *args) {
    jj_value      a;
    const jj_str *str = self->u.s;
    positional(s, "removesuffix", args, 1, 1, &a);
    if (!has_affix(s, str, (part){0, str->n, 0, false}, str_arg(s, "removesuffix", &a), true)) return *self;
    return td_jj_str(s, str->p, str->n - a.u.s->n);
}

static jj_value str_replace(jj_state *s, const jj_value *self, const jj_args *args) {
    jj_value a[3];
    positional(s, "replace", args, 2, 3, a);
    return td_jj_replace(s, self->u.s, str_arg(s, "replace", &a[0]), str_arg(s, "replace", &a[1]),
                         a[2].kind == JJ_MISSING ? -1 : int_arg(s, "replace", &a[2]));
}

/* Index in code points of a piece of text, or -1. */
static int64_t find_in(jj_state *s, const jj_value *self, const jj_args *args, const char *what, bool last) {
    jj_value a[3];
    positional(s, what, args, 1, 3, a);
    const jj_str *str = self->u.s, *sub = str_arg(s, what, &a[0]);
    part          in = part_of(s, what, str, &a[1], &a[2]);
    if (in.empty || in.to - in.from < sub->n) return -1;
    const char *from = str->p + in.from, *hit = NULL;
    td_jj_charge(s, (in.to - in.from) * (last ? sub->n / 16 + 1 : 1) / 64);
    if (!last) {
        hit = sub->n ? memmem(from, in.to - in.from, sub->p, sub->n) : from;
    } else {
        for (const char *p = str->p + in.to - sub->n; p >= from && !hit; p--)
            if (sub->n == 0 || !memcmp(p, sub->p, sub->n)) hit = p;
    }
    return hit ? in.first + (int64_t)td_jj_utf8_len(from, (size_t)(hit - from)) : -1;
}

static jj_value str_find(jj_state *s, const jj_value *self, const jj_args *args) {
    return jj_int(find_in(s, self, args, "find", false));
}
static jj_value str_rfind(jj_state *s, const jj_value *self, const jj_args *args) {
    return jj_int(find_in(s, self, args, "rfind", true));
}

static jj_value found_or_fail(jj_state *s, int64_t at) {
    if (at < 0) td_jj_fail(s, TD_EINVAL, "substring not found");
    return jj_int(at);
}

static jj_value str_index(jj_state *s, const jj_value *self, const jj_args *args) {
    return found_or_fail(s, find_in(s, self, args, "index", false));
}
static jj_value str_rindex(jj_state *s, const jj_value *self, const jj_args *args) {
    return found_or_fail(s, find_in(s, self, args, "rindex", true));
}

static jj_value str_count(jj_state *s, const jj_value *self, const jj_args *args) {
    jj_value a[3];
    positional(s, "count", args, 1, 3, a);
    const jj_str *str = self->u.s, *sub = str_arg(s, "count", &a[0]);
    part          in = part_of(s, "count", str, &a[1], &a[2]);
    if (in.empty) return jj_int(0);
    const char *p = str->p + in.from, *end = str->p + in.to;
    if (!sub->n) return jj_int((int64_t)td_jj_utf8_len(p, (size_t)(end - p)) + 1);
    int64_t n = 0;
    for (const char *hit; (hit = memmem(p, (size_t)(end - p), sub->p, sub->n)); p = hit + sub->n) n++;
    return jj_int(n);
}

static jj_value str_join(jj_state *s, const jj_value *self, const jj_args *args) {
    jj_value a;
    positional(s, "join", args, 1, 1, &a);
    return td_jj_join(s, self->u.s, a, false);
}

static jj_value str_upper(jj_state *s, const jj_value *self, const jj_args *args) {
    positional(s, "upper", args, 0, 0, NULL);
    return td_jj_upper(s, self->u.s);
}
static jj_value str_lower(jj_state *s, const jj_value *self, const jj_args *args) {
    positional(s, "lower", args, 0, 0, NULL);
    return td_jj_lower(s, self->u.s);
}
static jj_value str_title(jj_state *s, const jj_value *self, const jj_args *args) {
    positional(s, "title", args, 0, 0, NULL);
    return td_jj_title(s, self->u.s);
}
static jj_value str_capitalize(jj_state *s, const jj_value *self, const jj_args *args) {
    positional(s, "capitalize", args, 0, 0, NULL);
    return td_jj_capitalize(s, self->u.s);
}

static jj_value str_islower(jj_state *s, const jj_value *self, const jj_args *args) {
    positional(s, "islower", args, 0, 0, NULL);
    return jj_bool(td_jj_is_cased(s, self->u.s, false));
}
static jj_value str_isupper(jj_state *s, const jj_value *self, const jj_args *args) {
    positional(s, "isupper", args, 0, 0, NULL);
    return jj_bool(td_jj_is_cased(s, self->u.s, true));
}

static jj_value all_are(jj_state *s, const jj_value *self, const jj_args *args, bool (*is)(uint32_t c)) {
    const jj_str *str = self->u.s;
    positional(s, "this method", args, 0, 0, NULL);
    td_jj_charge(s, str->n / 4);
    for (size_t at = 0, size; at < str->n; at += size)
        if (!is(td_jj_utf8_get(str->p + at, &size))) return jj_bool(false);
    return jj_bool(str->n > 0);
}

static bool is_alnum(uint32_t c) {
    return td_jj_is_alpha(c) || td_jj_is_decimal(c);
}

static jj_value str_isdigit(jj_state *s, const jj_value *self, const jj_args *args) {
    return all_are(s, self, args, td_jj_is_decimal);
}
static jj_value str_isalpha(jj_state *s, const jj_value *self, const jj_args *args) {
    return all_are(s, self, args, td_jj_is_alpha);
}
static jj_value str_isalnum(jj_state *s, const jj_value *self, const jj_args *args) {
    return all_are(s, self, args, is_alnum);
}
static jj_value str_isspace(jj_state *s, const jj_value *self, const jj_args *args) {
    return all_are(s, self, args, td_jj_is_space);
}

static jj_value str_center(jj_state *s, const jj_value *self, const jj_args *args) {
    jj_value a;
    positional(s, "center", args, 1, 1, &a);
    return td_jj_center(s, self->u.s, int_arg(s, "center", &a));
}

static jj_value str_format(jj_state *s, const jj_value *self, const jj_args *args) {
    return td_jj_format(s, self->u.s, args);
}

/* A method that Python has and templates get to see ("is defined"), but may not call here. */
static jj_value unsupported(jj_state *s, const jj_value *self, const jj_args *args) {
    (void)args;
    td_jj_fail(s, TD_ENOTSUP, "this method of '%s' is not supported", td_jj_type(self));
}

const jj_method_def TD_JJ_STR_METHODS[] = {
    {"capitalize", str_capitalize},
    {"casefold", unsupported},
    {"center", str_center},
    {"count", str_count},
    {"encode", unsupported},
    {"endswith", str_endswith},
    {"expandtabs", unsupported},
    {"find", str_find},
    {"format", str_format},
    {"format_map", unsupported},
    {"index", str_index},
    {"isalnum", str_isalnum},
    {"isalpha", str_isalpha},
    {"isascii", unsupported},
    {"isdecimal", str_isdigit},
    {"isdigit", str_isdigit},
    {"isidentifier", unsupported},
    {"islower", str_islower},
    {"isnumeric", str_isdigit},
    {"isprintable", unsupported},
    {"isspace", str_isspace},
    {"istitle", unsupported},
    {"isupper", str_isupper},
    {"join", str_join},
    {"ljust", unsupported},
    {"lower", str_lower},
    {"lstrip", str_lstrip},
    {"maketrans", unsupported},
    {"partition", str_partition},
    {"removeprefix", str_removeprefix},
    {"removesuffix", str_removesuffix},
    {"replace", str_replace},
    {"rfind", str_rfind},
    {"rindex", str_rindex},
    {"rjust", unsupported},
    {"rpartition", str_rpartition},
    {"rsplit", str_rsplit},
    {"rstrip", str_rstrip},
    {"split", str_split},
    {"splitlines", str_splitlines},
    {"startswith", str_startswith},
    {"strip", str_strip},
    {"swapcase", unsupported},
    {"title", str_title},
    {"translate", unsupported},
    {"upper", str_upper},
    {"zfill", unsupported},
    {NULL, NULL},
};

/* ---- list, tuple, range ---- */

static jj_value seq_index(jj_state *s, const jj_value *self, const jj_args *args) {
    jj_value  a, v;
    jj_cursor c = td_jj_begin(s, *self);
    positional(s, "index", args, 1, 1, &a);
    for (int64_t k = 0; td_jj_next(s, &c, &v); k++)
        if (td_jj_equal(s, &v, &a)) return jj_int(k);
    td_jj_fail(s, TD_EINVAL, "the value is not in the list");
}

static jj_value seq_count(jj_state *s, const jj_value *self, const jj_args *args) {
    jj_value  a, v;
    int64_t   n = 0;
    jj_cursor c = td_jj_begin(s, *self);
    positional(s, "count", args, 1, 1, &a);
    while (td_jj_next(s, &c, &v)) n += td_jj_equal(s, &v, &a);
    return jj_int(n);
}

static jj_value list_copy(jj_state *s, const jj_value *self, const jj_args *args) {
    positional(s, "copy", args, 0, 0, NULL);
    return td_jj_to_list(s, *self);
}

static jj_value list_append(jj_state *s, const jj_value *self, const jj_args *args) {
    jj_value a;
    positional(s, "append", args, 1, 1, &a);
    td_jj_append(s, self->u.list, a);
    return JJ_NONE_VALUE;
}

static jj_value list_pop(jj_state *s, const jj_value *self, const jj_args *args) {
    jj_value a;
    jj_list *list = self->u.list;
    positional(s, "pop", args, 0, 1, &a);
    int64_t n = (int64_t)list->n, at = a.kind == JJ_MISSING ? -1 : int_arg(s, "pop", &a);
    if (n == 0) td_jj_fail(s, TD_EINVAL, "pop from empty list");
    if (at < 0) at += n;
    if (at < 0 || at >= n) td_jj_fail(s, TD_EINVAL, "pop index out of range");
    jj_value v = list->at[at];
    memmove(list->at + at, list->at + at + 1, (size_t)(n - at - 1) * sizeof v);
    td_jj_charge(s, (uint64_t)(n - at) / 16);
    list->n--;
    return v;
}

/* NULL: the method changes its object. append and pop are there because Kimi-K2's templates need them. */
const jj_method_def TD_JJ_LIST_METHODS[] = {
    {"append", list_append}, {"clear", NULL},      {"copy", list_copy}, {"count", seq_count},
    {"extend", NULL},        {"index", seq_index}, {"insert", NULL},    {"pop", list_pop},
    {"remove", NULL},        {"reverse", NULL},    {"sort", NULL},      {NULL, NULL},
};

const jj_method_def TD_JJ_TUPLE_METHODS[] = {{"count", seq_count}, {"index", seq_index}, {NULL, NULL}};

/* ---- dict ---- */

static jj_value dict_get(jj_state *s, const jj_value *self, const jj_args *args) {
    jj_value a[2];
    positional(s, "get", args, 1, 2, a);
    if (!td_jj_hashable(s, &a[0])) td_jj_fail(s, TD_EINVAL, "unhashable type: '%s'", td_jj_type(&a[0]));
    const jj_value *v = td_jj_dict_get(s, self->u.dict, &a[0]);
    return v ? *v : a[1].kind == JJ_MISSING ? JJ_NONE_VALUE : a[1];
}

static jj_value view_of(jj_state *s, const char *name, jj_list *list) {
    jj_view *view = td_jj_alloc(s, sizeof *view);
    *view = (jj_view){name, list};
    return (jj_value){JJ_VIEW, {.view = view}};
}

static jj_value dict_items(jj_state *s, const jj_value *self, const jj_args *args) {
    jj_value       list = td_jj_list(s, JJ_LIST);
    const jj_dict *d = self->u.dict;
    positional(s, "items", args, 0, 0, NULL);
    for (size_t k = 0; k < d->n; k++) td_jj_append(s, list.u.list, td_jj_pair(s, d->at[k].key, d->at[k].value));
    return view_of(s, "dict_items", list.u.list);
}

static jj_value dict_keys(jj_state *s, const jj_value *self, const jj_args *args) {
    positional(s, "keys", args, 0, 0, NULL);
    return view_of(s, "dict_keys", td_jj_to_list(s, *self).u.list);
}

static jj_value dict_values(jj_state *s, const jj_value *self, const jj_args *args) {
    jj_value       list = td_jj_list(s, JJ_LIST);
    const jj_dict *d = self->u.dict;
    positional(s, "values", args, 0, 0, NULL);
    for (size_t k = 0; k < d->n; k++) td_jj_append(s, list.u.list, d->at[k].value);
    return view_of(s, "dict_values", list.u.list);
}

static jj_value dict_copy(jj_state *s, const jj_value *self, const jj_args *args) {
    jj_value       copy = td_jj_dict(s, JJ_DICT);
    const jj_dict *d = self->u.dict;
    positional(s, "copy", args, 0, 0, NULL);
    for (size_t k = 0; k < d->n; k++) td_jj_dict_add(s, copy.u.dict, d->at[k].key, d->at[k].value);
    return copy;
}

const jj_method_def TD_JJ_DICT_METHODS[] = {
    {"clear", NULL},         {"copy", dict_copy}, {"fromkeys", unsupported}, {"get", dict_get},    {"items", dict_items},
    {"keys", dict_keys},     {"pop", NULL},       {"popitem", NULL},         {"setdefault", NULL}, {"update", NULL},
    {"values", dict_values}, {NULL, NULL},
};
