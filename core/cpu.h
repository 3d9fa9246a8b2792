/*
 * What this CPU can run, and the environment mask that forces a lower tier.
 *
 * TD_CPU_MASK names the highest tier that may be used: scalar, avx2, avxvnni, avx512vnni, amx (x86).
 * A tier needs its CPUID bits and that the operating system saves its registers (XGETBV).
 */
#ifndef TD_CORE_CPU_H
#define TD_CORE_CPU_H

#include <stddef.h>
#include <stdint.h>

#define TD_CPU_AVX2       (1u << 0) /* with FMA and F16C */
#define TD_CPU_AVXVNNI    (1u << 1)
#define TD_CPU_AVX512     (1u << 2) /* F, BW, DQ, VL */
#define TD_CPU_AVX512VNNI (1u << 3)
#define TD_CPU_AVX512BF16 (1u << 4)
#define TD_CPU_AMXINT8    (1u << 5) /* and the permission of arch_prctl was given */

/** TD_CPU_* bits, after the mask. Computed once; thread-safe. */
uint32_t td_cpu_features(void);

/** Write [p, p + bytes) back to memory and drop it from the caches; nothing on a processor for which the build has no way to. */
void td_cpu_flush(const void *p, size_t bytes);

/** "scalar", "avx2", "avxvnni", "avx512vnni" or "amx": the tier that the bits amount to; for logs. */
const char *td_cpu_tier_name(uint32_t features);

#endif
