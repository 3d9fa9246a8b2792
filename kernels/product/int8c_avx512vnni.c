/* int8 per channel, AVX512-VNNI. */
#include "kernels/vec/vec_avx512.h"
#include "kernels/product/tile_kernels.h"

#define TILES td_int8c_32x4
#define NR 32

#define VPDPBUSD "vpdpbusd"
#include "kernels/product/vnni_dot.inc"

#define OFFSET 128
#define MR 14 /* 28 sums, two vectors of weights, broadcast */
#define ROW_CASES                                                                                               \
    ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6) ROW_CASE(7) ROW_CASE(8) ROW_CASE(9) \
    ROW_CASE(10) ROW_CASE(11) ROW_CASE(12) ROW_CASE(13) ROW_CASE(14)
#include "kernels/product/int8c_body.inc"

const td_gemm_kernel td_int8c_avx512vnni = {
    .name = "int8c_avx512vnni_14x32",
    .tiles = &TILES,
    .run = run,
};
