/* The images of a request that was read, one by one on a thread for them. */
#include "core/error.h"
#include "server/request/prompt_tokens.h"
#include "server/server_state.h"

/* Load the next image. Images alone may be more than the context holds: then no further one is loaded. */
static td_status load(td_call *c, bool counts) {
    td_served_model *m = &c->server->model;
    td_api_images   *images = &c->req.images;
    TD_TRY(td_api_images_load(images, m->engine, counts ? NULL : &m->image_tokens_held, &c->err));
    if (counts || images->tokens < m->info.context_length) return TD_OK;
    return td_api_refuse_too_long(&c->req, images->tokens, m->info.context_length, &c->err);
}

td_text_kind td_work_image(td_call *c, bool counts) {
    td_api_images *images = &c->req.images;
    if (c->failed || !td_api_images_left(images)) return TD_TEXT_ENDED;
    if (c->text.kind != TD_TEXT_IMAGE) return TD_TEXT_IMAGE; /* this is no thread for images */
    c->failed = load(c, counts) != TD_OK;
    if (c->failed) {
        td_api_rename_error(c->api ? c->api->names : NULL, &c->err);
        return TD_TEXT_ENDED;
    }
    if (td_api_images_left(images)) return TD_TEXT_IMAGE;
    return c->body.len > images->source_bytes + TD_TEXT_SHORT_BYTES ? TD_TEXT_LONG : TD_TEXT_ENDED;
}
