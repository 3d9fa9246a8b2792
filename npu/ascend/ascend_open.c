#include "npu/ascend/ascend_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log/log.h"
#include "npu/ascend/ascend_block.h"
#include "npu/ascend/ascend_group.h"
#include "npu/ascend/ascend_stream.h"
#include "npu/ascend/ascend_temperature.h"
#include "npu/ascend/ascend_weight.h"
#include "npu/host/host_npu.h"

/* ---- the process's ----------------------------------------------------------------------------- */

static pthread_mutex_t     process_lock = PTHREAD_MUTEX_INITIALIZER;
static td_ascend_libraries libraries; /* loaded with the first card, and kept: they have threads and handlers of their own */
static uint32_t            cards_open; /* both under the lock */

td_status td_ascend_libraries_get(const td_ascend_libraries **out, td_error *err) {
    pthread_mutex_lock(&process_lock);
    td_status st = libraries.n_libraries ? TD_OK : td_ascend_load(&libraries, err);
    pthread_mutex_unlock(&process_lock);
    *out = st == TD_OK ? &libraries : NULL;
    return st;
}

static td_status open_process(td_error *err) {
    const td_ascend_libraries *l;
    td_status                  st = td_ascend_libraries_get(&l, err);
    pthread_mutex_lock(&process_lock);
    if (st == TD_OK && !cards_open) st = td_ascend_init(&libraries.acl, err);
    if (st == TD_OK) cards_open++;
    pthread_mutex_unlock(&process_lock);
    return st;
}

static void close_process(void) {
    pthread_mutex_lock(&process_lock);
    if (--cards_open == 0) (void)libraries.acl.aclFinalize();
    pthread_mutex_unlock(&process_lock);
}

/* ---- the card ---------------------------------------------------------------------------------- */

static void close_arena(td_ascend_npu *d, td_ascend_arena *a) {
    td_ascend_give(d, a->at);
    while (a->n_retired) td_ascend_give(d, a->retired[--a->n_retired]);
}

static void close_card(td_npu *base) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    if (d->context && td_ascend_enter(d) == TD_OK) {
        close_arena(d, &d->scratch);
        close_arena(d, &d->workspace);
        close_arena(d, &d->order);
        close_arena(d, &d->chosen);
        td_ascend_give(d, d->mask);
        td_ascend_give(d, d->ones);
        if (d->one) (void)d->acl->aclrtFree(d->one);
        if (d->setup) (void)d->acl->aclrtDestroyStream(d->setup);
        (void)d->acl->aclrtDestroyContext(d->context);
    }
    free(d);
    close_process();
}

static void caps(td_npu *base, td_npu_caps *out) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    *out = (td_npu_caps){.handover = TD_HANDOVER_HOST_CALL, .measure = true, .kv_spare = true};
    out->experts = td_ascend_has_experts(d->l);
    out->norm_f32 = d->l->ops.aclnnAddRmsNormCast != NULL;
    td_ascend_memory(d, &out->memory_free, &out->memory_total);
    const char *soc = d->acl->aclrtGetSocName();
    snprintf(out->text, sizeof out->text, "%s, card %d (CANN %.64s)", soc ? soc : "Ascend", d->card,
             *d->l->cann ? d->l->cann : "of an unknown version");
}

static void report(td_npu *base, td_npu_report *out) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    *out = (td_npu_report){.layer = TD_NO_LAYER};
    out->link_down_bytes = atomic_load_explicit(&d->down_bytes, memory_order_relaxed);
    out->link_up_bytes = atomic_load_explicit(&d->up_bytes, memory_order_relaxed);
}

static void stats(td_npu *base, td_card_stats *out) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    *out = (td_card_stats){.temperature_c = td_ascend_temperature(d->acl, d->card)};
    td_ascend_memory(d, &out->memory_free, &out->memory_total);
    td_card_read(&d->given, out);
}

static bool lost(td_npu *base, td_error *why) {
    return td_card_loss_get(&((td_ascend_npu *)base)->loss, why);
}

/* ---- memory ------------------------------------------------------------------------------------ */

static td_status zeroed(td_ascend_npu *d, void *p, size_t bytes, td_error *err) {
    td_acl_status code = d->acl->aclrtMemsetAsync(p, bytes, 0, bytes, d->setup);
    if (code != TD_ACL_SUCCESS) return td_ascend_failed(d, "aclrtMemsetAsync", code, err);
    code = d->acl->aclrtSynchronizeStream(d->setup);
    return code == TD_ACL_SUCCESS ? TD_OK : td_ascend_failed(d, "aclrtSynchronizeStream", code, err);
}

static td_status alloc(td_npu *base, size_t bytes, void **out, td_error *err) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    *out = NULL;
    TD_TRY(td_ascend_enter(d));
    TD_TRY(td_ascend_take(d, bytes, out, err));
    td_status st = zeroed(d, *out, bytes, err);
    if (st == TD_OK) return TD_OK;
    (void)d->acl->aclrtFree(*out);
    *out = NULL;
    return st;
}

static void release(td_npu *base, void *p, size_t bytes) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    (void)bytes;
    if (!p || td_ascend_enter(d) != TD_OK) return;
    td_acl_status code = d->acl->aclrtFree(p);
    if (code != TD_ACL_SUCCESS) (void)td_ascend_failed(d, "aclrtFree", code, NULL);
}

static td_status host_alloc(td_npu *base, size_t bytes, void **out, td_error *err) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    char           call[64];
    *out = NULL;
    TD_TRY(td_ascend_enter(d));
    snprintf(call, sizeof call, "aclrtMallocHost of %zu bytes", bytes);
    td_acl_status code = d->acl->aclrtMallocHost(out, bytes);
    if (code != TD_ACL_SUCCESS) return td_ascend_failed(d, call, code, err);
    memset(*out, 0, bytes);
    return TD_OK;
}

static void host_release(td_npu *base, void *p, size_t bytes) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    (void)bytes;
    if (!p || td_ascend_enter(d) != TD_OK) return;
    td_acl_status code = d->acl->aclrtFreeHost(p);
    if (code != TD_ACL_SUCCESS) (void)td_ascend_failed(d, "aclrtFreeHost", code, NULL);
}

/* ---- opening ----------------------------------------------------------------------------------- */

/* A card's memory cannot be taken from a file's pages. */
static void weight_tag(td_npu *base, char tag[TD_NPU_TAG_BYTES]) {
    (void)base;
    tag[0] = 0;
}

static const td_npu_ops OPS = {
    .name = "ascend",
    .close = close_card,
    .caps = caps,
    .report = report,
    .stats = stats,
    .lost = lost,
    .alloc = alloc,
    .free = release,
    .host_alloc = host_alloc,
    .host_free = host_release,
    .stream_create = td_ascend_stream_create,
    .stream_destroy = td_ascend_stream_destroy,
    .stream_sync = td_ascend_stream_sync,
    .copy = td_ascend_copy,
    .host_call = td_ascend_host_call,
    .bell_ring = td_ascend_bell_ring,
    .bell_wait = td_ascend_bell_wait,
    .graph_begin = td_ascend_graph_begin,
    .graph_end = td_ascend_graph_end,
    .graph_launch = td_ascend_graph_launch,
    .graph_destroy = td_ascend_graph_destroy,
    .group_create = td_ascend_group_create,
    .group_destroy = td_ascend_group_destroy,
    .group_abort = td_ascend_group_abort,
    .group_reset = td_ascend_group_reset,
    .weight_bytes = td_ascend_weight_bytes,
    .weight_create = td_ascend_weight_create,
    .weight_destroy = td_ascend_weight_destroy,
    .weight_tag = weight_tag,
    .kv_page_bytes = td_ascend_kv_page_bytes,
    .block_scratch_bytes = td_ascend_block_scratch_bytes,
    .block_create = td_ascend_block_create,
    .block_destroy = td_ascend_block_destroy,
    .enqueue = td_ascend_enqueue,
};

/* 910B and 910C are what the blocks were written for: 310P has no bf16, 950 other attention. */
static td_status check_generation(td_ascend_npu *d, td_error *err) {
    const char *soc = d->acl->aclrtGetSocName();
    d->is_a2 = soc && !strncmp(soc, "Ascend910B", 10);
    if (d->is_a2 || (soc && !strncmp(soc, "Ascend910_93", 12))) return TD_OK;
    return td_fail(err, TD_ENOTSUP,
                   "the card is an %s: this backend computes on the generations 910B (Atlas A2) and 910C (Atlas A3)",
                   soc ? soc : "unknown one");
}

static td_status open_card(td_ascend_npu *d, td_error *err) {
    uint32_t       n = 0;
    const uint32_t one = 1;
    td_acl_status  code = d->acl->aclrtGetDeviceCount(&n);
    if (code != TD_ACL_SUCCESS) return td_ascend_failed(d, "aclrtGetDeviceCount", code, err);
    if (d->card < 0 || (uint32_t)d->card >= n)
        return td_fail(
            err, TD_EINVAL,
            "there is no Ascend card %d: this process sees %u (ASCEND_RT_VISIBLE_DEVICES, or the container, may hide some)",
            d->card, n);
    TD_TRY(check_generation(d, err));
    code = d->acl->aclrtCreateContext(&d->context, d->card);
    if (code != TD_ACL_SUCCESS) {
        d->context = NULL;
        return td_ascend_failed(d, "aclrtCreateContext", code, err);
    }
    code = d->acl->aclrtCreateStreamWithConfig(&d->setup, 0, TD_ACL_STREAM_FAST_LAUNCH);
    if (code != TD_ACL_SUCCESS) {
        d->setup = NULL;
        return td_ascend_failed(d, "aclrtCreateStreamWithConfig", code, err);
    }
    TD_TRY(alloc(&d->base, sizeof one, (void **)&d->one, err));
    code = d->acl->aclrtMemcpy(d->one, sizeof one, &one, sizeof one, TD_ACL_MEMCPY_HOST_TO_DEVICE);
    return code == TD_ACL_SUCCESS ? TD_OK : td_ascend_failed(d, "aclrtMemcpy", code, err);
}

td_status td_ascend_npu_open(const td_npu_config *config, td_npu **out, td_error *err) {
    *out = NULL;
    if (config->act_dtype != TD_DT_BF16)
        return td_fail(err, TD_ENOTSUP,
                       "an Ascend card computes with bf16 activations only: use another quantization than none");
    if (config->host && config->host->rows_tap)
        return td_fail(err, TD_ENOTSUP, "an Ascend card does not show what its linears read; \"host\" does");
    TD_TRY(open_process(err));
    td_ascend_npu *d = calloc(1, sizeof *d);
    if (!d) {
        close_process();
        return td_fail(err, TD_ENOMEM, "out of memory for the device");
    }
    d->base.ops = &OPS;
    d->l = &libraries;
    d->acl = &libraries.acl;
    d->config = *config;
    d->card = (int32_t)config->card;
    td_status st = open_card(d, err);
    if (st != TD_OK) {
        close_card(&d->base);
        return st;
    }
    *out = &d->base;
    return TD_OK;
}
