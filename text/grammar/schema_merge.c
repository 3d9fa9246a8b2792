#include "text/grammar/schema_merge.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "text/grammar/schema_keywords.h"
#include "text/grammar/schema_not.h"
#include "text/grammar/schema_pattern.h"
#include "text/grammar/schema_refs.h"

#define PAIRS_MAX 400 /* branches of an anyOf, where two become one */
#define SUBSETS_MAX 3 /* branches of which all sets are tried */
#define DEPTH_MAX 64  /* of references to references, and allOf in allOf */

/* ---- keywords --------------------------------------------------------------------------------- */

static bool put(td_schema_merger *m, json_t *to, const char *key, json_t *value) { /* takes value */
    if (value && json_object_set_new(to, key, value) == 0) return true;
    td_gr_fail(m->b, TD_ENOMEM, "out of memory for a schema");
    return false;
}

static bool has_type(const json_t *types, const char *name) {
    if (json_is_string(types)) return !strcmp(json_string_value(types), name);
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *s = json_string_value(json_array_get(types, i));
        if (s && !strcmp(s, name)) return true;
    }
    return false;
}

/* `made`, or NULL if memory was short for a part of it. */
static json_t *whole(json_t *made, int bad) {
    if (!bad) return made;
    json_decref(made);
    return NULL;
}

static json_t *common_types(const json_t *x, const json_t *y) {
    static const char *const names[] = {"null", "boolean", "object", "array", "number", "string"};
    json_t                  *out = json_array();
    int                      bad = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (has_type(x, names[i]) && has_type(y, names[i])) bad |= json_array_append_new(out, json_string(names[i]));
    bool x_whole = has_type(x, "integer") || has_type(x, "number"),
         y_whole = has_type(y, "integer") || has_type(y, "number");
    if (x_whole && y_whole && !has_type(out, "number")) bad |= json_array_append_new(out, json_string("integer"));
    return whole(out, bad);
}

static bool contains(const json_t *list, const json_t *value) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_equal(json_array_get(list, i), value)) return true;
    return false;
}

/* Members of both lists, or of either. */
static json_t *combine_lists(const json_t *x, const json_t *y, bool either) {
    json_t *out = json_array();
    int     bad = 0;
    for (size_t i = 0; i < json_array_size(x); i++)
        if (either || contains(y, json_array_get(x, i))) bad |= json_array_append(out, json_array_get(x, i));
    for (size_t i = 0; either && i < json_array_size(y); i++)
        if (!contains(x, json_array_get(y, i))) bad |= json_array_append(out, json_array_get(y, i));
    return whole(out, bad);
}

/* What the other schema, which does not name a member, says of it by additionalProperties. */
static json_t *member_of_other(td_schema_merger *m, const char *name, json_t *schema, const json_t *other) {
    json_t     *additional = json_object_get(other, "additionalProperties"), *value;
    const char *pattern = NULL;
    if (!additional || json_is_true(additional)) return json_incref(schema);
    json_object_foreach(json_object_get(other, "patternProperties"), pattern, value) {
        if (td_schema_name_matches(m->b, pattern, name)) return json_incref(schema);
    }
    return json_is_false(additional) ? json_false() : td_schema_both(additional, schema);
}

static bool merge_properties(td_schema_merger *m, json_t *to, json_t *x, json_t *y) {
    json_t     *px = json_object_get(x, "properties"), *py = json_object_get(y, "properties"), *value;
    const char *key = NULL;
    if (!px && !py) return true;
    json_t *out = json_object();
    int     bad = 0;
    json_object_foreach(px, key, value) {
        json_t *other = json_object_get(py, key);
        bad |= json_object_set_new(out, key, other ? td_schema_both(value, other) : member_of_other(m, key, value, y));
    }
    json_object_foreach(py, key, value) {
        if (!json_object_get(px, key)) bad |= json_object_set_new(out, key, member_of_other(m, key, value, x));
    }
    return put(m, to, "properties", whole(out, bad));
}

/* Whether x says something by additionalProperties of names that only y's patternProperties match. */
static bool misses_patterns(const json_t *x, const json_t *y) {
    const json_t *additional = json_object_get(x, "additionalProperties");
    const char   *pattern = NULL;
    json_t       *value;
    if (!additional || json_is_true(additional)) return false;
    json_object_foreach(json_object_get(y, "patternProperties"), pattern, value) {
        if (!json_object_get(json_object_get(x, "patternProperties"), pattern)) return true;
    }
    return false;
}

static bool merge_patterns(td_schema_merger *m, json_t *to, json_t *x, json_t *y) {
    json_t     *px = json_object_get(x, "patternProperties"), *py = json_object_get(y, "patternProperties"), *value;
    const char *key = NULL;
    if (misses_patterns(x, y) || misses_patterns(y, x)) {
        td_gr_fail(m->b, TD_ENOTSUP,
                   "'patternProperties' and 'additionalProperties' of schemas that are combined are not supported");
        return false;
    }
    if (!px || !py) return true; /* copied as it is */
    json_t *out = json_copy(px);
    int     bad = 0;
    json_object_foreach(py, key, value) {
        json_t *other = json_object_get(px, key);
        bad |= json_object_set_new(out, key, other ? td_schema_both(value, other) : json_incref(value));
    }
    return put(m, to, "patternProperties", whole(out, bad));
}

/* What a schema says of item k: NULL if nothing. */
static json_t *item_at(const json_t *schema, size_t k) {
    json_t *item = json_array_get(json_object_get(schema, "prefixItems"), k);
    return item ? item : json_object_get(schema, "items");
}

static json_t *both_or_one(json_t *x, json_t *y) {
    return x && y ? td_schema_both(x, y) : x || y ? json_incref(x ? x : y) : json_true();
}

static bool merge_items(td_schema_merger *m, json_t *to, const json_t *x, const json_t *y) {
    size_t  nx = json_array_size(json_object_get(x, "prefixItems")), ny = json_array_size(json_object_get(y, "prefixItems"));
    size_t  n = nx > ny ? nx : ny;
    json_t *ix = json_object_get(x, "items"), *iy = json_object_get(y, "items"), *prefix = json_array();
    int     bad = 0;
    for (size_t k = 0; k < n; k++) bad |= json_array_append_new(prefix, both_or_one(item_at(x, k), item_at(y, k)));
    bool done = !ix && !iy ? true : put(m, to, "items", both_or_one(ix, iy));
    if (n) return done && put(m, to, "prefixItems", whole(prefix, bad));
    json_decref(prefix);
    return done;
}

/* One branch of each: all pairs. */
static json_t *pairs(const json_t *x, const json_t *y) {
    json_t *out = json_array(), *a, *b;
    size_t  i, k;
    int     bad = 0;
    if (json_array_size(x) * json_array_size(y) > PAIRS_MAX) return NULL;
    json_array_foreach(x, i, a) {
        json_array_foreach(y, k, b) bad |= json_array_append_new(out, td_schema_both(a, b));
    }
    return whole(out, bad);
}

static json_t *joined(json_t *x, json_t *y) {
    json_t *out = json_copy(x);
    return whole(out, json_array_extend(out, y));
}

/* The least number that is a multiple of both; NULL if one is no integer. */
static json_t *common_multiple(const json_t *x, const json_t *y) {
    json_int_t a = json_integer_value(x), b = json_integer_value(y), p = a, q = b;
    if (!json_is_integer(x) || !json_is_integer(y) || a <= 0 || b <= 0 || a > 1000000 || b > 1000000) return NULL;
    while (q) {
        json_int_t rest = p % q;
        p = q;
        q = rest;
    }
    return json_integer(a / p * b);
}

/* A condition on strings that is there already. */
static bool add_string(td_schema_merger *m, json_t *to, const char *key, json_t *value) {
    json_t *list = json_object_get(to, "+string"), *more = json_pack("[{s:O}]", key, value);
    json_t *all = list && more ? joined(list, more) : json_incref(more);
    json_decref(more);
    return put(m, to, "+string", all);
}

/* Merge a keyword that both schemas have, with different values. */
static bool merge_keyword(td_schema_merger *m, json_t *to, const char *key, json_t *x, json_t *y) {
    static const char *const lower[] = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"};
    static const char *const upper[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"};
    static const char *const schemas[] = {"additionalProperties", "propertyNames"};
    for (size_t i = 0; i < sizeof lower / sizeof *lower; i++) {
        bool is_lower = !strcmp(key, lower[i]), is_upper = !strcmp(key, upper[i]);
        if ((is_lower || is_upper) && json_is_number(x) && json_is_number(y))
            return put(m, to, key, json_incref((json_number_value(x) > json_number_value(y)) == is_lower ? x : y));
    }
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++)
        if (!strcmp(key, schemas[i])) return put(m, to, key, td_schema_both(x, y));
    if (!strcmp(key, "type")) return put(m, to, key, common_types(x, y));
    if (!strcmp(key, "required")) return put(m, to, key, combine_lists(x, y, true));
    if (!strcmp(key, "enum")) return put(m, to, key, combine_lists(x, y, false));
    if (!strcmp(key, "uniqueItems")) return put(m, to, key, json_boolean(json_is_true(x) || json_is_true(y)));
    if (!strcmp(key, "+string") || !strcmp(key, "-string")) return put(m, to, key, joined(x, y));
    if (!strcmp(key, "pattern") || !strcmp(key, "format"))
        return put(m, to, key, json_incref(x)) && add_string(m, to, key, y);
    json_t *made = !strcmp(key, "multipleOf") ? common_multiple(x, y) : !strcmp(key, "anyOf") ? pairs(x, y) : NULL;
    if (made) return put(m, to, key, made);
    if (td_keyword_of(key)->use == TD_KEYWORD_UNKNOWN) return put(m, to, key, json_incref(x));
    td_gr_fail(m->b, TD_ENOTSUP, "'%.60s': two of them cannot be combined", key);
    return false;
}

/* Keywords whose meaning depends on others beside them have functions of their own. */
static bool is_merged_apart(const char *key) {
    static const char *const names[] = {"properties", "patternProperties", "items", "prefixItems"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(key, names[i])) return true;
    return false;
}

static json_t *merge_plain(td_schema_merger *m, json_t *x, json_t *y) {
    const json_t *cx = json_object_get(x, "const"), *cy = json_object_get(y, "const");
    if (cx && cy && !json_equal(cx, cy)) return json_false();
    json_t     *out = json_object(), *value;
    const char *key = NULL;
    bool        done = out != NULL;
    json_object_foreach(x, key, value) {
        if (td_keyword_of(key)->use != TD_KEYWORD_ANNOTATION && !json_object_get(y, key))
            done = done && put(m, out, key, json_incref(value));
    }
    json_object_foreach(y, key, value) {
        json_t *other = json_object_get(x, key);
        if (td_keyword_of(key)->use == TD_KEYWORD_ANNOTATION) continue;
        if (!other)
            done = done && (json_object_get(out, key) || put(m, out, key, json_incref(value)));
        else if (!is_merged_apart(key) && strcmp(key, "contains") != 0 && json_equal(other, value))
            done = done && put(m, out, key, json_incref(value));
        else if (!is_merged_apart(key))
            done = done && merge_keyword(m, out, key, other, value);
    }
    done = done && merge_properties(m, out, x, y) && merge_patterns(m, out, x, y) && merge_items(m, out, x, y);
    if (done) return td_schema_keep(m, out);
    if (!out) td_gr_fail(m->b, TD_ENOMEM, "out of memory for a schema");
    json_decref(out);
    return NULL;
}

/* ---- flat schemas ------------------------------------------------------------------------------ */

static json_t *merge(td_schema_merger *m, json_t *x, json_t *y, unsigned depth);
static json_t *flatten(td_schema_merger *m, json_t *schema, unsigned depth);

static json_t *without(td_schema_merger *m, const json_t *schema, const char *const *keys) {
    json_t *copy = json_copy((json_t *)schema);
    for (; copy && *keys; keys++) json_object_del(copy, *keys);
    return td_schema_keep(m, copy);
}

#define WITHOUT(m, schema, ...) without(m, schema, (const char *const[]){__VA_ARGS__, NULL})

static json_t *put_reference_in(td_schema_merger *m, json_t *schema, json_t *ref, unsigned depth) {
    json_t *target = json_is_string(ref) ? td_schema_resolve(m->b, m->root, json_string_value(ref)) : NULL;
    if (!target) td_gr_fail(m->b, TD_EINVAL, "'$ref' must be a string");
    json_t *rest = target ? WITHOUT(m, schema, "$ref") : NULL;
    return rest ? merge(m, rest, target, depth) : NULL;
}

static json_t *put_all_in(td_schema_merger *m, json_t *schema, json_t *all, unsigned depth) {
    json_t *out = WITHOUT(m, schema, "allOf");
    if (!json_is_array(all)) td_gr_fail(m->b, TD_EINVAL, "'allOf' must be a list of schemas");
    for (size_t i = 0; out && i < json_array_size(all); i++) out = merge(m, out, json_array_get(all, i), depth);
    return out;
}

/* Merge what is left of a schema with what its keyword becomes. */
static json_t *replace(td_schema_merger *m, json_t *rest, json_t *made, unsigned depth) { /* takes made */
    json_t *kept = td_schema_keep(m, made);
    return rest && kept ? merge(m, rest, kept, depth) : NULL;
}

static json_t *put_if_in(td_schema_merger *m, json_t *schema, json_t *condition, unsigned depth) {
    json_t *then = json_object_get(schema, "then"), *other = json_object_get(schema, "else");
    return replace(m, WITHOUT(m, schema, "if", "then", "else"),
                   json_pack("{s:[{s:[O, O]}, {s:[{s:O}, O]}]}", "anyOf", "allOf", condition, then ? then : json_true(),
                             "allOf", "not", condition, other ? other : json_true()),
                   depth);
}

/* Each member of dependentRequired, dependentSchemas or dependencies: it is not there, or its condition holds. */
static json_t *put_dependent_in(td_schema_merger *m, json_t *schema, const char *keyword, unsigned depth) {
    json_t     *dependent = json_object_get(schema, keyword), *all = json_array(), *value;
    const char *name = NULL;
    int         bad = 0;
    if (!json_is_object(dependent)) td_gr_fail(m->b, TD_EINVAL, "'%s' must be an object", keyword);
    json_object_foreach(dependent, name, value) {
        json_t *then = json_is_array(value) ? json_pack("{s:O}", "required", value) : json_incref(value);
        bad |= json_array_append_new(all, json_pack("{s:[{s:{s:b}}, {s:[o, {s:s, s:[s]}]}]}", "anyOf", "properties", name, 0,
                                                    "allOf", then, "type", "object", "required", name));
    }
    return replace(m, WITHOUT(m, schema, keyword), json_pack("{s:o*}", "allOf", whole(all, bad)), depth);
}

/* Lists of items as drafts before 2020-12 write them. */
static json_t *renew_items(td_schema_merger *m, json_t *schema, unsigned depth) {
    json_t *items = json_object_get(schema, "items"), *additional = json_object_get(schema, "additionalItems");
    json_t *out = WITHOUT(m, schema, "additionalItems");
    if (out && json_is_array(items)) {
        if (json_object_set(out, "prefixItems", items) != 0 ||
            (additional && json_object_set(out, "items", additional) != 0))
            td_gr_fail(m->b, TD_ENOMEM, "out of memory for a schema");
        if (!additional) json_object_del(out, "items");
    }
    return flatten(m, out, depth);
}

/* A schema without anyOf: what its members and items do not name has the condition of unevaluated…. */
static json_t *set_unevaluated(td_schema_merger *m, json_t *flat, json_t *members, json_t *items) {
    if (json_object_get(flat, "+negated")) return json_false();
    json_t *out = json_copy(flat), *contained = json_object_get(flat, "contains");
    int     bad = 0;
    if (members && !json_object_get(flat, "additionalProperties"))
        bad |= json_object_set(out, "additionalProperties", members);
    if (items && !json_object_get(flat, "items"))
        bad |= json_object_set_new(out, "items",
                                   contained ? json_pack("{s:[O, O]}", "anyOf", contained, items) : json_incref(items));
    return td_schema_keep(m, whole(out, bad));
}

/*
 * unevaluatedProperties and unevaluatedItems are about what no keyword of the schemas that hold has named. So there is a
 * branch for each set of branches of the anyOf that may hold; of many only for each alone, which is stricter.
 */
static json_t *put_unevaluated_in(td_schema_merger *m, json_t *schema, unsigned depth) {
    json_t *members = json_object_get(schema, "unevaluatedProperties"), *items = json_object_get(schema, "unevaluatedItems");
    json_t *flat = flatten(m, WITHOUT(m, schema, "unevaluatedProperties", "unevaluatedItems"), depth);
    json_t *branches = json_object_get(flat, "anyOf");
    if (json_is_true(flat)) flat = td_schema_keep(m, json_object());
    if (!flat || json_is_false(flat)) return flat;
    if (!branches) return set_unevaluated(m, flat, members, items);
    json_t  *rest = WITHOUT(m, flat, "anyOf"), *out = json_array();
    size_t   n = json_array_size(branches);
    unsigned n_sets = n <= SUBSETS_MAX ? (1u << n) - 1 : (unsigned)n;
    int      bad = 0;
    for (unsigned set = 1; set <= n_sets && rest; set++) {
        json_t *all = json_pack("[O]", rest);
        for (size_t i = 0; i < n; i++)
            if (n <= SUBSETS_MAX ? set >> i & 1 : i + 1 == set) bad |= json_array_append(all, json_array_get(branches, i));
        bad |= json_array_append_new(
            out, json_pack("{s:o, s:O*, s:O*}", "allOf", all, "unevaluatedProperties", members, "unevaluatedItems", items));
    }
    return td_schema_keep(m, json_pack("{s:o*}", "anyOf", whole(out, bad)));
}

/* Keywords that flattening replaces, in this order. */
typedef enum {
    UNEVALUATED,
    REF,
    ALL,
    NULLABLE,
    IF,
    NOT,
    DEPENDENT,
    ONE,
    OLD_ITEMS,
    WITHOUT_EFFECT,
    REFUSED,
    NOTHING
} combination;

static const struct {
    const char *keyword;
    combination what;
} COMBINATIONS[] = {{"unevaluatedProperties", UNEVALUATED},
                    {"unevaluatedItems", UNEVALUATED},
                    {"$ref", REF},
                    {"allOf", ALL},
                    {"nullable", NULLABLE},
                    {"if", IF},
                    {"not", NOT},
                    {"dependentRequired", DEPENDENT},
                    {"dependentSchemas", DEPENDENT},
                    {"dependencies", DEPENDENT},
                    {"oneOf", ONE},
                    {"additionalItems", OLD_ITEMS},
                    {"items", OLD_ITEMS},
                    {"then", WITHOUT_EFFECT},
                    {"else", WITHOUT_EFFECT},
                    {"minContains", WITHOUT_EFFECT},
                    {"maxContains", WITHOUT_EFFECT},
                    {"$dynamicRef", REFUSED},
                    {"$recursiveRef", REFUSED}};

/* The first keyword of a schema that flattening replaces. */
static combination first_combination(const json_t *schema, const char **keyword) {
    for (size_t i = 0; i < sizeof COMBINATIONS / sizeof *COMBINATIONS; i++) {
        const json_t *value = json_object_get(schema, COMBINATIONS[i].keyword);
        bool          contained = COMBINATIONS[i].keyword[0] == 'm' && json_object_get(schema, "contains");
        *keyword = COMBINATIONS[i].keyword;
        if (value && !contained && (strcmp(*keyword, "items") != 0 || json_is_array(value))) return COMBINATIONS[i].what;
    }
    return NOTHING;
}

bool td_schema_is_combined(const json_t *schema) {
    const char *keyword;
    return first_combination(schema, &keyword) != NOTHING;
}

static json_t *flatten(td_schema_merger *m, json_t *schema, unsigned depth) {
    const char *keyword;
    if (m->b->status != TD_OK || !schema || json_is_boolean(schema)) return m->b->status == TD_OK ? schema : NULL;
    if (!json_is_object(schema)) td_gr_fail(m->b, TD_EINVAL, "a schema must be an object, true or false");
    combination what = first_combination(schema, &keyword);
    if (what != NOTHING && depth++ > DEPTH_MAX)
        td_gr_fail(m->b, TD_ENOTSUP, "'%s': it refers to itself, or is nested more than %d deep", keyword, DEPTH_MAX);
    if (m->b->status != TD_OK) return NULL;
    json_t *value = json_object_get(schema, keyword);
    switch (what) {
        case UNEVALUATED: return put_unevaluated_in(m, schema, depth);
        case REF: return put_reference_in(m, schema, value, depth);
        case ALL: return put_all_in(m, schema, value, depth);
        case NULLABLE: {
            json_t *rest = WITHOUT(m, schema, keyword);
            if (!json_is_true(value)) return flatten(m, rest, depth);
            return td_schema_keep(m, json_pack("{s:[O, {s:s}]}", "anyOf", rest, "type", "null"));
        }
        case IF: return put_if_in(m, schema, value, depth);
        case NOT: {
            json_t *negated = td_schema_not(m, value, 0), *rest = WITHOUT(m, schema, keyword);
            return negated && rest ? merge(m, rest, negated, depth) : NULL;
        }
        case DEPENDENT: return put_dependent_in(m, schema, keyword, depth);
        case ONE:
            if (!json_is_array(value)) td_gr_fail(m->b, TD_EINVAL, "'oneOf' must be a list of schemas");
            return replace(m, WITHOUT(m, schema, keyword), json_pack("{s:O}", "anyOf", value), depth);
        case OLD_ITEMS: return renew_items(m, schema, depth);
        case WITHOUT_EFFECT: return flatten(m, WITHOUT(m, schema, keyword), depth);
        case REFUSED: td_gr_fail(m->b, TD_ENOTSUP, "'%s' is not supported", keyword); return NULL;
        case NOTHING: break;
    }
    return schema;
}

static json_t *merge(td_schema_merger *m, json_t *x, json_t *y, unsigned depth) {
    x = flatten(m, x, depth);
    y = flatten(m, y, depth);
    if (!x || !y || m->b->status != TD_OK) return NULL;
    if (json_is_false(x) || json_is_true(y)) return x;
    if (json_is_false(y) || json_is_true(x)) return y;
    return merge_plain(m, x, y);
}

json_t *td_schema_merge(td_schema_merger *m, json_t *x, json_t *y) {
    return merge(m, x, y, 0);
}
