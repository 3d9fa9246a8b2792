/* int4 group-wise, AVX512-VNNI. */
#include "kernels/product/group_layout.h"
#include "kernels/product/tile_kernels.h"
#include "kernels/vec/vec_avx512.h"

#define HALF LANES
#define TILES td_int4g_32x4
#define VPDPBUSD "vpdpbusd"
#define MR 13 /* 26 sums, two halves, mask, broadcast, two scales */
/* clang-format off */
#define ROW_CASES                                                                                               \
    ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6) ROW_CASE(7) ROW_CASE(8) ROW_CASE(9) \
    ROW_CASE(10) ROW_CASE(11) ROW_CASE(12) ROW_CASE(13)
/* clang-format on */
#include "kernels/product/int4g_vnni_body.inc"

const td_gemm_kernel td_int4g_avx512vnni = {
    .name = "int4g_avx512vnni_13x32",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
