/* Conversions, AVX2 + F16C. */
#include "quant/kernels/vec_avx2.h"

#define TO_F32  td_to_f32_avx2
#define TO_BF16 td_f32_to_bf16_n_avx2
#include "quant/convert_body.inc"
