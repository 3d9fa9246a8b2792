/* int8 products, NEON with `sdot`. */
#include "kernels/vec/vec_neon.h"

#include "kernels/vec/dot_neon.h"

#include "kernels/product/int8_neon_rows.inc"

const td_w8a8_kernel td_w8a8_dotprod = {
    .name = "w8a8_dotprod_5x16", .mr = MR, .nr = NR, .signed_codes = true, .run = run_tiles};
const td_gemm_kernel td_int8c_dotprod = {.name = "int8c_dotprod_5x16", .tiles = &td_int8c_16x4s, .run = run_channel};
