/*
 * What a card has been given and how often its runtime failed: counted where that happens, read by the metrics. All atomics
 * are relaxed: a reader only shows them.
 */
#ifndef TD_NPU_CARD_METER_H
#define TD_NPU_CARD_METER_H

#include <stdatomic.h>

#include "tandem.h"

typedef struct {
    _Atomic uint64_t launches, captures, replays, failures; /* as in td_card_stats */
} td_card_meter;

static inline void td_card_count(_Atomic uint64_t *figure) {
    atomic_fetch_add_explicit(figure, 1, memory_order_relaxed);
}

static inline void td_card_read(const td_card_meter *m, td_card_stats *out) {
    out->launches = atomic_load_explicit(&m->launches, memory_order_relaxed);
    out->captures = atomic_load_explicit(&m->captures, memory_order_relaxed);
    out->replays = atomic_load_explicit(&m->replays, memory_order_relaxed);
    out->failures = atomic_load_explicit(&m->failures, memory_order_relaxed);
}

#endif
