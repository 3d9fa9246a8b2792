/* fp4 in groups, NEON with `smmla`. */
#include "kernels/vec/mmla_i8mm.h"

#include "kernels/product/fp4g_neon_codes.inc"

#define TILES td_fp4g_16x8
#define GROUP_SUMS "kernels/product/group_mmla.inc"
#include "kernels/product/group_neon_body.inc"

const td_gemm_kernel td_fp4g_i8mm = {
    .name = "fp4g_i8mm_6x16",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
