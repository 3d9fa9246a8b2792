/* Types of arguments by a JSON schema. */
#include "text/parse/argument_types.h"

#include <string.h>

#include "core/files/json_text.h"
#include "text/parse/json_parts.h"
#include "text/parse/marker_scan.h"
#include "text/parse/python_literal.h"

#define SCHEMA_DEPTH_MAX 8

static uint32_t type_of(const json_t *value) {
    switch (json_typeof(value)) {
        case JSON_STRING: return TD_TYPE_STRING;
        case JSON_INTEGER:
        case JSON_REAL: return TD_TYPE_NUMBER;
        case JSON_TRUE:
        case JSON_FALSE: return TD_TYPE_BOOLEAN;
        case JSON_ARRAY: return TD_TYPE_ARRAY;
        case JSON_OBJECT: return TD_TYPE_OBJECT;
        default: return TD_TYPE_NULL;
    }
}

static uint32_t type_named(const json_t *name) {
    static const struct {
        const char *name;
        uint32_t    type;
    } NAMES[] = {{"string", TD_TYPE_STRING},   {"integer", TD_TYPE_NUMBER}, {"number", TD_TYPE_NUMBER},
                 {"boolean", TD_TYPE_BOOLEAN}, {"null", TD_TYPE_NULL},      {"array", TD_TYPE_ARRAY},
                 {"object", TD_TYPE_OBJECT}};
    for (size_t i = 0; json_is_string(name) && i < sizeof NAMES / sizeof *NAMES; i++)
        if (!strcmp(json_string_value(name), NAMES[i].name)) return NAMES[i].type;
    return TD_TYPE_OPEN;
}

static uint32_t types_of(const json_t *schema, unsigned depth) {
    static const char *const CHOICES[] = {"anyOf", "oneOf", "allOf"};
    const json_t            *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum"), *one;
    uint32_t                 types = 0;
    size_t                   i;
    if (json_is_array(type)) {
        json_array_foreach(type, i, one) types |= type_named(one);
        return types;
    }
    if (type) return type_named(type);
    if ((one = json_object_get(schema, "const"))) return type_of(one);
    json_array_foreach(values, i, one) types |= type_of(one);
    for (size_t k = 0; k < 3 && depth < SCHEMA_DEPTH_MAX; k++)
        json_array_foreach(json_object_get(schema, CHOICES[k]), i, one) types |= types_of(one, depth + 1);
    return types ? types : TD_TYPE_OPEN;
}

uint32_t td_argument_types(const json_t *parameters, const char *key, size_t key_len) {
    const json_t *property = json_object_getn(json_object_get(parameters, "properties"), key, key_len);
    return property ? types_of(property, 0) : TD_TYPE_OPEN;
}

/* Whether a value parsed from JSON may be the argument. A quoted string may only if the types are open: else strings come
 * without quotes. */
static bool is_allowed(const json_t *value, uint32_t types) {
    return value && type_of(value) & types && (types == TD_TYPE_OPEN || !json_is_string(value));
}

/* @return TD_OK and a malloc'd text, or NULL where the text is no such value; TD_ENOMEM. */
static td_status as_json(const char *text, size_t n, uint32_t types, char **out) {
    json_t   *value;
    td_status st = td_json_load_shape(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &value);
    bool      good = is_allowed(value, types);
    json_decref(value);
    *out = good ? strndup(text, n) : NULL;
    return st == TD_ENOMEM || (good && !*out) ? TD_ENOMEM : TD_OK;
}

/* A value as Python writes it. */
static td_status as_python(const char *text, size_t n, uint32_t types, char **out) {
    td_python_text s = {text, text + n, 0};
    td_bytes       json = {0};
    bool           good = td_python_take_value(&s, &json);
    td_python_skip(&s);
    *out = NULL;
    td_status st = json.failed ? TD_ENOMEM : good && s.at == s.end ? as_json(json.at, json.n, types, out) : TD_OK;
    td_bytes_free(&json);
    return st;
}

static char *as_string(const char *text, size_t n) {
    json_t *value = json_stringn(text, n);
    char   *out = td_json_dump(value, JSON_ENCODE_ANY);
    json_decref(value);
    return out;
}

char *td_argument_json(const char *text, size_t n, uint32_t types) {
    size_t from = 0, len = n;
    char  *out;
    while (len && td_is_blank(text[from])) from++, len--;
    while (len && td_is_blank(text[from + len - 1])) len--;
    if (types == TD_TYPE_STRING || len == 0) return as_string(text, n);
    td_status st = as_json(text + from, len, types, &out);
    if (st == TD_OK && !out && types != TD_TYPE_OPEN) st = as_python(text + from, len, types, &out);
    if (st != TD_OK) return NULL;
    return out ? out : as_string(text, n);
}
