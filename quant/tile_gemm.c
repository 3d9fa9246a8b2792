/* The kernels of weights in groups. */
#include "quant/tile_gemm.h"

#include "quant/kernels/tile_kernels.h"

const td_gemm_kernel *const td_int4g_kernels[] = {
#if defined(__x86_64__)
    &td_int4g_amx, &td_int4g_avx512vnni, &td_int4g_avxvnni, &td_int4g_avx2,
#endif
    &td_int4g_scalar, NULL,
};

const td_gemm_kernel *const td_fp4g_kernels[] = {
#if defined(__x86_64__)
    &td_fp4g_amx, &td_fp4g_avx512vnni, &td_fp4g_avxvnni, &td_fp4g_avx2,
#endif
    &td_fp4g_scalar, NULL,
};

bool td_int4g_takes(const td_gemm_groups *g) {
    return (g->size == 32 || g->size == 64 || g->size == 128) &&
           (g->scale_dtype == TD_DT_F32 || g->scale_dtype == TD_DT_BF16 || g->scale_dtype == TD_DT_F16);
}

bool td_fp4g_takes(const td_gemm_groups *g) {
    bool mx = g->size == 32 && g->scale_dtype == TD_DT_F8_E8M0, nv = g->size == 16 && g->scale_dtype == TD_DT_F8_E4M3;
    return (mx || nv) && !g->zero_points;
}

const td_gemm_kernel *td_gemm_first(const td_gemm_kernel *const *kernels, uint32_t features) {
    while ((*kernels)->needs & ~features) kernels++;
    return *kernels;
}
