/* What the machine can do, measured in the same run as what is compared with it: same threads, same minute. */
#ifndef TD_BENCH_BOUNDS_H
#define TD_BENCH_BOUNDS_H

#include <stddef.h>

#include "core/pool.h"

/** Seconds. With one worker the processor time of the calling thread, so that a busy machine disturbs less; else wall time. */
double bench_now_s(const td_pool *pool);

/** Bytes per second of reading `buffer` (larger than the last cache level) once with all workers. bytes: a multiple of 1 MiB. */
double bench_read_bandwidth(td_pool *pool, const char *buffer, size_t bytes);

/** int8 operations (two per multiply-add) per second from registers alone; 0 where the tier has no measurement. */
double bench_int8_peak(td_pool *pool);

/** f32 operations (two per fused multiply-add) per second from registers alone; 0 likewise. */
double bench_f32_peak(td_pool *pool);

double bench_median(double *x, size_t n); /* sorts x */

#endif
