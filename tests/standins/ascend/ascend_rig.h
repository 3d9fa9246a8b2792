/* The start of every test of the Ascend stand-in: libraries, one device, a context and a stream; and functions that make a
 * tensor in one line. */
#ifndef TD_TESTS_ASCEND_RIG_H
#define TD_TESTS_ASCEND_RIG_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/dtype.h"
#include "npu/ascend/ascend_loader.h"

typedef struct {
    td_ascend_libraries l;
    const td_acl       *acl;
    const td_aclnn     *ops;
    td_acl_context      context;
    td_acl_stream       stream, other;
    _Atomic bool        polls; /* the report thread goes on */
    pthread_t           reporter;
    uint64_t            reporter_id;
} ascend_rig;

/** A call of the vendor's that has to succeed. */
#define TRY(call)                                                                   \
    do {                                                                            \
        long long try_status_ = (call);                                             \
        if (try_status_) {                                                          \
            fprintf(stderr, "%s: %lld at line %d\n", #call, try_status_, __LINE__); \
            _exit(9);                                                               \
        }                                                                           \
    } while (0)

static inline void rig_open(ascend_rig *r) {
    td_error err = {0};
    memset(r, 0, sizeof *r);
    setenv("ASCEND_HOME_PATH", TD_ASCEND_STANDIN, 1);
    if (td_ascend_load(&r->l, &err) != TD_OK) {
        fprintf(stderr, "%s\n", err.text);
        _exit(8);
    }
    r->acl = &r->l.acl;
    r->ops = &r->l.ops;
    TRY(r->acl->aclInit(NULL));
    TRY(r->acl->aclrtCreateContext(&r->context, 0));
    TRY(r->acl->aclrtCreateStreamWithConfig(&r->stream, 0, TD_ACL_STREAM_FAST_LAUNCH));
    TRY(r->acl->aclrtCreateStreamWithConfig(&r->other, 0, TD_ACL_STREAM_FAST_LAUNCH));
}

/** Everything must have been given back by then. */
static inline void rig_close(ascend_rig *r) {
    TRY(r->acl->aclrtDestroyStream(r->stream));
    TRY(r->acl->aclrtDestroyStream(r->other));
    TRY(r->acl->aclrtDestroyContext(r->context));
    TRY(r->acl->aclFinalize());
}

static inline void *rig_alloc(ascend_rig *r, size_t bytes) {
    void *p;
    TRY(r->acl->aclrtMalloc(&p, bytes, TD_ACL_MEM_MALLOC_HUGE_FIRST));
    return p;
}

static inline void *rig_pinned(ascend_rig *r, size_t bytes) {
    void *p;
    TRY(r->acl->aclrtMallocHost(&p, bytes));
    memset(p, 0, bytes);
    return p;
}

/** Device memory with these bytes. */
static inline void *rig_upload(ascend_rig *r, const void *from, size_t bytes) {
    void *p = rig_alloc(r, bytes);
    TRY(r->acl->aclrtMemcpy(p, bytes, from, bytes, TD_ACL_MEMCPY_HOST_TO_DEVICE));
    return p;
}

static inline void rig_download(ascend_rig *r, void *to, const void *from, size_t bytes) {
    TRY(r->acl->aclrtSynchronizeStream(r->stream));
    TRY(r->acl->aclrtMemcpy(to, bytes, from, bytes, TD_ACL_MEMCPY_DEVICE_TO_HOST));
}

static inline td_acl_event rig_event(ascend_rig *r) {
    td_acl_event e;
    TRY(r->acl->aclrtCreateEventExWithFlag(&e, TD_ACL_EVENT_SYNC));
    return e;
}

static inline td_acl_tensor *rig_tensor(ascend_rig *r, void *at, td_acl_dtype dtype, uint64_t n, const int64_t *view) {
    return r->acl->aclCreateTensor(view, n, dtype, NULL, 0, TD_ACL_FORMAT_ND, view, n, at);
}
#define T1(r, at, dtype, a) rig_tensor(r, at, dtype, 1, (const int64_t[]){a})
#define T2(r, at, dtype, a, b) rig_tensor(r, at, dtype, 2, (const int64_t[]){a, b})
#define T3(r, at, dtype, a, b, c) rig_tensor(r, at, dtype, 3, (const int64_t[]){a, b, c})
#define T4(r, at, dtype, a, b, c, d) rig_tensor(r, at, dtype, 4, (const int64_t[]){a, b, c, d})

/** A workspace for what a first function asked for; NULL for none. */
static inline void *rig_workspace(ascend_rig *r, uint64_t bytes) {
    return bytes ? rig_alloc(r, bytes) : NULL;
}

/** Both functions of an operation, on a workspace that is freed afterwards: rig_run(r, aclnnMm, a, b, out, 0). Waits. */
#define RUN(r, op, ...)                                                                \
    do {                                                                               \
        uint64_t         run_bytes_;                                                   \
        td_acl_executor *run_executor_;                                                \
        TRY((r)->ops->op##GetWorkspaceSize(__VA_ARGS__, &run_bytes_, &run_executor_)); \
        void *run_workspace_ = rig_workspace(r, run_bytes_);                           \
        TRY((r)->ops->op(run_workspace_, run_bytes_, run_executor_, (r)->stream));     \
        TRY((r)->acl->aclrtSynchronizeStream((r)->stream));                            \
        if (run_workspace_) TRY((r)->acl->aclrtFree(run_workspace_));                  \
    } while (0)

/* ---- callbacks --------------------------------------------------------------------------------- */

static inline void *rig_report(void *arg) {
    ascend_rig *r = arg;
    TRY(r->acl->aclrtSetCurrentContext(r->context));
    while (atomic_load(&r->polls)) {
        td_acl_status st = r->acl->aclrtProcessReport(5);
        if (st != TD_ACL_SUCCESS) (void)r->acl->aclGetRecentErrMsg();
        if (st == TD_ACL_ERROR_THREAD_NOT_SUBSCRIBE) usleep(100);
    }
    return NULL;
}

static inline void rig_report_start(ascend_rig *r, td_acl_stream s) {
    atomic_store(&r->polls, true);
    pthread_create(&r->reporter, NULL, rig_report, r);
    r->reporter_id = (uint64_t)r->reporter;
    TRY(r->acl->aclrtSubscribeReport(r->reporter_id, s));
}

static inline void rig_report_stop(ascend_rig *r, td_acl_stream s) {
    TRY(r->acl->aclrtSynchronizeStream(s));
    TRY(r->acl->aclrtUnSubscribeReport(r->reporter_id, s));
    atomic_store(&r->polls, false);
    pthread_join(r->reporter, NULL);
}

#endif
