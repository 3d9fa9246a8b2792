/*
 * What this CPU can run, in tiers of instruction sets, and the environment mask that forces a lower tier.
 *
 * TD_CPU_MASK names the highest tier that may be used: scalar; avx2, avxvnni, avx512vnni, amx on x86-64; neon, dotprod,
 * i8mm, sve256 on aarch64. A tier that is unknown, or that the processor lacks, gives a warning and enables nothing.
 */
#ifndef TD_CORE_MACHINE_CPU_H
#define TD_CORE_MACHINE_CPU_H

#include <stddef.h>
#include <stdint.h>

#define TD_CPU_AVX2 (1u << 0) /* with FMA and F16C */
#define TD_CPU_AVXVNNI (1u << 1)
#define TD_CPU_AVX512 (1u << 2) /* F, BW, DQ, VL */
#define TD_CPU_AVX512VNNI (1u << 3)
#define TD_CPU_AVX512BF16 (1u << 4)
#define TD_CPU_AMXINT8 (1u << 5) /* and the permission of arch_prctl was given */

#define TD_CPU_NEON (1u << 8)    /* Advanced SIMD */
#define TD_CPU_DOTPROD (1u << 9) /* sdot, udot */
#define TD_CPU_I8MM (1u << 10)   /* smmla */
#define TD_CPU_SVE256 (1u << 11) /* SVE with smmla, and vectors of 256 bits, no more and no less */

/** What two threads write must lie this far apart, or they take a cache line from each other. Kunpeng 920 has lines of 128
 * bytes in its L3. */
#if defined(__aarch64__)
#define TD_CPU_LINE 128
#else
#define TD_CPU_LINE 64
#endif

/** How far ahead a kernel prefetches the memory that it passes over: `far` into L2, `near` into L1. */
typedef struct {
    uint32_t far_bytes, near_bytes;
} td_cpu_prefetch;

/** The distances for a core about which nothing else is known. */
#define TD_CPU_PREFETCH_FAR 8192
#define TD_CPU_PREFETCH_NEAR 1024

/** The distances for this machine's cores. Thread-safe; always the same. */
td_cpu_prefetch td_cpu_prefetch_here(void);

/** TD_CPU_* bits, after the mask. Computed once; thread-safe. */
uint32_t td_cpu_features(void);

/** What the kernel calls this architecture where it filters system calls: an AUDIT_ARCH_* of linux/audit.h; 0: unknown. */
uint32_t td_cpu_audit_arch(void);

/** Write [p, p + bytes) back to memory and drop it from the caches. Does nothing on a processor for which the build has no
 * instruction for it. */
void td_cpu_flush(const void *p, size_t bytes);

/** "avx512vnni": the best tier that the bits amount to; for logs. */
const char *td_cpu_tier_name(uint32_t features);

/**
 * The core that the caller runs on, where the architecture tells it and hwloc does not: "Kunpeng 920B (TaiShan V120), i8mm,
 * bf16, SVE 256".
 * @return the length; 0, and nothing written, elsewhere.
 */
size_t td_cpu_name(char *to, size_t room);

/* ---- what cpu_ARCHITECTURE.c tells cpu.c, beside flush, name and prefetch above ---- */

typedef struct {
    const char *name; /* NULL: the end of the list */
    uint32_t    own;  /* TD_CPU_* bits that a processor with this tier has; 0: every processor has the tier */
    uint32_t    kept; /* bits that a mask of this name leaves: those of this tier and of the tiers below */
} td_cpu_tier;

/** In rising order; the first is "scalar". */
extern const td_cpu_tier td_cpu_tiers[];

/** TD_CPU_* bits of this processor, whatever the mask. */
uint32_t td_cpu_detect(void);

#endif
