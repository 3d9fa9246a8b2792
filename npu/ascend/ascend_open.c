/* Opening and closing an Ascend card, its memory, what it says of itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log.h"
#include "npu/ascend/ascend_group.h"
#include "npu/ascend/ascend_temperature.h"
#include "npu/host/host_npu.h"

/* ---- the process's ----------------------------------------------------------------------------- */

static pthread_mutex_t     process_lock = PTHREAD_MUTEX_INITIALIZER;
static td_ascend_libraries libraries; /* loaded with the first card, and kept: they have threads and handlers of their own */
static uint32_t            cards_open; /* both under the lock */

/** The runtime's own words on its last failure, "" without. They have lines; a sentence has none. */
static void recent_words(const td_acl *acl, char *out, size_t bytes) {
    const char *words = acl->aclGetRecentErrMsg();
    snprintf(out, bytes, "%s", words ? words : "");
    for (char *c = out; *c; c++)
        if (*c == '\n' || *c == '\r' || *c == '\t') *c = ' ';
}

#define LOST "the card was reset or has broken down, and this process has lost it: see npu-smi info, then start again"
#define MEMORY_BROKE                                                                                                  \
    "its memory has an error that ECC cannot correct: npu-smi info -t ecc -i CARD shows it, and a reset of the card " \
    "may mend it; if it comes again, the card has to be replaced"

static const struct {
    td_acl_status code;
    bool          lost; /* for good, as far as this process goes */
    const char   *advice;
} ADVICE[] = {
    {TD_ACL_ERROR_RT_NO_DEVICE, false, "no card answers: is the driver loaded, and does npu-smi info show the cards?"},
    {TD_ACL_ERROR_RT_NO_PERMISSION, false,
     "this user may not use the card: let him into the group HwHiAiUser, or give a container "
     "its device files"},
    {TD_ACL_ERROR_RT_DEV_SETUP_ERROR, false,
     "other processes may have the card's memory: see npu-smi info; or driver, firmware and "
     "operations are of different versions"},
    {TD_ACL_ERROR_RT_MEMORY_ALLOCATION, false,
     "the card's memory is used up, by other processes, too: see npu-smi info; a smaller "
     "--max-total-tokens or --mem-fraction-static leaves room"},
    {TD_ACL_ERROR_RT_DEVICE_OOM, false,
     "the card's memory is used up, by other processes, too: see npu-smi info; a smaller "
     "--max-total-tokens or --mem-fraction-static leaves room"},
    {TD_ACL_ERROR_RT_LOST_HEARTBEAT, true, LOST},
    {TD_ACL_ERROR_RT_DEVICE_MEM_ERROR, true, MEMORY_BROKE},
    {TD_ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR, true, MEMORY_BROKE},
    {TD_ACL_ERROR_RT_DRV_INTERNAL_ERROR, true, LOST},
    {TD_ACL_ERROR_RT_SOCKET_CLOSE, true, LOST},
};
#define N_ADVICE (sizeof ADVICE / sizeof *ADVICE)

/** What to do about a status, behind a semicolon; `otherwise` where nobody knows. */
static const char *advice_on(td_acl_status code, const char *otherwise) {
    for (size_t i = 0; i < N_ADVICE; i++)
        if (ADVICE[i].code == code) return ADVICE[i].advice;
    return otherwise;
}

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
    if (st == TD_OK && !cards_open) {
        td_acl_status code = libraries.acl.aclInit(NULL);
        if (code != TD_ACL_SUCCESS && code != TD_ACL_ERROR_REPEAT_INITIALIZE) {
            char words[256];
            recent_words(&libraries.acl, words, sizeof words);
            st = td_fail(err, TD_EDEVICE, "aclInit failed with %d: %s; %s", code, words,
                         advice_on(code, "is the driver installed, and may this user use the cards?"));
        }
    }
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

/* The runtime has said no. Any thread. */
static void note_loss(td_ascend_npu *d, td_acl_status code) {
    for (size_t i = 0; i < N_ADVICE; i++)
        if (ADVICE[i].code == code && ADVICE[i].lost)
            td_card_loss_tell(&d->loss, "Ascend card %d is lost (%d): %s", d->card, code, ADVICE[i].advice);
}

td_status td_ascend_failed(td_ascend_npu *d, const char *call, td_acl_status code, td_error *err) {
    char        words[256];
    bool        no_memory = code == TD_ACL_ERROR_RT_MEMORY_ALLOCATION || code == TD_ACL_ERROR_RT_DEVICE_OOM;
    td_status   st = no_memory ? TD_ENOMEM : TD_EDEVICE;
    const char *advice = advice_on(code, "");
    recent_words(d->acl, words, sizeof words);
    bool known = td_card_loss_get(&d->loss, NULL); /* what fails then has the same reason: one line in the log will do */
    td_card_count(&d->given.failures);
    note_loss(d, code);
    if (err)
        return td_fail(err, st, "%s failed on card %d with %d: %s%s%s", call, d->card, code,
                       *words ? words : "the runtime says no more", *advice ? "; " : "", advice);
    if (!known) td_err("%s failed on card %d with %d: %s%s%s", call, d->card, code, words, *advice ? "; " : "", advice);
    return st;
}

td_status td_ascend_enter(td_ascend_npu *d) {
    td_acl_status code = d->acl->aclrtSetCurrentContext(d->context);
    return code == TD_ACL_SUCCESS ? TD_OK : td_ascend_failed(d, "aclrtSetCurrentContext", code, NULL);
}

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

/** Both 0 where the runtime does not say. */
static void memory_of(td_ascend_npu *d, uint64_t *free_bytes, uint64_t *total_bytes) {
    size_t        free = 0, total = 0;
    td_acl_status code = d->acl->aclrtSetCurrentContext(d->context);
    if (code == TD_ACL_SUCCESS) code = d->acl->aclrtGetMemInfo(TD_ACL_HBM_MEM, &free, &total);
    note_loss(d, code);
    *free_bytes = code == TD_ACL_SUCCESS ? free : 0;
    *total_bytes = code == TD_ACL_SUCCESS ? total : 0;
}

static void caps(td_npu *base, td_npu_caps *out) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    *out = (td_npu_caps){.handover = TD_HANDOVER_HOST_CALL, .measure = true, .kv_spare = true};
    out->experts = td_ascend_has_experts(d);
    out->norm_f32 = d->l->ops.aclnnAddRmsNormCast != NULL;
    memory_of(d, &out->memory_free, &out->memory_total);
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
    memory_of(d, &out->memory_free, &out->memory_total);
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

td_status td_ascend_take(td_ascend_npu *d, size_t bytes, void **out, td_error *err) {
    char call[64];
    *out = NULL;
    snprintf(call, sizeof call, "aclrtMalloc of %zu bytes", bytes);
    td_acl_status code = d->acl->aclrtMalloc(out, bytes, TD_ACL_MEM_MALLOC_HUGE_FIRST);
    if (code == TD_ACL_SUCCESS) return TD_OK;
    *out = NULL;
    return td_ascend_failed(d, call, code, err);
}

void td_ascend_give(td_ascend_npu *d, void *p) {
    td_acl_status code = p ? d->acl->aclrtFree(p) : TD_ACL_SUCCESS;
    if (code != TD_ACL_SUCCESS) (void)td_ascend_failed(d, "aclrtFree", code, NULL);
}

td_status td_ascend_upload(td_ascend_npu *d, void *dev, const void *host, size_t bytes, td_error *err) {
    td_acl_status code = d->acl->aclrtMemcpy(dev, bytes, host, bytes, TD_ACL_MEMCPY_HOST_TO_DEVICE);
    return code == TD_ACL_SUCCESS ? TD_OK : td_ascend_failed(d, "aclrtMemcpy", code, err);
}

td_status td_ascend_download(td_ascend_npu *d, void *host, const void *dev, size_t bytes, td_error *err) {
    td_acl_status code = d->acl->aclrtMemcpy(host, bytes, dev, bytes, TD_ACL_MEMCPY_DEVICE_TO_HOST);
    return code == TD_ACL_SUCCESS ? TD_OK : td_ascend_failed(d, "aclrtMemcpy", code, err);
}

td_status td_ascend_arena_grow(td_ascend_npu *d, td_ascend_arena *a, size_t bytes, td_error *err) {
    void *at;
    if (bytes <= a->bytes) return TD_OK;
    if (a->at && a->n_retired == TD_ASCEND_RETIRED_MAX)
        return td_fail(err, TD_ENOMEM, "the device's working memory has grown %d times", TD_ASCEND_RETIRED_MAX);
    TD_TRY(td_ascend_take(d, bytes, &at, err));
    if (a->at) a->retired[a->n_retired++] = a->at;
    a->at = at;
    a->bytes = bytes;
    return TD_OK;
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
