/*
 * What a pool's threads can do at most: reading memory far larger than the caches, and multiply-adds from registers alone,
 * in the instruction-set tier in use. What a tier did is told as a fraction of it (docs/metrics.md), and so are the
 * benchmarks.
 */
#ifndef TD_KERNELS_MACHINE_ROOFLINE_H
#define TD_KERNELS_MACHINE_ROOFLINE_H

#include "core/threads/thread_layout.h"

#define TD_ROOFLINE_BLOCK ((size_t)1 << 20)

typedef struct td_roofline td_roofline;

/**
 * Take buffers of together `bytes` (rounded up to whole MiB), one for each subpool on its node, and write them once.
 * The caller of this and of what follows is worker 0 of the pool. @return TD_ENOMEM.
 */
TD_NODISCARD td_status td_roofline_open(td_pool *pool, size_t bytes, td_roofline **out, td_error *err);
void                   td_roofline_close(td_roofline *r);

double td_roofline_read(td_roofline *r); /* bytes per second of reading the buffers once */
double td_roofline_int8(td_roofline *r); /* operations (two per multiply-add) per second; a few ms */
double td_roofline_f32(td_roofline *r);
double td_roofline_bf16(td_roofline *r); /* 0 where there are no instructions for it */

/**
 * All three for the start of an engine: the best of three rounds over a buffer of twice the L3 caches (at most an eighth of
 * the memory available), which is freed again. Takes 0.1 to 0.2 s: where pages come slowly the buffer is smaller, 128 MiB at
 * the least. The caller is pinned to worker 0's cpu for that time.
 */
TD_NODISCARD td_status td_roofline_measure(td_pool *pool, const td_machine *m, td_bounds *out, td_error *err);

/** Seconds. With one worker the processor time of the calling thread, so that a busy machine disturbs less; else wall time.
 */
double td_roofline_now_s(const td_pool *pool);

#endif
