#include "npu/ascend/ascend_stream.h"

#include <stdlib.h>
#include <time.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/log/trace.h"
#include "core/threads/signal_word.h"
#include "core/threads/thread.h"
#include "npu/ascend/ascend_group.h"

#define REPORT_MS 100 /* that the thread of a stream waits for a callback at a time; it looks for its end in between */
#define NAP_NS 50000
#define SPIN_NS 300000 /* of a wait for a bell before it naps */

/* ---- the thread of a stream ---------------------------------------------------------------------- */

/* It polls as long as the stream is there: a callback that nobody fetches holds its stream for ever (runtime 12). */
static void *report_main(void *arg) {
    td_npu_stream *s = arg;
    td_ascend_npu *d = s->device;
    if (td_ascend_enter(d) != TD_OK) return NULL;
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

td_status td_ascend_stream_create(td_npu *base, td_npu_stream **out, td_error *err) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    *out = NULL;
    TD_TRY(td_ascend_enter(d));
    td_npu_stream *s = calloc(1, sizeof *s);
    if (!s) return td_fail(err, TD_ENOMEM, "out of memory for a stream");
    s->device = d;
    td_acl_status code =
        d->acl->aclrtCreateStreamWithConfig(&s->stream, 0, TD_ACL_STREAM_FAST_LAUNCH | TD_ACL_STREAM_FAST_SYNC);
    if (code != TD_ACL_SUCCESS) {
        free(s);
        return td_ascend_failed(d, "aclrtCreateStreamWithConfig", code, err);
    }
    td_status st = td_thread_start(&s->reporter, "ascend calls", report_main, s, err);
    if (st == TD_OK) {
        code = d->acl->aclrtSubscribeReport((uint64_t)s->reporter, s->stream);
        if (code != TD_ACL_SUCCESS) {
            st = td_ascend_failed(d, "aclrtSubscribeReport", code, err);
            stop_reports(s);
        }
    }
    if (st != TD_OK) {
        (void)d->acl->aclrtDestroyStream(s->stream);
        free(s);
        return st;
    }
    *out = s;
    return TD_OK;
}

void td_ascend_stream_destroy(td_npu *base, td_npu_stream *s) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    if (!s || td_ascend_enter(d) != TD_OK) return;
    td_status st = s->capture ? td_ascend_graph_end(base, s, NULL, NULL) : TD_OK; /* thrown away; what fails is in the log */
    (void)st;
    /* Its callbacks have run when it is synchronised, and only then may it be taken from its thread. */
    (void)d->acl->aclrtSynchronizeStream(s->stream);
    (void)d->acl->aclrtUnSubscribeReport((uint64_t)s->reporter, s->stream);
    stop_reports(s);
    td_acl_status code = d->acl->aclrtDestroyStream(s->stream);
    if (code != TD_ACL_SUCCESS) (void)td_ascend_failed(d, "aclrtDestroyStream", code, NULL);
    td_ascend_steps_close(d, &s->steps);
    free(s);
}

/* A stream that was aborted does not wait for the callback that its thread is in. */
static void await_callback(td_npu_stream *s) {
    uint32_t seen = atomic_load_explicit(&s->polls, memory_order_acquire); /* with report_main */
    while (atomic_load_explicit(&s->polls, memory_order_acquire) - seen < 2)
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

td_status td_ascend_stream_sync(td_npu *base, td_npu_stream *s) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    TD_TRY(td_ascend_enter(d));
    td_acl_status code = d->acl->aclrtSynchronizeStream(s->stream);
    if (s->group) td_ascend_group_idle(s->group, d);
    s->group = NULL;
    if (code == TD_ACL_SUCCESS) return TD_OK;
    if (code == TD_ACL_ERROR_RT_STREAM_ABORT) {
        td_card_count(&d->given.failures);
        td_warn("card %d has given up its work, because another card's failed", d->card);
        await_callback(s);
    } else {
        (void)td_ascend_failed(d, "aclrtSynchronizeStream", code, NULL);
    }
    s->failures++; /* updates of captures may be among what failed */
    return TD_EDEVICE;
}

/* A group that is not aborted knows the stream before anything is on it. */
td_status td_ascend_stream_enter(td_npu_stream *s, td_npu_group *g) {
    TD_TRY(td_ascend_group_enter(g, s->device, s->capture ? NULL : s->stream));
    if (!s->capture) s->group = g;
    return TD_OK;
}

/* ---- what is enqueued ---------------------------------------------------------------------------- */

static td_status copy_async(td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind) {
    td_ascend_npu   *d = s->device;
    td_acl_copy_kind way = kind == TD_COPY_H2D ? TD_ACL_MEMCPY_HOST_TO_DEVICE : TD_ACL_MEMCPY_DEVICE_TO_HOST;
    TD_TRY(td_ascend_enter(d));
    TD_TRY(td_ascend_queued(d, "aclrtMemcpyAsync", d->acl->aclrtMemcpyAsync(dst, bytes, src, bytes, way, s->stream)));
    td_ascend_launched(s);
    return TD_OK;
}

td_status td_ascend_copy(td_npu *base, td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    TD_TRY(copy_async(s, dst, src, bytes, kind));
    if (s->capture)
        *(kind == TD_COPY_H2D ? &s->capture->down_bytes : &s->capture->up_bytes) += bytes;
    else
        atomic_fetch_add_explicit(kind == TD_COPY_H2D ? &d->down_bytes : &d->up_bytes, bytes, memory_order_relaxed);
    return TD_OK;
}

td_status td_ascend_host_call(td_npu *base, td_npu_stream *s, td_host_fn fn, void *arg) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    TD_TRY(td_ascend_enter(d));
    TD_TRY(
        td_ascend_queued(d, "aclrtLaunchCallback", d->acl->aclrtLaunchCallback(fn, arg, TD_ACL_CALLBACK_BLOCK, s->stream)));
    td_ascend_launched(s);
    return TD_OK;
}

td_status td_ascend_bell_ring(td_npu *base, td_npu_stream *s, td_bell *bell) {
    return copy_async(s, (void *)bell, ((td_ascend_npu *)base)->one, sizeof *bell, TD_COPY_D2H);
}

static void await_bell(void *arg) {
    td_bell *bell = arg;
    uint64_t until_ns = td_trace_now() + SPIN_NS;
    while (atomic_load_explicit(bell, memory_order_acquire) == 0) { /* with who rings it */
        if (td_trace_now() < until_ns)
            td_cpu_relax();
        else
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    atomic_store_explicit(bell, 0, memory_order_relaxed); /* whoever rings it next has heard from us in between */
}

td_status td_ascend_bell_wait(td_npu *base, td_npu_stream *s, td_bell *bell) {
    return td_ascend_host_call(base, s, await_bell, (void *)bell);
}

void td_ascend_steps_close(td_ascend_npu *d, td_ascend_steps *l) {
    while (l->n) td_ascend_step_close(d, l->at[--l->n]);
}

/* ---- captures ---------------------------------------------------------------------------------- */

td_status td_ascend_graph_begin(td_npu *base, td_npu_stream *s) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    if (s->capture) return TD_EINVAL;
    TD_TRY(td_ascend_enter(d));
    td_npu_graph *g = calloc(1, sizeof *g);
    if (!g) return TD_ENOMEM;
    /* Of this thread only: those of other cards go on. */
    td_status st = td_ascend_queued(d, "aclmdlRICaptureBegin",
                                    d->acl->aclmdlRICaptureBegin(s->stream, TD_ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL));
    if (st == TD_OK)
        s->capture = g;
    else
        free(g);
    return st;
}

td_status td_ascend_graph_end(td_npu *base, td_npu_stream *s, td_npu_graph **out, td_error *err) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    td_npu_graph  *g = s->capture;
    if (out) *out = NULL;
    if (!g) return td_fail(err, TD_EINVAL, "the stream is not being captured");
    s->capture = NULL;
    td_status st = td_ascend_enter(d);
    if (st == TD_OK) {
        td_acl_status code = d->acl->aclmdlRICaptureEnd(s->stream, &g->graph);
        if (code != TD_ACL_SUCCESS) {
            g->graph = NULL;
            st = td_ascend_failed(d, "aclmdlRICaptureEnd", code, err);
        }
    }
    if (st != TD_OK || !out) {
        td_ascend_graph_destroy(base, g);
        return st;
    }
    td_card_count(&d->given.captures);
    *out = g;
    return TD_OK;
}

void td_ascend_graph_destroy(td_npu *base, td_npu_graph *g) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    if (!g) return;
    if (g->graph && td_ascend_enter(d) == TD_OK) {
        td_acl_status code = d->acl->aclmdlRIDestroy(g->graph);
        if (code != TD_ACL_SUCCESS) (void)td_ascend_failed(d, "aclmdlRIDestroy", code, NULL);
    }
    td_ascend_steps_close(d, &g->steps);
    free(g->attentions);
    free(g);
}
