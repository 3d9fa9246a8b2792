/* int8 products, NEON with `sdot`. */
#include "kernels/vec/vec_neon.h"

#include "kernels/vec/dot_neon.h"

#include "kernels/product/int8_neon_rows.inc"

const td_gemm_kernel td_int8c_dotprod = {.name = "int8c_dotprod_5x16", .tiles = &TILES, .mr = MR, .run = run_tiles};
