/* The kernels of weights in groups. */
#include "quant/tile_gemm.h"

#include "quant/kernels/tile_kernels.h"

const td_gemm_kernel *const td_int4g_kernels[] = {
#if defined(__x86_64__)
    &td_int4g_avx512vnni, &td_int4g_avxvnni, &td_int4g_avx2,
#endif
    &td_int4g_scalar, NULL,
};

const td_gemm_kernel *const td_fp4g_kernels[] = {
#if defined(__x86_64__)
    &td_fp4g_avx512vnni, &td_fp4g_avxvnni, &td_fp4g_avx2,
#endif
    &td_fp4g_scalar, NULL,
};

const td_gemm_kernel *td_gemm_first(const td_gemm_kernel *const *kernels, uint32_t features) {
    while ((*kernels)->needs & ~features) kernels++;
    return *kernels;
}
