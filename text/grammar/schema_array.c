/* Arrays of a JSON schema. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/schema_compiler.h"
#include "text/grammar/schema_keywords.h"
#include "text/grammar/schema_merge.h"
#include "text/grammar/schema_not.h"

#define PREFIX_MAX 100
#define GRAPH_MAX ((uint64_t)4096) /* states of arrays whose items are counted or told apart */
#define SETS_MAX 8                 /* values whose sets are told apart; of more the order is the schema's */

/* An array's keywords. */
typedef struct {
    td_schema_compiler *c;
    json_t             *schema, *prefix, *items, *contains; /* NULL: not there */
    uint32_t            min, max, min_contains, max_contains;
} array;

/* ---- plain arrays ---- */

/* Items from number k on, each with a comma before it, except the first item. */
static uint32_t items_from(const array *a, size_t k, uint32_t rest) {
    td_gr_builder *b = a->c->b;
    if (b->status != TD_OK || k >= a->max) return td_gr_empty(b);
    if (k > PREFIX_MAX) return td_gr_fail(b, TD_ENOTSUP, "'prefixItems': more than %d items are not supported", PREFIX_MAX);
    bool     fixed = k < json_array_size(a->prefix);
    uint32_t item = fixed ? a->c->compile(a->c, json_array_get(a->prefix, k)) : rest, node;
    if (!fixed && k > 0) {
        uint32_t n = (uint32_t)k, more = td_gr_pair(b, TD_GR_SEQ, a->c->json.comma, item);
        return td_gr_repeat(b, more, a->min > n ? a->min - n : 0, a->max == TD_GR_NO_MAX ? a->max : a->max - n);
    }
    node = k > 0 ? td_gr_pair(b, TD_GR_SEQ, a->c->json.comma, item) : item;
    node = td_gr_pair(b, TD_GR_SEQ, node, items_from(a, k + 1, rest));
    return k < a->min ? node : td_gr_optional(b, node);
}

/* ---- contains ---- */

/* A graph's state behind k items, of which n match. 1 is the graph's end. */
static uint32_t state_of(uint32_t k, uint32_t n, uint32_t n_counts) {
    uint32_t at = k * n_counts + n;
    return at ? at + 1 : 0;
}

static uint32_t behind_comma(const array *a, uint32_t item) {
    return td_gr_pair(a->c->b, TD_GR_SEQ, a->c->json.comma, item);
}

/* Items at place k that match `contains`, and others: any item where matches need not be counted exactly. */
static void compile_place(const array *a, size_t k, uint32_t *match, uint32_t *other) {
    json_t *item = json_array_get(a->prefix, k);
    if (!item) item = a->items ? a->items : json_true();
    *match = td_schema_compile_both(a->c, item, a->contains);
    json_t *negated = a->max_contains == TD_GR_NO_MAX ? json_true() : td_schema_not(&a->c->merger, a->contains, 0);
    *other = negated ? td_schema_compile_both(a->c, item, negated) : 0;
}

static uint32_t containing(const array *a) {
    td_gr_builder *b = a->c->b;
    td_gr_items    edges = {0};
    uint32_t       n_prefix = (uint32_t)json_array_size(a->prefix), match = 0, other = 0;
    uint32_t       least = a->min > n_prefix + 1 ? a->min : n_prefix + 1, top = a->max == TD_GR_NO_MAX ? least : a->max;
    uint32_t       counts = a->max_contains == TD_GR_NO_MAX ? a->min_contains : a->max_contains;
    if (counts > top && a->max != TD_GR_NO_MAX) counts = top;
    if ((uint64_t)(top + 1) * (counts + 1) > GRAPH_MAX)
        return td_gr_fail(b, TD_ENOTSUP, "'contains': beside counts that large it is not supported");
    for (uint32_t k = 0; k <= top && b->status == TD_OK; k++) {
        uint32_t next = k < top ? k + 1 : a->max == TD_GR_NO_MAX ? k : UINT32_MAX;
        if (k <= n_prefix) compile_place(a, k, &match, &other);
        uint32_t as_match = k ? behind_comma(a, match) : match, as_other = k ? behind_comma(a, other) : other;
        for (uint32_t n = 0; n <= counts; n++) {
            uint32_t from = state_of(k, n, counts + 1);
            if (k >= a->min && n >= a->min_contains) td_gr_add_edge_of(b, &edges, td_gr_empty(b), from, 1);
            if (next == UINT32_MAX) continue;
            td_gr_add_edge_of(b, &edges, as_other, from, state_of(next, n, counts + 1));
            if (n < counts) td_gr_add_edge_of(b, &edges, as_match, from, state_of(next, n + 1, counts + 1));
        }
    }
    uint32_t node = td_gr_graph(b, state_of(top, counts, counts + 1) + 2, &edges);
    td_gr_items_free(&edges);
    return node;
}

/* ---- uniqueItems ---- */

static bool same_value(const json_t *x, const json_t *y) {
    return json_is_number(x) && json_is_number(y) ? json_number_value(x) == json_number_value(y) : json_equal(x, y);
}

static bool add_value(json_t *to, json_t *value) {
    for (size_t i = 0; i < json_array_size(to); i++)
        if (same_value(json_array_get(to, i), value)) return true;
    return json_array_append(to, value) == 0;
}

/* Whether the values of a flat schema are those of its enum, const or type alone. */
static bool is_list_of_values(const json_t *flat) {
    const char *key = NULL;
    json_t     *value;
    json_object_foreach((json_t *)flat, key, value) {
        const td_keyword *keyword = td_keyword_of(key);
        if (keyword->use == TD_KEYWORD_CONDITION && keyword->types) return false;
    }
    return true;
}

static bool list_values(td_schema_compiler *c, json_t *schema, json_t *to);

/* The same for a flat schema with branches. */
static bool list_branches(td_schema_compiler *c, json_t *flat, json_t *to) {
    json_t *branches = json_object_get(flat, "anyOf"), *branch, *rest = json_copy(flat);
    size_t  i;
    bool    listed = json_object_del(rest, "anyOf") == 0;
    rest = td_schema_keep(&c->merger, rest);
    json_array_foreach(branches, i, branch) {
        json_t *merged = rest && listed ? td_schema_merge(&c->merger, rest, branch) : NULL;
        listed = listed && merged && list_values(c, merged, to);
    }
    return listed;
}

/* Append all values that a schema accepts. @return false: they cannot be listed, or memory is short. */
static bool list_values(td_schema_compiler *c, json_t *schema, json_t *to) {
    json_t *flat = td_schema_merge(&c->merger, schema, json_true()), *value;
    size_t  i;
    bool    listed = true;
    if (json_is_false(flat)) return true;
    if (!json_is_object(flat) || !is_list_of_values(flat)) return false;
    if (json_object_get(flat, "anyOf")) return list_branches(c, flat, to);
    json_t  *values = json_object_get(flat, "enum"), *constant = json_object_get(flat, "const");
    unsigned types = td_schema_types(c, flat);
    if (constant && !values) return !td_schema_is_of(constant, types) || add_value(to, constant);
    json_array_foreach(values, i, value) {
        bool out = !td_schema_is_of(value, types) || (constant && !same_value(constant, value));
        listed = listed && (out || add_value(to, value));
    }
    if (values) return listed;
    if (types & TD_SCHEMA_NULL) listed = add_value(to, json_null());
    if (types & TD_SCHEMA_BOOLEAN) listed = listed && add_value(to, json_true()) && add_value(to, json_false());
    return listed && !(types & ~(unsigned)(TD_SCHEMA_NULL | TD_SCHEMA_BOOLEAN));
}

/* Any order: the states are the sets of values so far; a set's bits, and state 1 is the end. */
static uint32_t any_order(const array *a, const uint32_t *values, uint32_t n) {
    td_gr_builder *b = a->c->b;
    td_gr_items    edges = {0};
    for (uint32_t set = 0; set < 1u << n && b->status == TD_OK; set++) {
        uint32_t size = (uint32_t)__builtin_popcount(set), from = set ? set + 1 : 0;
        if (size >= a->min && size <= a->max) td_gr_add_edge_of(b, &edges, td_gr_empty(b), from, 1);
        for (uint32_t i = 0; i < n && size < a->max; i++)
            if (!(set >> i & 1))
                td_gr_add_edge_of(b, &edges, size ? behind_comma(a, values[i]) : values[i], from, (set | 1u << i) + 1);
    }
    uint32_t node = td_gr_graph(b, (1u << n) + 1, &edges);
    td_gr_items_free(&edges);
    return node;
}

/* The schema's order: the states are the next value and how many there are. */
static uint32_t schema_order(const array *a, const uint32_t *values, uint32_t n) {
    td_gr_builder *b = a->c->b;
    td_gr_items    edges = {0};
    bool           counts_all = a->min > 1 || a->max != TD_GR_NO_MAX;
    uint32_t       top = a->max < n ? a->max : counts_all ? n : 1;
    if ((uint64_t)(n + 1) * (top + 1) > GRAPH_MAX)
        return td_gr_fail(b, TD_ENOTSUP, "'uniqueItems': of that many values it is not supported");
    for (uint32_t i = 0; i <= n && b->status == TD_OK; i++)
        for (uint32_t k = 0; k <= top; k++) {
            uint32_t from = state_of(i, k, top + 1);
            if (i == n) {
                if (k >= a->min) td_gr_add_edge_of(b, &edges, td_gr_empty(b), from, 1);
                continue;
            }
            td_gr_add_edge_of(b, &edges, td_gr_empty(b), from, state_of(i + 1, k, top + 1));
            if (k < top || !counts_all)
                td_gr_add_edge_of(b, &edges, k ? behind_comma(a, values[i]) : values[i], from,
                                  state_of(i + 1, k < top ? k + 1 : k, top + 1));
        }
    uint32_t node = td_gr_graph(b, state_of(n, top, top + 1) + 2, &edges);
    td_gr_items_free(&edges);
    return node;
}

/* Items that differ from each other. UINT32_MAX: their values cannot be listed. */
static uint32_t unique_items(const array *a) {
    td_gr_builder *b = a->c->b;
    json_t        *values = json_array(), *value;
    td_gr_items    nodes = {0};
    size_t         i;
    uint32_t       node = UINT32_MAX;
    if (a->items && !a->prefix && list_values(a->c, a->items, values)) {
        json_array_foreach(values, i, value) td_gr_add(b, &nodes, td_gr_json_value(&a->c->json, value));
        node =
            nodes.n <= SETS_MAX ? any_order(a, nodes.at, (uint32_t)nodes.n) : schema_order(a, nodes.at, (uint32_t)nodes.n);
    }
    td_gr_items_free(&nodes);
    json_decref(values);
    return node;
}

/* ---- arrays ---- */

static bool read_array(array *a) {
    td_schema_compiler *c = a->c;
    if (a->prefix && !json_is_array(a->prefix)) td_gr_fail(c->b, TD_EINVAL, "'prefixItems' must be a list of schemas");
    return c->b->status == TD_OK && td_schema_read_count(c, a->schema, "minItems", &a->min) &&
           td_schema_read_count(c, a->schema, "maxItems", &a->max) &&
           td_schema_read_count(c, a->schema, "minContains", &a->min_contains) &&
           td_schema_read_count(c, a->schema, "maxContains", &a->max_contains);
}

static uint32_t array_items(const array *a) {
    td_gr_builder *b = a->c->b;
    const json_t  *unique = json_object_get(a->schema, "uniqueItems");
    if (unique && !json_is_boolean(unique)) return td_gr_fail(b, TD_EINVAL, "'uniqueItems' must be true or false");
    bool     contains = a->contains && (a->min_contains > 0 || a->max_contains != TD_GR_NO_MAX);
    uint32_t node = json_is_true(unique) && a->max > 1 ? unique_items(a) : UINT32_MAX;
    if (node != UINT32_MAX) return contains ? td_gr_pair(b, TD_GR_BOTH, node, containing(a)) : node;
    if (json_is_true(unique) && a->max > 1) td_gr_warn(b, "'uniqueItems'");
    if (contains) return containing(a);
    uint32_t rest = a->items && !json_is_false(a->items) ? a->c->compile(a->c, a->items) : td_gr_use(b, a->c->json.any);
    return items_from(a, 0, rest);
}

uint32_t td_schema_array(td_schema_compiler *c, json_t *schema) {
    array a = {.c = c,
               .schema = schema,
               .prefix = json_object_get(schema, "prefixItems"),
               .items = json_object_get(schema, "items"),
               .contains = json_object_get(schema, "contains"),
               .max = TD_GR_NO_MAX,
               .min_contains = 1,
               .max_contains = TD_GR_NO_MAX};
    if (!read_array(&a)) return 0;
    if (json_is_false(a.items) && json_array_size(a.prefix) < a.max) a.max = (uint32_t)json_array_size(a.prefix);
    if (a.min > a.max) return td_gr_never(c->b);
    if (!a.prefix && (!a.items || json_is_true(a.items)) && !a.contains && a.min == 0 && a.max == TD_GR_NO_MAX) {
        if (json_is_true(json_object_get(schema, "uniqueItems"))) td_gr_warn(c->b, "'uniqueItems'");
        return td_gr_use(c->b, c->json.array);
    }
    return td_schema_as_rule(c, "array", td_gr_json_bracket(&c->json, '[', array_items(&a), ']'));
}
