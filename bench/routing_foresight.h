/*
 * What can be foreseen of a generated routing trace: replays by somebody who knows how it was generated
 * (routing_generator.h), which no policy of a server does. So they say how many hits are possible without the future.
 *
 * DESIGN. For every expert the expected uses in the next tokens are computed from what is known, of which later ones weigh
 * less. The absent expert with most of them comes for the resident one with least, if the difference exceeds the cost of an
 * upload. That is how the policy chooses, with better counts.
 *   told   knows every expert's rank, topic u and noise z at the present token
 *   not    knows the parameters, and has seen the ids of the tokens so far. It keeps a Gaussian belief of each expert's rank
 *          and topic, and learns by matching the moments of what an id tells: assumed-density filtering with a probit
 *          (Minka, "A family of algorithms for approximate Bayesian inference", 2001, 3.2)
 */
#ifndef TD_BENCH_ROUTING_FORESIGHT_H
#define TD_BENCH_ROUTING_FORESIGHT_H

#include "bench/routing_generator.h"
#include "bench/routing_replay.h"

/**
 * @param t      as td_routing_generate gave it, with this kind and seed.
 * @param budget uploads a layer and token at most, beside those that fill the layer's slots.
 * @return TD_ENOMEM.
 */
TD_NODISCARD td_status td_replay_foresight(const td_routing_kind *kind, uint64_t seed, const td_routing_trace *t,
                                           uint32_t n_slots, double budget, bool told, td_replayed *out, td_error *err);

#endif
