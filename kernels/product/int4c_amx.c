/* int4 per channel, AMX-INT8: nibbles become bytes once for all rows. */
#include "kernels/vec/vec_avx512.h"
#include "kernels/product/tile_kernels.h"

#define TILES  td_int4c_32x4
#define INT4   true
#define OFFSET 8
#define FEWER  td_int4c_avx512vnni
#include "kernels/product/channel_amx_body.inc"

const td_gemm_kernel td_int4c_amx = {
    .name = "int4c_amx_32x32",
    .tiles = &TILES,
    .rows = ROWS_MAX,
    .run = run,
};
