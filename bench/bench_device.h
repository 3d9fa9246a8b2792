/* A device on its own, with random weights and activations, for suites that time single blocks: the host, or one with a
 * memory of its own. */
#ifndef TD_BENCH_BENCH_DEVICE_H
#define TD_BENCH_BENCH_DEVICE_H

#include "bench/bench.h"
#include "model/step_buf.h"

typedef struct {
    td_npu        *npu;
    td_npu_stream *stream;
    td_pool       *own; /* threads of the device's own, or NULL */
    bool           unified;
} td_bench_device;

/** The device that the options name; from now on rows stand against its bounds (td_bench_stand). @param bare as in
 * td_npu_config. */
TD_NODISCARD td_status td_bench_device_open(td_bench_device *d, td_bench *b, bool bare, td_error *err);
void                   td_bench_device_close(td_bench_device *d); /* what was opened; the rest is NULL */

/** n bf16 in [-1, 1); freed by npu->ops->free. */
TD_NODISCARD td_status td_bench_device_activations(const td_bench_device *d, size_t n, void **out, td_error *err);

/** Values in [-0.05, 0.05): [n, k], or [k] for rank 1. Of INT4G and FP4G groups of 32, with scales of bf16 and e8m0. */
TD_NODISCARD td_status td_bench_device_weight(const td_bench_device *d, td_weight_format format, uint32_t rank, size_t n,
                                              size_t k, td_npu_weight **out, td_error *err);

/** A step's arrays in both memories, for one shape after the other. */
typedef struct {
    td_step_rows rows;
    td_step_buf  buf;
    uint32_t    *numbers; /* 0, 1, 2, …: tokens, pages, rows whose logits are wanted */
} td_bench_steps;

typedef struct {
    uint32_t n_seq, n_new, context; /* sequences that have so many keys, and new rows of each; 1: generated tokens */
} td_bench_step_shape;

/** @param max_out rows of logits at most. */
TD_NODISCARD td_status td_bench_steps_open(td_bench_steps *s, const td_bench_device *d, const td_bench_step_shape *largest,
                                           uint32_t max_out, td_error *err);
void                   td_bench_steps_close(td_bench_steps *s); /* one that is not open is fine */
/** @param n_out rows whose logits are wanted. @param out the steps', until the next fill. */
TD_NODISCARD td_status td_bench_steps_fill(td_bench_steps *s, const td_bench_device *d, const td_bench_step_shape *shape,
                                           uint32_t n_out, const td_step **out, td_error *err);

/** Blocks of one step, captured: n of the list, again from its first when it is at its end. */
TD_NODISCARD td_status td_bench_device_capture(const td_bench_device *d, td_npu_block *const *blocks, size_t n_blocks,
                                               size_t n, const td_step *step, td_npu_graph **out, td_error *err);

/** Launch it, and wait for its end. */
TD_NODISCARD td_status td_bench_device_run(const td_bench_device *d, td_npu_graph *graph, td_error *err);

#endif
