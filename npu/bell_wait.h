/* Waiting for a doorbell on a host thread: where no card does it by itself. */
#ifndef TD_NPU_BELL_WAIT_H
#define TD_NPU_BELL_WAIT_H

#include <sched.h>

#include "core/log/trace.h"
#include "core/threads/signal_word.h"
#include "npu/npu.h"

/** Wait until the bell is rung, and silence it. A pass is under way, so the thread never sleeps. @param spin_ns for so long
 * it keeps its core; then it lets others run there between looks. */
static inline void td_bell_await(td_bell *bell, uint64_t spin_ns) {
    uint64_t until_ns = td_trace_now() + spin_ns;
    while (atomic_load_explicit(bell, memory_order_acquire) == 0) { /* with who rings it */
        if (td_trace_now() < until_ns)
            td_cpu_relax();
        else
            sched_yield();
    }
    atomic_store_explicit(bell, 0, memory_order_relaxed); /* whoever rings it next has heard from us in between */
}

#endif
