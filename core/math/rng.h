/*
 * Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
 * The n-th draw of a seed is a pure function of (seed, stream, n), so a request's samples never depend on its company.
 */
#ifndef TD_CORE_MATH_RNG_H
#define TD_CORE_MATH_RNG_H

#include <stdint.h>

void td_philox(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4]);

/** Uniform in [0, 1), 53 bits. */
double td_rng_uniform(uint64_t seed, uint64_t stream, uint64_t counter);

/** Uniform bits. */
uint64_t td_rng_u64(uint64_t seed, uint64_t stream, uint64_t counter);

#endif
