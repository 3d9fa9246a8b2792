/* The table of the compiled float tiers, best first. */
#include "npu/host/kernels/host_math.h"

const td_host_math *td_host_math_select(uint32_t features) {
    static const td_host_math *const tables[] = {
#if defined(__x86_64__)
        &td_host_math_avx512, &td_host_math_avx2,
#endif
        &td_host_math_scalar,
    };
    const td_host_math *const *t = tables;
    while ((features & (*t)->needs) != (*t)->needs) t++; /* the scalar tier needs nothing */
    return *t;
}
