/* Comparing values, and what rests on it: membership, dicts, sorting. */
#include "text/jinja/jinja_compare.h"

#include <math.h>
#include <string.h>

#include "text/jinja/jinja_text.h"

/* <0, 0, >0 exactly; f is not NaN. */
static int compare_int_float(int64_t i, double f) {
    if (f >= 0x1p63) return -1;
    if (f < -0x1p63) return 1;
    int64_t whole = (int64_t)f; /* toward zero */
    if (i != whole) return i < whole ? -1 : 1;
    double rest = f - (double)whole;
    return rest > 0 ? -1 : rest < 0;
}

/* Order of two numbers; false where one is NaN. */
static bool compare_numbers(const jj_value *a, const jj_value *b, int *order) {
    int64_t i, j;
    bool    a_int = td_jj_as_int(a, &i), b_int = td_jj_as_int(b, &j);
    if (a_int && b_int) {
        *order = (i > j) - (i < j);
    } else if (a_int) {
        if (isnan(b->u.f)) return false;
        *order = compare_int_float(i, b->u.f);
    } else if (b_int) {
        if (isnan(a->u.f)) return false;
        *order = -compare_int_float(j, a->u.f);
    } else {
        if (isnan(a->u.f) || isnan(b->u.f)) return false;
        *order = (a->u.f > b->u.f) - (a->u.f < b->u.f);
    }
    return true;
}

static bool equal_items(jj_state *s, const jj_list *a, const jj_list *b) {
    if (a == b) return true;
    if (a->n != b->n) return false;
    for (size_t k = 0; k < a->n; k++)
        if (!td_jj_equal(s, &a->at[k], &b->at[k])) return false;
    return true;
}

static bool equal_dicts(jj_state *s, const jj_dict *a, const jj_dict *b) {
    if (a == b) return true;
    if (a->n != b->n) return false;
    for (size_t k = 0; k < a->n; k++) {
        const jj_value *other = td_jj_dict_get(s, b, &a->at[k].key);
        if (!other || !td_jj_equal(s, &a->at[k].value, other)) return false;
    }
    return true;
}

static bool equal_ranges(const jj_range *a, const jj_range *b) {
    if (a->n != b->n) return false;
    if (a->n == 0) return true;
    return a->start == b->start && (a->n == 1 || a->step == b->step);
}

bool td_jj_equal(jj_state *s, const jj_value *a, const jj_value *b) {
    double x, y;
    int    order;
    td_jj_charge(s, 1);
    if (td_jj_is_number(a, &x) && td_jj_is_number(b, &y)) return compare_numbers(a, b, &order) && order == 0;
    if (a->kind != b->kind) return false;
    bool same;
    switch (a->kind) {
        case JJ_UNDEFINED:
        case JJ_NONE: return true;
        case JJ_STR: td_jj_charge(s, a->u.s->n / 64); return td_jj_str_equal(a->u.s, b->u.s);
        case JJ_RANGE: return equal_ranges(a->u.range, b->u.range);
        case JJ_LIST:
        case JJ_TUPLE:
            td_jj_enter(s);
            same = equal_items(s, a->u.list, b->u.list);
            td_jj_leave(s);
            return same;
        case JJ_DICT:
            td_jj_enter(s);
            same = equal_dicts(s, a->u.dict, b->u.dict);
            td_jj_leave(s);
            return same;
        default: return a->u.list == b->u.list; /* identity */
    }
}

static bool less_items(jj_state *s, const jj_list *a, const jj_list *b, const char *op, bool or_equal) {
    size_t n = a->n < b->n ? a->n : b->n;
    for (size_t k = 0; k < n; k++)
        if (!td_jj_equal(s, &a->at[k], &b->at[k])) return td_jj_less(s, &a->at[k], &b->at[k], op);
    return or_equal ? a->n <= b->n : a->n < b->n;
}

bool td_jj_less(jj_state *s, const jj_value *a, const jj_value *b, const char *op) {
    double x, y;
    int    order;
    bool   or_equal = op[1] == '=';
    td_jj_charge(s, 1);
    if (a->kind == JJ_UNDEFINED) td_jj_fail_undefined(s, a);
    if (b->kind == JJ_UNDEFINED) td_jj_fail_undefined(s, b);
    if (td_jj_is_number(a, &x) && td_jj_is_number(b, &y))
        return compare_numbers(a, b, &order) && (order < 0 || (or_equal && order == 0));
    if (a->kind == b->kind && a->kind == JJ_STR) { /* the order of UTF-8 bytes is that of code points */
        const jj_str *p = a->u.s, *q = b->u.s;
        size_t        n = p->n < q->n ? p->n : q->n;
        td_jj_charge(s, n / 64);
        order = n ? memcmp(p->p, q->p, n) : 0;
        if (order == 0) order = (p->n > q->n) - (p->n < q->n);
        return order < 0 || (or_equal && order == 0);
    }
    if (a->kind == b->kind && (a->kind == JJ_LIST || a->kind == JJ_TUPLE)) {
        td_jj_enter(s);
        bool less = less_items(s, a->u.list, b->u.list, op, or_equal);
        td_jj_leave(s);
        return less;
    }
    td_jj_fail(s, TD_EINVAL, "'%s' not supported between instances of '%s' and '%s'", op, td_jj_type(a), td_jj_type(b));
}

bool td_jj_contains(jj_state *s, jj_value container, const jj_value *item) {
    if (container.kind == JJ_STR) {
        if (item->kind != JJ_STR)
            td_jj_fail(s, TD_EINVAL, "'in <string>' requires string as left operand, not %s", td_jj_type(item));
        td_jj_charge(s, container.u.s->n / 64);
        return item->u.s->n == 0 || memmem(container.u.s->p, container.u.s->n, item->u.s->p, item->u.s->n);
    }
    if (container.kind == JJ_DICT) {
        if (!td_jj_hashable(s, item)) td_jj_fail(s, TD_EINVAL, "unhashable type: '%s'", td_jj_type(item));
        return td_jj_dict_get(s, container.u.dict, item) != NULL;
    }
    if (!td_jj_iterable(&container))
        td_jj_fail(s, TD_EINVAL, "argument of type '%s' is not iterable", td_jj_type(&container));
    jj_value  v;
    jj_cursor c = td_jj_begin(s, container);
    while (td_jj_next(s, &c, &v))
        if (td_jj_equal(s, &v, item)) return true;
    return false;
}

/* ---- dicts ---- */

bool td_jj_hashable(jj_state *s, const jj_value *v) {
    if (v->kind == JJ_LIST || v->kind == JJ_DICT || v->kind == JJ_VIEW) return false;
    if (v->kind != JJ_TUPLE) return true;
    bool all = true;
    td_jj_enter(s);
    for (size_t k = 0; k < v->u.list->n && all; k++) all = td_jj_hashable(s, &v->u.list->at[k]);
    td_jj_leave(s);
    return all;
}

static uint64_t hash_bytes(const char *p, size_t n) { /* FNV-1a */
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)p[i]) * 1099511628211u;
    return h;
}

void td_jj_hash(jj_str *str) {
    str->hash = hash_bytes(str->p, str->n) | 1;
}

/* Equal values have equal hashes; 1, 1.0 and True are equal. */
static uint64_t hash_of(const jj_value *v) {
    double f;
    if (v->kind == JJ_STR) {
        if (!v->u.s->hash)
            td_jj_hash((jj_str *)v->u.s); /* a string of this rendering: a template's own were hashed while compiling */
        return v->u.s->hash;
    }
    if (td_jj_is_number(v, &f)) return f >= 0 && f < 1e18 ? (uint64_t)f : 7;
    return (uint64_t)v->kind;
}

static jj_value *find(jj_state *s, const jj_dict *d, const jj_value *key, uint64_t hash) {
    td_jj_charge(s, d->n / 16);
    for (size_t k = 0; k < d->n; k++)
        if (d->at[k].hash == hash && td_jj_equal(s, &d->at[k].key, key)) return &d->at[k].value;
    return NULL;
}

jj_value *td_jj_dict_get(jj_state *s, const jj_dict *d, const jj_value *key) {
    if (!d->n) return NULL;
    if (key->kind == JJ_STR && !key->u.s->hash) td_jj_charge(s, key->u.s->n / 64);
    return find(s, d, key, hash_of(key));
}

jj_value *td_jj_dict_get_str(jj_state *s, const jj_dict *d, const jj_str *key) {
    jj_value v = {JJ_STR, {.s = key}};
    return td_jj_dict_get(s, d, &v);
}

void td_jj_dict_add(jj_state *s, jj_dict *d, jj_value key, jj_value value) {
    d->at = td_jj_grow(s, d->at, d->n, &d->cap, sizeof *d->at);
    d->at[d->n++] = (jj_item){key, value, hash_of(&key)};
}

void td_jj_dict_set(jj_state *s, jj_dict *d, jj_value key, jj_value value) {
    if (!td_jj_hashable(s, &key)) td_jj_fail(s, TD_EINVAL, "unhashable type: '%s'", td_jj_type(&key));
    jj_value *old = td_jj_dict_get(s, d, &key);
    if (old)
        *old = value;
    else
        td_jj_dict_add(s, d, key, value);
}

/* ---- sorting ---- */

/* Merge order[from, mid) and order[mid, to), both sorted by keys. Equal keys keep their order. */
static void merge(jj_state *s, const jj_list *keys, size_t *order, size_t *room, size_t from, size_t mid, size_t to,
                  bool reverse) {
    size_t i = from, j = mid;
    for (size_t k = from; k < to; k++) {
        bool right = false;
        if (i < mid && j < to) {
            const jj_value *a = &keys->at[order[i]], *b = &keys->at[order[j]];
            right = reverse ? td_jj_less(s, a, b, "<") : td_jj_less(s, b, a, "<");
        }
        room[k] = i < mid && !right ? order[i++] : order[j++];
    }
    memcpy(order + from, room + from, (to - from) * sizeof *order);
}

jj_list *td_jj_sorted(jj_state *s, const jj_list *list, const jj_list *keys, bool reverse) {
    size_t n = list->n, *order = td_jj_alloc(s, n * sizeof *order), *room = td_jj_alloc(s, n * sizeof *room);
    for (size_t k = 0; k < n; k++) order[k] = k;
    for (size_t width = 1; width < n; width *= 2)
        for (size_t from = 0; from + width < n; from += 2 * width)
            merge(s, keys, order, room, from, from + width, from + 2 * width < n ? from + 2 * width : n, reverse);
    jj_list *sorted = td_jj_list(s, JJ_LIST).u.list;
    for (size_t k = 0; k < n; k++) td_jj_append(s, sorted, list->at[order[k]]);
    return sorted;
}
