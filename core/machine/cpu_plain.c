/* An architecture about which nothing is known. */
#include "core/machine/cpu.h"

const td_cpu_tier td_cpu_tiers[] = {{"scalar", 0, 0}, {0}};

uint32_t td_cpu_detect(void) {
    return 0;
}

uint32_t td_cpu_audit_arch(void) {
    return 0;
}

void td_cpu_flush(const void *p, size_t bytes) {
    (void)p, (void)bytes;
}

size_t td_cpu_name(char *to, size_t room) {
    (void)to, (void)room;
    return 0;
}

td_cpu_prefetch td_cpu_prefetch_here(void) {
    return (td_cpu_prefetch){TD_CPU_PREFETCH_FAR, TD_CPU_PREFETCH_NEAR};
}
