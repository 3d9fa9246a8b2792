#include "npu/cuda/cuda_device.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/memory/mem.h"
#include "npu/cuda/cuda_loader.h"

/* ---- failures ---------------------------------------------------------------------------------- */

td_status td_cuda_failed(td_cuda_npu *d, const char *what, td_cu_status said, td_error *err) {
    td_error own = {0}, lost = {0};
    char     sentence[192];
    snprintf(sentence, sizeof sentence, "CUDA card %u: %.140s", d->base.config.card, what);
    td_status st = td_cuda_fail(d->cu, &own, sentence, said);
    (void)td_card_failed(&d->base, st, err, "%s", own.text);
    td_cuda_loss_note(&d->base.loss, d->base.config.card, said, false);
    return td_card_loss_get(&d->base.loss, &lost) ? td_fail(err, st, "%s", lost.text) : st;
}

td_status td_cuda_accepted(td_cuda_npu *d, const char *call, td_cu_status said) {
    if (said == TD_CUDA_SUCCESS) return TD_OK;
    (void)td_cuda_failed(d, call, said, NULL);
    return TD_EDEVICE;
}

/* ---- the context and memory --------------------------------------------------------------------- */

td_status td_cuda_enter(td_card *c) {
    td_cuda_npu *d = (td_cuda_npu *)c;
    return td_cuda_done(d, "cuCtxSetCurrent", d->cu->cuCtxSetCurrent(d->context), NULL);
}

void td_cuda_memory(td_card *c, uint64_t *free_bytes, uint64_t *total_bytes) {
    td_cuda_npu *d = (td_cuda_npu *)c;
    size_t       free_now = 0, total = 0;
    td_cu_status said = d->cu->cuCtxSetCurrent(d->context);
    if (said == TD_CUDA_SUCCESS) said = d->cu->cuMemGetInfo(&free_now, &total);
    if (said != TD_CUDA_SUCCESS) td_cuda_loss_note(&c->loss, c->config.card, said, false);
    *free_bytes = said == TD_CUDA_SUCCESS ? free_now : 0;
    *total_bytes = said == TD_CUDA_SUCCESS ? total : 0;
}

td_status td_cuda_take(td_card *c, size_t bytes, void **out, td_error *err) {
    td_cuda_npu  *d = (td_cuda_npu *)c;
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

void td_cuda_give(td_card *c, void *p) {
    td_cuda_npu *d = (td_cuda_npu *)c;
    (void)td_cuda_done(d, "cuMemFree", d->cu->cuMemFree(td_cuda_address(p)), NULL);
}

/* Wait for what the setup stream was given. */
static td_status settle(td_cuda_npu *d, td_error *err) {
    return td_cuda_done(d, "cuStreamSynchronize", d->cu->cuStreamSynchronize(d->setup), err);
}

td_status td_cuda_zero(td_card *c, void *p, size_t bytes, td_error *err) {
    td_cuda_npu *d = (td_cuda_npu *)c;
    TD_TRY(td_cuda_done(d, "cuMemsetD8Async", d->cu->cuMemsetD8Async(td_cuda_address(p), 0, bytes, d->setup), err));
    return settle(d, err);
}

td_status td_cuda_upload(td_card *c, void *dev, const void *host, size_t bytes, td_error *err) {
    td_cuda_npu *d = (td_cuda_npu *)c;
    for (size_t at = 0; at < bytes; at += TD_CUDA_STAGING_BYTES) {
        size_t n = bytes - at < TD_CUDA_STAGING_BYTES ? bytes - at : TD_CUDA_STAGING_BYTES;
        memcpy(d->staging, (const char *)host + at, n);
        TD_TRY(td_cuda_done(d, "cuMemcpyHtoDAsync",
                            d->cu->cuMemcpyHtoDAsync(td_cuda_address((char *)dev + at), d->staging, n, d->setup), err));
        TD_TRY(settle(d, err));
    }
    return TD_OK;
}

/* On the node that the card hangs on where the system tells: the driver knows no such wish, so the memory is ours
 * and is registered with it. Where the driver cannot do that, it is the driver's, wherever that puts it. */
td_status td_cuda_pin(td_card *c, size_t bytes, void **out, td_error *err) {
    td_cuda_npu *d = (td_cuda_npu *)c;
    char         what[96];
    td_cu_status said;
    *out = NULL;
    snprintf(what, sizeof what, "%zu bytes of pinned memory (%s)", bytes,
             d->registers ? "cuMemHostRegister" : "cuMemHostAlloc");
    if (d->registers) {
        TD_TRY(td_mem_map(bytes, d->pinned_node, out, err));
        memset(*out, 0, bytes); /* its pages are there before they are pinned */
        said = d->cu->cuMemHostRegister(*out, bytes, TD_CU_MEMHOSTREGISTER_PORTABLE | TD_CU_MEMHOSTREGISTER_DEVICEMAP);
        if (said == TD_CUDA_SUCCESS) return TD_OK;
        td_mem_unmap(*out, bytes);
    } else {
        said = d->cu->cuMemHostAlloc(out, bytes, TD_CU_MEMHOSTALLOC_PORTABLE | TD_CU_MEMHOSTALLOC_DEVICEMAP);
        if (said == TD_CUDA_SUCCESS) {
            memset(*out, 0, bytes);
            return TD_OK;
        }
    }
    *out = NULL;
    return td_cuda_failed(d, what, said, err);
}

void td_cuda_unpin(td_card *c, void *p, size_t bytes) {
    td_cuda_npu *d = (td_cuda_npu *)c;
    td_cu_status said = d->registers ? d->cu->cuMemHostUnregister(p) : d->cu->cuMemFreeHost(p);
    if (said != TD_CUDA_SUCCESS) (void)td_cuda_failed(d, d->registers ? "cuMemHostUnregister" : "cuMemFreeHost", said, NULL);
    if (d->registers) td_mem_unmap(p, bytes);
}

/* A file that is mapped is one that many drivers refuse; nothing is wrong with the card then. */
td_status td_cuda_register_host(td_card *c, void *p, size_t bytes, td_error *err) {
    td_cuda_npu *d = (td_cuda_npu *)c;
    td_cu_status said = d->registers ? d->cu->cuMemHostRegister(p, bytes, TD_CU_MEMHOSTREGISTER_PORTABLE) : TD_CUDA_SUCCESS;
    if (d->registers && said == TD_CUDA_SUCCESS) return TD_OK;
    return td_fail(err, TD_ENOTSUP, "the driver does not pin %zu bytes of this process (cuMemHostRegister, status %d)",
                   bytes, (int)said);
}

void td_cuda_unregister_host(td_card *c, void *p, size_t bytes) {
    td_cuda_npu *d = (td_cuda_npu *)c;
    td_cu_status said = d->cu->cuMemHostUnregister(p);
    (void)bytes;
    if (said != TD_CUDA_SUCCESS) (void)td_cuda_failed(d, "cuMemHostUnregister", said, NULL);
}

td_status td_cuda_scratch_ready(td_cuda_npu *d) {
    return td_card_arena_grow(&d->base, &d->base.scratch, d->block_bytes, NULL);
}
