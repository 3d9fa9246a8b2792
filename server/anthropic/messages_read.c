/* From the body of a message to that of a chat: the table of fields, and the few that a chat has in another form. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "server/anthropic/messages.h"
#include "server/request/json_fields.h"

#define THINKING_BUDGET_MIN 1024 /* as Anthropic's */

/* How a field is read: here; by the chat, which has it under the same name; or not at all, because the answer does not
 * depend on it. Fields that are not in the table are refused. */
typedef enum { READ_HERE, READ_BY_CHAT, NO_EFFECT } field_use;

static const struct {
    const char *name;
    field_use   use;
    json_type   type; /* of one without effect */
} FIELDS[] = {
    {"messages", READ_HERE, 0},
    {"system", READ_HERE, 0},
    {"tools", READ_HERE, 0},
    {"tool_choice", READ_HERE, 0},
    {"stop_sequences", READ_HERE, 0},
    {"thinking", READ_HERE, 0},
    {"output_config", READ_HERE, 0},
    {"context_management", READ_HERE, 0},
    {"service_tier", NO_EFFECT, JSON_STRING},
    {"speed", NO_EFFECT, JSON_STRING},
    {"metadata", NO_EFFECT, JSON_OBJECT},
    {"cache_control", NO_EFFECT, JSON_OBJECT},
    {"diagnostics", NO_EFFECT, JSON_OBJECT},
    {"user_profile_id", NO_EFFECT, JSON_STRING},
    {"workspace_id", NO_EFFECT, JSON_STRING},
    {"inference_geo", NO_EFFECT, JSON_STRING},
    {"model", READ_BY_CHAT, 0},
    {"max_tokens", READ_BY_CHAT, 0},
    {"stream", READ_BY_CHAT, 0},
    {"temperature", READ_BY_CHAT, 0},
    {"top_p", READ_BY_CHAT, 0},
    {"top_k", READ_BY_CHAT, 0},
    /* fields of a chat that Anthropic's API does not have */
    {"chat_template_kwargs", READ_BY_CHAT, 0},
    {"min_tokens", READ_BY_CHAT, 0},
    {"min_p", READ_BY_CHAT, 0},
    {"frequency_penalty", READ_BY_CHAT, 0},
    {"presence_penalty", READ_BY_CHAT, 0},
    {"repetition_penalty", READ_BY_CHAT, 0},
    {"logit_bias", READ_BY_CHAT, 0},
    {"seed", READ_BY_CHAT, 0},
    {"stop_token_ids", READ_BY_CHAT, 0},
    {"ignore_eos", READ_BY_CHAT, 0},
    {"skip_special_tokens", READ_BY_CHAT, 0},
    {"priority", READ_BY_CHAT, 0},
    {"rid", READ_BY_CHAT, 0},
};

/* Checks the names of all fields, and takes over those that a chat has as they are. */
static td_status take_fields(json_t *body, json_t *chat, td_api_error *err) {
    const char *key;
    json_t     *value;
    json_object_foreach(body, key, value) {
        size_t i = 0, n = sizeof FIELDS / sizeof *FIELDS;
        while (i < n && strcmp(key, FIELDS[i].name) != 0) i++;
        if (!td_api_is_set(value)) continue;
        /* This error tells clients that they have to send the whole conversation themselves. */
        if (!strcmp(key, "thread"))
            return td_api_fail(err, 400, "thread_unsupported_request", "'thread' is not supported: nothing is kept here.");
        if (!strcmp(key, "mcp_servers") && !td_api_is_on(value)) continue; /* none */
        if (i == n) return td_api_bad(err, key, "'%.60s' is not supported.", key);
        if (FIELDS[i].use == NO_EFFECT && json_typeof(value) != FIELDS[i].type)
            return td_api_bad(err, key, "'%s' must be %s.", key, FIELDS[i].type == JSON_STRING ? "a string" : "an object");
        if (FIELDS[i].use == READ_BY_CHAT && json_object_set(chat, key, value) != 0) return td_api_no_memory(err);
    }
    return TD_OK;
}

static td_status check_required(const json_t *body, td_messages_purpose purpose, td_api_error *err) {
    if (!td_api_is_set(json_object_get(body, "model"))) return td_api_bad(err, "model", "'model' is missing.");
    if (purpose == TD_MESSAGES_ANSWER && !td_api_is_set(json_object_get(body, "max_tokens")))
        return td_api_bad(err, "max_tokens", "'max_tokens' is missing.");
    return TD_OK;
}

static td_status convert_stop(const json_t *body, json_t *chat, td_api_error *err) {
    json_t *v = json_object_get(body, "stop_sequences");
    if (!td_api_is_set(v)) return TD_OK;
    if (!json_is_array(v)) return td_api_bad(err, "stop_sequences", "'stop_sequences' must be a list of strings.");
    return json_object_set(chat, "stop", v) == 0 ? TD_OK : td_api_no_memory(err);
}

/* ---- thinking ---- */

/* The switch of a chat template, under both names that templates give it; the client's own arguments win. */
static td_status switch_thinking(json_t *chat, bool on, td_api_error *err) {
    const json_t *given = json_object_get(chat, "chat_template_kwargs");
    if (td_api_is_set(given) && !json_is_object(given))
        return td_api_bad(err, "chat_template_kwargs", "'chat_template_kwargs' must be an object.");
    json_t *kwargs = json_pack("{s:b, s:b}", "enable_thinking", on, "thinking", on);
    int     bad = td_api_is_set(given) ? json_object_update(kwargs, (json_t *)given) : 0;
    bad |= json_object_set_new(chat, "chat_template_kwargs", kwargs);
    return bad ? td_api_no_memory(err) : TD_OK;
}

static td_status check_budget(const json_t *thinking, const json_t *body, td_api_error *err) {
    json_int_t budget, max;
    if (!td_api_integer(json_object_get(thinking, "budget_tokens"), &budget) || budget < THINKING_BUDGET_MIN)
        return td_api_bad(err, "thinking", "'thinking.budget_tokens' must be an integer of at least %d.",
                          THINKING_BUDGET_MIN);
    if (td_api_integer(json_object_get(body, "max_tokens"), &max) && budget >= max)
        return td_api_bad(err, "thinking", "'thinking.budget_tokens' must be below 'max_tokens'.");
    return TD_OK;
}

static td_status convert_thinking(const json_t *body, bool forced, json_t *chat, td_messages_state *state,
                                  td_api_error *err) {
    const json_t *v = json_object_get(body, "thinking");
    const char   *type = json_string_value(json_object_get(v, "type")),
               *display = json_string_value(json_object_get(v, "display"));
    if (!td_api_is_set(v)) return TD_OK;
    bool enabled = type && !strcmp(type, "enabled"), adaptive = type && !strcmp(type, "adaptive"),
         disabled = type && !strcmp(type, "disabled");
    if (!enabled && !adaptive && !disabled)
        return td_api_bad(err, "thinking", "'thinking' must be an object whose 'type' is enabled, adaptive or disabled.");
    if (enabled) TD_TRY(check_budget(v, body, err));
    if (!disabled && forced)
        return td_api_bad(err, "thinking", "'thinking' does not go with a 'tool_choice' that forces a call.");
    state->omits_thinking = display && !strcmp(display, "omitted");
    if (td_api_is_set(json_object_get(v, "display")) && !state->omits_thinking &&
        !(display && !strcmp(display, "summarized")))
        return td_api_bad(err, "thinking", "'thinking.display' must be summarized, which is all of it, or omitted.");
    return switch_thinking(chat, !disabled, err);
}

/* ---- output_config, context_management ---- */

static td_status convert_format(json_t *format, json_t *chat, td_api_error *err) {
    const char *type = json_string_value(json_object_get(format, "type"));
    json_t     *schema = json_object_get(format, "schema");
    if (!type || strcmp(type, "json_schema") != 0 || !json_is_object(schema))
        return td_api_bad(err, "output_config",
                          "'output_config.format' must be {\"type\": \"json_schema\", \"schema\": {…}}.");
    return json_object_set(chat, "json_schema", schema) == 0 ? TD_OK : td_api_no_memory(err);
}

static td_status convert_output_config(const json_t *body, json_t *chat, td_api_error *err) {
    json_t     *v = json_object_get(body, "output_config"), *value;
    const char *key;
    if (!td_api_is_set(v)) return TD_OK;
    if (!json_is_object(v)) return td_api_bad(err, "output_config", "'output_config' must be an object.");
    json_object_foreach(v, key, value) {
        if (!td_api_is_set(value)) continue;
        if (!strcmp(key, "format")) {
            TD_TRY(convert_format(value, chat, err));
        } else if (!strcmp(key, "effort")) {
            if (!json_is_string(value)) return td_api_bad(err, "output_config", "'output_config.effort' must be a string.");
            if (json_object_set(chat, "reasoning_effort", value) != 0) return td_api_no_memory(err);
        } else {
            return td_api_bad(err, "output_config", "'output_config.%.60s' is not supported.", key);
        }
    }
    return TD_OK;
}

/* Accept only edits that clear nothing, because this server never clears anything. */
static td_status check_context_management(const json_t *body, td_api_error *err) {
    const json_t *v = json_object_get(body, "context_management"), *edits = json_object_get(v, "edits"), *edit;
    size_t        i;
    if (!td_api_is_set(v)) return TD_OK;
    if (!json_is_object(v) || (td_api_is_set(edits) && !json_is_array(edits)))
        return td_api_bad(err, "context_management", "'context_management' must be {\"edits\": […]}.");
    json_array_foreach(edits, i, edit) {
        const char *type = json_string_value(json_object_get(edit, "type")),
                   *keep = json_string_value(json_object_get(edit, "keep"));
        if (!type || strncmp(type, "clear_thinking", 14) != 0 || !keep || strcmp(keep, "all") != 0)
            return td_api_bad(err, "context_management",
                              "'context_management.edits[%zu]' is not supported; 'clear_thinking' may be there with 'keep': "
                              "\"all\".",
                              i);
    }
    return TD_OK;
}

td_status td_messages_to_chat(json_t *body, td_messages_purpose purpose, td_messages_state *state, json_t **chat,
                              td_api_request *r, td_api_error *err) {
    bool forced;
    *chat = json_object();
    if (!*chat) return td_api_no_memory(err);
    TD_TRY(take_fields(body, *chat, err));
    TD_TRY(check_required(body, purpose, err));
    TD_TRY(td_messages_convert_turns(body, *chat, r, err));
    TD_TRY(td_messages_convert_tools(body, *chat, &forced, err));
    TD_TRY(convert_stop(body, *chat, err));
    TD_TRY(convert_thinking(body, forced, *chat, state, err));
    TD_TRY(convert_output_config(body, *chat, err));
    return check_context_management(body, err);
}
