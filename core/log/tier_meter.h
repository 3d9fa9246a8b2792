/*
 * What a tier (device or experts) has done, and what it is doing. It is counted where the work is known (host_stream,
 * expert_ffn) and read by the metrics and the watchdog. One writer at a time; any reader. All atomics are relaxed, since a
 * reader only shows them.
 */
#ifndef TD_CORE_LOG_TIER_METER_H
#define TD_CORE_LOG_TIER_METER_H

#include <stdatomic.h>

#include "core/log/trace.h"

typedef struct {
    _Atomic uint64_t      bytes, int8_ops, f32_ops, busy_ns;
    _Atomic(const char *) doing; /* static text; NULL: nothing */
    _Atomic uint32_t      layer; /* of doing */
} td_tier_meter;

/** An operation begins. @param doing static text. @return the time, for the end. */
static inline uint64_t td_tier_begin(td_tier_meter *m, const char *doing, uint32_t layer) {
    atomic_store_explicit(&m->layer, layer, memory_order_relaxed);
    atomic_store_explicit(&m->doing, doing, memory_order_relaxed);
    return td_trace_now();
}

/** An operation ends. @param w its work; busy_ns is not read. */
static inline void td_tier_end(td_tier_meter *m, uint64_t begin_ns, const td_tier_work *w) {
    atomic_fetch_add_explicit(&m->busy_ns, td_trace_now() - begin_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->bytes, w->bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->int8_ops, w->int8_ops, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->f32_ops, w->f32_ops, memory_order_relaxed);
    atomic_store_explicit(&m->doing, NULL, memory_order_relaxed);
}

static inline td_tier_work td_tier_read(const td_tier_meter *m) {
    return (td_tier_work){.bytes = atomic_load_explicit(&m->bytes, memory_order_relaxed),
                          .int8_ops = atomic_load_explicit(&m->int8_ops, memory_order_relaxed),
                          .f32_ops = atomic_load_explicit(&m->f32_ops, memory_order_relaxed),
                          .busy_ns = atomic_load_explicit(&m->busy_ns, memory_order_relaxed)};
}

/** What is under way, or NULL. */
static inline const char *td_tier_doing(const td_tier_meter *m, uint32_t *layer) {
    *layer = atomic_load_explicit(&m->layer, memory_order_relaxed);
    return atomic_load_explicit(&m->doing, memory_order_relaxed);
}

#endif
