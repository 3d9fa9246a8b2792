/* Opening and closing an NVIDIA card, its memory, what it says of itself. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log.h"
#include "core/mem.h"
#include "npu/cuda/cuda_cards.h"
#include "npu/cuda/cuda_device.h"
#include "npu/cuda/cuda_group.h"
#include "npu/cuda/cuda_image.h"
#include "npu/cuda/cuda_loader.h"
#include "npu/cuda/cuda_temperature.h"
#include "npu/host/host_npu.h"

#define STAGING_BYTES ((size_t)8 << 20)

/* ---- the process's ----------------------------------------------------------------------------- */

static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
static td_cuda_driver  driver; /* under the lock; loaded with the first card, and kept: it has threads of its own */

static td_status driver_get(const td_cuda_driver **out, td_error *err) {
    pthread_mutex_lock(&process_lock);
    td_status st = driver.library ? TD_OK : td_cuda_load(&driver, err);
    pthread_mutex_unlock(&process_lock);
    *out = st == TD_OK ? &driver : NULL;
    return st;
}

/* ---- the card ---------------------------------------------------------------------------------- */

td_status td_cuda_failed(td_cuda_npu *d, const char *what, td_cu_status said, td_error *err) {
    td_error own = {0}, lost = {0};
    char     sentence[192];
    bool     known = td_card_loss_get(&d->loss, NULL); /* what fails then has the same reason: one line in the log will do */
    td_card_count(&d->given.failures);
    snprintf(sentence, sizeof sentence, "CUDA card %u: %.140s", d->config.card, what);
    td_status st = td_cuda_fail(d->cu, &own, sentence, said);
    if (!err && !known) td_err("%s", own.text);
    td_cuda_loss_note(&d->loss, d->config.card, said, false);
    return td_fail(err, st, "%s", td_card_loss_get(&d->loss, &lost) ? lost.text : own.text);
}

td_status td_cuda_enter(td_cuda_npu *d) {
    td_cu_status said = d->cu->cuCtxSetCurrent(d->context);
    return said == TD_CUDA_SUCCESS ? TD_OK : td_cuda_failed(d, "cuCtxSetCurrent", said, NULL);
}

/* Both 0: it does not say, as after a failure on the card. */
static void memory_of(td_cuda_npu *d, uint64_t *free_bytes, uint64_t *total_bytes) {
    size_t       free_now = 0, total = 0;
    td_cu_status said = d->cu->cuCtxSetCurrent(d->context);
    if (said == TD_CUDA_SUCCESS) said = d->cu->cuMemGetInfo(&free_now, &total);
    if (said != TD_CUDA_SUCCESS) td_cuda_loss_note(&d->loss, d->config.card, said, false);
    *free_bytes = said == TD_CUDA_SUCCESS ? free_now : 0;
    *total_bytes = said == TD_CUDA_SUCCESS ? total : 0;
}

static void caps(td_npu *base, td_npu_caps *out) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    *out = (td_npu_caps){.handover = TD_HANDOVER_HOST_CALL, .measure = true, .experts = true, .log_sums = true};
    memory_of(d, &out->memory_free, &out->memory_total);
    snprintf(out->text, sizeof out->text, "%.60s, card %u (sm_%d, CUDA %d.%d)", d->name, d->config.card, d->capability,
             d->version / 1000, d->version % 1000 / 10);
}

static void report(td_npu *base, td_npu_report *out) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    *out = (td_npu_report){.layer = TD_NO_LAYER};
    out->link_down_bytes = atomic_load_explicit(&d->down_bytes, memory_order_relaxed);
    out->link_up_bytes = atomic_load_explicit(&d->up_bytes, memory_order_relaxed);
}

static void stats(td_npu *base, td_card_stats *out) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    *out = (td_card_stats){.temperature_c = td_cuda_temperature(d->pci)};
    memory_of(d, &out->memory_free, &out->memory_total);
    td_card_read(&d->given, out);
}

static bool lost(td_npu *base, td_error *why) {
    return td_card_loss_get(&((td_cuda_npu *)base)->loss, why);
}

/* ---- memory ------------------------------------------------------------------------------------ */

td_status td_cuda_take(td_cuda_npu *d, size_t bytes, void **out, td_error *err) {
    char          what[96];
    td_cu_address at = 0;
    *out = NULL;
    td_cu_status said = d->cu->cuMemAlloc(&at, bytes);
    if (said != TD_CUDA_SUCCESS) {
        size_t free_bytes = 0, total = 0;
        (void)d->cu->cuMemGetInfo(&free_bytes, &total);
        snprintf(what, sizeof what, "%zu bytes of device memory, of which %zu are free (cuMemAlloc)", bytes, free_bytes);
        return td_cuda_failed(d, what, said, err);
    }
    *out = (void *)(uintptr_t)at;
    return TD_OK;
}

void td_cuda_give(td_cuda_npu *d, void *p) {
    td_cu_status said = p ? d->cu->cuMemFree(td_cuda_address(p)) : TD_CUDA_SUCCESS;
    if (said != TD_CUDA_SUCCESS) (void)td_cuda_failed(d, "cuMemFree", said, NULL);
}

static td_status settle(td_cuda_npu *d, td_error *err) {
    return td_cuda_done(d, "cuStreamSynchronize", d->cu->cuStreamSynchronize(d->setup), err);
}

static td_status alloc(td_npu *base, size_t bytes, void **out, td_error *err) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    *out = NULL;
    TD_TRY(td_cuda_enter(d));
    TD_TRY(td_cuda_take(d, bytes, out, err));
    td_status st =
        td_cuda_done(d, "cuMemsetD8Async", d->cu->cuMemsetD8Async(td_cuda_address(*out), 0, bytes, d->setup), err);
    if (st == TD_OK) st = settle(d, err);
    if (st == TD_OK) return TD_OK;
    td_cuda_give(d, *out);
    *out = NULL;
    return st;
}

static void release(td_npu *base, void *p, size_t bytes) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    (void)bytes;
    if (p && td_cuda_enter(d) == TD_OK) td_cuda_give(d, p);
}

/* Zeroed, on the node that the card hangs on where the system tells: the driver knows no such wish, so the memory is ours
 * and is registered with it. Where the driver cannot do that, it is the driver's, wherever that puts it. */
static td_status pinned(td_cuda_npu *d, size_t bytes, void **out, td_error *err) {
    char         what[96];
    td_cu_status said;
    *out = NULL;
    snprintf(what, sizeof what, "%zu bytes of pinned memory (%s)", bytes,
             d->registers ? "cuMemHostRegister" : "cuMemHostAlloc");
    if (d->registers) {
        TD_TRY(td_mem_map(bytes, d->pinned_node, out, err));
        memset(*out, 0, bytes); /* its pages are there before they are pinned */
        said = d->cu->cuMemHostRegister(*out, bytes, TD_CU_MEMHOSTREGISTER_PORTABLE);
        if (said == TD_CUDA_SUCCESS) return TD_OK;
        td_mem_unmap(*out, bytes);
    } else {
        said = d->cu->cuMemHostAlloc(out, bytes, TD_CU_MEMHOSTALLOC_PORTABLE);
        if (said == TD_CUDA_SUCCESS) {
            memset(*out, 0, bytes);
            return TD_OK;
        }
    }
    *out = NULL;
    return td_cuda_failed(d, what, said, err);
}

static void unpinned(td_cuda_npu *d, void *p, size_t bytes) {
    td_cu_status said = d->registers ? d->cu->cuMemHostUnregister(p) : d->cu->cuMemFreeHost(p);
    if (said != TD_CUDA_SUCCESS) (void)td_cuda_failed(d, d->registers ? "cuMemHostUnregister" : "cuMemFreeHost", said, NULL);
    if (d->registers) td_mem_unmap(p, bytes);
}

static td_status host_alloc(td_npu *base, size_t bytes, void **out, td_error *err) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    *out = NULL;
    TD_TRY(td_cuda_enter(d));
    return pinned(d, bytes, out, err);
}

static void host_release(td_npu *base, void *p, size_t bytes) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    if (p && td_cuda_enter(d) == TD_OK) unpinned(d, p, bytes);
}

td_status td_cuda_upload(td_cuda_npu *d, void *dev, const void *host, size_t bytes, td_error *err) {
    for (size_t at = 0; at < bytes; at += STAGING_BYTES) {
        size_t n = bytes - at < STAGING_BYTES ? bytes - at : STAGING_BYTES;
        memcpy(d->staging, (const char *)host + at, n);
        TD_TRY(td_cuda_done(d, "cuMemcpyHtoDAsync",
                            d->cu->cuMemcpyHtoDAsync(td_cuda_address((char *)dev + at), d->staging, n, d->setup), err));
        TD_TRY(settle(d, err));
    }
    return TD_OK;
}

td_status td_cuda_scratch_ready(td_cuda_npu *d) {
    void *at;
    if (d->block_bytes <= d->scratch_bytes) return TD_OK;
    if (d->scratch && d->n_retired == TD_CUDA_RETIRED_MAX) {
        td_err("the device's working memory has grown %d times", TD_CUDA_RETIRED_MAX);
        return TD_ENOMEM;
    }
    TD_TRY(td_cuda_take(d, d->block_bytes, &at, NULL));
    if (d->scratch) d->retired[d->n_retired++] = d->scratch;
    d->scratch = at;
    d->scratch_bytes = d->block_bytes;
    return TD_OK;
}

static void close_card(td_npu *base) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    if (d->context && td_cuda_enter(d) == TD_OK) {
        td_cuda_give(d, d->scratch);
        while (d->n_retired) td_cuda_give(d, d->retired[--d->n_retired]);
        td_cuda_give(d, d->one);
        if (d->staging) unpinned(d, d->staging, STAGING_BYTES);
        td_cuda_kernels_close(d->cu, &d->kernels);
        if (d->setup) (void)d->cu->cuStreamDestroy(d->setup);
        (void)d->cu->cuCtxSetCurrent(NULL);
        td_cu_status said = d->cu->cuDevicePrimaryCtxRelease(d->device);
        if (said != TD_CUDA_SUCCESS) (void)td_cuda_failed(d, "cuDevicePrimaryCtxRelease", said, NULL);
    }
    free(d);
}

/* ---- opening ----------------------------------------------------------------------------------- */

/* A card's memory cannot be taken from a file's pages. */
static void weight_tag(td_npu *base, char tag[TD_NPU_TAG_BYTES]) {
    (void)base;
    tag[0] = 0;
}

static const td_npu_ops OPS = {
    .name = "cuda",
    .close = close_card,
    .caps = caps,
    .report = report,
    .stats = stats,
    .lost = lost,
    .alloc = alloc,
    .free = release,
    .host_alloc = host_alloc,
    .host_free = host_release,
    .stream_create = td_cuda_stream_create,
    .stream_destroy = td_cuda_stream_destroy,
    .stream_sync = td_cuda_stream_sync,
    .copy = td_cuda_copy,
    .host_call = td_cuda_host_call,
    .bell_ring = td_cuda_bell_ring,
    .bell_wait = td_cuda_bell_wait,
    .graph_begin = td_cuda_graph_begin,
    .graph_end = td_cuda_graph_end,
    .graph_launch = td_cuda_graph_launch,
    .graph_destroy = td_cuda_graph_destroy,
    .group_create = td_cuda_group_create,
    .group_destroy = td_cuda_group_destroy,
    .group_abort = td_cuda_group_abort,
    .group_reset = td_cuda_group_reset,
    .weight_bytes = td_cuda_weight_bytes,
    .weight_create = td_cuda_weight_create,
    .weight_destroy = td_cuda_weight_destroy,
    .weight_tag = weight_tag,
    .kv_page_bytes = td_cuda_kv_page_bytes,
    .block_scratch_bytes = td_cuda_block_scratch_bytes,
    .block_create = td_cuda_block_create,
    .block_destroy = td_cuda_block_destroy,
    .enqueue = td_cuda_enqueue,
};

static td_status ask(td_cuda_npu *d, td_error *err) {
    int          major = 0, minor = 0, shared = 0, registers = 0;
    td_cu_status said = d->cu->cuDeviceGetName(d->name, sizeof d->name, d->device);
    if (said == TD_CUDA_SUCCESS)
        said = d->cu->cuDeviceGetAttribute(&major, TD_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, d->device);
    if (said == TD_CUDA_SUCCESS)
        said = d->cu->cuDeviceGetAttribute(&minor, TD_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, d->device);
    if (said == TD_CUDA_SUCCESS)
        said = d->cu->cuDeviceGetAttribute(&shared, TD_CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, d->device);
    if (said == TD_CUDA_SUCCESS)
        said = d->cu->cuDeviceGetAttribute(&registers, TD_CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, d->device);
    if (said == TD_CUDA_SUCCESS) said = td_cuda_pci_of(d->cu, d->device, d->pci);
    if (said != TD_CUDA_SUCCESS) return td_cuda_failed(d, "the driver does not describe it", said, err);
    d->name[sizeof d->name - 1] = 0;
    d->registers = registers != 0;
    int node = td_cuda_node_of(d->pci);
    d->pinned_node = node < 0 ? TD_NODE_ANY : (uint32_t)node;
    d->capability = 10 * major + minor;
    d->shared_most = (unsigned)shared;
    if (d->capability < TD_CUDA_CAPABILITY_OLDEST)
        return td_fail(err, TD_ENOTSUP, "CUDA card %u (%s) is of compute capability %d.%d; the kernels need %d.%d or later",
                       d->config.card, d->name, major, minor, TD_CUDA_CAPABILITY_OLDEST / 10,
                       TD_CUDA_CAPABILITY_OLDEST % 10);
    return TD_OK;
}

static td_status open_card(td_cuda_npu *d, int n_cards, td_error *err) {
    const uint32_t one = 1;
    if (d->config.card >= (uint32_t)n_cards)
        return td_fail(err, TD_EINVAL,
                       "there is no CUDA card %u: this process sees %d (CUDA_VISIBLE_DEVICES, or the container, may hide "
                       "some)",
                       d->config.card, n_cards);
    TD_TRY(td_cuda_done(d, "cuDeviceGet", d->cu->cuDeviceGet(&d->device, (int)d->config.card), err));
    TD_TRY(ask(d, err));
    td_cu_status said = d->cu->cuDevicePrimaryCtxRetain(&d->context, d->device);
    if (said != TD_CUDA_SUCCESS) {
        d->context = NULL;
        return td_cuda_failed(d,
                              said == TD_CUDA_ERROR_OUT_OF_MEMORY
                                  ? "another process fills it, nvidia-smi shows which (cuDevicePrimaryCtxRetain)"
                              : said == TD_CUDA_ERROR_DEVICE_UNAVAILABLE
                                  ? "another process keeps it for itself, or its compute mode forbids all (nvidia-smi -q -d "
                                    "COMPUTE, cuDevicePrimaryCtxRetain)"
                                  : "cuDevicePrimaryCtxRetain",
                              said, err);
    }
    TD_TRY(td_cuda_done(d, "cuCtxSetCurrent", d->cu->cuCtxSetCurrent(d->context), err));
    said = d->cu->cuStreamCreate(&d->setup, TD_CU_STREAM_NON_BLOCKING);
    if (said != TD_CUDA_SUCCESS) {
        d->setup = NULL;
        return td_cuda_failed(d, "cuStreamCreate", said, err);
    }
    if (!d->config.bare) TD_TRY(td_cuda_kernels_open(d->cu, d->device, &d->kernels, err));
    TD_TRY(pinned(d, STAGING_BYTES, (void **)&d->staging, err));
    TD_TRY(td_cuda_take(d, sizeof one, &d->one, err));
    return td_cuda_upload(d, d->one, &one, sizeof one, err);
}

td_status td_cuda_npu_open(const td_npu_config *config, td_npu **out, td_error *err) {
    const td_cuda_driver *loaded;
    *out = NULL;
    if (config->act_dtype != TD_DT_BF16)
        return td_fail(err, TD_ENOTSUP,
                       "a CUDA card computes with bf16 activations only: use another quantization than none");
    if (config->host && config->host->rows_tap)
        return td_fail(err, TD_ENOTSUP, "a CUDA card does not show what its linears read; \"host\" does");
    TD_TRY(driver_get(&loaded, err));
    td_cuda_npu *d = calloc(1, sizeof *d);
    if (!d) return td_fail(err, TD_ENOMEM, "out of memory for the device");
    d->base.ops = &OPS;
    d->cu = &loaded->api;
    d->version = loaded->version;
    d->config = *config;
    d->config.host = NULL;
    td_status st = open_card(d, loaded->n_cards, err);
    if (st != TD_OK) {
        close_card(&d->base);
        return st;
    }
    *out = &d->base;
    return TD_OK;
}

/* ---- facts -------------------------------------------------------------------------------------- */

void td_cuda_facts(td_npu_fact_fn tell, void *user) {
    td_cuda_card cards[TD_CUDA_CARDS_MAX];
    size_t       n = 0;
    td_error     err = {0};
    char         text[160];
    if (td_cuda_cards(cards, &n, &err) != TD_OK) {
        tell(user,
             &(td_npu_fact){.what = "NVIDIA driver", .found = "none that serves", .advice = err.text, .is_wrong = true});
        return;
    }
    for (size_t i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%.80s, sm_%d, %.1f GiB, %s", cards[i].name, cards[i].capability,
                 (double)cards[i].memory_bytes / (double)(1u << 30), cards[i].pci);
        bool old = cards[i].capability < TD_CUDA_CAPABILITY_OLDEST;
        tell(user,
             &(td_npu_fact){
                 .what = "card", .found = text, .advice = old ? "the kernels need compute capability 8.0 or later" : NULL});
    }
}
