/* Copies pages of the KV cache between a card's memory and the host, while no pages of windows are given back. */
#include <string.h>

#include "core/error.h"
#include "model/model_state.h"

/* The layers whose caches are copied: not the MTP layer, whose rows of a page come after the page is published. */
static td_layer_range main_layers(const td_card_model *c) {
    return (td_layer_range){0, c->model->config.n_layers};
}

size_t td_card_model_page_bytes(const td_card_model *c) {
    uint64_t sum = 0;
    for (td_cache_per per = TD_PER_TOKEN; per <= TD_PER_WINDOW; per++)
        sum += td_layer_caches_unit_bytes(&c->model->config, main_layers(c), per, &c->model->spec, c->npu);
    return sum;
}

td_status td_card_model_prepare_page_copies(td_card_model *c, td_error *err) {
    if (c->model->unified || c->page_copy) return TD_OK;
    return c->npu->ops->host_alloc(c->npu, td_card_model_page_bytes(c), &c->page_copy, err);
}

void td_card_model_close_page_copies(td_card_model *c) {
    if (c->page_copy) c->npu->ops->host_free(c->npu, c->page_copy, td_card_model_page_bytes(c));
    c->page_copy = NULL;
}

static td_status copy_part(td_card_model *c, char *device, char *host, size_t bytes) {
    if (!bytes) return TD_OK;
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

static td_status copy_parts(td_card_model *c, char *host) {
    size_t page = c->model->copy.page;
    for (uint32_t i = 0; i < main_layers(c).end; i++) {
        td_layer_caches list = td_layer_caches_of(&c->model->config, i);
        for (uint32_t k = 0; k < list.n; k++) {
            if (list.cache[k].per > TD_PER_WINDOW) continue;
            size_t bytes = td_layer_cache_unit_bytes(&list.cache[k], &c->model->spec, c->npu);
            TD_TRY(copy_part(c, (char *)c->kv[i].cache[k] + page * bytes, host, bytes));
            host += bytes;
        }
    }
    return TD_OK;
}

td_status td_card_model_copy_page(td_card_model *c) {
    const td_model *m = c->model;
    char           *host = m->copy.host;
    for (const td_card_model *before = m->cards; before < c; before++) host += td_card_model_page_bytes(before);
    if (m->unified) return copy_parts(c, host);
    size_t bytes = td_card_model_page_bytes(c);
    if (m->copy.to_device) memcpy(c->page_copy, host, bytes);
    td_status st = copy_parts(c, c->page_copy), synced = c->npu->ops->stream_sync(c->npu, c->stream);
    if (st == TD_OK) st = synced;
    if (st == TD_OK && !m->copy.to_device) memcpy(host, c->page_copy, bytes);
    return st;
}
