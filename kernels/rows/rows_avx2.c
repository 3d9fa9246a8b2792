/* Rows, AVX2 + FMA + F16C. */
#include "kernels/vec/vec_avx2.h"

#include "kernels/rows/convert_body.inc"
#include "kernels/rows/row_quant_body.inc"
#include "kernels/rows/silu_body.inc"

const td_rows td_rows_avx2 = {.to_f32 = to_f32, .to_bf16 = to_bf16, .quantize = quantize, .glu = glu, .axpy = axpy};
