#include "npu/ascend/ascend_stream.h"

#include <stdlib.h>
#include <time.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/threads/thread.h"
#include "npu/ascend/ascend_group.h"

#define REPORT_MS 100 /* that the thread of a stream waits for a callback at a time; it looks for its end in between */
#define NAP_NS 50000

/* ---- the thread of a stream ---------------------------------------------------------------------- */

/* It polls as long as the stream is there: a callback that nobody fetches holds its stream for ever (runtime 12). */
static void *report_main(void *arg) {
    td_npu_stream *s = arg;
    td_ascend_npu *d = td_ascend_of(s);
    if (td_card_enter(&d->base) != TD_OK) return NULL;
    while (!atomic_load_explicit(&s->stop, memory_order_acquire)) { /* with stop_reports */
        /* Not an error: nothing came, or the stream is not subscribed yet, or not any more. Its sentence is taken away. */
        td_acl_status code = d->acl->aclrtProcessReport(REPORT_MS);
        atomic_fetch_add_explicit(&s->polls, 1, memory_order_release); /* with await_callback */
        if (code == TD_ACL_SUCCESS) continue;
        (void)d->acl->aclGetRecentErrMsg();
        if (code == TD_ACL_ERROR_THREAD_NOT_SUBSCRIBE) nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    return NULL;
}

static void stop_reports(td_npu_stream *s) {
    atomic_store_explicit(&s->stop, true, memory_order_release); /* with report_main */
    pthread_join(s->reporter, NULL);
}

static td_status subscribe(td_npu_stream *s, td_error *err) {
    td_ascend_npu *d = td_ascend_of(s);
    TD_TRY(td_thread_start(&s->reporter, "ascend calls", report_main, s, err));
    td_acl_status code = d->acl->aclrtSubscribeReport((uint64_t)s->reporter, s->stream);
    if (code == TD_ACL_SUCCESS) return TD_OK;
    td_status st = td_ascend_failed(d, "aclrtSubscribeReport", code, err);
    stop_reports(s);
    return st;
}

static td_status create(td_ascend_npu *d, td_acl_stream *out, td_error *err) {
    td_acl_status code = d->acl->aclrtCreateStreamWithConfig(out, 0, TD_ACL_STREAM_FAST_LAUNCH | TD_ACL_STREAM_FAST_SYNC);
    if (code != TD_ACL_SUCCESS) *out = NULL;
    return td_ascend_done(d, "aclrtCreateStreamWithConfig", code, err);
}

td_status td_ascend_stream_open(td_npu_stream *s, td_error *err) {
    td_ascend_npu *d = td_ascend_of(s);
    TD_TRY(create(d, &s->stream, err));
    td_status st = td_ascend_updates_beside(d) ? create(d, &s->updates, err) : TD_OK;
    if (st == TD_OK) st = subscribe(s, err);
    if (st == TD_OK) return TD_OK;
    if (s->updates) (void)d->acl->aclrtDestroyStream(s->updates);
    (void)d->acl->aclrtDestroyStream(s->stream);
    return st;
}

void td_ascend_stream_close(td_npu_stream *s) {
    td_ascend_npu *d = td_ascend_of(s);
    /* Its callbacks have run when it is synchronised, and only then may it be taken from its thread. */
    (void)d->acl->aclrtSynchronizeStream(s->stream);
    (void)d->acl->aclrtUnSubscribeReport((uint64_t)s->reporter, s->stream);
    stop_reports(s);
    (void)td_ascend_done(d, "aclrtDestroyStream", d->acl->aclrtDestroyStream(s->stream), NULL);
    if (s->updates) {
        if (s->updated) (void)d->acl->aclrtSynchronizeStream(s->updates);
        (void)td_ascend_done(d, "aclrtDestroyStream", d->acl->aclrtDestroyStream(s->updates), NULL);
    }
    td_ascend_steps_close(d, &s->steps);
}

/* A stream that was aborted does not wait for the callback that its thread is in. */
static void await_callback(td_npu_stream *s) {
    uint32_t seen = atomic_load_explicit(&s->polls, memory_order_acquire); /* with report_main */
    while (atomic_load_explicit(&s->polls, memory_order_acquire) - seen < 2)
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

td_status td_ascend_stream_wait(td_npu_stream *s) {
    td_ascend_npu *d = td_ascend_of(s);
    td_acl_status  code = d->acl->aclrtSynchronizeStream(s->stream),
                  updates = s->updated ? d->acl->aclrtSynchronizeStream(s->updates) : TD_ACL_SUCCESS;
    if (s->group) td_ascend_group_idle(s->group, d);
    s->group = NULL;
    s->updated = false;
    if (code == TD_ACL_SUCCESS) code = updates;
    if (code == TD_ACL_SUCCESS) return TD_OK;
    if (code == TD_ACL_ERROR_RT_STREAM_ABORT) {
        td_card_count(&d->base.given.failures);
        td_warn("card %d has given up its work: another card's has failed, or an update of its lengths", d->card);
        await_callback(s);
    } else {
        (void)td_ascend_failed(d, "aclrtSynchronizeStream", code, NULL);
    }
    s->failures++; /* updates of graphs may be among what failed */
    return TD_EDEVICE;
}

/* A group that is not aborted knows the stream before anything is on it. */
td_status td_ascend_stream_enter(td_npu_stream *s, td_npu_group *g) {
    TD_TRY(td_ascend_group_enter(g, td_ascend_of(s), s->base.capture ? NULL : s->stream));
    if (!s->base.capture) s->group = g;
    return TD_OK;
}

/* ---- what is enqueued ---------------------------------------------------------------------------- */

td_status td_ascend_copy(td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind) {
    td_ascend_npu   *d = td_ascend_of(s);
    td_acl_copy_kind way = kind == TD_COPY_H2D ? TD_ACL_MEMCPY_HOST_TO_DEVICE : TD_ACL_MEMCPY_DEVICE_TO_HOST;
    return td_ascend_queued(d, "aclrtMemcpyAsync", d->acl->aclrtMemcpyAsync(dst, bytes, src, bytes, way, s->stream));
}

td_status td_ascend_host_call(td_npu_stream *s, td_host_fn fn, void *arg) {
    td_ascend_npu *d = td_ascend_of(s);
    td_acl_status  code = d->acl->aclrtLaunchCallback(fn, arg, TD_ACL_CALLBACK_BLOCK, s->stream);
    return td_ascend_queued(d, "aclrtLaunchCallback", code);
}

/* ---- captures ---------------------------------------------------------------------------------- */

void td_ascend_steps_close(td_ascend_npu *d, td_ascend_steps *l) {
    while (l->n) td_ascend_step_close(d, l->at[--l->n]);
}

td_status td_ascend_capture_begin(td_npu_stream *s) {
    td_ascend_npu *d = td_ascend_of(s);
    td_acl_status  code = d->acl->aclmdlRICaptureBegin(s->stream, TD_ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL);
    return td_ascend_queued(d, "aclmdlRICaptureBegin", code);
}

td_status td_ascend_capture_end(td_npu_stream *s, td_npu_graph *g, bool keep, td_error *err) {
    td_ascend_npu *d = td_ascend_of(s);
    td_acl_status  code = d->acl->aclmdlRICaptureEnd(s->stream, &g->graph);
    (void)keep; /* a graph costs nothing more to be kept */
    if (code != TD_ACL_SUCCESS) g->graph = NULL;
    return td_ascend_done(d, "aclmdlRICaptureEnd", code, err);
}

void td_ascend_graph_close(td_card *c, td_npu_graph *g) {
    td_ascend_npu *d = (td_ascend_npu *)c;
    if (g->graph && td_card_enter(c) == TD_OK)
        (void)td_ascend_done(d, "aclmdlRIDestroy", d->acl->aclmdlRIDestroy(g->graph), NULL);
    for (size_t i = 0; i < g->n_attentions; i++) /* behind the graph, which waits for them */
        if (g->attentions[i].ready) (void)d->acl->aclrtDestroyEvent(g->attentions[i].ready);
    td_ascend_steps_close(d, &g->steps);
    free(g->attentions);
}
