/* fp4 in groups, AVX512-VNNI. */
#include "quant/kernels/vec_avx512.h"
#include "quant/kernels/tile_kernels.h"

#define HALF LANES
#include "quant/kernels/group_layout.inc"

#define VPDPBUSD "vpdpbusd"
#define MR 13 /* 26 sums, two halves, mask, table, broadcast; the scales rest in memory */
#define ROW_CASES                                                                                               \
    ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6) ROW_CASE(7) ROW_CASE(8) ROW_CASE(9) \
    ROW_CASE(10) ROW_CASE(11) ROW_CASE(12) ROW_CASE(13)
#include "quant/kernels/fp4g_vnni_body.inc"

const td_gemm_kernel td_fp4g_avx512vnni = {
    GROUP_LAYOUT,
    .name = "fp4g_avx512vnni_13x32",
    .layout = "fp4g_32x4",
    .needs = TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512VNNI,
    .run = run,
};
