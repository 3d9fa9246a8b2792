#include "npu/cuda/cuda_stream.h"

#include <stdlib.h>

#include "core/error.h"
#include "npu/cuda/cuda_group.h"

td_status td_cuda_stream_create(td_npu *base, td_npu_stream **out, td_error *err) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    *out = NULL;
    TD_TRY(td_cuda_enter(d));
    td_npu_stream *s = calloc(1, sizeof *s);
    if (!s) return td_fail(err, TD_ENOMEM, "out of memory for a stream");
    s->device = d;
    td_cu_status said = d->cu->cuStreamCreate(&s->stream, TD_CU_STREAM_NON_BLOCKING);
    if (said != TD_CUDA_SUCCESS) {
        free(s);
        return td_cuda_failed(d, "cuStreamCreate", said, err);
    }
    *out = s;
    return TD_OK;
}

void td_cuda_stream_destroy(td_npu *base, td_npu_stream *s) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    if (!s || td_cuda_enter(d) != TD_OK) return;
    td_status st = s->capture ? td_cuda_graph_end(base, s, NULL, NULL) : TD_OK; /* thrown away; what fails is in the log */
    (void)st;
    (void)d->cu->cuStreamSynchronize(s->stream);
    td_cu_status said = d->cu->cuStreamDestroy(s->stream);
    if (said != TD_CUDA_SUCCESS) (void)td_cuda_failed(d, "cuStreamDestroy", said, NULL);
    free(s);
}

td_status td_cuda_stream_sync(td_npu *base, td_npu_stream *s) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    TD_TRY(td_cuda_enter(d));
    td_cu_status said = d->cu->cuStreamSynchronize(s->stream);
    if (said == TD_CUDA_SUCCESS) return td_cuda_group_gave_up(d) ? TD_EDEVICE : TD_OK;
    (void)td_cuda_failed(d, "the work of a step (cuStreamSynchronize)", said, NULL);
    /* A call that fails by itself does so once. */
    td_cuda_loss_note(&d->loss, d->config.card, said, d->cu->cuStreamSynchronize(s->stream) == said);
    return TD_EDEVICE;
}

/* ---- what is enqueued ---------------------------------------------------------------------------- */

td_status td_cuda_enqueued(td_npu_stream *s, const char *call, td_cu_status said) {
    TD_TRY(td_cuda_accepted(s->device, call, said));
    td_cuda_launched(s, 1);
    return TD_OK;
}

td_status td_cuda_copy(td_npu *base, td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    bool         down = kind == TD_COPY_H2D;
    TD_TRY(td_cuda_enter(d));
    TD_TRY(down ? td_cuda_enqueued(s, "cuMemcpyHtoDAsync",
                                   d->cu->cuMemcpyHtoDAsync(td_cuda_address(dst), src, bytes, s->stream))
                : td_cuda_enqueued(s, "cuMemcpyDtoHAsync",
                                   d->cu->cuMemcpyDtoHAsync(dst, td_cuda_address(src), bytes, s->stream)));
    if (s->capture)
        *(down ? &s->capture->down_bytes : &s->capture->up_bytes) += bytes;
    else
        atomic_fetch_add_explicit(down ? &d->down_bytes : &d->up_bytes, bytes, memory_order_relaxed);
    return TD_OK;
}

td_status td_cuda_host_call(td_npu *base, td_npu_stream *s, td_host_fn fn, void *arg) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    TD_TRY(td_cuda_enter(d));
    return td_cuda_enqueued(s, "cuLaunchHostFunc", d->cu->cuLaunchHostFunc(s->stream, fn, arg));
}

/* ---- captures ---------------------------------------------------------------------------------- */

td_status td_cuda_graph_begin(td_npu *base, td_npu_stream *s) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    if (s->capture) return TD_EINVAL;
    TD_TRY(td_cuda_enter(d));
    TD_TRY(td_cuda_scratch_ready(d));
    td_npu_graph *g = calloc(1, sizeof *g);
    if (!g) return TD_ENOMEM;
    /* Of this thread only: those of other cards go on. */
    td_status st = td_cuda_accepted(d, "cuStreamBeginCapture",
                                    d->cu->cuStreamBeginCapture(s->stream, TD_CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    if (st == TD_OK)
        s->capture = g;
    else
        free(g);
    return st;
}

td_status td_cuda_graph_end(td_npu *base, td_npu_stream *s, td_npu_graph **out, td_error *err) {
    td_cuda_npu  *d = (td_cuda_npu *)base;
    td_npu_graph *g = s->capture;
    td_cu_graph   graph = NULL;
    if (out) *out = NULL;
    if (!g) return td_fail(err, TD_EINVAL, "the stream is not being captured");
    s->capture = NULL;
    td_status st = td_cuda_enter(d);
    if (st == TD_OK) st = td_cuda_done(d, "cuStreamEndCapture", d->cu->cuStreamEndCapture(s->stream, &graph), err);
    if (st == TD_OK && out) {
        st = td_cuda_done(d, "cuGraphInstantiate", d->cu->cuGraphInstantiate(&g->exec, graph, 0), err);
        if (st != TD_OK) g->exec = NULL;
    }
    if (graph) (void)d->cu->cuGraphDestroy(graph);
    if (st != TD_OK || !out) {
        td_cuda_graph_destroy(base, g);
        return st;
    }
    td_card_count(&d->given.captures);
    *out = g;
    return TD_OK;
}

td_status td_cuda_graph_launch(td_npu *base, td_npu_stream *s, td_npu_graph *g) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    if (s->capture) return TD_EINVAL;
    TD_TRY(td_cuda_enter(d));
    TD_TRY(td_cuda_enqueued(s, "cuGraphLaunch", d->cu->cuGraphLaunch(g->exec, s->stream)));
    td_card_count(&d->given.replays);
    atomic_fetch_add_explicit(&d->down_bytes, g->down_bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&d->up_bytes, g->up_bytes, memory_order_relaxed);
    return TD_OK;
}

void td_cuda_graph_destroy(td_npu *base, td_npu_graph *g) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    if (!g) return;
    if (g->exec && td_cuda_enter(d) == TD_OK) {
        td_cu_status said = d->cu->cuGraphExecDestroy(g->exec);
        if (said != TD_CUDA_SUCCESS) (void)td_cuda_failed(d, "cuGraphExecDestroy", said, NULL);
    }
    free(g);
}
