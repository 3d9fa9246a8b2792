/*
 * A routing trace replayed: how many of its choices find their expert resident, and what that takes in uploads. A token's
 * uploads are there for the next token. No weights, no device, no time.
 */
#ifndef TD_BENCH_ROUTING_REPLAY_H
#define TD_BENCH_ROUTING_REPLAY_H

#include "residency/routing_trace.h"

typedef struct {
    double hits;    /* share of all choices */
    double uploads; /* experts a layer and token */
} td_replayed;

/* Each replays a trace with n_slots a layer, top_k..n_experts of them, all empty at the beginning. @return TD_ENOMEM. */

/** The policy (residency/residency_policy.h). @param budget uploads a layer and token at most, beside those that fill the
 * slots. */
TD_NODISCARD td_status td_replay_policy(const td_routing_trace *t, uint32_t n_slots, double budget, td_replayed *out,
                                        td_error *err);
/** Every missing expert comes, for the one of its layer that was used longest ago. */
TD_NODISCARD td_status td_replay_lru(const td_routing_trace *t, uint32_t n_slots, td_replayed *out, td_error *err);
/** The experts that the whole trace uses most, from the beginning on. */
TD_NODISCARD td_status td_replay_static(const td_routing_trace *t, uint32_t n_slots, td_replayed *out, td_error *err);
/**
 * The most hits that are possible with any number of uploads. A missing expert replaces the one whose next use is farthest
 * away, unless its own is farther (Belady, IBM Systems Journal 5(2), 1966, with the bypass).
 */
TD_NODISCARD td_status td_replay_belady(const td_routing_trace *t, uint32_t n_slots, td_replayed *out, td_error *err);

#endif
