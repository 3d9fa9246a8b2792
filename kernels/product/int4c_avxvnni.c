/* int4 per channel, AVX-VNNI. */
#include "kernels/vec/vec_avx2.h"

#define TILES td_int4c_16x4
#define VPDPBUSD "%{vex%} vpdpbusd" /* not the form of AVX512-VNNI */
#define MR 6                        /* 12 accumulators, the codes, their low nibbles, mask, broadcast */
#define ROW_CASES ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6)
#define FAR_BYTES 8192
#define NEAR_BYTES 2048
#include "kernels/product/int4c_vnni_body.inc"

const td_gemm_kernel td_int4c_avxvnni = {
    .name = "int4c_avxvnni_6x16",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
