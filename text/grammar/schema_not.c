/* The negation of a schema: a branch for each of its conditions, which it does not meet. */
#include "text/grammar/schema_not.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "text/grammar/schema_keywords.h"
#include "text/grammar/schema_refs.h"

#define DEPTH_MAX 32    /* of references to references */
#define VALUES_MAX 1000 /* numbers of an enum */

typedef struct {
    td_schema_merger *m;
    const json_t     *schema;
    json_t           *branches; /* list */
    bool              bad;      /* memory is short */
    unsigned          depth;
} negation;

static void add(negation *n, json_t *branch) { /* takes branch */
    n->bad |= json_array_append_new(n->branches, branch) != 0;
}

static json_t *not_of(json_t *schema) {
    return json_pack("{s:O}", "not", schema);
}

/* A value of this type with one other condition. */
static json_t *typed(const char *type, const char *key, json_t *value) { /* takes value */
    return json_pack("{s:s, s:o}", "type", type, key, value);
}

static void add_other_types(negation *n, unsigned types) {
    json_t *names = json_array();
    for (unsigned i = 0; td_schema_type_name(i); i++) {
        unsigned bit = 1u << i;
        bool     numbers = bit == TD_SCHEMA_NUMBER && types & TD_SCHEMA_INTEGER; /* those with a fraction are left out */
        if (bit != TD_SCHEMA_INTEGER && !(types & bit) && !numbers)
            n->bad |= json_array_append_new(names, json_string(td_schema_type_name(i))) != 0;
    }
    add(n, json_pack("{s:o}", "type", names));
}

static void not_type(negation *n, const json_t *value) {
    unsigned types = td_schema_type_bit(value);
    for (size_t i = 0; i < json_array_size(value); i++) types |= td_schema_type_bit(json_array_get(value, i));
    add_other_types(n, types);
}

static int by_value(const void *x, const void *y) {
    double a = json_number_value(*(json_t *const *)x), b = json_number_value(*(json_t *const *)y);
    return (a > b) - (a < b);
}

/* The numbers between those of a list. */
static void between(negation *n, const json_t *values) {
    size_t   count = 0;
    json_t **at = calloc(json_array_size(values) + 1, sizeof *at);
    for (size_t i = 0; at && i < json_array_size(values); i++)
        if (json_is_number(json_array_get(values, i))) at[count++] = json_array_get(values, i);
    n->bad |= !at || count > VALUES_MAX;
    if (count) qsort(at, count, sizeof(json_t *), by_value);
    for (size_t i = 0; count && i <= count && !n->bad; i++)
        add(n, json_pack("{s:s, s:O*, s:O*}", "type", "number", "exclusiveMinimum", i ? at[i - 1] : NULL, "exclusiveMaximum",
                         i < count ? at[i] : NULL));
    free(at);
}

static void not_values(negation *n, json_t *values) {
    unsigned types = 0;
    json_t  *strings = json_array(), *value;
    size_t   i;
    bool     has_true = false, has_false = false;
    json_array_foreach(values, i, value) {
        for (unsigned bit = 0; td_schema_type_name(bit); bit++)
            if (td_schema_is_of(value, 1u << bit)) types |= 1u << bit;
        if (json_is_string(value)) n->bad |= json_array_append(strings, value) != 0;
        has_true |= json_is_true(value);
        has_false |= json_is_false(value);
        if (json_is_array(value) || json_is_object(value))
            td_gr_fail(n->m->b, TD_ENOTSUP, "'not': of lists and objects in 'enum' and 'const' is not supported");
    }
    add_other_types(n, types);
    if (has_true != has_false) add(n, json_pack("{s:b}", "const", !has_true));
    between(n, values);
    if (json_array_size(strings)) add(n, typed("string", "-string", json_pack("[{s:O}]", "enum", strings)));
    json_decref(strings);
}

static void not_constant(negation *n, json_t *value) {
    json_t *list = json_pack("[O]", value);
    if (list) not_values(n, list);
    n->bad |= !list;
    json_decref(list);
}

/* Counts: `key` of at least, or at most, so many. */
static void not_count(negation *n, const char *type, const char *opposite, const json_t *value, int step) {
    double x = json_number_value(value) + step;
    if (x >= 0) add(n, typed(type, opposite, json_integer((json_int_t)x)));
}

static void not_required(negation *n, const json_t *names) {
    json_t *name;
    size_t  i;
    json_array_foreach(names, i, name) {
        if (json_is_string(name))
            add(n, json_pack("{s:s, s:{s:b}}", "type", "object", "properties", json_string_value(name), 0));
    }
}

static void not_properties(negation *n, json_t *properties) {
    const char *name = NULL;
    json_t     *schema;
    json_object_foreach(properties, name, schema) {
        if (json_is_true(schema)) continue;
        add(n, json_pack("{s:s, s:[s], s:{s:o}, s:b}", "type", "object", "required", name, "properties", name,
                         not_of(schema), "+negated", 1));
    }
}

static void not_dependent(negation *n, json_t *dependent) {
    const char *name = NULL;
    json_t     *value, *other;
    size_t      i;
    json_object_foreach(dependent, name, value) {
        json_array_foreach(value, i, other) {
            if (json_is_string(other))
                add(n, json_pack("{s:s, s:[s], s:{s:b}}", "type", "object", "required", name, "properties",
                                 json_string_value(other), 0));
        }
        if (!json_is_array(value)) add(n, json_pack("{s:s, s:[s], s:O}", "type", "object", "required", name, "not", value));
    }
}

/* None of these. */
static void not_any(negation *n, const json_t *schemas) {
    json_t *all = json_array(), *schema;
    size_t  i;
    json_array_foreach(schemas, i, schema) n->bad |= json_array_append_new(all, not_of(schema)) != 0;
    add(n, json_pack("{s:o}", "allOf", all));
}

static void not_if(negation *n, json_t *condition) {
    json_t *then = json_object_get(n->schema, "then"), *other = json_object_get(n->schema, "else");
    if (then) add(n, json_pack("{s:[O, o], s:b}", "allOf", condition, not_of(then), "+negated", 1));
    if (other) add(n, json_pack("{s:[o, o]}", "allOf", not_of(condition), not_of(other)));
}

static void not_number(negation *n, const char *key, json_t *value) {
    static const char *const opposites[][2] = {{"minimum", "exclusiveMaximum"},
                                               {"maximum", "exclusiveMinimum"},
                                               {"exclusiveMinimum", "maximum"},
                                               {"exclusiveMaximum", "minimum"}};
    for (size_t i = 0; i < sizeof opposites / sizeof *opposites; i++)
        if (!strcmp(key, opposites[i][0])) add(n, typed("number", opposites[i][1], json_incref(value)));
}

static void refuse(negation *n, const char *key) {
    td_gr_fail(n->m->b, TD_ENOTSUP, "'not': of '%.60s' is not supported", key);
}

static void not_array_keyword(negation *n, const char *key, json_t *value) {
    bool plain_contains = !json_object_get(n->schema, "minContains") && !json_object_get(n->schema, "maxContains");
    if (!strcmp(key, "minItems"))
        not_count(n, "array", "maxItems", value, -1);
    else if (!strcmp(key, "maxItems"))
        not_count(n, "array", "minItems", value, 1);
    else if (!strcmp(key, "contains") && plain_contains)
        add(n, json_pack("{s:s, s:o, s:b}", "type", "array", "items", not_of(value), "+negated", 1));
    else if (!strcmp(key, "items") && !json_is_array(value) && !json_object_get(n->schema, "prefixItems"))
        add(n, json_pack("{s:s, s:o, s:b}", "type", "array", "contains", not_of(value), "+negated", 1));
    else if (!json_is_false(value))
        refuse(n, key);
}

static void not_object_keyword(negation *n, const char *key, json_t *value) {
    if (!strcmp(key, "required"))
        not_required(n, value);
    else if (!strcmp(key, "properties"))
        not_properties(n, value);
    else if (!strcmp(key, "minProperties"))
        not_count(n, "object", "maxProperties", value, -1);
    else if (!strcmp(key, "maxProperties"))
        not_count(n, "object", "minProperties", value, 1);
    else if (!strncmp(key, "depend", 6))
        not_dependent(n, value);
    else if (!json_is_true(value))
        refuse(n, key);
}

static void not_string_keyword(negation *n, const char *key, json_t *value) {
    if (!strcmp(key, "minLength"))
        not_count(n, "string", "maxLength", value, -1);
    else if (!strcmp(key, "maxLength"))
        not_count(n, "string", "minLength", value, 1);
    else if (!strcmp(key, "pattern"))
        add(n, typed("string", "-string", json_pack("[{s:O}]", "pattern", value)));
    else
        refuse(n, key);
}

static void not_combined(negation *n, const char *key, json_t *value) {
    json_t *schema;
    size_t  i;
    if (!strcmp(key, "$ref")) {
        json_t *to = json_is_string(value) ? td_schema_resolve(n->m->b, n->m->root, json_string_value(value)) : NULL;
        json_t *negated = to ? td_schema_not(n->m, to, n->depth + 1) : NULL;
        if (negated) add(n, json_incref(negated));
    } else if (!strcmp(key, "type")) {
        not_type(n, value);
    } else if (!strcmp(key, "enum")) {
        not_values(n, value);
    } else if (!strcmp(key, "const")) {
        not_constant(n, value);
    } else if (!strcmp(key, "allOf")) {
        json_array_foreach(value, i, schema) add(n, not_of(schema));
    } else if (!strcmp(key, "anyOf") || !strcmp(key, "oneOf")) {
        not_any(n, value);
    } else if (!strcmp(key, "not")) {
        add(n, json_pack("{s:[O], s:b}", "allOf", value, "+negated", 1));
    } else if (!strcmp(key, "if")) {
        not_if(n, value);
    } else if (strcmp(key, "then") != 0 && strcmp(key, "else") != 0) {
        refuse(n, key);
    }
}

static void not_keyword(negation *n, const char *key, json_t *value) {
    const td_keyword *keyword = td_keyword_of(key);
    if (keyword->use != TD_KEYWORD_CONDITION) return;
    switch (keyword->types) {
        case 0: not_combined(n, key, value); break;
        case TD_SCHEMA_ARRAY: not_array_keyword(n, key, value); break;
        case TD_SCHEMA_OBJECT: not_object_keyword(n, key, value); break;
        case TD_SCHEMA_STRING: not_string_keyword(n, key, value); break;
        default:
            if (!strcmp(key, "multipleOf") || !json_is_number(value)) refuse(n, key);
            not_number(n, key, value);
    }
}

json_t *td_schema_not(td_schema_merger *m, json_t *schema, unsigned depth) {
    if (json_is_true(schema)) return json_false();
    if (json_is_false(schema)) return json_true();
    if (!json_is_object(schema) || depth > DEPTH_MAX) {
        td_gr_fail(m->b, TD_EINVAL,
                   depth > DEPTH_MAX ? "'not': its schema refers to itself" : "a schema must be an object, true or false");
        return NULL;
    }
    negation    n = {m, schema, json_array(), false, depth};
    const char *key = NULL;
    json_t     *value;
    json_object_foreach(schema, key, value) not_keyword(&n, key, value);
    json_t *made = n.bad ? NULL : json_pack("{s:O}", "anyOf", n.branches);
    json_decref(n.branches);
    return td_schema_keep(m, made);
}
