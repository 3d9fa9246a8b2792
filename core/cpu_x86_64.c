/* What an x86-64 processor can run: CPUID, and whether the operating system saves the registers (XGETBV). */
#include "core/cpu_arch.h"

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

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
static int request_amx(void) {
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

uint32_t td_cpu_detect(void) {
    uint32_t a, b, c, d, f = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    if (!(c & bit_OSXSAVE)) return 0;
    uint64_t xcr0 = read_xcr0();
    uint32_t fma = c & bit_FMA, f16c = c & bit_F16C;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    uint32_t b7 = b, c7 = c, d7 = d, a71 = 0;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) a71 = a;
    if ((xcr0 & XCR0_AVX) != XCR0_AVX || !fma || !f16c || !(b7 & bit_AVX2)) return 0;
    f |= TD_CPU_AVX2;
    if (a71 & (1u << 4)) f |= TD_CPU_AVXVNNI;
    uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if ((xcr0 & XCR0_AVX512) == XCR0_AVX512 && (b7 & avx512) == avx512) {
        f |= TD_CPU_AVX512;
        if (c7 & (1u << 11)) f |= TD_CPU_AVX512VNNI;
        if (a71 & (1u << 5)) f |= TD_CPU_AVX512BF16;
    }
    if ((xcr0 & XCR0_AMX) == XCR0_AMX && (d7 & (1u << 24)) && (d7 & (1u << 25)) && request_amx()) f |= TD_CPU_AMXINT8;
    return f;
}

__attribute__((target("clflushopt"))) static void flush_weakly_ordered(const char *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += LINE_BYTES) _mm_clflushopt((void *)(uintptr_t)(p + i));
    _mm_sfence();
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
