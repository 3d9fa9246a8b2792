/* Loops over the tables of kernels. */
#ifndef TD_TESTS_KERNEL_TABLES_H
#define TD_TESTS_KERNEL_TABLES_H

#include "core/machine/cpu.h"
#include "kernels/kernels.h"

static inline bool may_run(const td_kernels *t) {
    return !(t->needs & ~td_cpu_features());
}

/* t: every table of the build whose `member` no lesser table has, best first; those that this machine, under TD_CPU_MASK,
 * can run. */
#define EACH_BUILT(t, member)                                                                 \
    for (const td_kernels *const *t##_next = td_kernels_all, *t; (t = *t##_next); t##_next++) \
        if (td_kernels_own(t, &t->member))
#define EACH_TABLE(t, member) EACH_BUILT(t, member) if (may_run(t))

#endif
