/* int4 group-wise, NEON with `smmla`. */
#include "kernels/vec/mmla_i8mm.h"

#include "kernels/product/int4g_neon_codes.inc"

#define TILES td_int4g_16x8s
#define GROUP_SUMS "kernels/product/group_mmla.inc"
#include "kernels/product/group_neon_body.inc"

const td_gemm_kernel td_int4g_i8mm = {
    .name = "int4g_i8mm_6x16",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
