#include "npu/cuda/cuda_open.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/memory/mem.h"
#include "npu/cuda/cuda_bell.h"
#include "npu/cuda/cuda_block.h"
#include "npu/cuda/cuda_bounds.h"
#include "npu/cuda/cuda_group.h"
#include "npu/cuda/cuda_image.h"
#include "npu/cuda/cuda_stream.h"
#include "npu/cuda/cuda_temperature.h"
#include "npu/cuda/cuda_weight.h"
#include "npu/host/host_npu.h"

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

static bool                has_looked; /* likewise; for cuBLASLt, which need not be there */
static td_cublaslt_library cublaslt;

static const td_cublaslt_library *cublaslt_get(int driver_version) {
    td_error why = {0};
    pthread_mutex_lock(&process_lock);
    if (!has_looked) {
        has_looked = true;
        if (td_cublaslt_load(&cublaslt, driver_version, &why) == TD_OK)
            td_info("int8 products of many rows are cuBLASLt's, %zu.%zu.%zu of %s", cublaslt.version / 10000,
                    cublaslt.version % 10000 / 100, cublaslt.version % 100, cublaslt.found.path);
        else
            td_info("int8 products of many rows are our own kernels', which are slower: %s", why.text);
    }
    pthread_mutex_unlock(&process_lock);
    return &cublaslt;
}

/* ---- the card ---------------------------------------------------------------------------------- */

static void caps(td_npu *base, td_npu_caps *out) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    *out = (td_npu_caps){.handover = TD_HANDOVER_HOST_CALL,
                         .measure = true,
                         .experts = true,
                         .resident = true,
                         .log_sums = true,
                         .step_kinds = true};
    td_cuda_memory(&d->base, &out->memory_free, &out->memory_total);
    snprintf(out->text, sizeof out->text, "%.60s, card %u (sm_%d, CUDA %d.%d)", d->name, d->base.config.card, d->capability,
             d->version / 1000, d->version % 1000 / 10);
}

static void close_card(td_npu *base) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    td_error     err = {0};
    if (d->context && td_card_enter(&d->base) == TD_OK) {
        td_card_give(&d->base, d->came);
        td_card_close_memory(&d->base);
        if (d->staging) td_cuda_unpin(&d->base, d->staging, TD_CUDA_STAGING_BYTES);
        if (td_cuda_blas_close(&d->blas, &err) != TD_OK) td_err("CUDA card %u: %s", d->base.config.card, err.text);
        td_cuda_kernels_close(d->cu, &d->kernels);
        if (d->setup) (void)d->cu->cuStreamDestroy(d->setup);
        (void)d->cu->cuCtxSetCurrent(NULL);
        td_cu_status said = d->cu->cuDevicePrimaryCtxRelease(d->device);
        if (said != TD_CUDA_SUCCESS) (void)td_cuda_failed(d, "cuDevicePrimaryCtxRelease", said, NULL);
    }
    free(d);
}

/* ---- opening ----------------------------------------------------------------------------------- */

static double temperature(td_card *c) {
    return td_cuda_temperature(((td_cuda_npu *)c)->pci);
}

static const td_card_driver DRIVER = {
    .stream_bytes = sizeof(td_npu_stream),
    .graph_bytes = sizeof(td_npu_graph),
    .enter = td_cuda_enter,
    .memory = td_cuda_memory,
    .temperature = temperature,
    .take = td_cuda_take,
    .give = td_cuda_give,
    .zero = td_cuda_zero,
    .upload = td_cuda_upload,
    .pin = td_cuda_pin,
    .unpin = td_cuda_unpin,
    .register_host = td_cuda_register_host,
    .unregister_host = td_cuda_unregister_host,
    .stream_open = td_cuda_stream_open,
    .stream_close = td_cuda_stream_close,
    .stream_wait = td_cuda_stream_wait,
    .copy = td_cuda_copy,
    .host_call = td_cuda_host_call,
    .capture_begin = td_cuda_capture_begin,
    .follow = td_cuda_follow,
    .capture_end = td_cuda_capture_end,
    .launch = td_cuda_graph_launch,
    .graph_close = td_cuda_graph_close,
};

static const td_npu_ops OPS = {
    .name = "cuda",
    .close = close_card,
    .caps = caps,
    TD_CARD_OPS,
    .bell_ring = td_cuda_bell_ring,
    .bell_wait = td_cuda_bell_wait,
    .graph_fork = td_card_graph_fork,
    .graph_join = td_card_graph_join,
    .group_create = td_cuda_group_create,
    .group_destroy = td_cuda_group_destroy,
    .group_abort = td_cuda_group_abort,
    .group_reset = td_cuda_group_reset,
    .weight_bytes = td_cuda_weight_bytes,
    .weight_create = td_cuda_weight_create,
    .weight_destroy = td_cuda_weight_destroy,
    .kv_page_bytes = td_cuda_kv_page_bytes,
    .block_scratch_bytes = td_cuda_block_scratch_bytes,
    .block_create = td_cuda_block_create,
    .block_destroy = td_cuda_block_destroy,
    .enqueue = td_cuda_enqueue,
    .bound = td_cuda_bound,
};

static td_status ask(td_cuda_npu *d, td_error *err) {
    int          major = 0, minor = 0, shared = 0, registers = 0, multiprocessors = 0, timeout = 0;
    td_cu_status said = d->cu->cuDeviceGetName(d->name, sizeof d->name, d->device);
    if (said == TD_CUDA_SUCCESS)
        said = d->cu->cuDeviceGetAttribute(&major, TD_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, d->device);
    if (said == TD_CUDA_SUCCESS)
        said = d->cu->cuDeviceGetAttribute(&minor, TD_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, d->device);
    if (said == TD_CUDA_SUCCESS)
        said = d->cu->cuDeviceGetAttribute(&shared, TD_CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, d->device);
    if (said == TD_CUDA_SUCCESS)
        said = d->cu->cuDeviceGetAttribute(&registers, TD_CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, d->device);
    if (said == TD_CUDA_SUCCESS)
        said = d->cu->cuDeviceGetAttribute(&multiprocessors, TD_CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, d->device);
    if (said == TD_CUDA_SUCCESS)
        said = d->cu->cuDeviceGetAttribute(&timeout, TD_CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT, d->device);
    if (said == TD_CUDA_SUCCESS) said = td_cuda_pci_of(d->cu, d->device, d->pci);
    if (said != TD_CUDA_SUCCESS) return td_cuda_failed(d, "the driver does not describe it", said, err);
    d->name[sizeof d->name - 1] = 0;
    d->registers = registers != 0;
    int node = td_cuda_node_of(d->pci);
    d->pinned_node = node < 0 ? TD_NODE_ANY : (uint32_t)node;
    d->capability = 10 * major + minor;
    d->shared_most = (unsigned)shared;
    d->multiprocessors = (unsigned)multiprocessors;
    d->ends_long_kernels = timeout != 0;
    if (d->capability < TD_CUDA_CAPABILITY_OLDEST)
        return td_fail(err, TD_ENOTSUP, "CUDA card %u (%s) is of compute capability %d.%d; the kernels need %d.%d or later",
                       d->base.config.card, d->name, major, minor, TD_CUDA_CAPABILITY_OLDEST / 10,
                       TD_CUDA_CAPABILITY_OLDEST % 10);
    return TD_OK;
}

/* Programmatic dependent launch needs a card of 9.0, and CUDA 12.3 for captures of it. No card has run it, so TD_CUDA_EARLY=1
 * has to ask for it. */
static td_status decide_early(td_cuda_npu *d, td_error *err) {
    const char *said = getenv("TD_CUDA_EARLY");
    if (said && strcmp(said, "0") != 0 && strcmp(said, "1") != 0)
        return td_fail(err, TD_EINVAL, "TD_CUDA_EARLY is 0 or 1, not \"%.40s\"", said);
    d->starts_early = d->capability >= 90 && d->version >= 12030 && said && *said == '1';
    return TD_OK;
}

/* Without it, or where it does not start, the card is the same but slower. */
static void open_blas(td_cuda_npu *d) {
    td_error why = {0};
    if (td_cuda_blas_open(cublaslt_get(d->version), d->capability, &d->blas, &why) != TD_OK)
        td_warn("CUDA card %u: %s; its int8 products of many rows are our own kernels'", d->base.config.card, why.text);
}

/* A card that is measured alone can do without kernels: its hand-overs go another way then. */
static td_status open_kernels(td_cuda_npu *d, td_error *err) {
    td_error  why = {0};
    td_status st = td_cuda_kernels_open(d->cu, d->device, &d->kernels, &why);
    if (st != TD_OK && !d->base.config.bare) return td_fail(err, st, "%s", why.text);
    if (st != TD_OK) td_info("CUDA card %u: measured without its kernels: %s", d->base.config.card, why.text);
    if (!d->base.config.bare) open_blas(d);
    return TD_OK;
}

static td_status open_card(td_cuda_npu *d, int n_cards, td_error *err) {
    if (d->base.config.card >= (uint32_t)n_cards)
        return td_fail(err, TD_EINVAL,
                       "there is no CUDA card %u: this process sees %d (CUDA_VISIBLE_DEVICES, or the container, may hide "
                       "some)",
                       d->base.config.card, n_cards);
    TD_TRY(td_cuda_done(d, "cuDeviceGet", d->cu->cuDeviceGet(&d->device, (int)d->base.config.card), err));
    TD_TRY(ask(d, err));
    TD_TRY(decide_early(d, err));
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
    TD_TRY(open_kernels(d, err));
    TD_TRY(td_cuda_pin(&d->base, TD_CUDA_STAGING_BYTES, (void **)&d->staging, err));
    TD_TRY(td_card_open_memory(&d->base, err));
    TD_TRY(td_card_alloc(&d->base.npu, sizeof(uint32_t), &d->came, err));
    return td_cuda_bells_open(d, err);
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
    td_card_init(&d->base, &OPS, &DRIVER, config);
    d->cu = &loaded->api;
    d->version = loaded->version;
    td_status st = open_card(d, loaded->n_cards, err);
    if (st != TD_OK) {
        close_card(&d->base.npu);
        return st;
    }
    *out = &d->base.npu;
    return TD_OK;
}
