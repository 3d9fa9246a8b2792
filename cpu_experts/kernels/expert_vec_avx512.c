/* silu and axpy, AVX-512. */
#include "quant/kernels/vec_avx512.h"

#define SILU_MUL td_silu_mul_avx512
#define AXPY td_axpy_avx512
#include "cpu_experts/kernels/expert_vec_body.inc"
