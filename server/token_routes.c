/* /tokenize and /detokenize. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "server/answer/answer.h"
#include "server/request/api_read.h"
#include "server/request/json_fields.h"
#include "server/server_state.h"

static td_status check_can_answer(const td_served_model *m, const json_t *root, td_api_error *err) {
    const json_t *v = json_object_get(root, "model");
    if (!m->tokenizer) return td_api_bad(err, NULL, "This model has no tokenizer.");
    if (td_api_is_set(v) && !td_api_is_c_string(v))
        return td_api_bad(err, "model", "'model' must be a string, without a NUL.");
    return td_check_model(m, json_string_value(v), err);
}

static void write_ids(td_jbuf *b, const uint32_t *ids, size_t n) {
    td_jw_open(b, '[');
    for (size_t i = 0; i < n; i++) td_jw_int(b, ids[i]);
    td_jw_close(b, ']');
}

static td_status encode_text(const td_served_model *m, const json_t *text, bool add_special, td_jbuf *b, size_t *count,
                             td_api_error *err) {
    uint32_t *ids = NULL;
    td_status st =
        td_tokenizer_encode(m->tokenizer, json_string_value(text), json_string_length(text), true, add_special, &ids, count);
    if (st != TD_OK) return td_api_from_status(err, st, NULL, "prompt");
    write_ids(b, ids, *count);
    free(ids);
    return TD_OK;
}

/* Encode "prompt" (a string or several) or "messages", rendered as for a chat. Appends the members tokens and count. */
static td_status tokenize(const td_served_model *m, json_t *root, td_jbuf *b, td_api_error *err) {
    const json_t *prompt = json_object_get(root, "prompt");
    bool          add_special = true;
    size_t        count = 0;
    TD_TRY(td_api_read_bool(root, "add_special_tokens", &add_special, err));
    td_jw_key(b, "tokens");
    if (td_api_is_set(json_object_get(root, "messages"))) {
        td_api_request req = {0};
        uint32_t      *ids = NULL;
        td_status st = td_api_read_form(TD_READ_CHAT, json_incref(root), &(td_api_context){.info = &m->info}, &req, err);
        if (st == TD_OK && req.n_prompts) st = td_api_bad(err, "input_ids", "'input_ids' are tokens already.");
        if (st == TD_OK) st = td_api_encode_chat(&req, m->tokenizer, &m->chat, &ids, &count, err);
        td_api_request_free(&req);
        TD_TRY(st);
        write_ids(b, ids, count);
        free(ids);
    } else if (json_is_string(prompt)) {
        TD_TRY(encode_text(m, prompt, add_special, b, &count, err));
    } else if (json_is_array(prompt) && json_array_size(prompt) > 0) {
        td_jbuf   counts = {0};
        td_status st = TD_OK;
        td_jw_open(b, '[');
        td_jw_open(&counts, '[');
        for (size_t i = 0; i < json_array_size(prompt) && st == TD_OK; i++) {
            const json_t *text = json_array_get(prompt, i);
            st = json_is_string(text) ? encode_text(m, text, add_special, b, &count, err)
                                      : td_api_bad(err, "prompt", "'prompt' at position %zu must be a string.", i);
            td_jw_int(&counts, (int64_t)count);
        }
        td_jw_close(b, ']');
        td_jw_close(&counts, ']');
        td_jw_key(b, "count");
        td_jw_raw(b, counts.data ? counts.data : "", counts.len);
        b->failed = b->failed || counts.failed;
        td_jbuf_free(&counts);
        return st;
    } else {
        return td_api_bad(err, "prompt", "'prompt' must be a string or a list of strings, or give 'messages'.");
    }
    td_jw_member_int(b, "count", (int64_t)count);
    return TD_OK;
}

bool td_work_tokenize(td_call *c) {
    const td_served_model *m = &c->server->model;
    json_t                *root = td_api_load(c->body.data, c->body.len, &c->err);
    td_jw_open(&c->reply, '{');
    c->failed = !root || check_can_answer(m, root, &c->err) != TD_OK || tokenize(m, root, &c->reply, &c->err) != TD_OK;
    json_decref(root);
    td_jw_member_int(&c->reply, "max_model_len", m->info.context_length);
    td_jw_close(&c->reply, '}');
    return false;
}

static td_status decode_ids(const td_served_model *m, const json_t *array, bool skip_special, td_jbuf *b,
                            td_api_error *err) {
    uint32_t *ids = NULL;
    size_t    n = 0, len = 0;
    char     *text = NULL;
    TD_TRY(td_api_parse_ids(array, "tokens", SIZE_MAX, m->info.vocab_size, &ids, &n, err));
    td_status st = td_tokenizer_decode(m->tokenizer, ids, n, skip_special, &text, &len);
    free(ids);
    if (st != TD_OK) return td_api_from_status(err, st, NULL, "tokens");
    td_jw_text(b, text, len);
    free(text);
    return TD_OK;
}

/* Decode "tokens": a list of ids, or lists of them. */
static td_status detokenize(const td_served_model *m, const json_t *root, td_jbuf *b, td_api_error *err) {
    const json_t *tokens = json_object_get(root, "tokens");
    bool          skip_special = true;
    TD_TRY(td_api_read_bool(root, "skip_special_tokens", &skip_special, err));
    td_jw_key(b, "text");
    if (!json_is_array(json_array_get(tokens, 0))) return decode_ids(m, tokens, skip_special, b, err);
    td_jw_open(b, '[');
    for (size_t i = 0; i < json_array_size(tokens); i++)
        TD_TRY(decode_ids(m, json_array_get(tokens, i), skip_special, b, err));
    td_jw_close(b, ']');
    return TD_OK;
}

bool td_work_detokenize(td_call *c) {
    const td_served_model *m = &c->server->model;
    json_t                *root = td_api_load(c->body.data, c->body.len, &c->err);
    td_jw_open(&c->reply, '{');
    c->failed = !root || check_can_answer(m, root, &c->err) != TD_OK || detokenize(m, root, &c->reply, &c->err) != TD_OK;
    json_decref(root);
    td_jw_close(&c->reply, '}');
    return false;
}

enum MHD_Result td_route_reply(td_call *c) {
    return c->failed ? td_answer_error(c, &c->err) : td_answer_json(c, 200, &c->reply);
}
