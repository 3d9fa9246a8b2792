/* fp4 in groups, AMX-INT8. */
#include "quant/kernels/vec_avx512.h"
#include "quant/kernels/group_layout.h"
#include "quant/kernels/tile_kernels.h"

#define HALF  LANES
#define TILES td_fp4g_32x4

#include "quant/kernels/fp4g_codes.inc"

#define FEWER td_fp4g_avx512vnni

VEC vi code_bytes(vi nibbles) {
    return vi_lookup(vi_table(CODES), nibbles);
}

#include "quant/kernels/group_amx_body.inc"

const td_gemm_kernel td_fp4g_amx = {
    .name = "fp4g_amx_32x32",
    .tiles = &TILES,
    .needs = TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512VNNI | TD_CPU_AMX_NEEDED,
    .run = run,
};
