/* int8 products, SVE's `smmla` in vectors of 256 bits. */
#include "kernels/vec/vec_neon.h"

#include "kernels/vec/mmla_sve256.h"

#include "kernels/product/int8_mmla_rows.inc"

const td_gemm_kernel td_int8c_sve256 = {.name = "int8c_sve256_12x16", .tiles = &TILES, .mr = MR, .run = run_tiles};
