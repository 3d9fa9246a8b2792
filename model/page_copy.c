/* Pages of the KV cache between a card's memory and the host, through the device's copies where it has a memory of its own.
 */
#include <string.h>

#include "core/error.h"
#include "model/model_impl.h"

/* A page's bytes in the two caches of a layer. The spare pages' are like the others. */
static size_t a_bytes(const td_card *c) {
    return c->kv_a_bytes / (c->kv_pages + c->model->kv_spare_pages);
}

static size_t b_bytes(const td_card *c) {
    return c->kv_b_bytes / (c->kv_pages + c->model->kv_spare_pages);
}

/* The MTP layers' caches are not among them: the engine does not run those. */
size_t td_card_page_bytes(const td_card *c) {
    return c->model->config.n_layers * (a_bytes(c) + b_bytes(c));
}

td_status td_card_prepare_page_copies(td_card *c, td_error *err) {
    if (c->model->unified || c->page_copy) return TD_OK;
    return c->npu->ops->host_alloc(c->npu, td_card_page_bytes(c), &c->page_copy, err);
}

void td_card_close_page_copies(td_card *c) {
    if (c->page_copy) c->npu->ops->host_free(c->npu, c->page_copy, td_card_page_bytes(c));
    c->page_copy = NULL;
}

static td_status copy_part(td_card *c, char *device, char *host, size_t bytes) {
    const td_npu_ops *ops = c->npu->ops;
    if (c->model->copy.to_device) {
        if (!c->model->unified) return ops->copy(c->npu, c->stream, device, host, bytes, TD_COPY_H2D);
        memcpy(device, host, bytes);
    } else {
        if (!c->model->unified) return ops->copy(c->npu, c->stream, host, device, bytes, TD_COPY_D2H);
        memcpy(host, device, bytes);
    }
    return TD_OK;
}

static td_status copy_parts(td_card *c, char *host) {
    size_t a = a_bytes(c), b = b_bytes(c), page = c->model->copy.page;
    for (uint32_t i = 0; i < c->model->config.n_layers; i++, host += a + b) {
        TD_TRY(copy_part(c, (char *)c->kv[i].a + page * a, host, a));
        TD_TRY(copy_part(c, (char *)c->kv[i].b + page * b, host + a, b));
    }
    return TD_OK;
}

td_status td_card_copy_page(td_card *c) {
    const td_model *m = c->model;
    char           *host = m->copy.host;
    for (const td_card *before = m->cards; before < c; before++) host += td_card_page_bytes(before);
    if (m->unified) return copy_parts(c, host);
    size_t bytes = td_card_page_bytes(c);
    if (m->copy.to_device) memcpy(c->page_copy, host, bytes);
    td_status st = copy_parts(c, c->page_copy), synced = c->npu->ops->stream_sync(c->npu, c->stream);
    if (st == TD_OK) st = synced;
    if (st == TD_OK && !m->copy.to_device) memcpy(host, c->page_copy, bytes);
    return st;
}
