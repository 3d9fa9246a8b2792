/* The host device on its own, with random weights and activations, for suites that time single blocks. */
#ifndef TD_BENCH_BENCH_DEVICE_H
#define TD_BENCH_BENCH_DEVICE_H

#include "bench/bench.h"

typedef struct {
    td_npu        *npu;
    td_npu_stream *stream;
} td_bench_device;

TD_NODISCARD td_status td_bench_device_open(td_bench_device *d, td_bench *b, td_error *err);
void                   td_bench_device_close(td_bench_device *d); /* what was opened; the rest is NULL */

/** n bf16 in [-1, 1); freed by npu->ops->free. */
TD_NODISCARD td_status td_bench_device_activations(const td_bench_device *d, size_t n, void **out, td_error *err);

/** Values in [-0.05, 0.05): [n, k], or [k] for rank 1. */
TD_NODISCARD td_status td_bench_device_weight(const td_bench_device *d, td_weight_format format, uint32_t rank, size_t n,
                                              size_t k, td_npu_weight **out, td_error *err);

/** One block, and wait for it. */
TD_NODISCARD td_status td_bench_device_run(const td_bench_device *d, td_npu_block *block, const td_step *step,
                                           td_error *err);

#endif
