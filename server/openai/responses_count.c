/* POST /v1/responses/input_tokens: how many tokens the prompt of such a body has. */
#include <stdlib.h>

#include "server/request/api_read.h"
#include "server/server_state.h"

/* Count the prompt's tokens. No answer follows, so the prompt need not fit the context. */
static td_status count(td_call *c, td_api_request *r, size_t *n) {
    td_server           *s = c->server;
    const td_api_context with = {&s->model.info, &s->responses};
    uint32_t            *ids = NULL;
    td_status            st = td_api_read(c->api, c->body.data, c->body.len, &with, r, &c->err);
    if (st == TD_OK) st = td_check_model(&s->model, r->model, &c->err);
    if (st == TD_OK) st = td_api_encode_chat(r, s->model.tokenizer, &s->model.chat, 0, &ids, n, &c->err);
    free(ids);
    return st;
}

bool td_work_count_input(td_call *c) {
    td_api_request r = {0};
    size_t         n = 0;
    c->failed = count(c, &r, &n) != TD_OK;
    if (c->failed) td_api_rename_error(c->api->names, &c->err);
    td_api_request_free(&r);
    td_jw_open(&c->reply, '{');
    td_jw_member_str(&c->reply, "object", "response.input_tokens");
    td_jw_member_int(&c->reply, "input_tokens", (int64_t)n);
    td_jw_close(&c->reply, '}');
    return false;
}
