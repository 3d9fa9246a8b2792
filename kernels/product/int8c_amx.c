/* int8 per channel, AMX-INT8: the tiles of AVX512-VNNI are tiles of weights as they lie. */
#include "kernels/vec/vec_avx512.h"
#include "kernels/product/tile_kernels.h"

#define TILES  td_int8c_32x4
#define INT4   false
#define OFFSET 128
#define FEWER  td_int8c_avx512vnni
#include "kernels/product/channel_amx_body.inc"

const td_gemm_kernel td_int8c_amx = {
    .name = "int8c_amx_32x32",
    .tiles = &TILES,
    .rows = ROWS_MAX,
    .run = run,
};
