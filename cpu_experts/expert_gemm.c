#include "cpu_experts/expert_gemm.h"

#include <string.h>

#include "cpu_experts/kernels/expert_kernels.h"

static const td_gemm_kernel *const INT4C[] = {
#if defined(__x86_64__)
    &td_int4c_amx, &td_int4c_avx512vnni, &td_int4c_avxvnni, &td_int4c_avx2,
#endif
    &td_int4c_scalar, NULL,
};

static const td_gemm_kernel *const INT8C[] = {
#if defined(__x86_64__)
    &td_int8c_amx, &td_int8c_avx512vnni, &td_int8c_avxvnni, &td_int8c_avx2,
#endif
    &td_int8c_scalar, NULL,
};

static const td_gemm_kernel *const BF16[] = {
#if defined(__x86_64__)
    &td_bf16_avx512, &td_bf16_avx2,
#endif
    &td_bf16_scalar, NULL,
};

static const td_tile_layout *const LAYOUTS[TD_EXPERT_FORMATS][3] = {[TD_EXPERT_INT4C] = {&td_int4c_16x4, &td_int4c_32x4},
                                                                    [TD_EXPERT_BF16] = {&td_bf16_16, &td_bf16_32},
                                                                    [TD_EXPERT_INT8C] = {&td_int8c_16x4, &td_int8c_32x4},
                                                                    [TD_EXPERT_INT4G] = {&td_int4g_16x4, &td_int4g_32x4},
                                                                    [TD_EXPERT_FP4G] = {&td_fp4g_16x4, &td_fp4g_32x4}};

const td_gemm_kernel *const *td_gemm_list(td_expert_format format) {
    static const td_gemm_kernel *const *const KERNELS[TD_EXPERT_FORMATS] = {[TD_EXPERT_INT4C] = INT4C,
                                                                            [TD_EXPERT_BF16] = BF16,
                                                                            [TD_EXPERT_INT8C] = INT8C,
                                                                            [TD_EXPERT_INT4G] = td_int4g_kernels,
                                                                            [TD_EXPERT_FP4G] = td_fp4g_kernels};
    return KERNELS[format];
}

const td_gemm_kernel *td_gemm_select(td_expert_format format, uint32_t features) {
    return td_gemm_first(td_gemm_list(format), features);
}

const td_tile_layout *td_tile_layout_named(td_expert_format format, const char *name) {
    const td_tile_layout *const *l = LAYOUTS[format];
    while (*l && strcmp((*l)->name, name)) l++;
    return *l;
}

#if defined(__x86_64__)
static const td_expert_vec AVX512 = {"avx512", TD_CPU_AVX2 | TD_CPU_AVX512, td_silu_mul_avx512, td_axpy_avx512};
static const td_expert_vec AVX2 = {"avx2", TD_CPU_AVX2, td_silu_mul_avx2, td_axpy_avx2};
#endif
static const td_expert_vec SCALAR = {"scalar", 0, td_silu_mul_scalar, td_axpy_scalar};

const td_expert_vec *const td_expert_vecs[] = {
#if defined(__x86_64__)
    &AVX512, &AVX2,
#endif
    &SCALAR, NULL,
};

const td_expert_vec *td_expert_vec_select(uint32_t features) {
    const td_expert_vec *const *v = td_expert_vecs;
    while ((*v)->needs & ~features) v++;
    return *v;
}
