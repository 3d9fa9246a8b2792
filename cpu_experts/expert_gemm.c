#include "cpu_experts/expert_gemm.h"

#include <string.h>

#include "cpu_experts/kernels/expert_kernels.h"

/* Best first within a format. */
static const td_gemm_kernel *const KERNELS[] = {
#if defined(__x86_64__)
    &td_int4c_amx,        &td_int4c_avx512vnni, &td_int4c_avxvnni, &td_int4c_avx2,
#endif
    &td_int4c_scalar,
#if defined(__x86_64__)
    &td_int8c_avx512vnni, &td_int8c_avxvnni, &td_int8c_avx2,
#endif
    &td_int8c_scalar,
#if defined(__x86_64__)
    &td_int4g_avx512vnni, &td_int4g_avxvnni, &td_int4g_avx2,
#endif
    &td_int4g_scalar,
#if defined(__x86_64__)
    &td_fp4g_avx512vnni, &td_fp4g_avxvnni, &td_fp4g_avx2,
#endif
    &td_fp4g_scalar,
#if defined(__x86_64__)
    &td_bf16_avx512,      &td_bf16_avx2,
#endif
    &td_bf16_scalar,
};
#define N_KERNELS (sizeof KERNELS / sizeof KERNELS[0])

const td_gemm_kernel *td_gemm_select(td_expert_format format, uint32_t features) {
    for (size_t i = 0; i < N_KERNELS; i++)
        if (KERNELS[i]->format == format && !(KERNELS[i]->needs & ~features)) return KERNELS[i];
    return NULL;
}

const td_gemm_kernel *td_gemm_find_layout(td_expert_format format, const char *layout) {
    for (size_t i = N_KERNELS; i-- > 0;)
        if (KERNELS[i]->format == format && !strcmp(KERNELS[i]->layout, layout)) return KERNELS[i];
    return NULL;
}

const td_gemm_kernel *const *td_gemm_list(size_t *n) {
    *n = N_KERNELS;
    return KERNELS;
}
