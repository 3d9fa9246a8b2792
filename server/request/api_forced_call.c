/*
 * A tool_choice that forces a call. Whatever the model's own format of calls is, the answer is [{"name": …, "arguments":
 * …}, …] by a schema made from the tools. It has one call where a tool is named or calls may not be parallel, else up to
 * TD_API_CALLS_MAX.
 */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "server/request/api_readers.h"

/* The schema of a call of this tool, the index-th branch of the whole. NULL: memory is short. */
static json_t *call_schema(const json_t *function, size_t index) {
    const json_t *parameters = json_object_get(function, "parameters");
    json_t       *arguments = json_is_object(parameters) ? json_copy((json_t *)parameters) : json_object();
    const char   *id = json_string_value(json_object_get(arguments, "$id"));
    int           bad = !json_object_get(arguments, "type") && json_object_set_new(arguments, "type", json_string("object"));
    /* An $id makes the tool's schema one of its own: its references are within it. */
    if (!id || *id == '#') bad |= json_object_set_new(arguments, "$id", json_sprintf("tool-%zu", index));
    json_t *schema = json_pack("{s:s, s:{s:{s:O}, s:o}, s:[s, s], s:b}", "type", "object", "properties", "name", "const",
                               json_object_get(function, "name"), "arguments", arguments, "required", "name", "arguments",
                               "additionalProperties", 0);
    if (!bad) return schema;
    json_decref(schema);
    return NULL;
}

td_status td_api_force_call(td_api_grammar *g, const json_t *tools, const char *name, bool parallel, td_api_error *err) {
    /* A format is that of an answer's text, and a forced call has none. */
    if (g->is_asked && !strcmp(g->param, "response_format")) {
        free(g->owned);
        *g = (td_api_grammar){0};
    }
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
