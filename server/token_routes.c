/* /tokenize and /detokenize. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "server/answer/answer.h"
#include "server/request/api_read.h"
#include "server/request/json_fields.h"
#include "server/request/prompt_tokens.h"
#include "server/server_state.h"
#include "server/token_answer.h"

static td_status check_can_answer(const td_served_model *m, const json_t *root, td_api_error *err) {
    const json_t *v = json_object_get(root, "model");
    if (!m->tokenizer) return td_api_bad(err, NULL, "This model has no tokenizer.");
    if (td_api_is_set(v) && !td_api_is_c_string(v))
        return td_api_bad(err, "model", "'model' must be a string, without a NUL.");
    return td_check_model(m, json_string_value(v), err);
}

static td_status encode_text(const td_served_model *m, const json_t *text, bool add_special, td_token_answer *to,
                             td_api_error *err) {
    const td_api_request as = {.form = TD_READ_COMPLETION, .add_special_tokens = add_special};
    uint32_t            *ids = NULL;
    size_t               n = 0;
    TD_TRY(td_api_encode_text(&as, m->tokenizer, json_string_value(text), json_string_length(text), m->info.context_length,
                              &ids, &n, err));
    return td_token_answer_add(to, ids, n, err);
}

static td_status read_chat(td_call *c, json_t *root) {
    const td_api_context with = {.info = &c->server->model.info};
    TD_TRY(td_api_read_form(TD_READ_CHAT, json_incref(root), &with, &c->req, &c->err));
    return c->req.n_prompts ? td_api_bad(&c->err, "input_ids", "'input_ids' are tokens already.") : TD_OK;
}

/* Encode the chat that was read. */
static td_status encode_chat(td_call *c) {
    const td_served_model *m = &c->server->model;
    const td_api_encoding  with = td_served_encoding(m);
    td_api_prompt          prompt = {0};
    td_status              st = td_api_encode_chat(&c->req, &with, m->info.context_length, &prompt, &c->err);
    if (st == TD_OK) {
        st = td_token_answer_add(c->tokens, prompt.ids, prompt.n_ids, &c->err);
        prompt.ids = NULL;
    }
    td_api_prompt_free(&prompt);
    return st;
}

/* Encode "prompt" (a string or several), or read "messages", which are rendered as for a chat. */
static td_status tokenize(td_call *c, json_t *root) {
    const td_served_model *m = &c->server->model;
    td_token_answer       *to = c->tokens;
    td_api_error          *err = &c->err;
    const json_t          *prompt = json_object_get(root, "prompt");
    bool                   add_special = true;
    TD_TRY(td_api_read_bool(root, "add_special_tokens", &add_special, err));
    if (td_api_is_set(json_object_get(root, "messages"))) return read_chat(c, root);
    if (json_is_string(prompt)) return encode_text(m, prompt, add_special, to, err);
    to->in_lists = true;
    if (json_array_size(prompt) == 0)
        return td_api_bad(err, "prompt", "'prompt' must be a string or a list of strings, or give 'messages'.");
    for (size_t i = 0; i < json_array_size(prompt); i++) {
        const json_t *text = json_array_get(prompt, i);
        if (!json_is_string(text)) return td_api_bad(err, "prompt", "'prompt' at position %zu must be a string.", i);
        TD_TRY(encode_text(m, text, add_special, to, err));
    }
    return TD_OK;
}

static td_status check_ids(const td_tokenizer *tok, const uint32_t *ids, size_t n, td_api_error *err) {
    size_t len;
    bool   special;
    for (size_t i = 0; i < n; i++)
        if (!td_tokenizer_token(tok, ids[i], &len, &special)) return td_api_from_status(err, TD_EINVAL, NULL, "tokens");
    return TD_OK;
}

static td_status read_ids(const td_served_model *m, const json_t *array, td_token_answer *to, td_api_error *err) {
    uint32_t *ids = NULL;
    size_t    n = 0;
    TD_TRY(td_api_parse_ids(array, "tokens", SIZE_MAX, m->info.vocab_size, &ids, &n, err));
    td_status st = check_ids(m->tokenizer, ids, n, err);
    if (st == TD_OK) return td_token_answer_add(to, ids, n, err);
    free(ids);
    return st;
}

/* Read "tokens": a list of ids, or lists of them. */
static td_status detokenize(td_call *c, json_t *root) {
    const td_served_model *m = &c->server->model;
    td_token_answer       *to = c->tokens;
    td_api_error          *err = &c->err;
    const json_t          *tokens = json_object_get(root, "tokens");
    to->decodes = to->skips_special = true;
    TD_TRY(td_api_read_bool(root, "skip_special_tokens", &to->skips_special, err));
    to->in_lists = json_is_array(json_array_get(tokens, 0));
    if (!to->in_lists) return read_ids(m, tokens, to, err);
    for (size_t i = 0; i < json_array_size(tokens); i++) TD_TRY(read_ids(m, json_array_get(tokens, i), to, err));
    return TD_OK;
}

static void work(td_call *c, td_status (*read)(td_call *c, json_t *root)) {
    json_t          *root = td_api_load(c->body.data, c->body.len, &c->err);
    td_token_answer *to = root ? td_token_answer_new(c) : NULL;
    if (root && !to) td_api_no_memory(&c->err);
    c->failed = !to || check_can_answer(&c->server->model, root, &c->err) != TD_OK || read(c, root) != TD_OK;
    json_decref(root);
}

td_text_kind td_work_tokenize(td_call *c) {
    if (!c->is_read) work(c, tokenize);
    c->is_read = true;
    td_text_kind left = td_work_image(c, true);
    if (left != TD_TEXT_ENDED || c->failed || c->req.form != TD_READ_CHAT) return left;
    c->failed = encode_chat(c) != TD_OK;
    return TD_TEXT_ENDED;
}

td_text_kind td_work_detokenize(td_call *c) {
    work(c, detokenize);
    return TD_TEXT_ENDED;
}

enum MHD_Result td_route_reply(td_call *c) {
    return c->failed ? td_answer_error(c, &c->err) : td_answer_json(c, 200, &c->reply);
}
