/* The kernels of the build, and the vector helpers that kernels of one ISA share. */
#ifndef TD_CPU_EXPERTS_KERNELS_EXPERT_KERNELS_H
#define TD_CPU_EXPERTS_KERNELS_EXPERT_KERNELS_H

#include "cpu_experts/expert_gemm.h"
#include "quant/kernels/tile_kernels.h"

extern const td_tile_layout td_int4c_16x4, td_int4c_32x4, td_int8c_16x4, td_int8c_32x4, td_bf16_16, td_bf16_32;
extern const td_gemm_kernel td_int4c_scalar, td_int4c_avx2, td_int4c_avxvnni, td_int4c_avx512vnni, td_int4c_amx;
extern const td_gemm_kernel td_int8c_scalar, td_int8c_avx2, td_int8c_avxvnni, td_int8c_avx512vnni, td_int8c_amx;
extern const td_gemm_kernel td_bf16_scalar, td_bf16_avx2, td_bf16_avx512;

/* of td_expert_vec */
void td_silu_mul_scalar(const float *gate, const float *up, size_t rows, size_t cols, float *out, size_t ldo);
void td_silu_mul_avx2(const float *gate, const float *up, size_t rows, size_t cols, float *out, size_t ldo);
void td_silu_mul_avx512(const float *gate, const float *up, size_t rows, size_t cols, float *out, size_t ldo);
void td_axpy_scalar(float w, const float *v, size_t n, float *y);
void td_axpy_avx2(float w, const float *v, size_t n, float *y);
void td_axpy_avx512(float w, const float *v, size_t n, float *y);

/*
 * exp(x) for silu, the same operations in every tier: x clamped to [-87, 88]; n = rint(x log2 e);
 * r = fma(n, -ln2_low, fma(n, -ln2_high, x)); p = the polynomial of Cephes expf in r (Horner, fma);
 * exp = (fma(p, r*r, r) + 1) * 2^n.
 */
#define EXP_LOW -87.0f
#define EXP_HIGH 88.0f
#define EXP_LOG2E 1.44269504088896341f
#define EXP_LN2_HIGH 0.693359375f
#define EXP_LN2_LOW -2.12194440e-4f
#define EXP_P0 1.9875691500e-4f
#define EXP_P1 1.3981999507e-3f
#define EXP_P2 8.3334519073e-3f
#define EXP_P3 4.1665795894e-2f
#define EXP_P4 1.6666665459e-1f
#define EXP_P5 5.0000001201e-1f

#endif
