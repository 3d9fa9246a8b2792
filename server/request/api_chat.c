/* Chat messages: checked, brought into the form that templates expect, rendered and encoded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/json_text.h"
#include "server/request/api_read.h"
#include "server/request/api_readers.h"
#include "server/request/prompt_tokens.h"

#define MESSAGES_MAX 65536

/* Remove members that are null, and empty tool_calls: some clients write every field they know, and templates ask
 * `'tool_calls' in message`. content keeps its null, because templates ask `content is none`. */
static void drop_nulls(json_t *m) {
    const char *key;
    void       *next;
    json_t     *value;
    json_object_foreach_safe(m, next, key, value) {
        bool no_calls = !strcmp(key, "tool_calls") && json_is_array(value) && json_array_size(value) == 0;
        if (no_calls || (json_is_null(value) && strcmp(key, "content") != 0)) json_object_del(m, key);
    }
}

static td_status check_calls(const json_t *calls, size_t i, td_api_error *err) {
    char param[TD_API_PARAM_MAX];
    snprintf(param, sizeof param, "messages[%zu].tool_calls", i);
    if (!json_is_array(calls)) return td_api_bad(err, param, "'tool_calls' must be a list.");
    for (size_t k = 0; k < json_array_size(calls); k++) {
        const json_t *function = json_object_get(json_array_get(calls, k), "function");
        const json_t *arguments = json_object_get(function, "arguments");
        snprintf(param, sizeof param, "messages[%zu].tool_calls[%zu]", i, k);
        if (!json_is_string(json_object_get(function, "name")) ||
            (td_api_is_set(arguments) && !json_is_string(arguments) && !json_is_object(arguments)))
            return td_api_bad(err, param,
                              "A tool call must be {\"type\": \"function\", \"function\": {\"name\": …, \"arguments\": …}}, "
                              "the arguments a string of JSON or an object.");
    }
    return TD_OK;
}

/* Check one message and bring it into the templates' form, in place (the tree is ours). */
static td_status normalise_message(td_api_request *r, json_t *m, size_t i, const td_engine_info *info, td_api_error *err) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    char                     param[TD_API_PARAM_MAX];
    snprintf(param, sizeof param, "messages[%zu].role", i);
    const json_t *named = json_object_get(m, "role");
    const char   *role = td_api_is_c_string(named) ? json_string_value(named) : NULL;
    bool          known = false;
    for (size_t k = 0; role && k < sizeof roles / sizeof *roles; k++) known = known || !strcmp(role, roles[k]);
    if (!role) return td_api_bad(err, param, "Message %zu must be an object with a 'role'.", i);
    if (!known)
        return td_api_bad(err, param, "'%.40s' is not a role; the roles are system, developer, user, assistant and tool.",
                          role);

    drop_nulls(m);
    json_t *content = json_object_get(m, "content"), *calls = json_object_get(m, "tool_calls");
    bool    assistant = !strcmp(role, "assistant");
    if (calls) TD_TRY(check_calls(calls, i, err));
    snprintf(param, sizeof param, "messages[%zu].content", i);
    json_t *set = NULL; /* what replaces content */
    if (!td_api_is_set(content)) {
        if (!assistant) return td_api_bad(err, param, "Message %zu has no 'content'.", i);
        set = json_null();
    } else if (json_is_array(content)) {
        TD_TRY(td_api_read_parts(r, content, i, assistant, info, &set, err));
    } else if (!json_is_string(content)) {
        return td_api_bad(err, param, "'content' must be a string or a list of parts.");
    }
    if (set && json_object_set_new(m, "content", set) != 0) return td_api_no_memory(err);
    /* "developer" is OpenAI's newer name; templates know "system". Last, because role points into the tree. */
    if (!strcmp(role, "developer") && json_object_set_new(m, "role", json_string("system")) != 0)
        return td_api_no_memory(err);
    return TD_OK;
}

/* The last message is the answer's beginning: take it off the list and keep its text. */
static td_status take_final_message(td_api_request *r, json_t *messages, td_api_error *err) {
    size_t      n = json_array_size(messages);
    json_t     *last = json_array_get(messages, n - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    json_t     *content = json_object_get(last, "content");
    if (strcmp(role, "assistant") != 0 || !json_is_string(content))
        return td_api_bad(err, "continue_final_message",
                          "'continue_final_message' needs a last message of the assistant, with text.");
    if (n == 1)
        return td_api_bad(err, "continue_final_message", "'continue_final_message' needs a message before the last.");
    /* Put into root, which owns the borrowed strings. */
    if (json_object_set(r->root, " continued", content) != 0 || json_array_remove(messages, n - 1) != 0)
        return td_api_no_memory(err);
    r->chat.continued = content;
    return TD_OK;
}

static td_status check_tools(const json_t *tools, td_api_error *err) {
    char param[TD_API_PARAM_MAX];
    if (!json_is_array(tools)) return td_api_bad(err, "tools", "'tools' must be a list.");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const char   *type = json_string_value(json_object_get(tool, "type"));
        snprintf(param, sizeof param, "tools[%zu]", i);
        if (!type || strcmp(type, "function") != 0 ||
            !json_is_string(json_object_get(json_object_get(tool, "function"), "name")))
            return td_api_bad(err, param, "A tool must be {\"type\": \"function\", \"function\": {\"name\": …}}.");
    }
    return TD_OK;
}

/* A tool_choice of type allowed_tools: keep those tools alone. @param mode then "auto" or "required". */
static td_status allow_tools(td_api_request *r, const json_t *allowed, json_t **tools, const char **mode,
                             td_api_error *err) {
    const json_t *names = json_object_get(allowed, "tools");
    json_t       *kept = json_array(), *tool, *named;
    size_t        i, k;
    int           bad = 0;
    *mode = json_string_value(json_object_get(allowed, "mode"));
    json_array_foreach(*tools, i, tool) {
        const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
        bool          in = false;
        json_array_foreach(names, k, named) in =
            in || json_equal(name, json_object_get(json_object_get(named, "function"), "name"));
        if (in) bad |= json_array_append(kept, tool);
    }
    if (bad || json_array_size(kept) != json_array_size(names) || json_array_size(kept) == 0) {
        json_decref(kept);
        return bad ? td_api_no_memory(err)
                   : td_api_bad(err, "tool_choice", "'tool_choice' allows tools that 'tools' do not have, or none.");
    }
    *tools = kept;
    return json_object_set_new(r->root, "tools", kept) == 0 ? TD_OK : td_api_no_memory(err);
}

/* tool_choice "none" leaves the tools out; "auto" shows them to the template; the others force a call too. */
static td_status read_tools(td_api_request *r, json_t **tools, td_api_error *err) {
    json_t       *v = json_object_get(r->root, "tools");
    const json_t *choice = json_object_get(r->root, "tool_choice");
    if (td_api_is_set(v)) TD_TRY(check_tools(v, err));
    *tools = td_api_is_set(v) && json_array_size(v) > 0 ? v : NULL;
    if (!td_api_is_set(choice)) return TD_OK;
    const char *mode = json_string_value(choice),
               *name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    const char *type = json_string_value(json_object_get(choice, "type"));
    if (type && !strcmp(type, "allowed_tools"))
        TD_TRY(allow_tools(r, json_object_get(choice, "allowed_tools"), tools, &mode, err));
    if (mode && !strcmp(mode, "auto")) return TD_OK;
    if (mode && !strcmp(mode, "none")) {
        *tools = NULL;
        return TD_OK;
    }
    if (name || (mode && !strcmp(mode, "required")))
        return td_api_force_call(&r->grammar, *tools, name, r->parts.parallel_calls, err);
    return td_api_bad(
        err, "tool_choice",
        "'tool_choice' must be 'auto', 'none', 'required' or {\"type\": \"function\", \"function\": {\"name\": …}}.");
}

/* The same tools for the answer's parser. */
static td_status keep_tools(td_api_request *r, const json_t *tools, td_api_error *err) {
    if (!tools) return TD_OK;
    char     *json = td_json_dump(tools, JSON_COMPACT);
    td_status st = json ? td_tool_list_new(json, strlen(json), &r->parts.tools, NULL) : TD_ENOMEM;
    free(json);
    return st == TD_OK ? TD_OK : td_api_no_memory(err);
}

static td_status build_template_doc(td_api_request *r, json_t *messages, json_t *tools, bool generation_prompt,
                                    td_api_error *err) {
    json_t *kwargs = json_object_get(r->root, "chat_template_kwargs"),
           *effort = json_object_get(r->root, "reasoning_effort"), *documents = json_object_get(r->root, "documents");
    json_t *doc = json_object();
    int     bad = json_object_set(doc, "messages", messages);
    if (td_api_is_set(documents)) bad |= json_object_set(doc, "documents", documents);
    if (tools) bad |= json_object_set(doc, "tools", tools);
    bad |= json_object_set_new(doc, "add_generation_prompt", json_boolean(generation_prompt));
    if (td_api_is_set(effort)) bad |= json_object_set(doc, "reasoning_effort", effort);
    if (td_api_is_set(kwargs)) bad |= json_object_set(doc, "chat_template_kwargs", kwargs);
    r->chat.template_doc = doc;
    return doc && !bad ? TD_OK : td_api_no_memory(err);
}

td_status td_api_parse_chat(td_api_request *r, const td_engine_info *info, td_api_error *err) {
    json_t *messages = json_object_get(r->root, "messages"), *tools;
    if (!td_api_is_set(messages)) return td_api_bad(err, "messages", "'messages' is missing.");
    size_t n = json_array_size(messages);
    if (n == 0) return td_api_bad(err, "messages", "'messages' must be a list of at least one message.");
    if (n > MESSAGES_MAX)
        return td_api_bad(err, "messages", "'messages' has %zu messages; at most %d are allowed.", n, MESSAGES_MAX);
    for (size_t i = 0; i < n; i++) TD_TRY(normalise_message(r, json_array_get(messages, i), i, info, err));

    bool generation_prompt = true, go_on = false;
    TD_TRY(td_api_read_bool(r->root, "add_generation_prompt", &generation_prompt, err));
    TD_TRY(td_api_read_bool(r->root, "continue_final_message", &go_on, err));
    if (go_on) {
        if (json_is_true(json_object_get(r->root, "add_generation_prompt")))
            return td_api_bad(err, "continue_final_message",
                              "'continue_final_message' and 'add_generation_prompt' cannot both be true: an answer goes on, "
                              "or a new one starts.");
        TD_TRY(take_final_message(r, messages, err));
        generation_prompt = true; /* the template writes the header of the message that goes on */
    }
    const json_t *kwargs = json_object_get(r->root, "chat_template_kwargs"),
                 *effort = json_object_get(r->root, "reasoning_effort");
    if (td_api_is_set(kwargs) && !json_is_object(kwargs))
        return td_api_bad(err, "chat_template_kwargs", "'chat_template_kwargs' must be an object.");
    const json_t *documents = json_object_get(r->root, "documents");
    if (td_api_is_set(documents) && !json_is_array(documents))
        return td_api_bad(err, "documents", "'documents' must be a list.");
    if (td_api_is_set(effort) && !json_is_string(effort))
        return td_api_bad(err, "reasoning_effort", "'reasoning_effort' must be a string.");
    TD_TRY(read_tools(r, &tools, err));
    TD_TRY(keep_tools(r, tools, err));
    return build_template_doc(r, messages, tools, generation_prompt, err);
}

static void add_warnings(td_api_request *r, const td_chat_form *chat) {
    if (r->grammar.is_asked && !r->grammar.forces_call && r->parts.tools)
        r->warnings[r->n_warnings++] =
            "'tools' are shown to the model, but it cannot call them: the answer's form has no calls.";
    if (chat->ignores_tools && json_object_get(r->chat.template_doc, "tools"))
        r->warnings[r->n_warnings++] = "'tools' have no effect: the chat template does not show them to the model.";
    if (chat->ignores_effort && json_object_get(r->chat.template_doc, "reasoning_effort"))
        r->warnings[r->n_warnings++] = "'reasoning_effort' has no effect: the chat template does not use it.";
    const json_t *kwargs = json_object_get(r->chat.template_doc, "chat_template_kwargs");
    if (chat->ignores_thinking && (json_object_get(kwargs, "enable_thinking") || json_object_get(kwargs, "thinking")))
        r->warnings[r->n_warnings++] = "Thinking cannot be switched on or off: the chat template has no switch for it.";
}

/* Append ids to a malloc'd array of *room. */
static td_status append_ids(td_api_prompt *to, size_t *room, const uint32_t *ids, size_t n) {
    if (to->n_ids + n > *room) {
        size_t    more = 2 * *room + n;
        uint32_t *longer = realloc(to->ids, more * sizeof *longer);
        if (!longer) return TD_ENOMEM;
        to->ids = longer;
        *room = more;
    }
    memcpy(to->ids + to->n_ids, ids, n * sizeof *ids);
    to->n_ids += n;
    return TD_OK;
}

/* Encode a text in which `hidden` stands for texts that are no marker: those are encoded as text, what is between them with
 * special tokens. */
static td_status encode_hidden(td_api_request *r, const td_tokenizer *tok, const td_chat_form *chat,
                               const td_chat_text *text, uint32_t context, td_api_prompt *to, td_api_error *err) {
    const char *at = text->text, *end = at + text->len;
    uint32_t   *marker = NULL, *ids;
    size_t      n_marker, n, room = 0;
    td_status st = td_tokenizer_encode(tok, chat->markers.image, chat->markers.image_len, false, false, &marker, &n_marker);
    if (st != TD_OK) return td_api_from_status(err, st, NULL, "messages");
    while (st == TD_OK && at < end) {
        const char *hidden = memmem(at, (size_t)(end - at), text->hidden, TD_HIDDEN_BYTES);
        st = td_api_encode_text(r, tok, at, (size_t)((hidden ? hidden : end) - at), context, &ids, &n, err);
        if (st != TD_OK) break;
        if (append_ids(to, &room, ids, n) != TD_OK || (hidden && append_ids(to, &room, marker, n_marker) != TD_OK))
            st = td_api_no_memory(err);
        free(ids);
        at = hidden ? hidden + TD_HIDDEN_BYTES : end;
    }
    free(marker);
    return st;
}

static td_status encode_rendered(td_api_request *r, const td_tokenizer *tok, const td_chat_form *chat,
                                 const td_chat_text *text, uint32_t context, td_api_prompt *to, td_api_error *err) {
    add_warnings(r, chat);
    if (r->parts.reasoning_format)
        r->parts.reasoning_start = td_reasoning_after(r->parts.reasoning_format, text->text, text->len, text->continued);
    /* Special tokens are parsed: the template wrote BOS and the markers of turns as text. */
    if (text->hidden[0]) return encode_hidden(r, tok, chat, text, context, to, err);
    return td_api_encode_text(r, tok, text->text, text->len, context, &to->ids, &to->n_ids, err);
}

/* The prompt has a token for each place of an image that the template shows. */
static td_status place_images(const td_api_request *r, const td_engine_info *info, td_api_prompt *to, td_api_error *err) {
    size_t    n_places, n = r->images.n;
    td_status st = td_api_images_place(&r->images, 0, n, info->image_token, &to->ids, &to->n_ids, &n_places, &to->images);
    if (st != TD_OK) return td_api_no_memory(err);
    if (n_places != n)
        return td_api_bad(err, "messages", "The chat template shows %zu of the %zu images: it has no place for the others.",
                          n_places, n);
    to->n_images = n;
    return TD_OK;
}

td_status td_api_encode_chat(td_api_request *r, const td_api_encoding *with, uint32_t context, td_api_prompt *to,
                             td_api_error *err) {
    const td_chat_form *chat = with->chat;
    if (!with->tok)
        return td_api_bad(err, "messages", "This model has no tokenizer; send the prompt as token ids, as 'input_ids'.");
    if (!chat->tmpl)
        return td_api_bad(err, "messages",
                          "This model has no chat template; use /v1/completions, or start the server with --chat-template.");
    if (r->images.n && !chat->shows_images)
        return td_api_bad(err, "messages", "The chat template has no places for images; --chat-template gives another.");
    td_error     cause = {0};
    td_chat_text text;
    td_status    st = td_chat_form_render(chat, r->chat.template_doc, r->chat.continued, &text, &cause);
    if (st != TD_OK) {
        td_api_from_status(err, st, &cause, "messages");
        if (st == TD_ENOMEM) return TD_EINVAL;
        return td_api_bad(err, "messages", "The chat template refuses this request: %.400s",
                          cause.text[0] ? cause.text : td_status_text(st));
    }
    st = encode_rendered(r, with->tok, chat, &text, context, to, err);
    free(text.text);
    return st == TD_OK ? place_images(r, with->info, to, err) : st;
}

td_status td_api_count_chat(td_api_request *r, const td_api_encoding *with, size_t *n, td_api_error *err) {
    td_api_prompt prompt = {0};
    td_status     st = td_api_encode_chat(r, with, 0, &prompt, err);
    *n = prompt.n_ids;
    td_api_prompt_free(&prompt);
    return st;
}
