/* What an x86-64 processor can run: CPUID, and whether the operating system saves the registers (XGETBV). */
#include "core/machine/cpu_x86_64.h"

#include <cpuid.h>
#include <errno.h>
#include <immintrin.h>
#include <linux/audit.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/log/log.h"
#include "core/machine/cpu.h"

#define LINE_BYTES 64 /* of the caches, or a divisor of it */

const td_cpu_tier td_cpu_tiers[] = {
    {"scalar", 0, 0},
    {"avx2", TD_CPU_AVX2, TD_CPU_AVX2},
    {"avxvnni", TD_CPU_AVXVNNI, TD_CPU_AVX2 | TD_CPU_AVXVNNI},
    {"avx512vnni", TD_CPU_AVX512VNNI, TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512VNNI | TD_CPU_AVX512BF16 | TD_CPU_AVXVNNI},
    {"amx", TD_CPU_AMXINT8, UINT32_MAX},
    {0},
};

#define XCR0_AVX 0x6u
#define XCR0_AVX512 0xe6u
#define XCR0_AMX 0x60000u

static uint64_t read_xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* Linux gives tile state to a process only on request (Documentation/arch/x86/xstate.rst). */
static bool request_amx(void) {
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0) return true;
    td_warn(
        "this processor has AMX, but the system does not give its tile registers to this process (arch_prctl: %s); "
        "kernels without them are used",
        strerror(errno));
    return false;
}

td_cpuid td_cpuid_read(void) {
    uint32_t a, b, c, d;
    td_cpuid id = {0};
    if (!__get_cpuid(1, &a, &b, &c, &d)) return id;
    id.ecx1 = c;
    if (!(c & bit_OSXSAVE)) return id;
    id.xcr0 = read_xcr0();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return id;
    id.ebx7 = b, id.ecx7 = c, id.edx7 = d;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) id.eax7_1 = a;
    return id;
}

uint32_t td_cpuid_features(const td_cpuid *id) {
    const uint32_t avx = bit_FMA | bit_F16C, avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL,
                   amx = 1u << 24 | 1u << 25; /* tiles, their products of int8 */
    if ((id->xcr0 & XCR0_AVX) != XCR0_AVX || (id->ecx1 & avx) != avx || !(id->ebx7 & bit_AVX2)) return 0;
    uint32_t f = TD_CPU_AVX2;
    if (id->eax7_1 & (1u << 4)) f |= TD_CPU_AVXVNNI;
    if ((id->xcr0 & XCR0_AVX512) == XCR0_AVX512 && (id->ebx7 & avx512) == avx512) {
        f |= TD_CPU_AVX512;
        if (id->ecx7 & (1u << 11)) f |= TD_CPU_AVX512VNNI;
        if (id->eax7_1 & (1u << 5)) f |= TD_CPU_AVX512BF16;
    }
    if ((id->xcr0 & XCR0_AMX) == XCR0_AMX && (id->edx7 & amx) == amx && request_amx()) f |= TD_CPU_AMXINT8;
    return f;
}

uint32_t td_cpu_detect(void) {
    const td_cpuid id = td_cpuid_read();
    return td_cpuid_features(&id);
}

__attribute__((target("clflushopt"))) static void flush_weakly_ordered(const char *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += LINE_BYTES) _mm_clflushopt((void *)(uintptr_t)(p + i));
    _mm_sfence();
}

uint32_t td_cpu_audit_arch(void) {
    return AUDIT_ARCH_X86_64;
}

void td_cpu_flush(const void *p, size_t bytes) {
    uint32_t a, b, c, d;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_CLFLUSHOPT))
        flush_weakly_ordered(p, bytes);
    else
        for (size_t i = 0; i < bytes; i += LINE_BYTES) _mm_clflush((const char *)p + i);
}

/* hwloc reads the name from where Linux has it. */
size_t td_cpu_name(char *to, size_t room) {
    (void)to, (void)room;
    return 0;
}

td_cpu_prefetch td_cpu_prefetch_here(void) {
    return (td_cpu_prefetch){TD_CPU_PREFETCH_FAR, TD_CPU_PREFETCH_NEAR};
}
