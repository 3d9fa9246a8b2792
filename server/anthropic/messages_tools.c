/* The tools of a message's body, and its tool_choice, as a chat has them. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "server/anthropic/messages.h"
#include "server/request/json_fields.h"

/* The members of a tool. Those that would change answers are refused, unless they are off. */
static const struct {
    const char *name;
    bool        refused;
} MEMBERS[] = {
    {"type", false},
    {"name", false},
    {"description", false},
    {"input_schema", false},
    {"strict", false},
    {"cache_control", false},         /* no effect */
    {"eager_input_streaming", false}, /* no effect */
    {"defer_loading", true},
    {"allowed_callers", true},
    {"input_examples", true},
};

/* Whether the member asks for something. allowed_callers: ["direct"] does not: the model calls tools itself here anyway. */
static bool is_on(const json_t *v) {
    const char *only = json_array_size(v) == 1 ? json_string_value(json_array_get(v, 0)) : NULL;
    return td_api_is_on(v) && !(only && !strcmp(only, "direct"));
}

static td_status check_members(json_t *tool, const char *at, td_api_error *err) {
    const char *key;
    json_t     *value;
    json_object_foreach(tool, key, value) {
        size_t i = 0, n = sizeof MEMBERS / sizeof *MEMBERS;
        while (i < n && strcmp(key, MEMBERS[i].name) != 0) i++;
        if (i == n || (MEMBERS[i].refused && is_on(value)))
            return td_api_bad(err, at, "'%s' has '%.60s', which is not supported.", at, key);
    }
    return TD_OK;
}

/* Whether a member is of the right type, or not given. */
static bool fits(const json_t *v, bool right) {
    return !v || right;
}

static json_t *member(const json_t *object, const char *key) {
    json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

/* A tool of the chat; NULL with err filled. */
static json_t *convert_tool(json_t *tool, size_t i, td_api_error *err) {
    char    at[32];
    json_t *name = member(tool, "name"), *description = member(tool, "description"), *strict = member(tool, "strict"),
           *schema = member(tool, "input_schema"), *type = member(tool, "type");
    snprintf(at, sizeof at, "tools[%zu]", i);
    if (json_is_string(type) && strcmp(json_string_value(type), "custom") != 0) {
        td_api_bad(err, at, "'%s' is a tool of type '%.60s', which is not supported; tools with an 'input_schema' are.", at,
                   json_string_value(type));
        return NULL;
    }
    if (!td_api_is_c_string(name) || !json_is_object(schema) || !fits(description, json_is_string(description)) ||
        !fits(strict, json_is_boolean(strict)) || !fits(type, json_is_string(type))) {
        td_api_bad(err, at, "'%s' must be {\"name\": …, \"description\": …, \"input_schema\": {…}}.", at);
        return NULL;
    }
    if (check_members(tool, at, err) != TD_OK) return NULL;
    json_t *converted = json_pack("{s:s, s:{s:O, s:O*, s:O, s:O*}}", "type", "function", "function", "name", name,
                                  "description", description, "parameters", schema, "strict", strict);
    if (!converted) td_api_no_memory(err);
    return converted;
}

static td_status convert_choice(const json_t *choice, json_t *chat, bool *forced, td_api_error *err) {
    static const struct {
        const char *type, *chat;
    } modes[] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}, {"tool", NULL}};
    const char   *type = json_string_value(json_object_get(choice, "type"));
    const json_t *single = json_object_get(choice, "disable_parallel_tool_use");
    json_t       *name = json_object_get(choice, "name");
    size_t        i = 0, n = sizeof modes / sizeof *modes;
    while (i < n && (!type || strcmp(type, modes[i].type) != 0)) i++;
    if (i == n)
        return td_api_bad(err, "tool_choice", "'tool_choice' must be an object whose 'type' is auto, any, tool or none.");
    bool names_tool = !modes[i].chat;
    if (names_tool && !td_api_is_c_string(name))
        return td_api_bad(err, "tool_choice", "'tool_choice' of type 'tool' must have a 'name'.");
    if (single && !json_is_null(single) && !json_is_boolean(single))
        return td_api_bad(err, "tool_choice", "'tool_choice.disable_parallel_tool_use' must be true or false.");
    json_t *converted =
        names_tool ? json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name) : json_string(modes[i].chat);
    int bad = json_object_set_new(chat, "tool_choice", converted);
    if (json_is_true(single)) bad |= json_object_set_new(chat, "parallel_tool_calls", json_false());
    *forced = names_tool || !strcmp(type, "any");
    return bad ? td_api_no_memory(err) : TD_OK;
}

td_status td_messages_convert_tools(const json_t *body, json_t *chat, bool *forced, td_api_error *err) {
    const json_t *tools = json_object_get(body, "tools"), *choice = json_object_get(body, "tool_choice");
    *forced = false;
    if (tools && !json_is_null(tools)) {
        if (!json_is_array(tools)) return td_api_bad(err, "tools", "'tools' must be a list.");
        json_t *list = json_array();
        int     bad = json_object_set_new(chat, "tools", list);
        for (size_t i = 0; i < json_array_size(tools) && !bad; i++) {
            json_t *tool = convert_tool(json_array_get(tools, i), i, err);
            if (!tool) return TD_EINVAL;
            bad = json_array_append_new(list, tool);
        }
        if (bad) return td_api_no_memory(err);
    }
    return choice && !json_is_null(choice) ? convert_choice(choice, chat, forced, err) : TD_OK;
}
