/* Streams of an NVIDIA card, what is enqueued on them, captures. */
#ifndef TD_NPU_CUDA_CUDA_STREAM_H
#define TD_NPU_CUDA_CUDA_STREAM_H

#include "npu/cuda/cuda_device.h"

struct td_npu_graph {
    td_cu_graph_exec exec;
    uint64_t         down_bytes, up_bytes; /* that one launch copies */
};

struct td_npu_stream {
    td_cuda_npu  *device;
    td_cu_stream  stream;
    td_npu_graph *capture; /* or NULL */
};

/** So many calls have given the card work on this stream; what is recorded only is none. */
static inline void td_cuda_launched(td_npu_stream *s, uint32_t n) {
    if (!s->capture) atomic_fetch_add_explicit(&s->device->given.launches, n, memory_order_relaxed);
}

/** What a call of the driver that gives the card work has returned: TD_OK, or TD_EDEVICE and a line in the log. */
TD_NODISCARD td_status td_cuda_enqueued(td_npu_stream *s, const char *call, td_cu_status said);

/* The table's functions, as in td_npu_ops. */
TD_NODISCARD td_status td_cuda_stream_create(td_npu *d, td_npu_stream **out, td_error *err);
void                   td_cuda_stream_destroy(td_npu *d, td_npu_stream *s);
TD_NODISCARD td_status td_cuda_stream_sync(td_npu *d, td_npu_stream *s);
TD_NODISCARD td_status td_cuda_copy(td_npu *d, td_npu_stream *s, void *dst, const void *src, size_t bytes,
                                    td_copy_kind kind);
TD_NODISCARD td_status td_cuda_host_call(td_npu *d, td_npu_stream *s, td_host_fn fn, void *arg);
TD_NODISCARD td_status td_cuda_graph_begin(td_npu *d, td_npu_stream *s);
TD_NODISCARD td_status td_cuda_graph_end(td_npu *d, td_npu_stream *s, td_npu_graph **out, td_error *err);
TD_NODISCARD td_status td_cuda_graph_launch(td_npu *d, td_npu_stream *s, td_npu_graph *g);
void                   td_cuda_graph_destroy(td_npu *d, td_npu_graph *g);

#endif
