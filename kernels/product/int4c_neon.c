/* int4 per channel, NEON alone. */
#include "kernels/vec/dot_neon.h"

#include "kernels/product/int4c_neon_body.inc"

const td_gemm_kernel td_int4c_neon = {
    .name = "int4c_neon_5x16",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
