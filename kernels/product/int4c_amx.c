/* int4 per channel, AMX-INT8: a stretch of nibbles is unpacked to bytes once for all rows. */
#include "kernels/vec/vec_avx512.h"
#include "kernels/product/tile_kernels.h"

#define TILES td_int4c_32x4
#define HALF LANES

static const uint8_t *weight_bytes(uint8_t *buffer, const uint8_t *codes, size_t k0, size_t k, size_t ahead) {
    const vi nibble = vi_set1(0x0f0f0f0f);
    codes += k0 * HALF;
    for (size_t j = 0; j < k; j += 4) {
        vi both = vi_load(codes + j * HALF);
        _mm_prefetch((const char *)codes + j * HALF + ahead, _MM_HINT_T1);
        *(vi *)(buffer + j * 2 * HALF) = both & nibble;
        *(vi *)(buffer + j * 2 * HALF + 4 * HALF) = both >> 4 & nibble;
    }
    return buffer;
}

#define IN_PLACE false
#define OFFSET   8
#define FEWER    td_int4c_avx512vnni
#include "kernels/product/channel_amx_body.inc"

const td_gemm_kernel td_int4c_amx = {
    .name = "int4c_amx_32x32",
    .tiles = &TILES,
    .run = run,
};
