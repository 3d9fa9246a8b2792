/* The fields that ask for structured output, under the names of OpenAI, vLLM, SGLang and llama.cpp: at most one of them. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/files/json_text.h"
#include "server/request/api_readers.h"

/* How a field holds its source: a text, JSON or a text of JSON, a list of strings, or true. */
typedef enum { FORM_TEXT, FORM_JSON, FORM_LIST, FORM_SWITCH } form;

typedef struct {
    const char     *name;
    td_grammar_kind kind;
    form            form;
} field;

static const field FIELDS[] = {
    {"guided_json", TD_GRAMMAR_JSON_SCHEMA, FORM_JSON},
    {"guided_regex", TD_GRAMMAR_REGEX, FORM_TEXT},
    {"guided_choice", TD_GRAMMAR_CHOICES, FORM_LIST},
    {"guided_grammar", TD_GRAMMAR_EBNF, FORM_TEXT},
    {"guided_json_object", TD_GRAMMAR_JSON_OBJECT, FORM_SWITCH},
    {"json_schema", TD_GRAMMAR_JSON_SCHEMA, FORM_JSON},
    {"regex", TD_GRAMMAR_REGEX, FORM_TEXT},
    {"ebnf", TD_GRAMMAR_EBNF, FORM_TEXT},
    {"grammar", TD_GRAMMAR_EBNF, FORM_TEXT},
};

/* Members of vLLM's structured_outputs. */
static const field STRUCTURED[] = {
    {"json", TD_GRAMMAR_JSON_SCHEMA, FORM_JSON},
    {"regex", TD_GRAMMAR_REGEX, FORM_TEXT},
    {"choice", TD_GRAMMAR_CHOICES, FORM_LIST},
    {"grammar", TD_GRAMMAR_EBNF, FORM_TEXT},
    {"json_object", TD_GRAMMAR_JSON_OBJECT, FORM_SWITCH},
};

/* What is empty is given, and refused: an answer without its form is not what the client asks for. */
static bool is_given(const json_t *v) {
    return v && !json_is_null(v) && !json_is_false(v);
}

static td_status set_json(td_api_grammar *g, const json_t *v, td_api_error *err) {
    g->owned = td_json_dump(v, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!g->owned) return td_api_no_memory(err);
    g->source = g->owned;
    g->len = strlen(g->owned);
    return TD_OK;
}

/* A field's value becomes the grammar. param: its name for messages. */
static td_status take(td_api_grammar *g, td_grammar_kind kind, form f, const char *param, const json_t *v,
                      td_api_error *err) {
    if (g->is_asked)
        return td_api_bad(err, param, "'%s' and '%s' are both given; an answer can follow only one of them.", g->param,
                          param);
    g->is_asked = true;
    g->kind = kind;
    snprintf(g->param, sizeof g->param, "%s", param);
    g->source = "";
    if (f == FORM_SWITCH) return json_is_true(v) ? TD_OK : td_api_bad(err, param, "'%s' must be true or false.", param);
    if (f == FORM_LIST)
        return json_is_array(v) ? set_json(g, v, err) : td_api_bad(err, param, "'%s' must be a list of strings.", param);
    if (json_is_string(v) && json_string_length(v) == 0) return td_api_bad(err, param, "'%s' must not be empty.", param);
    if (json_is_string(v)) {
        g->source = json_string_value(v);
        g->len = json_string_length(v);
        return TD_OK;
    }
    if (f == FORM_TEXT) return td_api_bad(err, param, "'%s' must be a string.", param);
    if (!json_is_object(v) && !json_is_true(v))
        return td_api_bad(err, param, "'%s' must be a JSON Schema, or a string with one.", param);
    return set_json(g, v, err);
}

static td_status read_response_format(const json_t *root, td_api_grammar *g, td_api_error *err) {
    const json_t *v = json_object_get(root, "response_format");
    if (!v || json_is_null(v)) return TD_OK;
    const char   *type = json_string_value(json_object_get(v, "type"));
    const json_t *own_schema = json_object_get(v, "schema"); /* as llama.cpp's clients send it */
    if (!type) return td_api_bad(err, "response_format", "'response_format' must be an object with a 'type'.");
    if (!strcmp(type, "text")) return TD_OK;
    if (!strcmp(type, "json_object") && td_api_is_set(own_schema))
        return take(g, TD_GRAMMAR_JSON_SCHEMA, FORM_JSON, "response_format", own_schema, err);
    if (!strcmp(type, "json_object"))
        return take(g, TD_GRAMMAR_JSON_OBJECT, FORM_SWITCH, "response_format", json_true(), err);
    if (strcmp(type, "json_schema") != 0)
        return td_api_bad(err, "response_format",
                          "'response_format' of type '%.40s' is not supported; 'text', 'json_object' and 'json_schema' are.",
                          type);
    const json_t *described = json_object_get(v, "json_schema"), *schema = json_object_get(described, "schema");
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return td_api_bad(err, "response_format.json_schema.schema",
                          "'response_format.json_schema.schema' must be a JSON Schema.");
    if (json_is_false(schema))
        return td_api_bad(err, "response_format.json_schema.schema", "No text matches the schema false.");
    return take(g, TD_GRAMMAR_JSON_SCHEMA, FORM_JSON, "response_format", schema, err);
}

static td_status read_structured_outputs(const json_t *root, td_api_grammar *g, td_api_error *err) {
    json_t     *v = json_object_get(root, "structured_outputs"), *value;
    const char *key = NULL;
    char        param[TD_API_PARAM_MAX];
    bool        any = false;
    if (!is_given(v)) return TD_OK;
    if (!json_is_object(v)) return td_api_bad(err, "structured_outputs", "'structured_outputs' must be an object.");
    json_object_foreach(v, key, value) {
        size_t i = 0, n = sizeof STRUCTURED / sizeof *STRUCTURED;
        if (!is_given(value)) continue;
        snprintf(param, sizeof param, "structured_outputs.%.60s", key);
        while (i < n && strcmp(key, STRUCTURED[i].name) != 0) i++;
        if (i == n) return td_api_bad(err, param, "'%s' is not supported.", param);
        TD_TRY(take(g, STRUCTURED[i].kind, STRUCTURED[i].form, param, value, err));
        any = true;
    }
    if (!any)
        return td_api_bad(err, "structured_outputs",
                          "'structured_outputs' must have one of 'json', 'regex', 'choice', 'grammar' and 'json_object'.");
    return TD_OK;
}

td_status td_api_set_schema(td_api_grammar *g, const char *param, const json_t *schema, td_api_error *err) {
    return take(g, TD_GRAMMAR_JSON_SCHEMA, FORM_JSON, param, schema, err);
}

td_status td_api_parse_grammar(const json_t *root, td_api_grammar *g, td_api_error *err) {
    TD_TRY(read_response_format(root, g, err));
    TD_TRY(read_structured_outputs(root, g, err));
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        const json_t *v = json_object_get(root, FIELDS[i].name);
        if (is_given(v)) TD_TRY(take(g, FIELDS[i].kind, FIELDS[i].form, FIELDS[i].name, v, err));
    }
    return TD_OK;
}
