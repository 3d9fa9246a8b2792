/*
 * A number that one thread raises and others wait for: spin first, then sleep on a futex.
 *
 * What the raising thread wrote before td_signal_add is visible to a thread that has seen the new value.
 */
#ifndef TD_CORE_THREADS_SIGNAL_WORD_H
#define TD_CORE_THREADS_SIGNAL_WORD_H

#include <stdatomic.h>
#include <stdint.h>

#include "core/machine/cpu.h"

typedef struct {
    /* The futex word; seq_cst with n_sleeping: a sleeper sees the new value, or is seen itself. */
    _Alignas(TD_CPU_LINE) _Atomic uint32_t value;
    _Atomic uint32_t n_sleeping;
} td_signal;

/** value += 1, and wake everybody who waits for a change. */
void td_signal_add(td_signal *s);

static inline uint32_t td_signal_get(const td_signal *s) {
    return atomic_load_explicit(&s->value, memory_order_acquire);
}

/** How long to spin before sleeping: as long as *held is not 0, and then for `us`. */
typedef struct {
    uint32_t                us;
    const _Atomic uint32_t *held; /* or NULL; relaxed: it is about time only */
} td_spin;

/** Wait until the value is not `seen`: spin, then sleep. @return the new value. */
uint32_t td_signal_wait(td_signal *s, uint32_t seen, td_spin spin);

/** Tell the core that this is a spin loop. On aarch64 `yield` does nothing where a core has one thread; `isb` waits about as
 * long as x86's pause. */
static inline void td_cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

#endif
