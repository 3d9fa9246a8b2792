/* silu and axpy, AVX2 + FMA. */
#include "quant/kernels/vec_avx2.h"

#define SILU_MUL td_silu_mul_avx2
#define AXPY td_axpy_avx2
#include "cpu_experts/kernels/expert_vec_body.inc"
