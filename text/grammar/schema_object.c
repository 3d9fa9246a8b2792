/* Objects of a JSON schema: a list of members in order, then additional ones. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/grammar_class.h"
#include "text/grammar/schema_compiler.h"
#include "text/grammar/schema_pattern.h"

#define PATTERNS_MAX 4               /* of an object: each set of them has members of its own */
#define COUNTED_MAX ((uint32_t)4096) /* members times counts */

/* The members of an object while they are put together. */
typedef struct {
    td_schema_compiler *c;
    json_t             *schema, *properties, *patterns, *additional; /* NULL: not there */
    uint32_t            key_condition;                               /* node of propertyNames; UINT32_MAX: none */
    td_gr_items         members; /* pairs: node of a member, and flags of a list's item */
    td_gr_items         keys;    /* of the members that have a name */
} object;

/* ---- keys ---- */

static uint32_t with_condition(const object *o, uint32_t key) {
    return o->key_condition == UINT32_MAX ? key : td_gr_pair(o->c->b, TD_GR_BOTH, key, o->key_condition);
}

/* The schema of a member: what `schema` and the patterns that its name matches accept. NULL with the failure reported. */
static json_t *with_patterns(object *o, const char *name, json_t *schema) {
    const char *pattern = NULL;
    json_t     *value;
    json_object_foreach(o->patterns, pattern, value) {
        if (!td_schema_name_matches(o->c->b, pattern, name)) continue;
        schema = schema ? td_schema_keep(&o->c->merger, td_schema_both(schema, value)) : value;
        if (!schema) return NULL;
    }
    return schema ? schema : o->additional ? o->additional : json_true();
}

static void add_member(object *o, const char *name, json_t *schema, bool required) {
    td_gr_builder *b = o->c->b;
    uint32_t       key = td_gr_json_text(b, name, strlen(name));
    json_t        *whole = with_patterns(o, name, schema);
    if (!whole) return;
    td_gr_add(b, &o->keys, key);
    td_gr_add(b, &o->members, td_gr_json_member(&o->c->json, with_condition(o, key), o->c->compile(o->c, whole)));
    td_gr_add(b, &o->members, required ? 0 : TD_GR_ITEM_OPTIONAL);
}

/* A key in the spelling that names have, so that taking out names or patterns leaves none of them in another spelling. */
static uint32_t any_key(td_gr_builder *b) {
    td_gr_class all = {0};
    td_gr_class_add(b, &all, 0, TD_GR_CHAR_MAX);
    uint32_t quote = td_gr_byte(b, '"', '"'), inside = td_gr_repeat(b, td_gr_class_json(b, &all), 0, TD_GR_NO_MAX);
    td_gr_class_free(&all);
    return td_gr_pair(b, TD_GR_SEQ, quote, td_gr_pair(b, TD_GR_SEQ, inside, quote));
}

/* The keys that match a pattern, as a node. */
static uint32_t key_of_pattern(object *o, const char *pattern) {
    json_t  *schema = td_schema_keep(&o->c->merger, json_pack("{s:s}", "pattern", pattern));
    uint32_t node = schema ? td_schema_string(o->c, schema) : 0;
    return node;
}

/* Members without a name in the schema whose keys match the patterns of a set (bits), and no others. */
static uint32_t other_member(object *o, unsigned set, uint32_t free_key) {
    td_gr_builder *b = o->c->b;
    const char    *pattern = NULL;
    json_t        *value, *schema = NULL;
    uint32_t       key = free_key;
    unsigned       bit = 1;
    json_object_foreach(o->patterns, pattern, value) {
        bool in = set & bit;
        key = td_gr_pair(b, in ? TD_GR_BOTH : TD_GR_MINUS, key, key_of_pattern(o, pattern));
        if (in) schema = schema ? td_schema_keep(&o->c->merger, td_schema_both(schema, value)) : value;
        if (in && !schema) return 0;
        bit *= 2;
    }
    if (!schema) schema = o->additional ? o->additional : json_true();
    if (json_is_false(schema)) return td_gr_never(b);
    bool plain = key == free_key && o->keys.n == 0 && o->key_condition == UINT32_MAX;
    key = plain ? td_gr_use(b, o->c->json.string) : td_schema_as_rule(o->c, "key", with_condition(o, key));
    return td_gr_json_member(&o->c->json, key, o->c->compile(o->c, schema));
}

/* All members without a name, as the last item of the list. */
static void add_others(object *o) {
    td_gr_builder *b = o->c->b;
    size_t         n = json_object_size(o->patterns);
    td_gr_items    sets = {0};
    if (n > PATTERNS_MAX) {
        td_gr_fail(b, TD_ENOTSUP, "'patternProperties': more than %d are not supported", PATTERNS_MAX);
        return;
    }
    if (n == 0 && json_is_false(o->additional)) return;
    uint32_t key = any_key(b);
    if (o->keys.n) {
        td_gr_items names = {0};
        for (size_t i = 0; i < o->keys.n; i++) td_gr_add(b, &names, o->keys.at[i]);
        key = td_gr_pair(b, TD_GR_MINUS, key, td_gr_of(b, TD_GR_ALT, &names));
        td_gr_items_free(&names);
    }
    for (unsigned set = 0; set < 1u << n && b->status == TD_OK; set++) td_gr_add(b, &sets, other_member(o, set, key));
    td_gr_add(b, &o->members, td_gr_of(b, TD_GR_ALT, &sets));
    td_gr_add(b, &o->members, TD_GR_ITEM_MANY);
    td_gr_items_free(&sets);
}

/* ---- members ---- */

static bool lists(const json_t *required, const char *name) {
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *s = json_string_value(json_array_get(required, i));
        if (s && !strcmp(s, name)) return true;
    }
    return false;
}

static void add_required(object *o, const json_t *required) {
    for (size_t i = 0; i < json_array_size(required) && o->c->b->status == TD_OK; i++) {
        json_t *s = json_array_get(required, i);
        if (!json_is_string(s)) td_gr_fail(o->c->b, TD_EINVAL, "'required' must be a list of strings");
        bool again = !json_is_string(s) || json_object_get(o->properties, json_string_value(s));
        for (size_t k = 0; k < i && !again; k++) again = json_equal(json_array_get(required, k), s);
        if (!again) add_member(o, json_string_value(s), NULL, true);
    }
}

/* The members as a list. */
static uint32_t all_members(object *o) {
    td_gr_builder *b = o->c->b;
    td_gr_items    list = {0};
    td_gr_add(b, &list, o->c->json.comma);
    for (size_t i = 0; i < o->members.n; i++) td_gr_add(b, &list, o->members.at[i]);
    uint32_t node = list.n > 1 ? td_gr_of(b, TD_GR_LIST, &list) : td_gr_empty(b);
    td_gr_items_free(&list);
    return node;
}

/* The state of a graph where the next member is number i, and n have been there. 1 is the graph's end. */
static uint32_t counted_state(uint32_t i, uint32_t n, uint32_t n_counts) {
    uint32_t at = i * n_counts + n;
    return at ? at + 1 : 0;
}

/* The members as a graph that counts them: as many as minProperties and maxProperties say. */
static uint32_t counted_members(object *o, uint32_t min, uint32_t max) {
    td_gr_builder *b = o->c->b;
    td_gr_items    edges = {0};
    uint32_t       n = (uint32_t)(o->members.n / 2), top = max == TD_GR_NO_MAX ? (min ? min : 1) : max;
    uint32_t       counts = top < COUNTED_MAX ? top + 1 : COUNTED_MAX;
    if ((uint64_t)(n + 1) * counts > COUNTED_MAX)
        return td_gr_fail(b, TD_ENOTSUP, "'%s': that many are not supported",
                          max == TD_GR_NO_MAX ? "minProperties" : "maxProperties");
    for (uint32_t i = 0; i < n && b->status == TD_OK; i++) {
        uint32_t member = o->members.at[2 * (size_t)i], flags = o->members.at[2 * (size_t)i + 1];
        uint32_t later = td_gr_pair(b, TD_GR_SEQ, o->c->json.comma, member);
        for (uint32_t k = 0; k < counts; k++) {
            uint32_t more = k < top ? k + 1 : max == TD_GR_NO_MAX ? k : UINT32_MAX;
            uint32_t from = counted_state(i, k, counts), next = i + !(flags & TD_GR_ITEM_MANY);
            if (more != UINT32_MAX)
                td_gr_add_edge_of(b, &edges, k ? later : member, from, counted_state(next, more, counts));
            if (flags) td_gr_add_edge_of(b, &edges, td_gr_empty(b), from, counted_state(i + 1, k, counts));
        }
    }
    for (uint32_t k = min; k < counts; k++) td_gr_add_edge_of(b, &edges, td_gr_empty(b), counted_state(n, k, counts), 1);
    uint32_t node = td_gr_graph(b, counted_state(n, counts - 1, counts) + 2, &edges);
    td_gr_items_free(&edges);
    return node;
}

static bool read_members(object *o) {
    td_schema_compiler *c = o->c;
    json_t             *names = json_object_get(o->schema, "propertyNames");
    const json_t       *required = json_object_get(o->schema, "required");
    if (o->properties && !json_is_object(o->properties))
        td_gr_fail(c->b, TD_EINVAL, "'properties' must be an object");
    else if (o->patterns && !json_is_object(o->patterns))
        td_gr_fail(c->b, TD_EINVAL, "'patternProperties' must be an object");
    else if (required && !json_is_array(required))
        td_gr_fail(c->b, TD_EINVAL, "'required' must be a list of strings");
    if (names && c->b->status == TD_OK) {
        json_t *string = td_schema_keep(&c->merger, json_pack("{s:s}", "type", "string"));
        if (string) o->key_condition = td_schema_as_rule(c, "names", td_schema_compile_both(c, names, string));
    }
    return c->b->status == TD_OK;
}

uint32_t td_schema_object(td_schema_compiler *c, json_t *schema) {
    td_gr_builder *b = c->b;
    object         o = {.c = c,
                        .schema = schema,
                        .properties = json_object_get(schema, "properties"),
                        .patterns = json_object_get(schema, "patternProperties"),
                        .additional = json_object_get(schema, "additionalProperties"),
                        .key_condition = UINT32_MAX};
    const json_t  *required = json_object_get(schema, "required");
    const char    *name = NULL;
    json_t        *value;
    uint32_t       min = 0, max = TD_GR_NO_MAX;
    if (!td_schema_read_count(c, schema, "minProperties", &min) || !td_schema_read_count(c, schema, "maxProperties", &max) ||
        !read_members(&o))
        return 0;
    if (min <= json_array_size(required)) min = 0;
    bool counted = min > 0 || max != TD_GR_NO_MAX;
    if (!o.properties && !o.patterns && o.key_condition == UINT32_MAX && json_array_size(required) == 0 && !counted &&
        (!o.additional || json_is_true(o.additional)))
        return td_gr_use(b, c->json.object);
    json_object_foreach(o.properties, name, value) {
        if (b->status == TD_OK) add_member(&o, name, value, lists(required, name));
    }
    add_required(&o, required);
    if (b->status == TD_OK) add_others(&o);
    uint32_t inside = counted ? counted_members(&o, min, max) : all_members(&o);
    td_gr_items_free(&o.members);
    td_gr_items_free(&o.keys);
    return td_schema_as_rule(c, "object", td_gr_json_bracket(&c->json, '{', inside, '}'));
}
