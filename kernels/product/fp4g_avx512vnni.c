/* fp4 in groups, AVX512-VNNI. */
#include "kernels/product/group_layout.h"
#include "kernels/product/tile_kernels.h"
#include "kernels/vec/vec_avx512.h"

#define HALF LANES
#define TILES td_fp4g_32x4
#define VPDPBUSD "vpdpbusd"
#define MR 13 /* 26 sums, two halves, mask, table, broadcast; the scales rest in memory */
/* clang-format off */
#define ROW_CASES                                                                                               \
    ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6) ROW_CASE(7) ROW_CASE(8) ROW_CASE(9) \
    ROW_CASE(10) ROW_CASE(11) ROW_CASE(12) ROW_CASE(13)
/* clang-format on */
#include "kernels/product/fp4g_vnni_body.inc"

const td_gemm_kernel td_fp4g_avx512vnni = {
    .name = "fp4g_avx512vnni_13x32",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
