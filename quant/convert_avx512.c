/* Conversions, AVX-512. */
#include "quant/kernels/vec_avx512.h"

#define TO_F32  td_to_f32_avx512
#define TO_BF16 td_f32_to_bf16_n_avx512
#include "quant/convert_body.inc"
