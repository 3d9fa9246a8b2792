/*
 * Random delays for tests. With TD_CHAOS_SEED=n in the environment every device operation, pool item and hand-over of the
 * bridge may be delayed by up to TD_CHAOS_MAX_US, differently for every seed. Results must stay bit-identical: a missing
 * ordering edge between the tiers shows as wrong bits here, not as a crash.
 *
 * A pass that goes in pieces is cut anywhere then, and not by the clock; the delays of the device "apart" alone do not change
 * that.
 *
 * TD_CHAOS_FAIL_OP=n makes the n-th block operation of the device fail (from 1, counted over the life of the process);
 * n,count makes that many in a row fail.
 *
 * TD_CHAOS_FAIL_DEVICE=n or n,count does the same with the calls of the device "apart" that can fail. With n = 0 none fails;
 * they are counted, and their number is printed at the end.
 *
 * TD_CHAOS_RESIDENCY=n draws which experts are on the device, anew in each step and differently for every n
 * (residency/residency_policy.h), where some are. Which steps stream experts, and which ones, is drawn too.
 */
#ifndef TD_CORE_THREADS_CHAOS_H
#define TD_CORE_THREADS_CHAOS_H

#include <stdbool.h>
#include <stdint.h>

#define TD_CHAOS_MAX_US 200

bool td_chaos_on(void);     /* read once from the environment; thread-safe */
bool td_chaos_seeded(void); /* whether the environment has a seed: td_chaos_start gives none */
void td_chaos_delay(void);  /* does nothing unless on */

bool td_chaos_cuts(void); /* whether a pass in pieces is cut here: drawn, never unless seeded */

void td_chaos_start(void); /* on from now, with seed 1 where the environment has none */

uint64_t td_chaos_residency(void); /* the seed; 0: off */

bool td_chaos_device_fails(void); /* the device asks once for every call that can fail; thread-safe */
bool td_chaos_op_fails(void);     /* the backend asks once for every block operation; thread-safe */

#endif
