/* Streams of an NVIDIA card, what is enqueued on them, captures. */
#ifndef TD_NPU_CUDA_CUDA_STREAM_H
#define TD_NPU_CUDA_CUDA_STREAM_H

#include "npu/card/card_stream.h"
#include "npu/cuda/cuda_device.h"

struct td_npu_graph {
    td_card_graph    base; /* first */
    td_cu_graph_exec exec;
};

struct td_npu_stream {
    td_card_stream base; /* first */
    td_cu_stream   stream;
    td_cu_event    event; /* for streams that follow this one */
};

static inline td_cuda_npu *td_cuda_of(const td_npu_stream *s) {
    return (td_cuda_npu *)s->base.card;
}

/* Entries of td_card_driver. */
TD_NODISCARD td_status td_cuda_stream_open(td_npu_stream *s, td_error *err);
void                   td_cuda_stream_close(td_npu_stream *s);
TD_NODISCARD td_status td_cuda_stream_wait(td_npu_stream *s);
TD_NODISCARD td_status td_cuda_copy(td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind);
TD_NODISCARD td_status td_cuda_host_call(td_npu_stream *s, td_host_fn fn, void *arg);
/** Makes the scratch large enough first: in captures no memory can be taken. */
TD_NODISCARD td_status td_cuda_capture_begin(td_npu_stream *s);
TD_NODISCARD td_status td_cuda_follow(td_npu_stream *s, td_npu_stream *other);
TD_NODISCARD td_status td_cuda_capture_end(td_npu_stream *s, td_npu_graph *g, bool keep, td_error *err);
TD_NODISCARD td_status td_cuda_graph_launch(td_npu_stream *s, td_npu_graph *g);
void                   td_cuda_graph_close(td_card *c, td_npu_graph *g);

#endif
