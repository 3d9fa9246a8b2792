/* What cpu_ARCHITECTURE.c tells cpu.c. td_cpu_flush, td_cpu_name and td_cpu_prefetch_here of core/machine/cpu.h are there too. */
#ifndef TD_CORE_MACHINE_CPU_ARCH_H
#define TD_CORE_MACHINE_CPU_ARCH_H

#include "core/machine/cpu.h"

typedef struct {
    const char *name; /* NULL: the end of the list */
    uint32_t    own;  /* TD_CPU_* bits without which a processor has not this tier; 0: every one has it */
    uint32_t    kept; /* bits that a mask of this name leaves: the tier's and those of the tiers below */
} td_cpu_tier;

/** In rising order; the first is "scalar". */
extern const td_cpu_tier td_cpu_tiers[];

/** TD_CPU_* bits of this processor, whatever the mask. */
uint32_t td_cpu_detect(void);

#endif
