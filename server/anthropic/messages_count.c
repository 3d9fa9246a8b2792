/* /v1/messages/count_tokens. */
#include "core/error.h"
#include "server/anthropic/messages.h"
#include "server/request/api_read.h"
#include "server/request/json_fields.h"
#include "server/server_state.h"

static td_status read_count(const td_served_model *m, json_t *body, td_api_request *r, td_api_error *err) {
    td_messages_state state = {0};
    json_t           *chat = NULL;
    r->api = &td_api_messages;
    if (td_messages_to_chat(body, TD_MESSAGES_COUNT, &state, &chat, r, err) != TD_OK) {
        json_decref(chat);
        return TD_EINVAL;
    }
    TD_TRY(td_api_read_form(TD_READ_CHAT, chat, &(td_api_context){.info = &m->info}, r, err));
    return td_check_model(m, r->model, err);
}

td_text_kind td_work_count_tokens(td_call *c) {
    const td_api_encoding with = td_served_encoding(&c->server->model);
    size_t                n = 0;
    if (!c->is_read) {
        json_t *body = td_api_load(c->body.data, c->body.len, &c->err);
        c->is_read = true;
        c->failed = !body || read_count(&c->server->model, body, &c->req, &c->err) != TD_OK;
        json_decref(body);
    }
    td_text_kind left = td_work_image(c, true);
    if (left != TD_TEXT_ENDED) return left;
    c->failed = c->failed || td_api_count_chat(&c->req, &with, &n, &c->err) != TD_OK;
    if (c->failed) td_api_rename_error(td_api_messages.names, &c->err);
    td_jw_open(&c->reply, '{');
    td_jw_member_int(&c->reply, "input_tokens", (int64_t)n);
    td_jw_close(&c->reply, '}');
    return TD_TEXT_ENDED;
}
