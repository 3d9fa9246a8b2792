/* int8 products, NEON with `smmla`. */
#include "kernels/vec/vec_neon.h"

#include "kernels/vec/mmla_i8mm.h"

#include "kernels/product/int8_mmla_rows.inc"

const td_gemm_kernel td_int8c_i8mm = {.name = "int8c_i8mm_6x16", .tiles = &TILES, .mr = MR, .run = run_tiles};
