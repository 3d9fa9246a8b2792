#include "text/grammar/schema_keywords.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define CONDITION(name, holds, types) \
    { name, TD_KEYWORD_CONDITION, TD_HOLDS_##holds, types }
#define ANNOTATION(name) \
    { name, TD_KEYWORD_ANNOTATION, TD_HOLDS_NONE, 0 }

/* +string, -string and +negated: schema_merge.h. */
static const td_keyword KEYWORDS[] = {
    CONDITION("type", NONE, 0),
    CONDITION("enum", NONE, 0),
    CONDITION("const", NONE, 0),
    CONDITION("nullable", NONE, 0),
    CONDITION("$ref", NONE, 0),
    CONDITION("$dynamicRef", NONE, 0),
    CONDITION("$recursiveRef", NONE, 0),
    CONDITION("anyOf", LIST, 0),
    CONDITION("oneOf", LIST, 0),
    CONDITION("allOf", LIST, 0),
    CONDITION("not", SCHEMA, 0),
    CONDITION("if", SCHEMA, 0),
    CONDITION("+negated", NONE, 0),
    CONDITION("then", SCHEMA, 0),
    CONDITION("else", SCHEMA, 0),
    CONDITION("properties", MAP, TD_SCHEMA_OBJECT),
    CONDITION("patternProperties", MAP, TD_SCHEMA_OBJECT),
    CONDITION("additionalProperties", SCHEMA, TD_SCHEMA_OBJECT),
    CONDITION("propertyNames", SCHEMA, TD_SCHEMA_OBJECT),
    CONDITION("required", NONE, TD_SCHEMA_OBJECT),
    CONDITION("minProperties", NONE, TD_SCHEMA_OBJECT),
    CONDITION("maxProperties", NONE, TD_SCHEMA_OBJECT),
    CONDITION("dependentRequired", NONE, TD_SCHEMA_OBJECT),
    CONDITION("dependentSchemas", MAP, TD_SCHEMA_OBJECT),
    CONDITION("dependencies", MAP, TD_SCHEMA_OBJECT),
    CONDITION("unevaluatedProperties", SCHEMA, TD_SCHEMA_OBJECT),
    CONDITION("items", SCHEMA, TD_SCHEMA_ARRAY),
    CONDITION("prefixItems", LIST, TD_SCHEMA_ARRAY),
    CONDITION("additionalItems", SCHEMA, TD_SCHEMA_ARRAY),
    CONDITION("unevaluatedItems", SCHEMA, TD_SCHEMA_ARRAY),
    CONDITION("contains", SCHEMA, TD_SCHEMA_ARRAY),
    CONDITION("minContains", NONE, TD_SCHEMA_ARRAY),
    CONDITION("maxContains", NONE, TD_SCHEMA_ARRAY),
    CONDITION("minItems", NONE, TD_SCHEMA_ARRAY),
    CONDITION("maxItems", NONE, TD_SCHEMA_ARRAY),
    CONDITION("uniqueItems", NONE, TD_SCHEMA_ARRAY),
    CONDITION("minLength", NONE, TD_SCHEMA_STRING),
    CONDITION("maxLength", NONE, TD_SCHEMA_STRING),
    CONDITION("pattern", NONE, TD_SCHEMA_STRING),
    CONDITION("format", NONE, TD_SCHEMA_STRING),
    CONDITION("+string", NONE, TD_SCHEMA_STRING),
    CONDITION("-string", NONE, TD_SCHEMA_STRING),
    CONDITION("minimum", NONE, TD_SCHEMA_NUMBER),
    CONDITION("maximum", NONE, TD_SCHEMA_NUMBER),
    CONDITION("exclusiveMinimum", NONE, TD_SCHEMA_NUMBER),
    CONDITION("exclusiveMaximum", NONE, TD_SCHEMA_NUMBER),
    CONDITION("multipleOf", NONE, TD_SCHEMA_NUMBER),
    {"$defs", TD_KEYWORD_ANNOTATION, TD_HOLDS_MAP, 0},
    {"definitions", TD_KEYWORD_ANNOTATION, TD_HOLDS_MAP, 0},
    ANNOTATION("$schema"),
    ANNOTATION("$id"),
    ANNOTATION("id"),
    ANNOTATION("$comment"),
    ANNOTATION("$anchor"),
    ANNOTATION("$dynamicAnchor"),
    ANNOTATION("$recursiveAnchor"),
    ANNOTATION("$vocabulary"),
    ANNOTATION("title"),
    ANNOTATION("description"),
    ANNOTATION("default"),
    ANNOTATION("examples"),
    ANNOTATION("example"),
    ANNOTATION("deprecated"),
    ANNOTATION("readOnly"),
    ANNOTATION("writeOnly"),
    ANNOTATION("contentEncoding"),
    ANNOTATION("contentMediaType"),
    ANNOTATION("contentSchema"),
    ANNOTATION("discriminator"),
    ANNOTATION("xml"),
    ANNOTATION("externalDocs"),
    ANNOTATION("strict"), /* some clients write it into a tool's parameters */
};

static const td_keyword UNKNOWN = {"", TD_KEYWORD_UNKNOWN, TD_HOLDS_NONE, 0}, EXTENSION = ANNOTATION("x-");

const td_keyword *td_keyword_of(const char *name) {
    for (size_t i = 0; i < sizeof KEYWORDS / sizeof *KEYWORDS; i++)
        if (!strcmp(name, KEYWORDS[i].name)) return &KEYWORDS[i];
    return strncmp(name, "x-", 2) == 0 ? &EXTENSION : &UNKNOWN;
}

static const char *const TYPES[] = {"null", "boolean", "object", "array", "number", "integer", "string"};

unsigned td_schema_type_bit(const json_t *name) {
    for (unsigned i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (json_is_string(name) && !strcmp(json_string_value(name), TYPES[i])) return 1u << i;
    return 0;
}

const char *td_schema_type_name(unsigned bit_number) {
    return bit_number < sizeof TYPES / sizeof *TYPES ? TYPES[bit_number] : NULL;
}

bool td_schema_is_of(const json_t *value, unsigned types) {
    switch (json_typeof(value)) {
        case JSON_NULL: return types & TD_SCHEMA_NULL;
        case JSON_TRUE:
        case JSON_FALSE: return types & TD_SCHEMA_BOOLEAN;
        case JSON_OBJECT: return types & TD_SCHEMA_OBJECT;
        case JSON_ARRAY: return types & TD_SCHEMA_ARRAY;
        case JSON_STRING: return types & TD_SCHEMA_STRING;
        case JSON_INTEGER: return types & (TD_SCHEMA_NUMBER | TD_SCHEMA_INTEGER);
        default:
            return types & TD_SCHEMA_NUMBER ||
                   (types & TD_SCHEMA_INTEGER && json_real_value(value) == floor(json_real_value(value)));
    }
}
