/* Rows, NEON. */
#include "kernels/vec/vec_neon.h"

#include "kernels/rows/convert_body.inc"
#include "kernels/rows/row_quant_body.inc"
#include "kernels/rows/silu_body.inc"

const td_rows td_rows_neon = {.to_f32 = to_f32, .to_bf16 = to_bf16, .quantize = quantize, .glu = glu, .axpy = axpy};
