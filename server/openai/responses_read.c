/* The body of POST /v1/responses: its own fields, and the chat that it asks for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/json_text.h"
#include "server/openai/responses.h"
#include "server/request/api_read.h"
#include "server/request/json_fields.h"

#define METADATA_MAX 16
#define METADATA_KEY_MAX 64
#define METADATA_VALUE_MAX 512

static const char *string_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

/* ---- the fields that are not a chat's ---- */

typedef enum { A_STRING, A_BOOL, AN_INTEGER, AN_OBJECT, A_LIST } field_type;

/* The types of this API's fields. Paths of two names are members of objects. Fields that a chat has under the same name are
 * checked there. */
static const struct {
    const char *object, *name; /* object NULL: the body */
    field_type  type;
} FIELDS[] = {
    {NULL, "instructions", A_STRING},
    {NULL, "previous_response_id", A_STRING},
    {NULL, "store", A_BOOL},
    {NULL, "background", A_BOOL},
    {NULL, "truncation", A_STRING},
    {NULL, "metadata", AN_OBJECT},
    {NULL, "include", A_LIST},
    {NULL, "tools", A_LIST},
    {NULL, "text", AN_OBJECT},
    {"text", "format", AN_OBJECT},
    {"text", "verbosity", A_STRING},
    {NULL, "reasoning", AN_OBJECT},
    {"reasoning", "effort", A_STRING},
    {"reasoning", "summary", A_STRING},
    {"reasoning", "generate_summary", A_STRING},
    {"reasoning", "context", A_STRING},
    {"reasoning", "mode", A_STRING},
    {NULL, "stream_options", AN_OBJECT},
    {"stream_options", "include_obfuscation", A_BOOL},
    {NULL, "max_tool_calls", AN_INTEGER},
    {NULL, "top_logprobs", AN_INTEGER},
    {NULL, "n", AN_INTEGER},
    {NULL, "user", A_STRING},
    {NULL, "safety_identifier", A_STRING},
    {NULL, "prompt_cache_key", A_STRING},
    {NULL, "prompt_cache_retention", A_STRING},
    {NULL, "prompt_cache_options", AN_OBJECT},
    {NULL, "service_tier", A_STRING},
};

/* Fields that are refused unless they are off (null, false, 0 or empty). They would change the answer and are not
 * supported, or they are a chat's names of fields that are called otherwise here. */
static const struct {
    const char *name, *instead;
} REFUSED[] = {
    {"conversation", "use 'previous_response_id'"},
    {"prompt", "send its text as 'instructions' and 'input'"},
    {"context_management", NULL},
    {"moderation", NULL},
    {"image", NULL},
    {"access_programs", NULL},
    {"background_options", NULL},
    {"messages", "use 'input'"},
    {"input_ids", "use 'input', or the ids as 'prompt' of /v1/completions"},
    {"max_tokens", "use 'max_output_tokens'"},
    {"max_completion_tokens", "use 'max_output_tokens'"},
    {"response_format", "use 'text.format'"},
    {"verbosity", "use 'text.verbosity'"},
    {"reasoning_effort", "use 'reasoning.effort'"},
    {"logprobs", "use 'include': [\"message.output_text.logprobs\"], and 'top_logprobs'"},
    {"return_token_ids", NULL},
    {"prompt_logprobs", NULL},
    {"rid", "the server draws the response's id"},
};

/* The values that a string field may have, ended by NULL: others ask for what is not supported. */
static const struct {
    const char *object, *name;
    const char *values[4];
    const char *sentence;
} CHOICES[] = {
    {NULL, "truncation", {"disabled"}, "may only be 'disabled': a conversation is not cut to fit"},
    {"reasoning",
     "summary",
     {"auto", "concise", "detailed"},
     "must be 'auto', 'concise' or 'detailed'; reasoning is given whole, as the item's content, and never summarised"},
    {"reasoning",
     "generate_summary",
     {"auto", "concise", "detailed"},
     "must be 'auto', 'concise' or 'detailed'; reasoning is given whole, as the item's content, and never summarised"},
    {"reasoning", "context", {"auto"}, "may only be 'auto': the chat template chooses which reasoning the model sees again"},
    {"reasoning", "mode", {"standard"}, "may only be 'standard'"},
};

/* What 'include' may ask for in the answer's items. What belongs to tools that this server does not have adds nothing. */
static const char        LOGPROBS[] = "message.output_text.logprobs";
static const char *const INCLUDES[] = {
    LOGPROBS,
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
};

static void path_of(const char *object, const char *name, char *path) {
    snprintf(path, TD_API_PARAM_MAX, "%s%s%s", object ? object : "", object ? "." : "", name);
}

static const json_t *field_of(const json_t *body, const char *object, const char *name) {
    return json_object_get(object ? json_object_get(body, object) : body, name);
}

static td_status check_types(const json_t *body, td_api_error *err) {
    static const char *const kinds[] = {[A_STRING] = "a string, without a NUL",
                                        [A_BOOL] = "true or false",
                                        [AN_INTEGER] = "an integer",
                                        [AN_OBJECT] = "an object",
                                        [A_LIST] = "a list"};
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        const json_t *v = field_of(body, FIELDS[i].object, FIELDS[i].name);
        field_type    type = FIELDS[i].type;
        json_int_t    integer;
        char          path[TD_API_PARAM_MAX];
        if (!td_api_is_set(v)) continue;
        bool right = type == A_STRING     ? td_api_is_c_string(v)
                     : type == A_BOOL     ? json_is_boolean(v)
                     : type == AN_INTEGER ? td_api_integer(v, &integer)
                     : type == AN_OBJECT  ? json_is_object(v)
                                          : json_is_array(v);
        path_of(FIELDS[i].object, FIELDS[i].name, path);
        if (!right) return td_api_bad(err, path, "'%s' must be %s.", path, kinds[type]);
    }
    return TD_OK;
}

static td_status check_refused(const json_t *body, td_api_error *err) {
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        const char *name = REFUSED[i].name, *instead = REFUSED[i].instead;
        if (td_api_is_on(json_object_get(body, name)))
            return td_api_bad(err, name, "'%s' is not supported%s%s.", name, instead ? "; " : "", instead ? instead : "");
    }
    for (size_t i = 0; i < sizeof CHOICES / sizeof *CHOICES; i++) {
        const json_t *v = field_of(body, CHOICES[i].object, CHOICES[i].name);
        char          path[TD_API_PARAM_MAX];
        size_t        k = 0;
        if (!td_api_is_set(v)) continue;
        while (CHOICES[i].values[k] && strcmp(json_string_value(v), CHOICES[i].values[k]) != 0) k++;
        path_of(CHOICES[i].object, CHOICES[i].name, path);
        if (!CHOICES[i].values[k]) return td_api_bad(err, path, "'%s' %s.", path, CHOICES[i].sentence);
    }
    json_int_t    n;
    const json_t *one = json_object_get(body, "n");
    if (td_api_is_set(one) && !(td_api_integer(one, &n) && n == 1))
        return td_api_bad(err, "n", "'n' may only be 1: a response has one answer.");
    if (json_is_true(field_of(body, "stream_options", "include_obfuscation")))
        return td_api_bad(err, "stream_options.include_obfuscation",
                          "'stream_options.include_obfuscation' is not supported.");
    return TD_OK;
}

static size_t count_chars(const char *s) {
    size_t n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static td_status check_metadata(const json_t *body, td_api_error *err) {
    json_t     *metadata = json_object_get(body, "metadata"), *value;
    const char *key;
    if (json_object_size(metadata) > METADATA_MAX)
        return td_api_bad(err, "metadata", "'metadata' has %zu pairs; at most %d are allowed.", json_object_size(metadata),
                          METADATA_MAX);
    json_object_foreach(metadata, key, value) {
        bool fits = td_api_is_c_string(value) && count_chars(key) <= METADATA_KEY_MAX &&
                    count_chars(json_string_value(value)) <= METADATA_VALUE_MAX;
        if (!fits)
            return td_api_bad(
                err, "metadata",
                "'metadata' must have strings as values, keys of at most %d characters and values of at most %d.",
                METADATA_KEY_MAX, METADATA_VALUE_MAX);
    }
    return TD_OK;
}

static td_status check_include(const json_t *body, bool *logprobs, td_api_error *err) {
    const json_t *list = json_object_get(body, "include"), *item;
    size_t        i;
    json_array_foreach(list, i, item) {
        size_t k = 0, n = sizeof INCLUDES / sizeof *INCLUDES;
        char   path[TD_API_PARAM_MAX];
        snprintf(path, sizeof path, "include[%zu]", i);
        while (k < n && !(json_is_string(item) && !strcmp(json_string_value(item), INCLUDES[k]))) k++;
        if (k == n) return td_api_bad(err, path, "'%s' is nothing that can be included.", path);
        *logprobs = *logprobs || INCLUDES[k] == LOGPROBS;
    }
    json_int_t top = 0;
    if (td_api_integer(json_object_get(body, "top_logprobs"), &top) && top != 0 && !*logprobs)
        return td_api_bad(err, "top_logprobs", "'top_logprobs' needs 'include': [\"%s\"].", LOGPROBS);
    return TD_OK;
}

/* ---- the chat ---- */

/* Fields of the body that do not go into the chat's body under the same name. */
static const char *const NOT_THE_CHATS[] = {"input",
                                            "instructions",
                                            "previous_response_id",
                                            "store",
                                            "background",
                                            "truncation",
                                            "metadata",
                                            "include",
                                            "tools",
                                            "tool_choice",
                                            "text",
                                            "reasoning",
                                            "stream_options",
                                            "max_tool_calls",
                                            "top_logprobs",
                                            "n",
                                            "user",
                                            "safety_identifier",
                                            "prompt_cache_key",
                                            "prompt_cache_retention",
                                            "prompt_cache_options",
                                            "service_tier",
                                            "max_output_tokens"};

static int put(json_t *chat, const char *name, const json_t *v) {
    return td_api_is_set(v) ? json_object_set(chat, name, (json_t *)v) : 0;
}

/* A custom tool takes a text of any form. The model sees a function with that text as its one argument, "input", and the
 * form that it should have in the description. */
static json_t *function_of_custom(const json_t *tool) {
    const json_t *format = json_object_get(tool, "format");
    const char   *said = string_of(tool, "description"), *syntax = string_of(format, "syntax"),
               *definition = string_of(format, "definition");
    td_jbuf text = {0};
    if (said) td_jbuf_puts(&text, said);
    if (definition) {
        td_jbuf_printf(&text, "%sThe input has this form (%.16s):\n", said ? "\n\n" : "", syntax);
        td_jbuf_puts(&text, definition);
    }
    json_t *description = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.len);
    td_jbuf_free(&text);
    return json_pack("{s:O, s:o, s:{s:s, s:{s:{s:s}}, s:[s], s:b}}", "name", json_object_get(tool, "name"), "description",
                     description, "parameters", "type", "object", "properties", "input", "type", "string", "required",
                     "input", "additionalProperties", 0);
}

static td_status check_custom_format(const json_t *tool, const char *path, td_api_request *r, td_api_error *err) {
    const json_t *format = json_object_get(tool, "format");
    const char   *type = string_of(format, "type"), *syntax = string_of(format, "syntax");
    if (!td_api_is_set(format) || (type && !strcmp(type, "text"))) return TD_OK;
    if (!type || strcmp(type, "grammar") != 0 || !string_of(format, "definition") || !syntax ||
        (strcmp(syntax, "lark") != 0 && strcmp(syntax, "regex") != 0))
        return td_api_bad(err, path,
                          "'%s' must have a 'format' of type 'text', or of type 'grammar' with a 'syntax', 'lark' or "
                          "'regex', and a 'definition'.",
                          path);
    static const char unheld[] = "The 'format' of custom tools is shown to the model; it is not held to it.";
    if (r->n_warnings == 0 || r->warnings[r->n_warnings - 1] != unheld) r->warnings[r->n_warnings++] = unheld;
    return TD_OK;
}

/* Tools of a chat: what a chat has in a tool's "function" this API has in the tool itself. The names of custom tools are
 * added to custom. */
static td_status put_tools(json_t *chat, const json_t *tools, json_t *custom, td_api_request *r, td_api_error *err) {
    static const char *const members[] = {"name", "description", "parameters", "strict"};
    static const char *const refused[] = {"defer_loading", "async", "allowed_callers"};
    const json_t            *tool;
    size_t                   i;
    json_t                  *list = json_array();
    int                      no_memory = json_object_set_new(chat, "tools", list);
    json_array_foreach(tools, i, tool) {
        char        path[TD_API_PARAM_MAX];
        const char *type = string_of(tool, "type");
        snprintf(path, sizeof path, "tools[%zu]", i);
        bool is_custom = type && !strcmp(type, "custom");
        if (type && !is_custom && strcmp(type, "function") != 0)
            return td_api_bad(err, path,
                              "'%s' of type '%.40s' is not supported: this server has no tools of its own; 'function' and "
                              "'custom' are, which the client runs.",
                              path, type);
        if (!type || !td_api_is_c_string(json_object_get(tool, "name")))
            return td_api_bad(err, path, "'%s' must be {\"type\": \"function\", \"name\": …, \"parameters\": …}.", path);
        if (is_custom) TD_TRY(check_custom_format(tool, path, r, err));
        const json_t *parameters = json_object_get(tool, "parameters"), *strict = json_object_get(tool, "strict"),
                     *description = json_object_get(tool, "description");
        if ((td_api_is_set(parameters) && !json_is_object(parameters)) ||
            (td_api_is_set(strict) && !json_is_boolean(strict)) ||
            (td_api_is_set(description) && !json_is_string(description)))
            return td_api_bad(
                err, path,
                "'%s' must have a schema as 'parameters', a string as 'description', and true or false as 'strict'.", path);
        for (size_t k = 0; k < sizeof refused / sizeof *refused; k++)
            if (td_api_is_on(json_object_get(tool, refused[k])))
                return td_api_bad(err, path, "'%s' has '%s', which is not supported.", path, refused[k]);
        json_t *function = is_custom ? function_of_custom(tool) : json_object(),
               *whole = json_pack("{s:s, s:o}", "type", "function", "function", function);
        if (is_custom) no_memory |= json_array_append(custom, json_object_get(tool, "name"));
        for (size_t k = 0; !is_custom && k < sizeof members / sizeof *members; k++)
            no_memory |= put(function, members[k], json_object_get(tool, members[k]));
        no_memory |= json_array_append_new(list, whole);
    }
    return no_memory ? td_api_no_memory(err) : TD_OK;
}

/* {"type": "allowed_tools", "mode", "tools": [{"type", "name"}]}, which a chat nests in "allowed_tools" and "function". */
static td_status put_allowed_tools(json_t *chat, json_t *choice, td_api_error *err) {
    json_t *tool, *list = json_array(), *mode = json_object_get(choice, "mode");
    size_t  i;
    int     bad = 0;
    json_array_foreach(json_object_get(choice, "tools"), i, tool) bad |= json_array_append_new(
        list, json_pack("{s:s, s:{s:O*}}", "type", "function", "function", "name", json_object_get(tool, "name")));
    json_t *nested =
        bad ? NULL
            : json_pack("{s:s, s:{s:O*, s:O}}", "type", "allowed_tools", "allowed_tools", "mode", mode, "tools", list);
    json_decref(list);
    return json_object_set_new(chat, "tool_choice", nested) == 0 ? TD_OK : td_api_no_memory(err);
}

static td_status put_tool_choice(json_t *chat, json_t *choice, td_api_error *err) {
    const char *mode = json_string_value(choice), *type = string_of(choice, "type");
    if (!td_api_is_set(choice)) return TD_OK;
    if (mode && (!strcmp(mode, "auto") || !strcmp(mode, "none") || !strcmp(mode, "required")))
        return json_object_set(chat, "tool_choice", choice) == 0 ? TD_OK : td_api_no_memory(err);
    if (type && !strcmp(type, "allowed_tools")) return put_allowed_tools(chat, choice, err);
    if (type && strcmp(type, "function") != 0 && strcmp(type, "custom") != 0)
        return td_api_bad(
            err, "tool_choice",
            "'tool_choice' of type '%.40s' is not supported; only 'function', 'custom' and 'allowed_tools' are.", type);
    if (!type || !td_api_is_c_string(json_object_get(choice, "name")))
        return td_api_bad(err, "tool_choice",
                          "'tool_choice' must be 'auto', 'none', 'required' or {\"type\": \"function\", \"name\": …}.");
    json_t *nested = json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", json_object_get(choice, "name"));
    return json_object_set_new(chat, "tool_choice", nested) == 0 ? TD_OK : td_api_no_memory(err);
}

static td_status put_format(json_t *chat, const json_t *format, td_api_error *err) {
    if (!td_api_is_set(format)) return TD_OK;
    const char   *type = string_of(format, "type");
    const json_t *schema = json_object_get(format, "schema");
    if (!type || (strcmp(type, "text") != 0 && strcmp(type, "json_object") != 0 && strcmp(type, "json_schema") != 0))
        return td_api_bad(err, "text.format",
                          "'text.format' must have a 'type' that is 'text', 'json_object' or 'json_schema'.");
    if (strcmp(type, "json_schema") != 0)
        return json_object_set(chat, "response_format", (json_t *)format) == 0 ? TD_OK : td_api_no_memory(err);
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return td_api_bad(err, "text.format.schema", "'text.format.schema' must be a JSON Schema.");
    json_t *nested = json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema", schema);
    return json_object_set_new(chat, "response_format", nested) == 0 ? TD_OK : td_api_no_memory(err);
}

static td_status put_messages(json_t *chat, const td_response *own, const json_t *instructions, td_api_error *err) {
    td_item_reader to = {.messages = json_array()};
    json_t        *history = json_array();
    int            no_memory = json_object_set_new(chat, "messages", to.messages) | !history;
    if (!no_memory && td_api_is_set(instructions))
        no_memory = json_array_append_new(to.messages, json_pack("{s:s, s:O}", "role", "system", "content", instructions));
    td_status st = no_memory ? td_api_no_memory(err) : td_response_history(own->previous, history, err);
    if (st == TD_OK) st = td_item_reader_add(&to, history, "history", err);
    if (st == TD_OK) st = td_item_reader_add(&to, own->input, "input", err);
    json_decref(history);
    td_api_error ignored;
    td_status    ended = td_item_reader_end(&to, st == TD_OK ? err : &ignored);
    return st == TD_OK ? ended : st;
}

static td_status make_chat(const json_t *body, td_api_request *r, bool logprobs, json_t **out, td_api_error *err) {
    td_response  *own = r->own;
    json_t       *chat = *out = json_copy((json_t *)body); /* a new object with the same values */
    const json_t *tools = json_object_get(body, "tools");
    if (!chat) return td_api_no_memory(err);
    for (size_t i = 0; i < sizeof NOT_THE_CHATS / sizeof *NOT_THE_CHATS; i++) json_object_del(chat, NOT_THE_CHATS[i]);
    int no_memory = put(chat, "max_completion_tokens", json_object_get(body, "max_output_tokens")) |
                    put(chat, "reasoning_effort", field_of(body, "reasoning", "effort")) |
                    put(chat, "verbosity", field_of(body, "text", "verbosity"));
    if (logprobs)
        no_memory |= json_object_set_new(chat, "logprobs", json_true()) |
                     put(chat, "top_logprobs", json_object_get(body, "top_logprobs"));
    if (no_memory) return td_api_no_memory(err);
    if (td_api_is_set(tools)) TD_TRY(put_tools(chat, tools, own->custom = json_array(), r, err));
    TD_TRY(put_tool_choice(chat, json_object_get(body, "tool_choice"), err));
    TD_TRY(put_format(chat, field_of(body, "text", "format"), err));
    return put_messages(chat, own, json_object_get(body, "instructions"), err);
}

/* ---- what the response says of its request ---- */

static json_t *given(const json_t *body, const char *name) {
    json_t *v = json_object_get(body, name);
    return v ? json_incref(v) : json_null();
}

static json_t *given_or(const json_t *body, const char *name, json_t *otherwise) {
    json_t *v = json_object_get(body, name);
    if (!td_api_is_set(v)) return otherwise;
    json_decref(otherwise);
    return json_incref(v);
}

/* The tools as they came, with the members that a client expects in each. */
static json_t *given_tools(const json_t *body) {
    json_t *list = json_array(), *tool;
    size_t  i;
    json_array_foreach(json_object_get(body, "tools"), i, tool) {
        const char *type = string_of(tool, "type");
        json_t     *whole = !strcmp(type, "custom") ? json_pack("{s:n, s:{s:s}}", "description", "format", "type", "text")
                                                    : json_pack("{s:n, s:n, s:n}", "parameters", "strict", "description");
        json_object_update(whole, tool);
        json_array_append_new(list, whole);
    }
    return list;
}

static td_status keep_echo(const json_t *body, const td_api_request *r, td_response *own, td_api_error *err) {
    json_int_t    top = 0;
    const json_t *text = json_object_get(body, "text"), *effort = field_of(body, "reasoning", "effort");
    td_api_integer(json_object_get(body, "top_logprobs"), &top);
    json_t *echo = json_pack(
        "{s:b, s:o, s:o, s:o, s:o, s:b, s:o, s:o, s:{s:o, s:n}, s:o, s:s, s:b, s:f, s:{s:o, s:s}, s:o, s:o, s:I, s:f, s:s, "
        "s:o}",
        "background", (int)own->background, "instructions", given(body, "instructions"), "max_output_tokens",
        given(body, "max_output_tokens"), "max_tool_calls", given(body, "max_tool_calls"), "metadata",
        given_or(body, "metadata", json_object()), "parallel_tool_calls", (int)r->parts.parallel_calls,
        "previous_response_id", given(body, "previous_response_id"), "prompt_cache_key", given(body, "prompt_cache_key"),
        "reasoning", "effort", td_api_is_set(effort) ? json_incref((json_t *)effort) : json_null(), "summary",
        "safety_identifier", given(body, "safety_identifier"), "service_tier", "default", "store", (int)own->stores,
        "temperature", r->sampling.temperature, "text", "format",
        given_or(text, "format", json_pack("{s:s}", "type", "text")), "verbosity", "medium", "tool_choice",
        given_or(body, "tool_choice", json_string("auto")), "tools", given_tools(body), "top_logprobs", top, "top_p",
        r->sampling.top_p, "truncation", "disabled", "user", given(body, "user"));
    char *dumped = td_json_dump(echo, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(echo);
    if (!dumped) return td_api_no_memory(err);
    own->echo_len = strlen(dumped) - 2; /* without its braces */
    memmove(dumped, dumped + 1, own->echo_len);
    own->echo = dumped;
    return TD_OK;
}

/* ---- all together ---- */

static td_status find_previous(const json_t *body, td_response *own, td_api_error *err) {
    const char *id = string_of(body, "previous_response_id"), *param = "previous_response_id";
    if (!id) return TD_OK;
    if (own->store->n_max == 0)
        return td_api_bad(err, param, "'%s' is not supported: this server keeps no responses (--max-stored-responses 0).",
                          param);
    own->previous = td_response_store_find(own->store, id);
    if (own->previous) return TD_OK;
    td_api_fail(err, 400, "previous_response_not_found",
                "The response '%.100s' is not kept here: it had to go, never was, or has not ended yet.", id);
    snprintf(err->param, sizeof err->param, "%s", param);
    return TD_EINVAL;
}

static td_status read_own(const json_t *body, td_response *own, bool *logprobs, td_api_error *err) {
    const json_t *store = json_object_get(body, "store");
    TD_TRY(check_types(body, err));
    TD_TRY(check_refused(body, err));
    TD_TRY(check_metadata(body, err));
    TD_TRY(check_include(body, logprobs, err));
    own->stores = own->store->n_max > 0 && !json_is_false(store);
    own->background = json_is_true(json_object_get(body, "background"));
    if (own->background && json_is_false(store))
        return td_api_bad(err, "store", "'background' needs 'store': a response that is not kept could not be asked for.");
    if (own->background && !own->stores)
        return td_api_bad(err, "background",
                          "'background' is not supported: this server keeps no responses (--max-stored-responses 0).");
    TD_TRY(find_previous(body, own, err));
    return td_response_read_input(json_object_get(body, "input"), own->store, &own->input, err);
}

static td_status read_body(const json_t *body, const td_api_context *with, td_api_request *r, td_api_error *err) {
    bool         logprobs = false;
    json_t      *chat = NULL;
    td_response *own = calloc(1, sizeof *own);
    if (!own) return td_api_no_memory(err);
    r->own = own;
    own->store = with->responses;
    TD_TRY(read_own(body, own, &logprobs, err));
    if (make_chat(body, r, logprobs, &chat, err) != TD_OK) {
        json_decref(chat);
        return TD_EINVAL;
    }
    if (td_api_read_form(TD_READ_CHAT, chat, with, r, err) != TD_OK) {
        td_api_rename_error(r->api->names, err);
        return TD_EINVAL;
    }
    return keep_echo(body, r, own, err);
}

td_status td_response_read(json_t *body, const td_api_context *with, td_api_request *r, td_api_error *err) {
    td_status st = read_body(body, with, r, err);
    json_decref(body);
    return st;
}

void td_response_free(void *p) {
    td_response *own = p;
    td_response_store_release(own->store, own->previous);
    json_decref(own->input);
    json_decref(own->custom);
    free(own->echo);
    for (size_t i = 0; i < own->n_items; i++) {
        td_response_item *item = &own->items[i];
        td_jbuf_free(&item->text);
        td_jbuf_free(&item->name);
        td_jbuf_free(&item->call_id);
        free(item->logprobs.at);
    }
    free(own->items);
    free(own->pending.at);
    free(own);
}
