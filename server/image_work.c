/* The images of a request that was read, one by one on a thread for them. */
#include "core/error.h"
#include "server/request/prompt_tokens.h"
#include "server/server_state.h"

/* Load the next image. Images alone may be more than the context holds: then no further one is loaded. */
static td_status load(td_call *c, bool counts) {
    td_served_model *m = &c->server->model;
    td_api_images   *images = &c->req.images;
    TD_TRY(td_api_images_load(images, m->engine, &m->images, !counts, &c->err));
    if (counts || images->tokens < m->info.context_length) return TD_OK;
    return td_api_refuse_too_long(&c->req, images->tokens, m->info.context_length, &c->err);
}

td_text_kind td_work_image(td_call *c, bool counts) {
    td_api_images *images = &c->req.images;
    bool           is_here = c->text.kind == TD_TEXT_IMAGE;
    if (c->failed) return TD_TEXT_ENDED;
    if (td_api_images_left(images)) {
        if (!is_here) return TD_TEXT_IMAGE;
        c->failed = load(c, counts) != TD_OK;
        if (c->failed) td_api_rename_error(c->api ? c->api->names : NULL, &c->err);
        if (c->failed) return TD_TEXT_ENDED;
        if (td_api_images_left(images)) return TD_TEXT_IMAGE;
    }
    bool is_long = c->body.len > images->source_bytes + TD_TEXT_SHORT_BYTES;
    return is_here && is_long ? TD_TEXT_LONG : TD_TEXT_ENDED;
}
