/* fp4 in groups, AMX-INT8. */
#include "kernels/product/group_layout.h"
#include "kernels/product/tile_kernels.h"
#include "kernels/vec/vec_avx512.h"

#define HALF LANES
#define TILES td_fp4g_32x4

#include "kernels/product/fp4g_codes.inc"

#define FEWER td_fp4g_avx512vnni

VEC vi code_bytes(vi nibbles) {
    return vi_lookup(vi_table(CODES), nibbles);
}

#include "kernels/product/group_amx_body.inc"

const td_gemm_kernel td_fp4g_amx = {
    .name = "fp4g_amx_32x32",
    .tiles = &TILES,
    .mr = PAIR,
    .run = run,
};
