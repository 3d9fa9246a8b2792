/*
 * The turns of a message's body as the messages of a chat.
 *
 * Turns of one role that follow each other are one turn. A user's turn may hold results of tools, which are messages of
 * their own in a chat; the text before and after them is the user's. A turn of the assistant at the end is the answer's
 * beginning.
 */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "server/anthropic/messages.h"
#include "server/request/api_read.h"
#include "server/request/json_fields.h"

/* Claude Code begins its system prompt with a line for Anthropic's billing that differs in every request: no page of the
 * prefix cache would ever be used again. */
#define BILLING "x-anthropic-billing-header:"

#define REDACTED "'redacted_thinking' is left out: only the service that encrypted it can read it."

typedef struct {
    json_t       *messages; /* of the chat */
    json_t       *turn;     /* the message in `messages` that blocks are added to; NULL: the next block begins one */
    json_t       *names;    /* {id: name} of the calls so far */
    td_jbuf       thinking; /* of the assistant's turn */
    bool          redacted;
    bool          failed;               /* memory was short */
    char          at[TD_API_PARAM_MAX]; /* the block or message that is read, for errors */
    td_api_error *err;
} conversion;

static const char *string_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static bool says(const json_t *object, const char *key, const char *value) {
    const char *s = string_of(object, key);
    return s && !strcmp(s, value);
}

static td_status wrong(conversion *c, const char *what) {
    return td_api_bad(c->err, c->at, "'%s' %s", c->at, what);
}

static void set_new(conversion *c, json_t *object, const char *key, json_t *value) {
    c->failed = json_object_set_new(object, key, value) != 0 || c->failed;
}

static void append(conversion *c, json_t *list, json_t *value) {
    c->failed = json_array_append(list, value) != 0 || c->failed;
}

static json_t *begin_message(conversion *c, const char *role) {
    json_t *m = json_pack("{s:s, s:[]}", "role", role, "content");
    bool    kept = json_array_append_new(c->messages, m) == 0;
    c->failed = c->failed || !kept;
    return kept ? m : NULL;
}

/* The message of the turn that is read; a new one where a result of a tool came between. */
static json_t *message_of_turn(conversion *c, const char *role) {
    if (!c->turn) c->turn = begin_message(c, role);
    return c->turn;
}

/* Complete the assistant's message: no text beside calls is null, and its thinking is one text. */
static void end_turn(conversion *c) {
    json_t *m = c->turn;
    c->turn = NULL;
    if (!says(m, "role", "assistant")) return;
    if (json_array_size(json_object_get(m, "content")) == 0) set_new(c, m, "content", json_null());
    if (c->thinking.len) set_new(c, m, "reasoning_content", json_stringn(c->thinking.data, c->thinking.len));
    c->failed = c->failed || c->thinking.failed;
    td_jbuf_free(&c->thinking);
    c->thinking = (td_jbuf){0};
}

/* ---- blocks ---- */

static td_status refuse_block(conversion *c, const json_t *block, const char *allowed) {
    const char *type = string_of(block, "type");
    if (!type) return wrong(c, "must be an object with a 'type'.");
    return td_api_bad(c->err, c->at, "'%s' is of type '%.60s', which is not supported here; %s.", c->at, type, allowed);
}

static td_status check_text(conversion *c, const json_t *block) {
    if (!json_is_string(json_object_get(block, "text"))) return wrong(c, "must have a 'text' that is a string.");
    return TD_OK;
}

static td_status add_thinking(conversion *c, const json_t *block) {
    const json_t *text = json_object_get(block, "thinking"), *signature = json_object_get(block, "signature");
    if (!json_is_string(text)) return wrong(c, "must have a 'thinking' that is a string.");
    if (signature && !json_is_null(signature) && !json_is_string(signature))
        return wrong(c, "has a 'signature' that is no string.");
    if (c->thinking.len) td_jbuf_puts(&c->thinking, "\n");
    td_jbuf_put(&c->thinking, json_string_value(text), json_string_length(text));
    return TD_OK;
}

static td_status add_tool_use(conversion *c, json_t *message, const json_t *block) {
    json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"),
           *input = json_object_get(block, "input"), *calls = json_object_get(message, "tool_calls");
    if (!td_api_is_c_string(id) || !td_api_is_c_string(name) || !json_is_object(input))
        return wrong(c, "must be {\"type\": \"tool_use\", \"id\": …, \"name\": …, \"input\": {…}}.");
    if (!calls) {
        set_new(c, message, "tool_calls", json_array());
        calls = json_object_get(message, "tool_calls");
    }
    json_t *call =
        json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name", name, "arguments", input);
    c->failed = json_array_append_new(calls, call) != 0 || c->failed;
    c->failed = json_object_set(c->names, json_string_value(id), name) != 0 || c->failed;
    return TD_OK;
}

static td_status add_assistant_block(conversion *c, json_t *block) {
    json_t *message = message_of_turn(c, "assistant");
    if (says(block, "type", "text")) {
        append(c, json_object_get(message, "content"), block);
        return check_text(c, block);
    }
    if (says(block, "type", "thinking")) return add_thinking(c, block);
    if (says(block, "type", "tool_use")) return add_tool_use(c, message, block);
    if (!says(block, "type", "redacted_thinking"))
        return refuse_block(c, block, "an assistant's are 'text', 'thinking', 'redacted_thinking' and 'tool_use'");
    c->redacted = true;
    return TD_OK;
}

/* Append an image to the content of a chat's message. */
static td_status add_image(conversion *c, json_t *to, const json_t *block) {
    const json_t *source = json_object_get(block, "source");
    const char   *type = string_of(source, "type");
    json_t       *data = json_object_get(source, "data");
    char          field[sizeof c->at + 16];
    if (!type) return wrong(c, "must have a 'source': {\"type\": \"base64\", \"media_type\": …, \"data\": …}.");
    snprintf(field, sizeof field, "%.80s.source", c->at);
    if (strcmp(type, "base64") != 0)
        return td_api_bad(c->err, field, "'%s' is of type '%.40s'; only 'base64' is supported, as nothing is fetched here.",
                          field, type);
    strcat(field, ".data");
    if (!json_is_string(data)) return td_api_bad(c->err, field, "'%s' must be a string.", field);
    c->failed = json_array_append_new(to, td_api_image_part(data, NULL, field)) != 0 || c->failed;
    return TD_OK;
}

/* Append a string or a list of blocks to the content of a chat's message. @param images the list may have images. */
static td_status add_content(conversion *c, json_t *to, json_t *content, bool images, const char *where) {
    if (json_is_string(content)) {
        c->failed = json_array_append_new(to, json_pack("{s:s, s:O}", "type", "text", "text", content)) != 0 || c->failed;
        return TD_OK;
    }
    if (!json_is_array(content)) return td_api_bad(c->err, where, "'%s' must be a string or a list of blocks.", where);
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *block = json_array_get(content, i);
        snprintf(c->at, sizeof c->at, "%.70s[%zu]", where, i);
        if (images && says(block, "type", "image")) {
            TD_TRY(add_image(c, to, block));
            continue;
        }
        if (!says(block, "type", "text"))
            return refuse_block(c, block, images ? "'text' and 'image' are" : "only 'text' is");
        TD_TRY(check_text(c, block));
        append(c, to, block);
    }
    return TD_OK;
}

/* Add the result of a tool as a message. "Error:" tells the model what is_error says. */
static td_status add_tool_result(conversion *c, const json_t *block) {
    json_t       *id = json_object_get(block, "tool_use_id"), *content = json_object_get(block, "content");
    const json_t *is_error = json_object_get(block, "is_error");
    char          where[sizeof c->at + 8];
    if (!td_api_is_c_string(id)) return wrong(c, "must have a 'tool_use_id' that is a string.");
    if (is_error && !json_is_null(is_error) && !json_is_boolean(is_error))
        return wrong(c, "has an 'is_error' that is not true or false.");
    json_t *name = json_object_get(c->names, json_string_value(id));
    if (!name) {
        return td_api_bad(c->err, c->at, "'%s' is the result of '%.100s', which no 'tool_use' before it has as its 'id'.",
                          c->at, json_string_value(id));
    }
    end_turn(c);
    json_t *m = begin_message(c, "tool"), *to = json_object_get(m, "content");
    c->failed = json_object_set(m, "tool_call_id", id) != 0 || json_object_set(m, "name", name) != 0 || c->failed;
    if (json_is_true(is_error))
        c->failed = json_array_append_new(to, json_pack("{s:s, s:s}", "type", "text", "text", "Error:")) != 0 || c->failed;
    snprintf(where, sizeof where, "%s.content", c->at);
    return content && !json_is_null(content) ? add_content(c, to, content, true, where) : TD_OK;
}

static td_status add_user_block(conversion *c, json_t *block) {
    if (says(block, "type", "tool_result")) return add_tool_result(c, block);
    json_t *to = json_object_get(message_of_turn(c, "user"), "content");
    if (says(block, "type", "image")) return add_image(c, to, block);
    if (!says(block, "type", "text")) return refuse_block(c, block, "a user's are 'text', 'image' and 'tool_result'");
    append(c, to, block);
    return check_text(c, block);
}

/* ---- turns ---- */

static td_status add_turn(conversion *c, const json_t *m, size_t i) {
    json_t     *content = json_object_get(m, "content");
    const char *role = string_of(m, "role");
    bool        user = says(m, "role", "user"), assistant = says(m, "role", "assistant"), system = says(m, "role", "system");
    char        where[TD_API_PARAM_MAX];
    snprintf(c->at, sizeof c->at, "messages[%zu]", i);
    snprintf(where, sizeof where, "messages[%zu].content", i);
    if (!role) return wrong(c, "must be an object with a 'role'.");
    if (!user && !assistant && !system)
        return td_api_bad(c->err, c->at, "'%s' has the role '%.40s'; the roles are user, assistant and system.", c->at,
                          role);
    if (c->turn && !says(c->turn, "role", role)) end_turn(c);
    if (system || json_is_string(content))
        return add_content(c, json_object_get(message_of_turn(c, role), "content"), content, false, where);
    if (json_array_size(content) == 0)
        return td_api_bad(c->err, where, "'%s' must be a string or a list of at least one block.", where);
    for (size_t k = 0; k < json_array_size(content); k++) {
        json_t *block = json_array_get(content, k);
        snprintf(c->at, sizeof c->at, "messages[%zu].content[%zu]", i, k);
        TD_TRY(user ? add_user_block(c, block) : add_assistant_block(c, block));
    }
    return TD_OK;
}

static bool first_is_assistant(const json_t *messages) {
    size_t i = 0;
    while (says(json_array_get(messages, i), "role", "system")) i++;
    return says(json_array_get(messages, i), "role", "assistant");
}

/* Add the system prompt without the line for billing, if any text is left. */
static td_status add_system(conversion *c, json_t *system) {
    json_t *to = json_object_get(message_of_turn(c, "system"), "content");
    TD_TRY(add_content(c, to, system, false, "system"));
    const json_t *first = json_object_get(json_array_get(to, 0), "text");
    const char   *text = json_string_value(first);
    if (text && !strncmp(text, BILLING, strlen(BILLING))) {
        const char *after = text + strcspn(text, "\n") + 1, *end = text + json_string_length(first);
        bool        more = after < end;
        json_t     *rest = more ? json_pack("{s:s, s:s%}", "type", "text", "text", after, (size_t)(end - after)) : NULL;
        c->failed = (more ? json_array_set_new(to, 0, rest) : json_array_remove(to, 0)) != 0 || c->failed;
    }
    if (json_array_size(to) > 0) return TD_OK;
    c->turn = NULL;
    c->failed = json_array_remove(c->messages, 0) != 0 || c->failed;
    return TD_OK;
}

/* The answer goes on from the assistant's last turn, of which only the text can be continued. */
static td_status end_with_assistant(conversion *c, json_t *chat) {
    const json_t *last = json_array_get(c->messages, json_array_size(c->messages) - 1);
    if (!says(last, "role", "assistant")) return TD_OK;
    if (json_object_get(last, "tool_calls"))
        return td_api_bad(c->err, "messages", "'messages' must not end with a 'tool_use': its 'tool_result' comes next.");
    if (json_object_get(last, "reasoning_content") || json_is_null(json_object_get(last, "content")))
        return td_api_bad(c->err, "messages",
                          "A last turn of the assistant, which the answer continues, must be text alone.");
    set_new(c, chat, "continue_final_message", json_true());
    return TD_OK;
}

static td_status convert(conversion *c, const json_t *body, json_t *chat) {
    json_t       *system = json_object_get(body, "system");
    const json_t *messages = json_object_get(body, "messages");
    if (!messages || json_is_null(messages)) return td_api_bad(c->err, "messages", "'messages' is missing.");
    if (json_array_size(messages) == 0)
        return td_api_bad(c->err, "messages", "'messages' must be a list of at least one message.");
    if (first_is_assistant(messages)) return td_api_bad(c->err, "messages", "'messages' must begin with a user's.");
    if (system && !json_is_null(system)) TD_TRY(add_system(c, system));
    c->turn = NULL;
    for (size_t i = 0; i < json_array_size(messages); i++) TD_TRY(add_turn(c, json_array_get(messages, i), i));
    end_turn(c);
    return end_with_assistant(c, chat);
}

td_status td_messages_convert_turns(const json_t *body, json_t *chat, td_api_request *r, td_api_error *err) {
    conversion c = {.messages = json_array(), .names = json_object(), .err = err};
    td_status  st = convert(&c, body, chat);
    c.failed = json_object_set(chat, "messages", c.messages) != 0 || c.failed;
    if (st == TD_OK && c.failed) st = td_api_no_memory(err);
    if (c.redacted) r->warnings[r->n_warnings++] = REDACTED;
    json_decref(c.messages);
    json_decref(c.names);
    td_jbuf_free(&c.thinking);
    return st;
}
