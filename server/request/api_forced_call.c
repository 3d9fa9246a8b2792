/*
 * A tool_choice that forces a call. Whatever the model's own format of calls is, the answer is [{"name": …, "arguments":
 * …}, …] by a schema made from the tools. It has one call where a tool is named or calls may not be parallel, else up to
 * TD_API_CALLS_MAX.
 */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "server/request/api_readers.h"

/* Adjust the references in a tool's schema to its place, path, in the whole schema. */
static int move_references(json_t *schema, const char *path) {
    const char *key;
    json_t     *value;
    size_t      i;
    int         bad = 0;
    json_array_foreach(schema, i, value) bad |= move_references(value, path);
    json_object_foreach(schema, key, value) {
        const char *ref = strcmp(key, "$ref") ? NULL : json_string_value(value);
        if (ref && ref[0] == '#')
            bad |= json_object_set_new(schema, key, json_sprintf("%s%s", path, ref + 1));
        else if (strcmp(key, "const") != 0 && strcmp(key, "enum") != 0)
            bad |= move_references(value, path);
    }
    return bad;
}

/* The schema of a call of this tool, the index-th branch of the whole. NULL: memory is short. */
static json_t *call_schema(const json_t *function, size_t index) {
    char          path[64];
    const json_t *parameters = json_object_get(function, "parameters");
    json_t       *arguments = json_is_object(parameters) ? json_deep_copy(parameters) : json_object();
    int           bad = !json_object_get(arguments, "type") && json_object_set_new(arguments, "type", json_string("object"));
    snprintf(path, sizeof path, "#/$defs/call/anyOf/%zu/properties/arguments", index);
    bad |= move_references(arguments, path);
    json_t *schema = json_pack("{s:s, s:{s:{s:O}, s:o}, s:[s, s], s:b}", "type", "object", "properties", "name", "const",
                               json_object_get(function, "name"), "arguments", arguments, "required", "name", "arguments",
                               "additionalProperties", 0);
    if (!bad) return schema;
    json_decref(schema);
    return NULL;
}

td_status td_api_force_call(td_api_grammar *g, const json_t *tools, const char *name, bool parallel, td_api_error *err) {
    json_t *calls = json_array(), *tool;
    size_t  i;
    int     bad = 0;
    json_array_foreach(tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        if (name && strcmp(name, json_string_value(json_object_get(function, "name"))) != 0) continue;
        bad |= json_array_append_new(calls, call_schema(function, json_array_size(calls)));
    }
    td_status st = TD_OK;
    if (json_array_size(calls) == 0 && !bad) {
        st = name ? td_api_bad(err, "tool_choice", "'tool_choice' names '%.200s', which 'tools' do not have.", name)
                  : td_api_bad(err, "tool_choice", "'tool_choice' forces a call, and there are no 'tools'.");
    }
    int     most = name || !parallel ? 1 : TD_API_CALLS_MAX;
    json_t *schema = json_pack("{s:s, s:{s:s}, s:{s:{s:o}}, s:i, s:i}", "type", "array", "items", "$ref", "#/$defs/call",
                               "$defs", "call", "anyOf", calls, "minItems", 1, "maxItems", most);
    if (st == TD_OK && (bad || !schema)) st = td_api_no_memory(err);
    if (st == TD_OK) st = td_api_set_schema(g, "tool_choice", schema, err);
    json_decref(schema);
    g->forces_call = st == TD_OK;
    return st;
}
