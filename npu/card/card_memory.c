#include "npu/card/card.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/log/log.h"

void td_card_init(td_card *c, const td_npu_ops *ops, const td_card_driver *driver, const td_npu_config *config) {
    c->npu.ops = ops;
    c->driver = driver;
    c->config = *config;
    c->config.host = NULL;
}

td_status td_card_open_memory(td_card *c, td_error *err) {
    const uint32_t one = 1;
    TD_TRY(td_card_take(c, sizeof one, &c->one, err));
    return td_card_upload(c, c->one, &one, sizeof one, err);
}

void td_card_close_memory(td_card *c) {
    td_card_arena_close(c, &c->scratch);
    td_card_give(c, c->one);
}

/* ---- what it says of itself -------------------------------------------------------------------- */

void td_card_report(td_npu *base, td_npu_report *out) {
    td_card *c = (td_card *)base;
    *out = (td_npu_report){.layer = TD_NO_LAYER};
    out->link_down_bytes = atomic_load_explicit(&c->down_bytes, memory_order_relaxed);
    out->link_up_bytes = atomic_load_explicit(&c->up_bytes, memory_order_relaxed);
}

void td_card_stats_get(td_npu *base, td_card_stats *out) {
    td_card *c = (td_card *)base;
    *out = (td_card_stats){.temperature_c = c->driver->temperature(c)};
    c->driver->memory(c, &out->memory_free, &out->memory_total);
    td_card_read(&c->given, out);
}

bool td_card_lost(td_npu *base, td_error *why) {
    return td_card_loss_get(&((td_card *)base)->loss, why);
}

void td_card_weight_tag(td_npu *base, char tag[TD_NPU_TAG_BYTES]) {
    (void)base;
    tag[0] = 0;
}

td_status td_card_failed(td_card *c, td_status st, td_error *err, const char *format, ...) {
    char    text[TD_ERROR_TEXT_MAX];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    td_card_count(&c->given.failures);
    if (err) return td_fail(err, st, "%s", text);
    if (!td_card_loss_get(&c->loss, NULL)) td_err("%s", text); /* what fails then has the same reason */
    return st;
}

td_status td_card_check_group(td_npu *const *cards, uint32_t n, uint32_t most, td_error *err) {
    if (n < 2 || n > most) return td_fail(err, TD_EINVAL, "a group has 2 to %u cards, not %u", most, n);
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t k = 0; k < i; k++)
            if (((td_card *)cards[i])->config.card == ((td_card *)cards[k])->config.card)
                return td_fail(err, TD_EINVAL, "card %u is in the group twice", ((td_card *)cards[i])->config.card);
    return TD_OK;
}

/* ---- memory ------------------------------------------------------------------------------------ */

td_status td_card_send(td_card *c, void *host, size_t bytes, const char *what, void **out, td_error *err) {
    *out = NULL;
    td_status st = host ? td_card_take(c, bytes, out, err) : td_fail(err, TD_ENOMEM, "out of memory for %s", what);
    if (st == TD_OK) st = td_card_upload(c, *out, host, bytes, err);
    if (st != TD_OK) {
        td_card_give(c, *out);
        *out = NULL;
    }
    free(host);
    return st;
}

td_status td_card_alloc(td_npu *base, size_t bytes, void **out, td_error *err) {
    td_card *c = (td_card *)base;
    *out = NULL;
    TD_TRY(td_card_enter(c));
    TD_TRY(td_card_take(c, bytes, out, err));
    td_status st = c->driver->zero(c, *out, bytes, err);
    if (st == TD_OK) return TD_OK;
    td_card_give(c, *out);
    *out = NULL;
    return st;
}

void td_card_free(td_npu *base, void *p, size_t bytes) {
    td_card *c = (td_card *)base;
    (void)bytes;
    if (p && td_card_enter(c) == TD_OK) td_card_give(c, p);
}

td_status td_card_host_alloc(td_npu *base, size_t bytes, void **out, td_error *err) {
    td_card *c = (td_card *)base;
    *out = NULL;
    TD_TRY(td_card_enter(c));
    return c->driver->pin(c, bytes, out, err);
}

void td_card_host_free(td_npu *base, void *p, size_t bytes) {
    td_card *c = (td_card *)base;
    if (p && td_card_enter(c) == TD_OK) c->driver->unpin(c, p, bytes);
}

td_status td_card_host_register(td_npu *base, void *p, size_t bytes, td_error *err) {
    td_card *c = (td_card *)base;
    if (!c->driver->register_host)
        return td_fail(err, TD_ENOTSUP, "this device copies from memory of its own runtime alone");
    TD_TRY(td_card_enter(c));
    return c->driver->register_host(c, p, bytes, err);
}

void td_card_host_unregister(td_npu *base, void *p, size_t bytes) {
    td_card *c = (td_card *)base;
    if (td_card_enter(c) == TD_OK) c->driver->unregister_host(c, p, bytes);
}

/* ---- arenas ------------------------------------------------------------------------------------ */

td_status td_card_arena_grow(td_card *c, td_card_arena *a, size_t bytes, td_error *err) {
    void *at;
    if (bytes <= a->bytes) return TD_OK;
    if (a->at && a->n_retired == TD_CARD_RETIRED_MAX) {
        if (!err) td_err("the device's working memory has grown %d times", TD_CARD_RETIRED_MAX);
        return td_fail(err, TD_ENOMEM, "the device's working memory has grown %d times", TD_CARD_RETIRED_MAX);
    }
    TD_TRY(td_card_take(c, bytes, &at, err));
    if (a->at) a->retired[a->n_retired++] = a->at;
    a->at = at;
    a->bytes = bytes;
    return TD_OK;
}

void td_card_arena_close(td_card *c, td_card_arena *a) {
    td_card_give(c, a->at);
    while (a->n_retired) td_card_give(c, a->retired[--a->n_retired]);
}
