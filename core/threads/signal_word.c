#include "core/threads/signal_word.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOKS_A_CLOCK 256 /* looks at the value between two of the clock: about ten microseconds */

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

void td_signal_add(td_signal *s) {
    atomic_fetch_add(&s->value, 1);
    if (atomic_load(&s->n_sleeping)) syscall(SYS_futex, &s->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

uint32_t td_signal_wait(td_signal *s, uint32_t seen, td_spin spin) {
    uint64_t until = 0;
    for (uint32_t looks = 0;; looks++) {
        uint32_t v = td_signal_get(s);
        if (v != seen) return v;
        td_cpu_relax();
        if (looks % LOOKS_A_CLOCK != LOOKS_A_CLOCK - 1) continue;
        uint64_t now = now_us();
        if (!until || (spin.held && atomic_load_explicit(spin.held, memory_order_relaxed))) until = now + spin.us;
        if (now < until) continue;
        atomic_fetch_add(&s->n_sleeping, 1);
        while ((v = atomic_load(&s->value)) == seen) syscall(SYS_futex, &s->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        atomic_fetch_sub(&s->n_sleeping, 1);
        return v;
    }
}
