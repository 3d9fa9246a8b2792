/* int8 per channel, AVX-VNNI. */
#include "kernels/vec/vec_avx2.h"
#include "kernels/product/tile_kernels.h"

#define TILES td_int8c_16x4
#define NR 16

#define VPDPBUSD "%{vex%} vpdpbusd" /* not the form of AVX512-VNNI */
#include "kernels/product/vnni_dot.inc"

#define OFFSET 128
#define MR 6 /* 12 sums, two vectors of weights, broadcast */
#define ROW_CASES ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6)
#include "kernels/product/int8c_body.inc"

const td_gemm_kernel td_int8c_avxvnni = {
    .name = "int8c_avxvnni_6x16",
    .tiles = &TILES,
    .run = run,
};
