/* int4 group-wise, AMX-INT8. */
#include "kernels/product/group_layout.h"
#include "kernels/product/tile_kernels.h"
#include "kernels/vec/vec_avx512.h"

#define HALF LANES
#define TILES td_int4g_32x4
#define SUM_SHIFT 0
#define UNIT 1
#define FEWER td_int4g_avx512vnni

VEC vi code_bytes(vi nibbles) {
    return nibbles;
}

#include "kernels/product/group_amx_body.inc"

const td_gemm_kernel td_int4g_amx = {
    .name = "int4g_amx_32x32",
    .tiles = &TILES,
    .mr = PAIR,
    .run = run,
};
