/* The compiler of JSON schemas: what a schema of any kind becomes. */
#include "text/grammar/grammar_schema.h"

#include <stdlib.h>
#include <string.h>

#include "core/files/json_text.h"
#include "text/grammar/schema_compiler.h"
#include "text/grammar/schema_keywords.h"
#include "text/grammar/schema_merge.h"
#include "text/grammar/schema_refs.h"

#define SCHEMA_MAX ((size_t)512 << 10) /* bytes */
#define NAMED_MAX ((size_t)8 << 20)    /* bytes of schemas that are names of rules */
#define DEPTH_MAX 100                  /* schemas in schemas */

/* Note what no draft knows. @return the types that the schema's keywords say something about. */
static unsigned check_keywords(td_schema_compiler *c, json_t *schema) {
    const char *key = NULL;
    json_t     *value;
    unsigned    about = 0;
    json_object_foreach(schema, key, value) {
        const td_keyword *keyword = td_keyword_of(key);
        if (keyword->use == TD_KEYWORD_UNKNOWN) td_gr_warn(c->b, "'%.60s'", key);
        if (keyword->use == TD_KEYWORD_CONDITION) about |= keyword->types;
    }
    if (about & TD_SCHEMA_NUMBER) about |= TD_SCHEMA_INTEGER;
    return about;
}

/* Values of some types. */
static uint32_t typed_node(td_schema_compiler *c, json_t *schema, unsigned types, unsigned about) {
    td_gr_builder *b = c->b;
    td_gr_items    alternatives = {0};
    if (types == TD_SCHEMA_ALL && about == 0) return td_gr_use(b, c->json.any);
    if (types & TD_SCHEMA_STRING) td_gr_add(b, &alternatives, td_schema_string(c, schema));
    if (types & (TD_SCHEMA_NUMBER | TD_SCHEMA_INTEGER))
        td_gr_add(b, &alternatives, td_schema_number(c, schema, !(types & TD_SCHEMA_NUMBER)));
    if (types & TD_SCHEMA_OBJECT) td_gr_add(b, &alternatives, td_schema_object(c, schema));
    if (types & TD_SCHEMA_ARRAY) td_gr_add(b, &alternatives, td_schema_array(c, schema));
    if (types & TD_SCHEMA_BOOLEAN) td_gr_add(b, &alternatives, td_gr_text(b, "true", 4));
    if (types & TD_SCHEMA_BOOLEAN) td_gr_add(b, &alternatives, td_gr_text(b, "false", 5));
    if (types & TD_SCHEMA_NULL) td_gr_add(b, &alternatives, td_gr_text(b, "null", 4));
    uint32_t node = td_gr_of(b, TD_GR_ALT, &alternatives);
    td_gr_items_free(&alternatives);
    return node;
}

/* The values of enum, const or both, of the given types, that meet the conditions beside them. */
static uint32_t values_node(td_schema_compiler *c, json_t *schema, unsigned types, unsigned about) {
    json_t     *values = json_object_get(schema, "enum"), *constant = json_object_get(schema, "const");
    td_gr_items free_ones = {0}, limited = {0};
    unsigned    limits = 0;
    if (values && !json_is_array(values)) return td_gr_fail(c->b, TD_EINVAL, "'enum' must be a list of values");
    for (size_t i = 0; i < (values ? json_array_size(values) : 1); i++) {
        const json_t *v = values ? json_array_get(values, i) : constant;
        if (!td_schema_is_of(v, types) || (constant && !json_equal(v, constant))) continue;
        unsigned known = 0;
        for (unsigned bit = 1; bit <= TD_SCHEMA_STRING; bit *= 2) known |= td_schema_is_of(v, bit) ? bit : 0;
        limits |= known & about & types;
        td_gr_add(c->b, known & about ? &limited : &free_ones, td_gr_json_value(&c->json, v));
    }
    if (limited.n) {
        uint32_t node = td_gr_of(c->b, TD_GR_ALT, &limited);
        td_gr_add(c->b, &free_ones, td_gr_pair(c->b, TD_GR_BOTH, node, typed_node(c, schema, limits, about)));
    }
    uint32_t node = td_gr_of(c->b, TD_GR_ALT, &free_ones);
    td_gr_items_free(&free_ones);
    td_gr_items_free(&limited);
    return node;
}

/* ---- rules by name ----------------------------------------------------------------------------- */

/* The rule of this name; its schema is compiled later, so that it may refer to itself. */
static uint32_t rule_of(td_schema_compiler *c, const char *name, json_t *schema) {
    td_gr_builder *b = c->b;
    size_t         before = b->n_rules;
    uint32_t       rule = schema ? td_gr_rule_named(b, name, strlen(name)) : 0;
    if (b->status == TD_OK && rule == before) {
        if (c->n_later == c->later_room) {
            size_t             room = c->later_room ? 2 * c->later_room : 16;
            td_schema_pending *later = realloc(c->later, room * sizeof *later);
            if (!later) return td_gr_fail(b, TD_ENOMEM, "out of memory for a schema");
            c->later = later;
            c->later_room = room;
        }
        c->later[c->n_later++] = (td_schema_pending){rule, schema};
    }
    return td_gr_use(b, rule);
}

/* The same for a schema that has to be flattened. Its text is the name: schemas that combine others again and again, as
 * those that refer to themselves do, come back to a rule that is there. */
static uint32_t combined_node(td_schema_compiler *c, json_t *schema) {
    char    *name = td_json_dump(schema, JSON_COMPACT);
    uint32_t node = 0;
    if (!name)
        td_gr_fail(c->b, TD_ENOMEM, "out of memory for a schema");
    else if ((c->named += strlen(name)) > NAMED_MAX)
        td_gr_fail(c->b, TD_EINVAL, "the schema combines others too often");
    else
        node = rule_of(c, name, schema);
    free(name);
    return node;
}

/* Whether a schema has conditions besides this one. */
static bool has_others(const json_t *schema, const char *keyword) {
    const char *key = NULL;
    json_t     *value;
    json_object_foreach((json_t *)schema, key, value) {
        if (strcmp(key, keyword) != 0 && td_keyword_of(key)->use == TD_KEYWORD_CONDITION) return true;
    }
    return false;
}

/* ---- schemas ------------------------------------------------------------------------------------ */

static uint32_t compile(td_schema_compiler *c, json_t *schema);

static uint32_t any_of_node(td_schema_compiler *c, json_t *schema) {
    td_gr_builder *b = c->b;
    json_t        *branches = json_object_get(schema, "anyOf"), *rest = NULL;
    td_gr_items    alternatives = {0};
    if (!json_is_array(branches)) return td_gr_fail(b, TD_EINVAL, "'anyOf' must be a list of schemas");
    if (has_others(schema, "anyOf")) {
        rest = json_copy(schema);
        json_object_del(rest, "anyOf");
        rest = td_schema_keep(&c->merger, rest);
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

static uint32_t compile_object(td_schema_compiler *c, json_t *schema) {
    unsigned    about = check_keywords(c, schema), types = td_schema_types(c, schema);
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    if (c->b->status != TD_OK) return 0;
    if (ref && !has_others(schema, "$ref")) return rule_of(c, ref, td_schema_resolve(c->b, c->merger.root, ref));
    if (td_schema_is_combined(schema)) return combined_node(c, schema);
    if (json_object_get(schema, "anyOf")) return any_of_node(c, schema);
    if (json_object_get(schema, "enum") || json_object_get(schema, "const")) return values_node(c, schema, types, about);
    return typed_node(c, schema, types, about);
}

static uint32_t compile(td_schema_compiler *c, json_t *schema) {
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

/* The body of a rule by name: not the rule itself. */
static uint32_t compile_body(td_schema_compiler *c, json_t *schema) {
    bool only_ref = json_object_get(schema, "$ref") && !has_others(schema, "$ref");
    if (!json_is_object(schema) || only_ref || !td_schema_is_combined(schema)) return compile(c, schema);
    check_keywords(c, schema);
    json_t *flat = td_schema_merge(&c->merger, schema, json_true());
    return flat ? compile(c, flat) : 0;
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
    td_schema_compiler c = {.b = b, .compile = compile};
    json_t            *root = load(b, "schema", text, len);
    if (!root) return;
    td_schema_link(b, root);
    c.merger = (td_schema_merger){.b = b, .root = root, .made = json_array()};
    if (!c.merger.made) td_gr_fail(b, TD_ENOMEM, "out of memory for a schema");
    td_gr_json_open(&c.json, b);
    b->root = td_gr_rule_named(b, "#", 1);
    td_gr_define(b, b->root, compile_body(&c, root));
    for (size_t i = 0; i < c.n_later && b->status == TD_OK; i++)
        td_gr_define(b, c.later[i].rule, compile_body(&c, c.later[i].schema));
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
