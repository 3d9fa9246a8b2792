#include "npu/ascend/ascend_device.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/log/log.h"

/* ---- failures ---------------------------------------------------------------------------------- */

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
    {TD_ACLNN_ERR_INVALID, false,
     "this CANN's operation does not take a type or size that the backend gives it: CANN 8.5, from whose definitions it was "
     "written, does; "
     "TD_ASCEND_FUSED=0 does without the fused operations, and tandem doctor --device npu names the blocks that fail"},
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

/* The runtime has said no. Any thread. */
static void note_loss(td_ascend_npu *d, td_acl_status code) {
    for (size_t i = 0; i < N_ADVICE; i++)
        if (ADVICE[i].code == code && ADVICE[i].lost)
            td_card_loss_tell(&d->base.loss, "Ascend card %d is lost (%d): %s", d->card, code, ADVICE[i].advice);
}

td_status td_ascend_failed(td_ascend_npu *d, const char *call, td_acl_status code, td_error *err) {
    char        words[256];
    bool        no_memory = code == TD_ACL_ERROR_RT_MEMORY_ALLOCATION || code == TD_ACL_ERROR_RT_DEVICE_OOM;
    const char *advice = advice_on(code, "");
    recent_words(d->acl, words, sizeof words);
    td_status st =
        td_card_failed(&d->base, no_memory ? TD_ENOMEM : TD_EDEVICE, err, "%s failed on card %d with %d: %s%s%s", call,
                       d->card, code, *words ? words : "the runtime says no more", *advice ? "; " : "", advice);
    note_loss(d, code);
    return st;
}

td_status td_ascend_queued(td_ascend_npu *d, const char *call, td_acl_status code) {
    if (code == TD_ACL_SUCCESS) return TD_OK;
    (void)td_ascend_failed(d, call, code, NULL);
    return TD_EDEVICE;
}

td_status td_ascend_init(const td_acl *acl, td_error *err) {
    char          words[256];
    td_acl_status code = acl->aclInit(NULL);
    if (code == TD_ACL_SUCCESS || code == TD_ACL_ERROR_REPEAT_INITIALIZE) return TD_OK;
    recent_words(acl, words, sizeof words);
    return td_fail(err, TD_EDEVICE, "aclInit failed with %d: %s; %s", code, words,
                   advice_on(code, "is the driver installed, and may this user use the cards?"));
}

/* ---- the context and memory --------------------------------------------------------------------- */

td_status td_ascend_enter(td_card *c) {
    td_ascend_npu *d = (td_ascend_npu *)c;
    return td_ascend_done(d, "aclrtSetCurrentContext", d->acl->aclrtSetCurrentContext(d->context), NULL);
}

void td_ascend_memory(td_card *c, uint64_t *free_bytes, uint64_t *total_bytes) {
    td_ascend_npu *d = (td_ascend_npu *)c;
    size_t         free = 0, total = 0;
    td_acl_status  code = d->acl->aclrtSetCurrentContext(d->context);
    if (code == TD_ACL_SUCCESS) code = d->acl->aclrtGetMemInfo(TD_ACL_HBM_MEM, &free, &total);
    note_loss(d, code);
    *free_bytes = code == TD_ACL_SUCCESS ? free : 0;
    *total_bytes = code == TD_ACL_SUCCESS ? total : 0;
}

td_status td_ascend_take(td_card *c, size_t bytes, void **out, td_error *err) {
    td_ascend_npu *d = (td_ascend_npu *)c;
    char           call[64];
    *out = NULL;
    snprintf(call, sizeof call, "aclrtMalloc of %zu bytes", bytes);
    td_acl_status code = d->acl->aclrtMalloc(out, bytes, TD_ACL_MEM_MALLOC_HUGE_FIRST);
    if (code == TD_ACL_SUCCESS) return TD_OK;
    *out = NULL;
    return td_ascend_failed(d, call, code, err);
}

void td_ascend_give(td_card *c, void *p) {
    td_ascend_npu *d = (td_ascend_npu *)c;
    (void)td_ascend_done(d, "aclrtFree", d->acl->aclrtFree(p), NULL);
}

td_status td_ascend_zero(td_card *c, void *p, size_t bytes, td_error *err) {
    td_ascend_npu *d = (td_ascend_npu *)c;
    TD_TRY(td_ascend_done(d, "aclrtMemsetAsync", d->acl->aclrtMemsetAsync(p, bytes, 0, bytes, d->setup), err));
    return td_ascend_done(d, "aclrtSynchronizeStream", d->acl->aclrtSynchronizeStream(d->setup), err);
}

td_status td_ascend_upload(td_card *c, void *dev, const void *host, size_t bytes, td_error *err) {
    td_ascend_npu *d = (td_ascend_npu *)c;
    td_acl_status  code = d->acl->aclrtMemcpy(dev, bytes, host, bytes, TD_ACL_MEMCPY_HOST_TO_DEVICE);
    return td_ascend_done(d, "aclrtMemcpy", code, err);
}

td_status td_ascend_download(td_ascend_npu *d, void *host, const void *dev, size_t bytes, td_error *err) {
    td_acl_status code = d->acl->aclrtMemcpy(host, bytes, dev, bytes, TD_ACL_MEMCPY_DEVICE_TO_HOST);
    return td_ascend_done(d, "aclrtMemcpy", code, err);
}

td_status td_ascend_pin(td_card *c, size_t bytes, void **out, td_error *err) {
    td_ascend_npu *d = (td_ascend_npu *)c;
    char           call[64];
    *out = NULL;
    snprintf(call, sizeof call, "aclrtMallocHost of %zu bytes", bytes);
    td_acl_status code = d->acl->aclrtMallocHost(out, bytes);
    if (code != TD_ACL_SUCCESS) return td_ascend_failed(d, call, code, err);
    memset(*out, 0, bytes);
    return TD_OK;
}

void td_ascend_unpin(td_card *c, void *p, size_t bytes) {
    td_ascend_npu *d = (td_ascend_npu *)c;
    (void)bytes;
    (void)td_ascend_done(d, "aclrtFreeHost", d->acl->aclrtFreeHost(p), NULL);
}
