#include "text/grammar/grammar_schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/files/json_text.h"
#include "text/grammar/grammar_class.h"
#include "text/grammar/grammar_json.h"
#include "text/grammar/grammar_regex.h"
#include "text/grammar/schema_merge.h"

#define SCHEMA_MAX ((size_t)512 << 10) /* bytes */
#define DEPTH_MAX 100                  /* schemas in schemas */

typedef struct {
    uint32_t rule;
    json_t  *schema;
} pending;

typedef struct {
    td_gr_builder   *b;
    td_gr_json       json;
    td_schema_merger merger;
    pending         *later; /* schemas that references point to; compiled when everything before them is */
    size_t           n_later, later_room;
    unsigned         depth;
} compiler;

enum { NUL = 1, BOOLEAN = 2, OBJECT = 4, ARRAY = 8, NUMBER = 16, INTEGER = 32, STRING = 64, ALL = 95 };

static const struct {
    const char *name;
    unsigned    bit;
} TYPES[] = {{"null", NUL},      {"boolean", BOOLEAN}, {"object", OBJECT}, {"array", ARRAY},
             {"number", NUMBER}, {"integer", INTEGER}, {"string", STRING}};

/* Keywords, and the types that they are about (0: all). */
static const struct {
    const char *name;
    unsigned    types;
} KEYWORDS[] = {{"type", 0},
                {"enum", 0},
                {"const", 0},
                {"$ref", 0},
                {"anyOf", 0},
                {"oneOf", 0},
                {"allOf", 0},
                {"properties", OBJECT},
                {"required", OBJECT},
                {"additionalProperties", OBJECT},
                {"minProperties", OBJECT},
                {"items", ARRAY},
                {"prefixItems", ARRAY},
                {"additionalItems", ARRAY},
                {"minItems", ARRAY},
                {"maxItems", ARRAY},
                {"uniqueItems", ARRAY},
                {"minLength", STRING},
                {"maxLength", STRING},
                {"pattern", STRING},
                {"format", STRING},
                {"minimum", NUMBER},
                {"maximum", NUMBER},
                {"exclusiveMinimum", NUMBER},
                {"exclusiveMaximum", NUMBER}};

static const struct {
    const char *name, *regex;
} FORMATS[] = {
    {"date", "^\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])$"},
    {"time", "^([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)$"},
    {"date-time",
     "^\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])T([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3])"
     ":[0-5]\\d)$"},
    {"duration",
     "^P((\\d+Y)?(\\d+M)?\\d+D|(\\d+Y)?\\d+M|\\d+Y|((\\d+Y)?(\\d+M)?(\\d+D)?)T((\\d+H)?(\\d+M)?\\d+S|(\\d+H)?\\d+M|\\d+H)|"
     "\\d+W)$"},
    {"uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
    {"ipv4", "^((25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)$"},
    {"email", "^[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\\.)+[A-Za-z]{2,}$"},
    {"hostname", "^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$"},
};

static uint32_t compile(compiler *c, json_t *schema);

static uint32_t quoted(compiler *c, uint32_t inside) {
    td_gr_builder *b = c->b;
    uint32_t       quote = td_gr_byte(b, '"', '"');
    return td_gr_pair(b, TD_GR_SEQ, quote, td_gr_pair(b, TD_GR_SEQ, inside, quote));
}

/* A rule of its own: its automaton is made once, however often it is used. */
static uint32_t as_rule(compiler *c, const char *what, uint32_t body) {
    uint32_t rule = td_gr_rule_new(c->b, what);
    td_gr_define(c->b, rule, body);
    return td_gr_use(c->b, rule);
}

/* A count: a whole number of at least 0. */
static bool read_count(compiler *c, const json_t *schema, const char *key, uint32_t *to) {
    const json_t *v = json_object_get(schema, key);
    double        x = json_number_value(v);
    if (!v) return true;
    if (!json_is_number(v) || x < 0 || x != floor(x))
        td_gr_fail(c->b, TD_EINVAL, "'%s' must be a whole number of at least 0", key);
    else if (x > TD_GR_COUNT_MAX)
        td_gr_fail(c->b, TD_ENOTSUP, "'%s': %g is more than %u", key, x, TD_GR_COUNT_MAX);
    else
        *to = (uint32_t)x;
    return c->b->status == TD_OK;
}

/* ---- strings and numbers ---------------------------------------------------------------------- */

static uint32_t add_condition(compiler *c, uint32_t all, uint32_t more) {
    return all == UINT32_MAX ? more : td_gr_pair(c->b, TD_GR_BOTH, all, more);
}

static uint32_t format_node(compiler *c, const json_t *format) {
    const char *name = json_string_value(format);
    for (size_t i = 0; name && i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (!strcmp(name, FORMATS[i].name)) return td_gr_regex_json(c->b, FORMATS[i].regex, strlen(FORMATS[i].regex));
    return td_gr_fail(c->b, TD_ENOTSUP, "'format': '%.60s' is not supported", name ? name : "(not a string)");
}

static uint32_t string_body(compiler *c, const json_t *pattern, const json_t *format, uint32_t min, uint32_t max) {
    uint32_t body = UINT32_MAX;
    if (pattern)
        body = add_condition(c, body, td_gr_regex_json(c->b, json_string_value(pattern), json_string_length(pattern)));
    if (format) body = add_condition(c, body, format_node(c, format));
    if (min > 0 || max != TD_GR_NO_MAX)
        body = add_condition(c, body, td_gr_repeat(c->b, td_gr_use(c->b, c->json.character), min, max));
    return body;
}

/* Strings with the same conditions share a rule. */
static uint32_t string_node(compiler *c, const json_t *schema) {
    td_gr_builder *b = c->b;
    json_t        *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    uint32_t       min = 0, max = TD_GR_NO_MAX;
    if (!read_count(c, schema, "minLength", &min) || !read_count(c, schema, "maxLength", &max)) return 0;
    if (min > max) return td_gr_never(b);
    if (pattern && !json_is_string(pattern)) return td_gr_fail(b, TD_EINVAL, "'pattern' must be a string");
    if (!pattern && !format && min == 0 && max == TD_GR_NO_MAX) return td_gr_use(b, c->json.string);
    json_t *conditions = json_pack("[O?,O?,I,I]", pattern, format, (json_int_t)min, (json_int_t)max);
    char   *name = td_json_dump(conditions, JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(conditions);
    if (!name) return td_gr_fail(b, TD_ENOMEM, "out of memory for a schema");
    size_t   before = b->n_rules;
    uint32_t rule = td_gr_rule_named(b, name, strlen(name));
    free(name);
    if (b->status == TD_OK && rule == before) td_gr_define(b, rule, quoted(c, string_body(c, pattern, format, min, max)));
    return td_gr_use(b, rule);
}

/* An end of an interval; a stricter one replaces what is there. */
static void read_bound(compiler *c, const json_t *schema, const char *key, bool lower, bool open, bool whole,
                       td_gr_interval *r) {
    const json_t *v = json_object_get(schema, key);
    double        x = json_number_value(v);
    if (!v) return;
    if (!json_is_number(v)) {
        td_gr_fail(c->b, TD_EINVAL, "'%s' must be a number", key);
        return;
    }
    if (x != floor(x) && whole) {
        x = lower ? ceil(x) : floor(x);
        open = false;
    }
    if (x != floor(x) || fabs(x) > 9e18) {
        td_gr_fail(c->b, TD_ENOTSUP, "'%s': %g is not supported; whole numbers are, up to 9e18", key, x);
        return;
    }
    int64_t  bound = json_is_integer(v) ? (int64_t)json_integer_value(v) : (int64_t)x;
    bool    *has = lower ? &r->has_min : &r->has_max, *is_open = lower ? &r->min_open : &r->max_open;
    int64_t *to = lower ? &r->min : &r->max;
    if (*has && (lower ? *to > bound : *to < bound)) return;
    *is_open = open || (*has && *to == bound && *is_open);
    *to = bound;
    *has = true;
}

/* In draft 4 exclusiveMinimum is a switch of minimum. */
static uint32_t number_node(compiler *c, const json_t *schema, bool whole) {
    td_gr_interval r = {0};
    const json_t  *low = json_object_get(schema, "exclusiveMinimum"), *high = json_object_get(schema, "exclusiveMaximum");
    read_bound(c, schema, "minimum", true, json_is_true(low), whole, &r);
    read_bound(c, schema, "maximum", false, json_is_true(high), whole, &r);
    if (!json_is_boolean(low)) read_bound(c, schema, "exclusiveMinimum", true, true, whole, &r);
    if (!json_is_boolean(high)) read_bound(c, schema, "exclusiveMaximum", false, true, whole, &r);
    if (r.has_min || r.has_max) return td_gr_json_interval(&c->json, &r, !whole);
    return whole ? td_gr_json_integer(&c->json) : td_gr_use(c->b, c->json.number);
}

/* ---- objects ----------------------------------------------------------------------------------- */

static void add_member(compiler *c, td_gr_items *list, td_gr_items *names, const char *name, json_t *schema, bool required) {
    uint32_t key = td_gr_json_text(c->b, name, strlen(name));
    td_gr_add(c->b, names, key);
    td_gr_add(c->b, list, td_gr_json_member(&c->json, key, compile(c, schema)));
    td_gr_add(c->b, list, required ? 0 : TD_GR_ITEM_OPTIONAL);
}

/* The key of an additional member: a string that is none of these. */
static uint32_t other_key(compiler *c, td_gr_items *names) {
    td_gr_builder *b = c->b;
    td_gr_class    all = {0};
    if (names->n == 0) return td_gr_use(b, c->json.string);
    td_gr_class_add(b, &all, 0, TD_GR_CHAR_MAX);
    /* Spelled as the names are, so that taking out the names leaves none of them in another spelling. */
    uint32_t any = quoted(c, td_gr_repeat(b, td_gr_class_json(b, &all), 0, TD_GR_NO_MAX));
    td_gr_class_free(&all);
    return as_rule(c, "key", td_gr_pair(b, TD_GR_MINUS, any, td_gr_of(b, TD_GR_ALT, names)));
}

static bool lists(const json_t *required, const char *name) {
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *s = json_string_value(json_array_get(required, i));
        if (s && !strcmp(s, name)) return true;
    }
    return false;
}

static uint32_t object_node(compiler *c, json_t *schema) {
    td_gr_builder *b = c->b;
    json_t        *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required");
    json_t        *additional = json_object_get(schema, "additionalProperties"), *value;
    const char    *name = NULL;
    td_gr_items    list = {0}, names = {0};
    uint32_t       least = 0;
    if (properties && !json_is_object(properties)) return td_gr_fail(b, TD_EINVAL, "'properties' must be an object");
    if (required && !json_is_array(required)) return td_gr_fail(b, TD_EINVAL, "'required' must be a list of strings");
    if (!read_count(c, schema, "minProperties", &least)) return 0;
    if (least > json_array_size(required))
        return td_gr_fail(b, TD_ENOTSUP, "'minProperties': more than 'required' has is not supported");
    if (!properties && json_array_size(required) == 0 && (!additional || json_is_true(additional)))
        return td_gr_use(b, c->json.object);

    td_gr_add(b, &list, c->json.comma);
    json_object_foreach(properties, name, value) {
        if (b->status == TD_OK) add_member(c, &list, &names, name, value, lists(required, name));
    }
    for (size_t i = 0; i < json_array_size(required) && b->status == TD_OK; i++) {
        json_t *s = json_array_get(required, i);
        if (!json_is_string(s)) td_gr_fail(b, TD_EINVAL, "'required' must be a list of strings");
        bool again = !json_is_string(s) || json_object_get(properties, json_string_value(s));
        for (size_t k = 0; k < i && !again; k++) again = json_equal(json_array_get(required, k), s);
        if (!again) add_member(c, &list, &names, json_string_value(s), additional ? additional : json_true(), true);
    }
    if (!json_is_false(additional) && b->status == TD_OK) {
        uint32_t any = additional ? compile(c, additional) : td_gr_use(b, c->json.any);
        td_gr_add(b, &list, td_gr_json_member(&c->json, other_key(c, &names), any));
        td_gr_add(b, &list, TD_GR_ITEM_MANY);
    }
    uint32_t inside = list.n > 1 ? td_gr_of(b, TD_GR_LIST, &list) : td_gr_empty(b);
    td_gr_items_free(&list);
    td_gr_items_free(&names);
    return as_rule(c, "object", td_gr_json_bracket(&c->json, '{', inside, '}'));
}

/* ---- arrays ------------------------------------------------------------------------------------- */

/* Items from number k on, each with a comma before it, except the first item. */
static uint32_t items_from(compiler *c, const json_t *prefix, size_t k, uint32_t rest, uint32_t min, uint32_t max) {
    td_gr_builder *b = c->b;
    if (b->status != TD_OK || k >= max) return td_gr_empty(b);
    if (k > DEPTH_MAX) return td_gr_fail(b, TD_ENOTSUP, "'prefixItems': more than %d items are not supported", DEPTH_MAX);
    bool     fixed = k < json_array_size(prefix);
    uint32_t item = fixed ? compile(c, json_array_get(prefix, k)) : rest, node;
    if (!fixed && k > 0) {
        uint32_t n = (uint32_t)k, more = td_gr_pair(b, TD_GR_SEQ, c->json.comma, item);
        return td_gr_repeat(b, more, min > n ? min - n : 0, max == TD_GR_NO_MAX ? max : max - n);
    }
    node = k > 0 ? td_gr_pair(b, TD_GR_SEQ, c->json.comma, item) : item;
    node = td_gr_pair(b, TD_GR_SEQ, node, items_from(c, prefix, k + 1, rest, min, max));
    return k < min ? node : td_gr_optional(b, node);
}

static uint32_t array_node(compiler *c, json_t *schema) {
    td_gr_builder *b = c->b;
    json_t        *prefix = json_object_get(schema, "prefixItems"), *items = json_object_get(schema, "items");
    json_t        *unique = json_object_get(schema, "uniqueItems");
    uint32_t       min = 0, max = TD_GR_NO_MAX;
    if (json_is_array(items)) { /* before 2020-12 */
        prefix = items;
        items = json_object_get(schema, "additionalItems");
    } else if (json_object_get(schema, "additionalItems") && prefix) {
        return td_gr_fail(b, TD_ENOTSUP, "'additionalItems' beside 'prefixItems' is not supported");
    }
    if (prefix && !json_is_array(prefix)) return td_gr_fail(b, TD_EINVAL, "'prefixItems' must be a list of schemas");
    if (unique && !json_is_false(unique)) return td_gr_fail(b, TD_ENOTSUP, "'uniqueItems' is not supported");
    if (!read_count(c, schema, "minItems", &min) || !read_count(c, schema, "maxItems", &max)) return 0;
    if (json_is_false(items) && json_array_size(prefix) < max) max = (uint32_t)json_array_size(prefix);
    if (min > max) return td_gr_never(b);
    if (!prefix && (!items || json_is_true(items)) && min == 0 && max == TD_GR_NO_MAX) return td_gr_use(b, c->json.array);
    uint32_t rest = items && !json_is_false(items) ? compile(c, items) : td_gr_use(b, c->json.any);
    uint32_t inside = items_from(c, prefix, 0, rest, min, max);
    return as_rule(c, "array", td_gr_json_bracket(&c->json, '[', inside, ']'));
}

/* ---- schemas ------------------------------------------------------------------------------------ */

static unsigned type_bit(const json_t *name) {
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (json_is_string(name) && !strcmp(json_string_value(name), TYPES[i].name)) return TYPES[i].bit;
    return 0;
}

static unsigned read_types(compiler *c, const json_t *schema) {
    const json_t *v = json_object_get(schema, "type");
    unsigned      types = 0;
    if (!v) return ALL;
    for (size_t i = 0; i < (json_is_array(v) ? json_array_size(v) : 1); i++) {
        unsigned bit = type_bit(json_is_array(v) ? json_array_get(v, i) : v);
        if (!bit) {
            const char *name = json_string_value(json_is_array(v) ? json_array_get(v, i) : v);
            td_gr_fail(c->b, TD_EINVAL, "'type': '%.60s' is not a type", name ? name : "(not a string)");
        }
        types |= bit;
    }
    return types & NUMBER ? types & ~(unsigned)INTEGER : types;
}

/* Refuse what is not known, by name. @return the types that the schema's keywords say something about. */
static unsigned check_keywords(compiler *c, json_t *schema) {
    const char *key = NULL;
    json_t     *value;
    unsigned    about = 0;
    json_object_foreach(schema, key, value) {
        size_t i = 0;
        if (td_schema_is_annotation(key)) continue;
        while (i < sizeof KEYWORDS / sizeof *KEYWORDS && strcmp(key, KEYWORDS[i].name) != 0) i++;
        if (i == sizeof KEYWORDS / sizeof *KEYWORDS)
            td_gr_fail(c->b, TD_ENOTSUP, "'%.60s' is not supported", key);
        else
            about |= KEYWORDS[i].types;
    }
    return about;
}

static bool of_type(const json_t *value, unsigned types) {
    switch (json_typeof(value)) {
        case JSON_NULL: return types & NUL;
        case JSON_TRUE:
        case JSON_FALSE: return types & BOOLEAN;
        case JSON_OBJECT: return types & OBJECT;
        case JSON_ARRAY: return types & ARRAY;
        case JSON_STRING: return types & STRING;
        case JSON_INTEGER: return types & (NUMBER | INTEGER);
        default: return types & NUMBER || (types & INTEGER && json_real_value(value) == floor(json_real_value(value)));
    }
}

/* The values of enum, const or both, of the given types. Other conditions beside them are refused. */
static uint32_t values_node(compiler *c, const json_t *schema, unsigned types, unsigned about) {
    const json_t *values = json_object_get(schema, "enum"), *constant = json_object_get(schema, "const");
    td_gr_items   alternatives = {0};
    if (values && !json_is_array(values)) return td_gr_fail(c->b, TD_EINVAL, "'enum' must be a list of values");
    for (size_t i = 0; i < (values ? json_array_size(values) : 1); i++) {
        const json_t *v = values ? json_array_get(values, i) : constant;
        if (!of_type(v, types) || (constant && !json_equal(v, constant))) continue;
        unsigned known = 0;
        for (unsigned bit = 1; bit <= STRING; bit *= 2) known |= of_type(v, bit) ? bit : 0;
        if (known & about)
            td_gr_fail(c->b, TD_ENOTSUP, "'%s' beside conditions on values of its type is not supported",
                       values ? "enum" : "const");
        td_gr_add(c->b, &alternatives, td_gr_json_value(&c->json, v));
    }
    uint32_t node = td_gr_of(c->b, TD_GR_ALT, &alternatives);
    td_gr_items_free(&alternatives);
    return node;
}

static uint32_t typed_node(compiler *c, json_t *schema, unsigned types, unsigned about) {
    td_gr_builder *b = c->b;
    td_gr_items    alternatives = {0};
    if (types == ALL && about == 0) return td_gr_use(b, c->json.any);
    if (types & STRING) td_gr_add(b, &alternatives, string_node(c, schema));
    if (types & (NUMBER | INTEGER)) td_gr_add(b, &alternatives, number_node(c, schema, !(types & NUMBER)));
    if (types & OBJECT) td_gr_add(b, &alternatives, object_node(c, schema));
    if (types & ARRAY) td_gr_add(b, &alternatives, array_node(c, schema));
    if (types & BOOLEAN) td_gr_add(b, &alternatives, td_gr_text(b, "true", 4));
    if (types & BOOLEAN) td_gr_add(b, &alternatives, td_gr_text(b, "false", 5));
    if (types & NUL) td_gr_add(b, &alternatives, td_gr_text(b, "null", 4));
    uint32_t node = td_gr_of(b, TD_GR_ALT, &alternatives);
    td_gr_items_free(&alternatives);
    return node;
}

/* The rule of what a reference points to; its schema is compiled later, so that it may refer to itself. */
static uint32_t reference_node(compiler *c, const char *reference) {
    td_gr_builder *b = c->b;
    json_t        *target = td_schema_resolve(&c->merger, reference);
    size_t         before = b->n_rules;
    uint32_t       rule = target ? td_gr_rule_named(b, reference, strlen(reference)) : 0;
    if (b->status == TD_OK && rule == before) {
        if (c->n_later == c->later_room) {
            size_t   room = c->later_room ? 2 * c->later_room : 16;
            pending *later = realloc(c->later, room * sizeof *later);
            if (!later) return td_gr_fail(b, TD_ENOMEM, "out of memory for a schema");
            c->later = later;
            c->later_room = room;
        }
        c->later[c->n_later++] = (pending){rule, target};
    }
    return td_gr_use(b, rule);
}

/* Whether a schema has conditions besides this one. */
static bool has_others(const json_t *schema, const char *keyword) {
    const char *key = NULL;
    json_t     *value;
    json_object_foreach((json_t *)schema, key, value) {
        if (strcmp(key, keyword) != 0 && !td_schema_is_annotation(key)) return true;
    }
    return false;
}

static uint32_t any_of_node(compiler *c, json_t *schema, const char *keyword) {
    td_gr_builder *b = c->b;
    json_t        *branches = json_object_get(schema, keyword), *rest = NULL;
    td_gr_items    alternatives = {0};
    if (!json_is_array(branches)) return td_gr_fail(b, TD_EINVAL, "'%s' must be a list of schemas", keyword);
    if (has_others(schema, keyword)) {
        rest = json_copy(schema);
        if (!rest || json_object_del(rest, keyword) != 0 || json_array_append_new(c->merger.made, rest) != 0)
            return td_gr_fail(b, TD_ENOMEM, "out of memory for a schema");
    }
    for (size_t i = 0; i < json_array_size(branches) && b->status == TD_OK; i++) {
        json_t *branch = json_array_get(branches, i);
        if (rest) branch = td_schema_merge(&c->merger, rest, branch);
        if (branch) td_gr_add(b, &alternatives, compile(c, branch));
    }
    uint32_t node = td_gr_of(b, TD_GR_ALT, &alternatives);
    td_gr_items_free(&alternatives);
    return node;
}

static uint32_t compile_object(compiler *c, json_t *schema) {
    unsigned about = check_keywords(c, schema), types = read_types(c, schema);
    json_t  *ref = json_object_get(schema, "$ref");
    if (c->b->status != TD_OK) return 0;
    if (ref && json_is_string(ref) && !has_others(schema, "$ref")) return reference_node(c, json_string_value(ref));
    if (ref || json_object_get(schema, "allOf")) {
        json_t *merged = td_schema_merge(&c->merger, schema, json_true());
        return merged ? compile(c, merged) : 0;
    }
    if (json_object_get(schema, "anyOf")) return any_of_node(c, schema, "anyOf");
    if (json_object_get(schema, "oneOf")) return any_of_node(c, schema, "oneOf");
    if (json_object_get(schema, "enum") || json_object_get(schema, "const")) return values_node(c, schema, types, about);
    return typed_node(c, schema, types, about);
}

static uint32_t compile(compiler *c, json_t *schema) {
    if (c->b->status != TD_OK) return 0;
    if (json_is_true(schema)) return td_gr_use(c->b, c->json.any);
    if (json_is_false(schema)) return td_gr_never(c->b);
    if (!json_is_object(schema)) return td_gr_fail(c->b, TD_EINVAL, "a schema must be an object, true or false");
    if (++c->depth > DEPTH_MAX)
        return td_gr_fail(c->b, TD_EINVAL, "the schema is nested more than %d levels deep", DEPTH_MAX);
    uint32_t node = compile_object(c, schema);
    c->depth--;
    return node;
}

static json_t *load(td_gr_builder *b, const char *what, const char *text, size_t len) {
    json_error_t why;
    json_t      *root = NULL;
    if (len > SCHEMA_MAX) {
        td_gr_fail(b, TD_EINVAL, "the %s has %zu bytes; at most %zu are allowed", what, len, SCHEMA_MAX);
        return NULL;
    }
    td_status st = td_json_load(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &root, &why);
    if (st != TD_OK) td_gr_fail(b, st, "the %s is not valid JSON: %s (line %d)", what, why.text, why.line);
    return root;
}

void td_gr_schema(td_gr_builder *b, const char *text, size_t len) {
    compiler c = {.b = b};
    json_t  *root = load(b, "schema", text, len);
    if (!root) return;
    c.merger = (td_schema_merger){.b = b, .root = root, .made = json_array()};
    if (!c.merger.made) td_gr_fail(b, TD_ENOMEM, "out of memory for a schema");
    td_gr_json_open(&c.json, b);
    b->root = td_gr_rule_named(b, "#", 1);
    td_gr_define(b, b->root, compile(&c, root));
    for (size_t i = 0; i < c.n_later && b->status == TD_OK; i++)
        td_gr_define(b, c.later[i].rule, compile(&c, c.later[i].schema));
    free(c.later);
    json_decref(c.merger.made);
    json_decref(root);
}

void td_gr_any_object(td_gr_builder *b) {
    td_gr_json json;
    td_gr_json_open(&json, b);
    b->root = json.object;
}

void td_gr_choices(td_gr_builder *b, const char *text, size_t len) {
    json_t     *root = load(b, "list of choices", text, len);
    td_gr_items alternatives = {0};
    if (root && json_array_size(root) == 0) td_gr_fail(b, TD_EINVAL, "the choices must be a list of at least one string");
    for (size_t i = 0; i < json_array_size(root) && b->status == TD_OK; i++) {
        const json_t *s = json_array_get(root, i);
        if (!json_is_string(s) || json_string_length(s) == 0)
            td_gr_fail(b, TD_EINVAL, "the choices must be strings, none of them empty");
        else
            td_gr_add(b, &alternatives, td_gr_text(b, json_string_value(s), json_string_length(s)));
    }
    b->root = td_gr_rule_new(b, "choices");
    td_gr_define(b, b->root, td_gr_of(b, TD_GR_ALT, &alternatives));
    td_gr_items_free(&alternatives);
    json_decref(root);
}
