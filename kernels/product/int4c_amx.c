/* int4 per channel, AMX-INT8: nibbles become bytes once for all rows. */
#define TILES td_int4c_32x4
#define INT4 true
#define ROWS_MAX 256
#define OFFSET 8
#define FEWER td_int4c_avx512vnni
#include "kernels/product/channel_amx_body.inc"

const td_gemm_kernel td_int4c_amx = {
    .name = "int4c_amx_32x32", .tiles = &TILES, .mr = PAIR, .rows = TILE_ROWS_BEST, .run = run};
