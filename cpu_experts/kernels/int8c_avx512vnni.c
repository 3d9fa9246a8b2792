/* int8 per channel, AVX512-VNNI. */
#include "quant/kernels/vec_avx512.h"
#include "cpu_experts/kernels/expert_kernels.h"

#define TILES td_int8c_32x4
#define NR 32

#define VPDPBUSD "vpdpbusd"
#include "quant/kernels/vnni_dot.inc"

#define OFFSET 128
#define MR 14 /* 28 sums, two vectors of weights, broadcast */
#define ROW_CASES                                                                                               \
    ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6) ROW_CASE(7) ROW_CASE(8) ROW_CASE(9) \
    ROW_CASE(10) ROW_CASE(11) ROW_CASE(12) ROW_CASE(13) ROW_CASE(14)
#include "cpu_experts/kernels/int8c_body.inc"

const td_gemm_kernel td_int8c_avx512vnni = {
    .name = "int8c_avx512vnni_14x32",
    .tiles = &TILES,
    .needs = TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512VNNI,
    .run = run,
};
