/* int4 group-wise, NEON alone. */
#include "kernels/vec/dot_neon.h"

#define TILES td_int4g_16x4
#define OFFSET 1
#define UNIT 1
#define decode(nibbles) vreinterpretq_s8_u8(nibbles)
#include "kernels/product/group_neon_body.inc"

const td_gemm_kernel td_int4g_neon = {
    .name = "int4g_neon_4x16",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
