/*
 * What an aarch64 core offers, as Linux tells it (Documentation/arch/arm64/elf_hwcaps.rst), and its name by its MIDR
 * (cpu-feature-registers.rst: the kernel lets a process read the register where HWCAP_CPUID is set).
 */
#include "core/machine/cpu.h"

#include <linux/audit.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>

#include <asm/hwcap.h>

const td_cpu_tier td_cpu_tiers[] = {
    {"scalar", 0, 0},
    {"neon", TD_CPU_NEON, TD_CPU_NEON},
    {"dotprod", TD_CPU_DOTPROD, TD_CPU_NEON | TD_CPU_DOTPROD},
    {"i8mm", TD_CPU_I8MM, TD_CPU_NEON | TD_CPU_DOTPROD | TD_CPU_I8MM},
    {"sve256", TD_CPU_SVE256, TD_CPU_NEON | TD_CPU_DOTPROD | TD_CPU_I8MM | TD_CPU_SVE256},
    {0},
};

/* The length of SVE's vectors; 0 without SVE. Code compiled for one length must not run with another. */
static int sve_bits(void) {
    if (!(getauxval(AT_HWCAP) & HWCAP_SVE)) return 0;
    int length = prctl(PR_SVE_GET_VL);
    return length < 0 ? 0 : 8 * (length & PR_SVE_VL_LEN_MASK);
}

uint32_t td_cpu_detect(void) {
    unsigned long cap = getauxval(AT_HWCAP), cap2 = getauxval(AT_HWCAP2);
    uint32_t      f = TD_CPU_NEON;
    if (!(cap & HWCAP_ASIMD)) return 0;
    if (!(cap & HWCAP_ASIMDDP)) return f; /* each tier has what those below it have */
    f |= TD_CPU_DOTPROD;
    if (cap2 & HWCAP2_I8MM) f |= TD_CPU_I8MM;
    if (cap2 & HWCAP2_I8MM && cap2 & HWCAP2_SVEI8MM && sve_bits() == 256) f |= TD_CPU_SVE256;
    return f;
}

/* Prefetch distances, reasoned and not measured. Into L2: about twice the latency of memory under load (200 to 300 ns) times
 * what one core reads. That is 10 to 15 GB/s for narrow cores with DDR4, and 25 to 30 for wide ones. An L2 of 512 KiB holds
 * it easily. Into L1: twice L2's latency (8 to 13 cycles) times what a core takes in. Both are multiples of 128, the L3
 * lines of Kunpeng 920. */
#define NARROW \
    { 4096, 512 }
#define WIDE \
    { TD_CPU_PREFETCH_FAR, TD_CPU_PREFETCH_NEAR }

/* Implementer and part (MIDR_EL1, bits 31:24 and 15:4), as in Linux' asm/cputype.h and util-linux' lscpu. */
typedef struct {
    uint32_t        implementer, part;
    const char     *name;
    td_cpu_prefetch prefetch;
} core_family;

static const core_family CORES[] = {
    {0x48, 0xd01, "Kunpeng 920 (TaiShan V110)", NARROW},
    {0x48, 0xd02, "Kunpeng 920B (TaiShan V120)", WIDE},
    {0x41, 0xd03, "Cortex-A53", NARROW},
    {0x41, 0xd07, "Cortex-A57", NARROW},
    {0x41, 0xd08, "Cortex-A72", NARROW},
    {0x41, 0xd0b, "Cortex-A76", NARROW},
    {0x41, 0xd0c, "Neoverse N1", NARROW},
    {0x41, 0xd40, "Neoverse V1", WIDE},
    {0x41, 0xd49, "Neoverse N2", WIDE},
    {0x41, 0xd4f, "Neoverse V2", WIDE},
    {0x41, 0xd84, "Neoverse V3", WIDE},
    {0x41, 0xd8e, "Neoverse N3", WIDE},
    {0x46, 0x001, "A64FX", WIDE},
    {0xc0, 0xac3, "AmpereOne", WIDE},
    {0xc0, 0xac4, "AmpereOne A", WIDE},
    {0x70, 0x662, "Phytium FTC662", NARROW},
    {0x70, 0x663, "Phytium FTC663", NARROW},
};

/* The family of the core that the caller runs on. name NULL: the table lacks it; implementer and part are its numbers, or 0
 * if the kernel does not let a process ask. */
static core_family core_here(void) {
    core_family here = {.prefetch = WIDE};
    uint64_t    midr;
    if (!(getauxval(AT_HWCAP) & HWCAP_CPUID)) return here;
    __asm__("mrs %0, midr_el1" : "=r"(midr));
    here.implementer = midr >> 24 & 0xff;
    here.part = midr >> 4 & 0xfff;
    for (size_t i = 0; i < sizeof CORES / sizeof *CORES; i++)
        if (CORES[i].implementer == here.implementer && CORES[i].part == here.part) return CORES[i];
    return here;
}

static td_cpu_prefetch g_prefetch;
static pthread_once_t  g_once = PTHREAD_ONCE_INIT;

static void find_prefetch(void) {
    g_prefetch = core_here().prefetch;
}

td_cpu_prefetch td_cpu_prefetch_here(void) {
    pthread_once(&g_once, find_prefetch); /* reading the register takes a trap to the kernel */
    return g_prefetch;
}

/* The name with the core's extensions, for logs. */
size_t td_cpu_name(char *to, size_t room) {
    unsigned long     cap2 = getauxval(AT_HWCAP2);
    const core_family here = core_here();
    char              core[64], sve[32] = "";
    if (!here.implementer) return 0;
    snprintf(core, sizeof core, "aarch64, implementer 0x%02x part 0x%03x", here.implementer, here.part);
    if (sve_bits()) snprintf(sve, sizeof sve, ", SVE %d", sve_bits());
    snprintf(to, room, "%s%s%s%s", here.name ? here.name : core, cap2 & HWCAP2_I8MM ? ", i8mm" : "",
             cap2 & HWCAP2_BF16 ? ", bf16" : "", sve);
    return strlen(to);
}

uint32_t td_cpu_audit_arch(void) {
    return AUDIT_ARCH_AARCH64;
}

void td_cpu_flush(const void *p, size_t bytes) {
    uint64_t ctr;
    __asm__("mrs %0, ctr_el0" : "=r"(ctr));
    size_t line = (size_t)4 << (ctr >> 16 & 0xf); /* DminLine: words, as a power of two */
    for (size_t i = 0; i < bytes; i += line) __asm__ volatile("dc civac, %0" ::"r"((const char *)p + i) : "memory");
    __asm__ volatile("dsb ish" ::: "memory");
}
