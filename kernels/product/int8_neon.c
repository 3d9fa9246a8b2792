/* int8 products, NEON alone. */
#include "kernels/vec/vec_neon.h"

#include "kernels/vec/dot_neon.h"

#include "kernels/product/int8_neon_rows.inc"

const td_w8a8_kernel td_w8a8_neon = {.name = "w8a8_neon_5x16", .mr = MR, .nr = NR, .signed_codes = true, .run = run_tiles};
const td_gemm_kernel td_int8c_neon = {.name = "int8c_neon_5x16", .tiles = &td_int8c_16x4s, .run = run_channel};
