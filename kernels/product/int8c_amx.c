/* int8 per channel, AMX-INT8: the tiles of AVX512-VNNI are tiles of weights as they lie. */
#include "kernels/vec/vec_avx512.h"
#include "kernels/product/tile_kernels.h"

#define TILES td_int8c_32x4
#define NR 32

static const uint8_t *weight_bytes(uint8_t *buffer, const uint8_t *codes, size_t k0, size_t k, size_t ahead) {
    (void)buffer, (void)k, (void)ahead;
    return codes + k0 * NR;
}

#define IN_PLACE true
#define OFFSET   128
#define FEWER    td_int8c_avx512vnni
#include "kernels/product/channel_amx_body.inc"

const td_gemm_kernel td_int8c_amx = {
    .name = "int8c_amx_32x32",
    .tiles = &TILES,
    .run = run,
};
