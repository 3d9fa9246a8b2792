/* int8 products, NEON alone. */
#include "kernels/vec/vec_neon.h"

#include "kernels/vec/dot_neon.h"

#include "kernels/product/int8_neon_rows.inc"

const td_gemm_kernel td_int8c_neon = {.name = "int8c_neon_5x16", .tiles = &TILES, .mr = MR, .run = run_tiles};
