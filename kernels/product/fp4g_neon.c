/* fp4 in groups, NEON alone. */
#include "kernels/vec/dot_neon.h"

static const int8_t TWICE_E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

#define TILES td_fp4g_16x4
#define OFFSET 0
#define UNIT 0.5f
#define decode(nibbles) vqtbl1q_s8(vld1q_s8(TWICE_E2M1), nibbles)
#include "kernels/product/group_neon_body.inc"

const td_gemm_kernel td_fp4g_neon = {
    .name = "fp4g_neon_4x16",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
