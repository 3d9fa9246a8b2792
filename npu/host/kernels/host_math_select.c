/* The table of the compiled float tiers, best first. */
#include "npu/host/kernels/host_math.h"

const td_host_math *td_host_math_select(uint32_t features) {
    static const td_host_math *const tables[] = {
#if defined(__x86_64__)
        &td_host_math_avx512, &td_host_math_avx2,
#endif
    };
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if ((features & tables[i]->needs) == tables[i]->needs) return tables[i];
    return &td_host_math_scalar;
}
