/*
 * Items of a conversation become messages of a chat. Before that, a request's items get the members that clients may leave
 * out.
 *
 * An item of the assistant (reasoning, message, call) joins the message of the items before it, where a chat's
 * message has a place for it. The result of a call is a message of the role tool.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/json_text.h"
#include "server/openai/responses.h"
#include "server/request/api_read.h"
#include "server/request/json_fields.h"

#define IMAGE "input_image" /* the type of such a part */

#define REFERENCES_MAX 1024 /* item_reference in one input, at most: each is a search */

static const char *string_of(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    return td_api_is_c_string(v) ? json_string_value(v) : NULL;
}

/* ---- whole items from what a client sends ---- */

/* What the reader of one item works on. */
typedef struct {
    const json_t *item;
    size_t        index;
    json_t       *whole; /* the item with all its members */
    td_api_error *err;
} reading;

static td_status bad(const reading *r, const char *member, const char *sentence) {
    char param[TD_API_PARAM_MAX];
    snprintf(param, sizeof param, "input[%zu]%s%.48s", r->index, *member ? "." : "", member);
    return td_api_bad(r->err, param, "'%s' %s", param, sentence);
}

static td_status set(const reading *r, const char *member, json_t *value) {
    return json_object_set_new(r->whole, member, value) == 0 ? TD_OK : td_api_no_memory(r->err);
}

static td_status copy_string(const reading *r, const char *member) {
    json_t *v = json_object_get(r->item, member);
    if (!json_is_string(v)) return bad(r, member, "must be a string.");
    return set(r, member, json_incref(v));
}

static td_status copy_name(const reading *r, const char *member) {
    const char *text = string_of(r->item, member);
    if (!text || !*text) return bad(r, member, "must be a string that is not empty.");
    return set(r, member, json_string(text));
}

static td_status check_status(const reading *r) {
    const json_t *v = json_object_get(r->item, "status");
    if (td_api_is_set(v) && !json_is_string(v)) return bad(r, "status", "must be a string.");
    return set(r, "status", json_string(td_api_is_set(v) && json_string_length(v) ? json_string_value(v) : "completed"));
}

/* A part of a list that is an image. @param at the part. */
static td_status read_image(const reading *r, const char *at, const json_t *part, json_t **out) {
    json_t *url = json_object_get(part, "image_url"), *detail = json_object_get(part, "detail");
    char    member[64];
    snprintf(member, sizeof member, "%s.file_id", at);
    if (td_api_is_set(json_object_get(part, "file_id"))) return bad(r, member, "is not supported: no files are kept here.");
    snprintf(member, sizeof member, "%s.image_url", at);
    if (!json_is_string(url)) return bad(r, member, "must be a string.");
    *out = json_pack("{s:s, s:O, s:o}", "type", IMAGE, "image_url", url, "detail",
                     td_api_is_set(detail) ? json_incref(detail) : json_string("auto"));
    return *out ? TD_OK : td_api_no_memory(r->err);
}

/* A list of text parts of these types, all given the first type; and, where the list may have them, of images. */
static td_status read_parts(const reading *r, const char *member, const char *const *types, bool images, json_t **out) {
    const json_t *list = json_object_get(r->item, member), *part;
    size_t        i;
    char          at[48];
    *out = json_array();
    json_array_foreach(list, i, part) {
        const char   *type = string_of(part, "type");
        const json_t *text = json_object_get(part, type && !strcmp(type, "refusal") ? "refusal" : "text");
        size_t        k = 0;
        snprintf(at, sizeof at, "%s[%zu]", member, i);
        if (images && type && !strcmp(type, IMAGE)) {
            json_t *image = NULL;
            TD_TRY(read_image(r, at, part, &image));
            if (json_array_append_new(*out, image) != 0) return td_api_no_memory(r->err);
            continue;
        }
        while (types[k] && type && strcmp(type, types[k]) != 0) k++;
        if (type && !types[k]) {
            char sentence[128];
            snprintf(sentence, sizeof sentence, "of type '%.40s' is not supported; only text is ('%s')%s.", type, types[0],
                     images ? ", and images ('" IMAGE "')" : "");
            return bad(r, at, sentence);
        }
        if (!type || !json_is_string(text)) return bad(r, at, "must be an object with a 'type' and a 'text'.");
        json_t *whole = strcmp(types[0], "output_text")
                            ? json_pack("{s:s, s:O}", "type", types[0], "text", text)
                            : json_pack("{s:s, s:O, s:[]}", "type", types[0], "text", text, "annotations");
        if (json_array_append_new(*out, whole) != 0) return td_api_no_memory(r->err);
    }
    return *out ? TD_OK : td_api_no_memory(r->err);
}

/* The content of a message. A string stands for a list of one part. */
static td_status read_content(const reading *r, bool assistant) {
    static const char *const of_assistant[] = {"output_text", "input_text", "refusal", NULL};
    static const char *const of_others[] = {"input_text", "output_text", NULL};
    json_t                  *content = json_object_get(r->item, "content"), *parts = NULL;
    if (json_is_string(content)) {
        parts = assistant ? json_pack("[{s:s, s:O, s:[]}]", "type", "output_text", "text", content, "annotations")
                          : json_pack("[{s:s, s:O}]", "type", "input_text", "text", content);
        return set(r, "content", parts);
    }
    if (!json_is_array(content)) return bad(r, "content", "must be a string or a list of parts.");
    td_status st = read_parts(r, "content", assistant ? of_assistant : of_others, !assistant, &parts);
    if (st == TD_OK) return set(r, "content", parts);
    json_decref(parts);
    return st;
}

static td_status read_message(const reading *r) {
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    const char              *role = string_of(r->item, "role");
    size_t                   k = 0;
    while (role && k < sizeof roles / sizeof *roles && strcmp(role, roles[k]) != 0) k++;
    if (!role || k == sizeof roles / sizeof *roles)
        return bad(r, "role", "must be 'user', 'assistant', 'system' or 'developer'.");
    TD_TRY(set(r, "role", json_string(role)));
    TD_TRY(check_status(r));
    return read_content(r, !strcmp(role, "assistant"));
}

static td_status read_call(const reading *r) {
    TD_TRY(copy_name(r, "call_id"));
    TD_TRY(copy_name(r, "name"));
    TD_TRY(copy_string(r, "arguments"));
    return check_status(r);
}

static td_status read_custom_call(const reading *r) {
    TD_TRY(copy_name(r, "call_id"));
    TD_TRY(copy_name(r, "name"));
    TD_TRY(copy_string(r, "input"));
    return check_status(r);
}

static td_status read_call_output(const reading *r) {
    static const char *const types[] = {"input_text", "output_text", NULL};
    json_t                  *output = json_object_get(r->item, "output"), *parts = NULL;
    TD_TRY(copy_name(r, "call_id"));
    TD_TRY(check_status(r));
    if (json_is_string(output)) return set(r, "output", json_incref(output));
    if (!json_is_array(output)) return bad(r, "output", "must be a string or a list of parts.");
    td_status st = read_parts(r, "output", types, true, &parts);
    if (st == TD_OK) return set(r, "output", parts);
    json_decref(parts);
    return st;
}

static td_status read_reasoning(const reading *r) {
    static const char *const summary_types[] = {"summary_text", NULL};
    static const char *const content_types[] = {"reasoning_text", "text", NULL};
    const json_t            *encrypted = json_object_get(r->item, "encrypted_content");
    for (int k = 0; k < 2; k++) {
        const char   *member = k ? "content" : "summary";
        const json_t *v = json_object_get(r->item, member);
        json_t       *parts = NULL;
        if (td_api_is_set(v) && !json_is_array(v)) return bad(r, member, "must be a list.");
        td_status st = td_api_is_set(v) ? read_parts(r, member, k ? content_types : summary_types, false, &parts) : TD_OK;
        if (st != TD_OK) {
            json_decref(parts);
            return st;
        }
        TD_TRY(set(r, member, parts ? parts : json_array()));
    }
    if (td_api_is_set(encrypted) && !json_is_string(encrypted)) return bad(r, "encrypted_content", "must be a string.");
    if (json_string_length(encrypted) && json_array_size(json_object_get(r->whole, "content")) == 0)
        return bad(r, "encrypted_content", "cannot be read: this server gives reasoning as text, in 'content'.");
    return TD_OK;
}

static const struct {
    const char *type, *id_prefix;
    td_status (*read)(const reading *r);
} ITEMS[] = {
    {"message", "msg_", read_message},
    {"function_call", "fc_", read_call},
    {"function_call_output", "fco_", read_call_output},
    {"custom_tool_call", "ctc_", read_custom_call},
    {"custom_tool_call_output", "ctco_", read_call_output},
    {"reasoning", "rs_", read_reasoning},
};

const char *td_response_item_prefix(const char *type) {
    size_t k = 0;
    while (k + 1 < sizeof ITEMS / sizeof *ITEMS && strcmp(type, ITEMS[k].type) != 0) k++;
    return ITEMS[k].id_prefix;
}

void td_response_item_id(const char *response_id, const char *prefix, const char *number, char *id, size_t size) {
    snprintf(id, size, "%s%s%s", prefix, response_id + strlen(TD_RESPONSE_ID_PREFIX), number);
}

/* The item of a stored response that has this id, a new reference; NULL: there is none. */
static json_t *find_item(td_response_store *store, const char *id) {
    char        response[TD_RESPONSE_ID_MAX];
    const char *digits = strchr(id, '_');
    if (!digits || strcspn(digits + 1, "_") > sizeof response - sizeof TD_RESPONSE_ID_PREFIX) return NULL;
    snprintf(response, sizeof response, TD_RESPONSE_ID_PREFIX "%.*s", (int)strcspn(digits + 1, "_"), digits + 1);
    td_stored_response *r = td_response_store_find(store, response);
    json_t             *found = NULL;
    for (int k = 0; r && k < 2 && !found; k++) {
        json_t      *list, *item;
        json_error_t why;
        size_t       i;
        if (td_json_load(k ? r->text + r->output : r->input, k ? r->output_len : r->input_len, JSON_ALLOW_NUL, &list, &why))
            break;
        json_array_foreach(list, i, item) {
            const char *its = string_of(item, "id");
            if (!found && its && !strcmp(its, id)) found = json_incref(item);
        }
        json_decref(list);
    }
    td_response_store_release(store, r);
    return found;
}

/* "item_reference": the item itself takes its place. */
static td_status read_reference(reading *r, td_response_store *store, size_t *n_references) {
    const char *id = string_of(r->item, "id");
    if (!id) return bad(r, "id", "must be the id of an item.");
    if (++*n_references > REFERENCES_MAX) return bad(r, "", "is one reference too many.");
    json_t *found = find_item(store, id);
    if (!found) return bad(r, "id", "is of no item that is kept here.");
    json_decref(r->whole);
    r->whole = found;
    return TD_OK;
}

static td_status read_item(reading *r, td_response_store *store, size_t *n_references) {
    const json_t *named = json_object_get(r->item, "type"), *id = json_object_get(r->item, "id");
    const char   *type = string_of(r->item, "type");
    size_t        k = 0;
    if (!json_is_object(r->item)) return bad(r, "", "must be an object.");
    if (td_api_is_set(named) && !type) return bad(r, "type", "must be a string.");
    if (!type) type = json_object_get(r->item, "role") ? "message" : td_api_is_set(id) ? "item_reference" : NULL;
    if (!type) return bad(r, "type", "is missing.");
    if (!strcmp(type, "item_reference")) return read_reference(r, store, n_references);
    while (k < sizeof ITEMS / sizeof *ITEMS && strcmp(type, ITEMS[k].type) != 0) k++;
    if (k == sizeof ITEMS / sizeof *ITEMS) {
        char sentence[192];
        snprintf(sentence, sizeof sentence,
                 "of type '%.60s' is not supported; messages, calls of functions and custom tools, their outputs and "
                 "reasoning are.",
                 type);
        return bad(r, "", sentence);
    }
    if (td_api_is_set(id) && !td_api_is_c_string(id)) return bad(r, "id", "must be a string.");
    if (td_api_is_set(id) && json_string_length(id)) TD_TRY(copy_name(r, "id"));
    TD_TRY(set(r, "type", json_string(type)));
    return ITEMS[k].read(r);
}

td_status td_response_read_input(const json_t *input, td_response_store *store, json_t **items, td_api_error *err) {
    const json_t *item;
    size_t        i, n_references = 0;
    *items = NULL;
    if (!td_api_is_set(input)) return td_api_bad(err, "input", "'input' is missing.");
    if (json_is_string(input)) {
        *items = json_pack("[{s:s, s:s, s:s, s:[{s:s, s:O}]}]", "type", "message", "role", "user", "status", "completed",
                           "content", "type", "input_text", "text", input);
        return *items ? TD_OK : td_api_no_memory(err);
    }
    if (!json_is_array(input)) return td_api_bad(err, "input", "'input' must be a string or a list of items.");
    *items = json_array();
    json_array_foreach(input, i, item) {
        reading   r = {item, i, json_object(), err};
        td_status st = r.whole ? read_item(&r, store, &n_references) : td_api_no_memory(err);
        if (st != TD_OK) {
            json_decref(r.whole);
            return st;
        }
        if (json_array_append_new(*items, r.whole) != 0) return td_api_no_memory(err);
    }
    return *items ? TD_OK : td_api_no_memory(err);
}

/* ---- from items to messages ---- */

/* The texts of parts of the assistant, one below the other, behind the text `before` (NULL: none). NULL: memory is short. */
static json_t *join_texts(const json_t *before, const json_t *parts) {
    td_jbuf       text = {0};
    const json_t *part;
    size_t        i;
    bool          first = !before;
    if (before) td_jbuf_put(&text, json_string_value(before), json_string_length(before));
    json_array_foreach(parts, i, part) {
        const json_t *s = json_object_get(part, "text");
        if (!first) td_jbuf_puts(&text, "\n");
        first = false;
        td_jbuf_put(&text, json_string_value(s), json_string_length(s));
    }
    json_t *joined = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.len);
    td_jbuf_free(&text);
    return joined;
}

/* Parts as those of a chat's message. @param at what errors call the list. */
static json_t *chat_parts(const json_t *parts, const char *at) {
    json_t       *list = json_array();
    const json_t *part;
    size_t        i;
    bool          ok = list;
    json_array_foreach(parts, i, part) {
        char field[TD_API_PARAM_MAX];
        snprintf(field, sizeof field, "%.60s[%zu].image_url", at, i);
        json_t *item = strcmp(string_of(part, "type"), IMAGE)
                           ? json_pack("{s:s, s:O}", "type", "text", "text", json_object_get(part, "text"))
                           : td_api_image_part(json_object_get(part, "image_url"), json_object_get(part, "detail"), field);
        ok = ok && json_array_append_new(list, item) == 0;
    }
    if (ok) return list;
    json_decref(list);
    return NULL;
}

static bool end_turn(td_item_reader *to) {
    json_t *turn = to->turn;
    to->turn = NULL;
    return !turn || json_array_append_new(to->messages, turn) == 0;
}

/* The assistant's message that an item joins: the last one if the item fits, else a new one. */
static json_t *turn_for(td_item_reader *to, bool fits) {
    if (to->turn && !fits && !end_turn(to)) return NULL;
    if (!to->turn) to->turn = json_pack("{s:s, s:n}", "role", "assistant", "content");
    return to->turn;
}

static bool add_text(json_t *turn, const char *member, const json_t *parts) {
    const json_t *before = json_object_get(turn, member);
    if (json_array_size(parts) == 0) return true;
    return json_object_set_new(turn, member, join_texts(json_is_string(before) ? before : NULL, parts)) == 0;
}

/* Add an item of the assistant. A message has one content and then calls. What follows calls still joins their message. */
static bool add_assistant(td_item_reader *to, const json_t *item) {
    bool    calls = json_object_get(to->turn, "tool_calls"), text = json_is_string(json_object_get(to->turn, "content"));
    json_t *turn = turn_for(to, calls || !text);
    return turn && add_text(turn, "content", json_object_get(item, "content"));
}

static bool add_reasoning(td_item_reader *to, const json_t *item) {
    const json_t *content = json_object_get(item, "content");
    bool calls = json_object_get(to->turn, "tool_calls"), text = json_is_string(json_object_get(to->turn, "content"));
    if (json_array_size(content) == 0) content = json_object_get(item, "summary");
    if (json_array_size(content) == 0) return true;
    json_t *turn = turn_for(to, calls || !text);
    return turn && add_text(turn, "reasoning_content", content);
}

static bool add_call(td_item_reader *to, const json_t *item) {
    const char *id = string_of(item, "call_id"), *name = string_of(item, "name");
    json_t     *turn = turn_for(to, true), *calls = json_object_get(turn, "tool_calls");
    json_t     *input = json_object_get(item, "input"); /* of a custom tool */
    json_t     *arguments = input ? json_pack("{s:O}", "input", input) : json_incref(json_object_get(item, "arguments"));
    json_t *call = json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name", name, "arguments",
                             arguments);
    if (!to->names) to->names = json_object();
    if (!turn || !call || json_object_set_new(to->names, id, json_string(name)) != 0 ||
        (!calls && json_object_set_new(turn, "tool_calls", calls = json_array()) != 0)) {
        json_decref(call);
        return false;
    }
    return json_array_append_new(calls, call) == 0;
}

static bool add_call_output(td_item_reader *to, const json_t *item, const json_t *name, const char *at) {
    json_t *output = json_object_get(item, "output");
    char    list[TD_API_PARAM_MAX];
    snprintf(list, sizeof list, "%.60s.output", at);
    if (!end_turn(to)) return false;
    json_t *content = json_is_string(output) ? json_incref(output) : chat_parts(output, list);
    json_t *m = json_pack("{s:s, s:O, s:O, s:o}", "role", "tool", "tool_call_id", json_object_get(item, "call_id"), "name",
                          name, "content", content);
    return m && json_array_append_new(to->messages, m) == 0;
}

static bool add_message(td_item_reader *to, const json_t *item, const char *at) {
    char list[TD_API_PARAM_MAX];
    snprintf(list, sizeof list, "%.60s.content", at);
    if (!strcmp(string_of(item, "role"), "assistant")) return add_assistant(to, item);
    if (!end_turn(to)) return false;
    json_t *m = json_pack("{s:O, s:o}", "role", json_object_get(item, "role"), "content",
                          chat_parts(json_object_get(item, "content"), list));
    return m && json_array_append_new(to->messages, m) == 0;
}

td_status td_item_reader_add(td_item_reader *to, const json_t *items, const char *param, td_api_error *err) {
    const json_t *item;
    size_t        i;
    json_array_foreach(items, i, item) {
        const char *type = string_of(item, "type");
        char        at[TD_API_PARAM_MAX];
        bool        ok;
        snprintf(at, sizeof at, "%.60s[%zu]", param, i);
        if (!strcmp(type, "function_call_output") || !strcmp(type, "custom_tool_call_output")) {
            const char   *id = string_of(item, "call_id");
            const json_t *name = json_object_get(to->names, id);
            if (!name) {
                strcat(at, ".call_id");
                return td_api_bad(err, at, "'%s' is '%.100s', and there is no call with this id before it.", at, id);
            }
            ok = add_call_output(to, item, name, at);
        } else {
            bool call = !strcmp(type, "function_call") || !strcmp(type, "custom_tool_call");
            ok = call                         ? add_call(to, item)
                 : !strcmp(type, "reasoning") ? add_reasoning(to, item)
                                              : add_message(to, item, at);
        }
        if (!ok) return td_api_no_memory(err);
    }
    return TD_OK;
}

td_status td_item_reader_end(td_item_reader *to, td_api_error *err) {
    bool ok = end_turn(to);
    json_decref(to->names);
    to->names = NULL;
    return ok ? TD_OK : td_api_no_memory(err);
}

/* ---- what is kept ---- */

static td_status append_list(const char *text, size_t len, json_t *items, td_api_error *err) {
    json_t      *list;
    json_error_t why;
    if (td_json_load(text, len, JSON_ALLOW_NUL, &list, &why) != TD_OK) return td_api_no_memory(err);
    int bad = json_array_extend(items, list);
    json_decref(list);
    return bad ? td_api_no_memory(err) : TD_OK;
}

td_status td_response_history(const td_stored_response *last, json_t *items, td_api_error *err) {
    size_t n = 0, bytes = 0;
    for (const td_stored_response *r = last; r; r = r->previous, n++) bytes += r->input_len + r->output_len;
    if (bytes > TD_BODY_MAX)
        return td_api_bad(err, "previous_response_id",
                          "The conversation up to 'previous_response_id' is larger than %zu bytes.", TD_BODY_MAX);
    const td_stored_response **all = malloc((n ? n : 1) * sizeof *all);
    td_status                  st = all ? TD_OK : td_api_no_memory(err);
    size_t                     at = n;
    for (const td_stored_response *r = last; all && r; r = r->previous) all[--at] = r;
    for (size_t i = 0; st == TD_OK && i < n; i++) {
        st = append_list(all[i]->input, all[i]->input_len, items, err);
        if (st == TD_OK) st = append_list(all[i]->text + all[i]->output, all[i]->output_len, items, err);
    }
    free(all);
    return st;
}
