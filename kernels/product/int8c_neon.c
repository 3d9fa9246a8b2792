/* int8 per channel, NEON alone. */
#include "kernels/vec/dot_neon.h"

#include "kernels/product/int8c_neon_body.inc"

const td_gemm_kernel td_int8c_neon = {
    .name = "int8c_neon_5x16",
    .tiles = &TILES,
    .run = run,
};
