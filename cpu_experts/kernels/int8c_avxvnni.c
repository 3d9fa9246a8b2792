/* int8 per channel, AVX-VNNI. */
#include "quant/kernels/vec_avx2.h"
#include "cpu_experts/kernels/expert_kernels.h"

#define TILES td_int8c_16x4
#define NR 16

#define VPDPBUSD "%{vex%} vpdpbusd" /* not the form of AVX512-VNNI */
#include "quant/kernels/vnni_dot.inc"

#define OFFSET 128
#define MR 6 /* 12 sums, two vectors of weights, broadcast */
#define ROW_CASES ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6)
#include "cpu_experts/kernels/int8c_body.inc"

const td_gemm_kernel td_int8c_avxvnni = {
    .name = "int8c_avxvnni_6x16",
    .tiles = &TILES,
    .needs = TD_CPU_AVX2 | TD_CPU_AVXVNNI,
    .run = run,
};
