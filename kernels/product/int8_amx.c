/* int8 per channel, AMX-INT8: tiles of weights as they lie. */
#define TILES td_int8c_32x4
#define INT4 false
#define ROWS_MAX 512
#define OFFSET 128
#define FEWER td_int8c_avx512vnni
#include "kernels/product/channel_amx_body.inc"

const td_gemm_kernel td_int8c_amx = {
    .name = "int8c_amx_32x32", .tiles = &TILES, .mr = PAIR, .rows = TILE_ROWS_BEST, .run = run};
