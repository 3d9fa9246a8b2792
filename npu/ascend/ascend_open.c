#include "npu/ascend/ascend_open.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
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

static void close_card(td_npu *base) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    if (d->context && td_card_enter(&d->base) == TD_OK) {
        td_card_close_memory(&d->base);
        td_card_arena_close(&d->base, &d->workspace);
        td_card_give(&d->base, d->mask);
        td_card_give(&d->base, d->ones);
        if (d->setup) (void)d->acl->aclrtDestroyStream(d->setup);
        (void)d->acl->aclrtDestroyContext(d->context);
    }
    free(d);
    close_process();
}

static void caps(td_npu *base, td_npu_caps *out) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    *out = (td_npu_caps){.handover = TD_HANDOVER_HOST_CALL, .measure = true, .kv_spare = true, .raw_choice = true};
    out->experts = td_ascend_has_experts(d->l);
    out->norm_f32 = d->l->ops.aclnnAddRmsNormCast != NULL;
    out->groups_in_floats = d->l->ops.aclnnWeightQuantBatchMatmulV2 != NULL;
    td_ascend_memory(&d->base, &out->memory_free, &out->memory_total);
    const char *soc = d->acl->aclrtGetSocName();
    snprintf(out->text, sizeof out->text, "%s, card %d (CANN %.64s)", soc ? soc : "Ascend", d->card,
             *d->l->cann ? d->l->cann : "of an unknown version");
}

/* ---- opening ----------------------------------------------------------------------------------- */

static double temperature(td_card *c) {
    td_ascend_npu *d = (td_ascend_npu *)c;
    return td_ascend_temperature(d->acl, d->card);
}

static const td_card_driver DRIVER = {
    .stream_bytes = sizeof(td_npu_stream),
    .graph_bytes = sizeof(td_npu_graph),
    .enter = td_ascend_enter,
    .memory = td_ascend_memory,
    .temperature = temperature,
    .take = td_ascend_take,
    .give = td_ascend_give,
    .zero = td_ascend_zero,
    .upload = td_ascend_upload,
    .pin = td_ascend_pin,
    .unpin = td_ascend_unpin,
    .stream_open = td_ascend_stream_open,
    .stream_close = td_ascend_stream_close,
    .stream_wait = td_ascend_stream_wait,
    .copy = td_ascend_copy,
    .host_call = td_ascend_host_call,
    .capture_begin = td_ascend_capture_begin,
    .capture_end = td_ascend_capture_end,
    .launch = td_ascend_graph_launch,
    .graph_close = td_ascend_graph_close,
};

static const td_npu_ops OPS = {
    .name = "ascend",
    .close = close_card,
    .caps = caps,
    TD_CARD_OPS,
    .bell_ring = td_card_bell_ring,
    .bell_wait = td_card_bell_wait,
    .group_create = td_ascend_group_create,
    .group_destroy = td_ascend_group_destroy,
    .group_abort = td_ascend_group_abort,
    .group_reset = td_ascend_group_reset,
    .weight_bytes = td_ascend_weight_bytes,
    .weight_create = td_ascend_weight_create,
    .weight_destroy = td_ascend_weight_destroy,
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
    uint32_t      n = 0;
    td_acl_status code = d->acl->aclrtGetDeviceCount(&n);
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
    return td_card_open_memory(&d->base, err);
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
    td_card_init(&d->base, &OPS, &DRIVER, config);
    d->l = &libraries;
    d->acl = &libraries.acl;
    d->card = (int32_t)config->card;
    td_status st = open_card(d, err);
    if (st != TD_OK) {
        close_card(&d->base.npu);
        return st;
    }
    *out = &d->base.npu;
    return TD_OK;
}
