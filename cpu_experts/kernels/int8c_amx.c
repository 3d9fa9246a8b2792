/* int8 per channel, AMX-INT8: the tiles of AVX512-VNNI are tiles of weights as they lie. */
#include "quant/kernels/vec_avx512.h"
#include "cpu_experts/kernels/expert_kernels.h"

#define TILES  td_int8c_32x4
#define INT4   false
#define OFFSET 128
#define FEWER  td_int8c_avx512vnni
#include "cpu_experts/kernels/channel_amx_body.inc"

const td_gemm_kernel td_int8c_amx = {
    .name = "int8c_amx_32x32",
    .tiles = &TILES,
    .needs = TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512VNNI | TD_CPU_AMX_NEEDED,
    .rows = ROWS_MAX,
    .run = run,
};
