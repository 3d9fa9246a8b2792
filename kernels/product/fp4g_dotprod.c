/* fp4 in groups, NEON with `sdot`. */
#include "kernels/vec/dot_neon.h"

#include "kernels/product/fp4g_neon_codes.inc"

#define TILES td_fp4g_16x4
#define GROUP_SUMS "kernels/product/group_dot.inc"
#include "kernels/product/group_neon_body.inc"

const td_gemm_kernel td_fp4g_dotprod = {
    .name = "fp4g_dotprod_5x16",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
