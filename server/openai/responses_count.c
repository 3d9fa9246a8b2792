/* POST /v1/responses/input_tokens: how many tokens the prompt of such a body has. */
#include "core/error.h"
#include "server/request/api_read.h"
#include "server/server_state.h"

static td_status read_count(td_call *c) {
    td_server           *s = c->server;
    const td_api_context with = {&s->model.info, &s->responses};
    TD_TRY(td_api_read(c->api, c->body.data, c->body.len, &with, &c->req, &c->err));
    return td_check_model(&s->model, c->req.model, &c->err);
}

td_text_kind td_work_count_input(td_call *c) {
    const td_api_encoding with = td_served_encoding(&c->server->model);
    size_t                n = 0;
    if (!c->is_read) {
        c->is_read = true;
        c->failed = read_count(c) != TD_OK;
    }
    td_text_kind left = td_work_image(c, true);
    if (left != TD_TEXT_ENDED) return left;
    c->failed = c->failed || td_api_count_chat(&c->req, &with, &n, &c->err) != TD_OK;
    if (c->failed) td_api_rename_error(c->api->names, &c->err);
    td_jw_open(&c->reply, '{');
    td_jw_member_str(&c->reply, "object", "response.input_tokens");
    td_jw_member_int(&c->reply, "input_tokens", (int64_t)n);
    td_jw_close(&c->reply, '}');
    return TD_TEXT_ENDED;
}
