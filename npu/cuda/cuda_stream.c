#include "npu/cuda/cuda_stream.h"

#include "core/error.h"
#include "npu/cuda/cuda_group.h"

td_status td_cuda_stream_open(td_npu_stream *s, td_error *err) {
    td_cuda_npu *d = td_cuda_of(s);
    TD_TRY(td_cuda_done(d, "cuStreamCreate", d->cu->cuStreamCreate(&s->stream, TD_CU_STREAM_NON_BLOCKING), err));
    td_status st = td_cuda_done(d, "cuEventCreate", d->cu->cuEventCreate(&s->event, TD_CU_EVENT_DISABLE_TIMING), err);
    if (st != TD_OK) (void)td_cuda_done(d, "cuStreamDestroy", d->cu->cuStreamDestroy(s->stream), NULL);
    return st;
}

void td_cuda_stream_close(td_npu_stream *s) {
    td_cuda_npu *d = td_cuda_of(s);
    (void)d->cu->cuStreamSynchronize(s->stream);
    (void)td_cuda_done(d, "cuEventDestroy", d->cu->cuEventDestroy(s->event), NULL);
    (void)td_cuda_done(d, "cuStreamDestroy", d->cu->cuStreamDestroy(s->stream), NULL);
}

td_status td_cuda_stream_wait(td_npu_stream *s) {
    td_cuda_npu *d = td_cuda_of(s);
    td_cu_status said = d->cu->cuStreamSynchronize(s->stream);
    if (said == TD_CUDA_SUCCESS) return td_cuda_group_gave_up(d) ? TD_EDEVICE : TD_OK;
    (void)td_cuda_failed(d, "the work of a step (cuStreamSynchronize)", said, NULL);
    /* A call that fails by itself does so once. */
    td_cuda_loss_note(&d->base.loss, d->base.config.card, said, d->cu->cuStreamSynchronize(s->stream) == said);
    return TD_EDEVICE;
}

/* ---- what is enqueued ---------------------------------------------------------------------------- */

td_status td_cuda_copy(td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind) {
    td_cuda_npu *d = td_cuda_of(s);
    if (kind == TD_COPY_H2D)
        return td_cuda_accepted(d, "cuMemcpyHtoDAsync",
                                d->cu->cuMemcpyHtoDAsync(td_cuda_address(dst), src, bytes, s->stream));
    return td_cuda_accepted(d, "cuMemcpyDtoHAsync", d->cu->cuMemcpyDtoHAsync(dst, td_cuda_address(src), bytes, s->stream));
}

td_status td_cuda_host_call(td_npu_stream *s, td_host_fn fn, void *arg) {
    td_cuda_npu *d = td_cuda_of(s);
    return td_cuda_accepted(d, "cuLaunchHostFunc", d->cu->cuLaunchHostFunc(s->stream, fn, arg));
}

/* ---- captures ---------------------------------------------------------------------------------- */

td_status td_cuda_capture_begin(td_npu_stream *s) {
    td_cuda_npu *d = td_cuda_of(s);
    TD_TRY(td_cuda_scratch_ready(d));
    return td_cuda_accepted(d, "cuStreamBeginCapture",
                            d->cu->cuStreamBeginCapture(s->stream, TD_CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
}

/* An event may be recorded again at once: a wait is for what it was when the wait was recorded. */
td_status td_cuda_follow(td_npu_stream *s, td_npu_stream *other) {
    td_cuda_npu *d = td_cuda_of(s);
    TD_TRY(td_cuda_accepted(d, "cuEventRecord", d->cu->cuEventRecord(other->event, other->stream)));
    return td_cuda_accepted(d, "cuStreamWaitEvent", d->cu->cuStreamWaitEvent(s->stream, other->event, 0));
}

td_status td_cuda_capture_end(td_npu_stream *s, td_npu_graph *g, bool keep, td_error *err) {
    td_cuda_npu *d = td_cuda_of(s);
    td_cu_graph  graph = NULL;
    td_status    st = td_cuda_done(d, "cuStreamEndCapture", d->cu->cuStreamEndCapture(s->stream, &graph), err);
    if (st == TD_OK && keep) {
        st = td_cuda_done(d, "cuGraphInstantiate", d->cu->cuGraphInstantiate(&g->exec, graph, 0), err);
        if (st != TD_OK) g->exec = NULL;
    }
    if (graph) (void)d->cu->cuGraphDestroy(graph);
    return st;
}

td_status td_cuda_graph_launch(td_npu_stream *s, td_npu_graph *g) {
    td_cuda_npu *d = td_cuda_of(s);
    return td_cuda_accepted(d, "cuGraphLaunch", d->cu->cuGraphLaunch(g->exec, s->stream));
}

void td_cuda_graph_close(td_card *c, td_npu_graph *g) {
    td_cuda_npu *d = (td_cuda_npu *)c;
    if (g->exec && td_card_enter(c) == TD_OK)
        (void)td_cuda_done(d, "cuGraphExecDestroy", d->cu->cuGraphExecDestroy(g->exec), NULL);
}
