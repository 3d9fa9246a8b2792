/* What an x86-64 processor says of itself, and what of it a process may use. */
#ifndef TD_CORE_MACHINE_CPU_X86_64_H
#define TD_CORE_MACHINE_CPU_X86_64_H

#include <stdint.h>

/** Registers after CPUID, by leaf (Intel SDM volume 2, "CPUID"); 0 where a processor has no such leaf. */
typedef struct {
    uint32_t ecx1;             /* leaf 1 */
    uint32_t ebx7, ecx7, edx7; /* leaf 7, subleaf 0 */
    uint32_t eax7_1;           /* leaf 7, subleaf 1 */
    uint64_t xcr0;             /* XGETBV: registers that the system saves */
} td_cpuid;

td_cpuid td_cpuid_read(void);

/**
 * TD_CPU_* bits (core/machine/cpu.h). Where there is AMX, asks the kernel for the tile registers; when it refuses, AMX is
 * left out, and a warning says so.
 */
uint32_t td_cpuid_features(const td_cpuid *id);

#endif
