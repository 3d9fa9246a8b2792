/* Streams and captures from the inside: what launching blocks has to know of them. */
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

#endif
