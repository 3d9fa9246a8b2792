/*
 * What an aarch64 core offers, as Linux tells it (Documentation/arch/arm64/elf_hwcaps.rst), and its name by its MIDR
 * (cpu-feature-registers.rst: the kernel lets a process read the register where HWCAP_CPUID is set).
 */
#include "core/cpu_arch.h"

#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>

#include <asm/hwcap.h>

const td_cpu_tier td_cpu_tiers[] = {
    {"scalar", 0, 0},
    {"neon", TD_CPU_NEON, TD_CPU_NEON},
    {"dotprod", TD_CPU_DOTPROD, TD_CPU_NEON | TD_CPU_DOTPROD},
    {0},
};

uint32_t td_cpu_detect(void) {
    unsigned long cap = getauxval(AT_HWCAP);
    if (!(cap & HWCAP_ASIMD)) return 0;
    return TD_CPU_NEON | (cap & HWCAP_ASIMDDP ? TD_CPU_DOTPROD : 0);
}

/* Implementer and part (MIDR_EL1, bits 31:24 and 15:4), as in Linux' asm/cputype.h and util-linux' lscpu. */
static const struct {
    uint32_t    implementer, part;
    const char *name;
} CORES[] = {
    {0x48, 0xd01, "Kunpeng 920 (TaiShan V110)"},
    {0x48, 0xd02, "Kunpeng 920B (TaiShan V120)"},
    {0x41, 0xd03, "Cortex-A53"},
    {0x41, 0xd07, "Cortex-A57"},
    {0x41, 0xd08, "Cortex-A72"},
    {0x41, 0xd0b, "Cortex-A76"},
    {0x41, 0xd0c, "Neoverse N1"},
    {0x41, 0xd40, "Neoverse V1"},
    {0x41, 0xd49, "Neoverse N2"},
    {0x41, 0xd4f, "Neoverse V2"},
    {0x41, 0xd84, "Neoverse V3"},
    {0x41, 0xd8e, "Neoverse N3"},
    {0x46, 0x001, "A64FX"},
    {0xc0, 0xac3, "AmpereOne"},
    {0xc0, 0xac4, "AmpereOne A"},
    {0x70, 0x662, "Phytium FTC662"},
    {0x70, 0x663, "Phytium FTC663"},
};

/* With what the core has beyond the tiers, so that a log tells it. */
size_t td_cpu_name(char *to, size_t room) {
    unsigned long cap = getauxval(AT_HWCAP), cap2 = getauxval(AT_HWCAP2);
    uint64_t      midr;
    char          core[64], sve[32] = "";
    if (!(cap & HWCAP_CPUID)) return 0;
    __asm__("mrs %0, midr_el1" : "=r"(midr));
    uint32_t implementer = midr >> 24 & 0xff, part = midr >> 4 & 0xfff;
    size_t   i = 0, n = sizeof CORES / sizeof *CORES;
    while (i < n && (CORES[i].implementer != implementer || CORES[i].part != part)) i++;
    snprintf(core, sizeof core, "aarch64, implementer 0x%02x part 0x%03x", implementer, part);
    if (cap & HWCAP_SVE) snprintf(sve, sizeof sve, ", SVE %d", 8 * (prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK));
    snprintf(to, room, "%s%s%s%s", i < n ? CORES[i].name : core, cap2 & HWCAP2_I8MM ? ", i8mm" : "",
             cap2 & HWCAP2_BF16 ? ", bf16" : "", sve);
    return strlen(to);
}

void td_cpu_flush(const void *p, size_t bytes) {
    uint64_t ctr;
    __asm__("mrs %0, ctr_el0" : "=r"(ctr));
    size_t line = (size_t)4 << (ctr >> 16 & 0xf); /* DminLine: words, as a power of two */
    for (size_t i = 0; i < bytes; i += line) __asm__ volatile("dc civac, %0" ::"r"((const char *)p + i) : "memory");
    __asm__ volatile("dsb ish" ::: "memory");
}
