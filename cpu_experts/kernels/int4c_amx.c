/* int4 per channel, AMX-INT8: nibbles become bytes once for all rows. */
#include "quant/kernels/vec_avx512.h"
#include "cpu_experts/kernels/expert_kernels.h"

#define TILES  td_int4c_32x4
#define INT4   true
#define OFFSET 8
#define FEWER  td_int4c_avx512vnni
#include "cpu_experts/kernels/channel_amx_body.inc"

const td_gemm_kernel td_int4c_amx = {
    .name = "int4c_amx_32x32",
    .tiles = &TILES,
    .needs = TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512VNNI | TD_CPU_AMX_NEEDED,
    .rows = ROWS_MAX,
    .run = run,
};
