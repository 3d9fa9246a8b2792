/* int4 group-wise, AVX-VNNI. */
#include "kernels/product/group_layout.h"
#include "kernels/product/tile_kernels.h"
#include "kernels/vec/vec_avx2.h"

#define HALF LANES
#define TILES td_int4g_16x4
#define VPDPBUSD "%{vex%} vpdpbusd" /* not the form of AVX512-VNNI */
#define MR 5                        /* 10 sums, two halves, mask, broadcast; the scales rest in memory */
#define ROW_CASES ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5)
#include "kernels/product/int4g_vnni_body.inc"

const td_gemm_kernel td_int4g_avxvnni = {
    .name = "int4g_avxvnni_5x16",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
