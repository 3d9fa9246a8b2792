/* /v1/messages/count_tokens. */
#include <stdlib.h>

#include "server/anthropic/messages.h"
#include "server/request/api_read.h"
#include "server/request/json_fields.h"
#include "server/server_state.h"

/* Count the prompt's tokens for this body. No answer follows, so the prompt need not fit the context. */
static td_status count(const td_served_model *m, json_t *body, size_t *n, td_api_error *err) {
    td_messages_state state = {0};
    td_api_request    r = {.api = &td_api_messages};
    json_t           *chat = NULL;
    uint32_t         *ids = NULL;
    td_status         st = td_messages_to_chat(body, TD_MESSAGES_COUNT, &state, &chat, &r, err);
    if (st == TD_OK)
        st = td_api_read_form(TD_READ_CHAT, chat, &(td_api_context){.info = &m->info}, &r, err);
    else
        json_decref(chat);
    if (st == TD_OK) st = td_check_model(m, r.model, err);
    if (st == TD_OK) st = td_api_encode_chat(&r, m->tokenizer, &m->chat, 0, &ids, n, err);
    free(ids);
    td_api_request_free(&r);
    return st;
}

bool td_work_count_tokens(td_call *c) {
    json_t *body = td_api_load(c->body.data, c->body.len, &c->err);
    size_t  n = 0;
    c->failed = !body || count(&c->server->model, body, &n, &c->err) != TD_OK;
    json_decref(body);
    if (c->failed) td_api_rename_error(td_api_messages.names, &c->err);
    td_jw_open(&c->reply, '{');
    td_jw_member_int(&c->reply, "input_tokens", (int64_t)n);
    td_jw_close(&c->reply, '}');
    return false;
}
