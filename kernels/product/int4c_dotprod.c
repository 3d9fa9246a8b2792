/* int4 per channel, NEON with `sdot`. */
#include "kernels/vec/dot_neon.h"

#include "kernels/product/int4c_neon_body.inc"

const td_gemm_kernel td_int4c_dotprod = {
    .name = "int4c_dotprod_5x16",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
