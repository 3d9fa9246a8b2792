/* int4 group-wise, NEON with `sdot`. */
#include "kernels/vec/dot_neon.h"

#include "kernels/product/int4g_neon_codes.inc"

#define TILES td_int4g_16x4s
#define GROUP_SUMS "kernels/product/group_dot.inc"
#include "kernels/product/group_neon_body.inc"

const td_gemm_kernel td_int4g_dotprod = {
    .name = "int4g_dotprod_5x16",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
