/* Tiles of bf16 (kernels/product/tile_gemm.h): their size, packer and unpacker. */
#include "kernels/product/tile_kernels.h"

static size_t tile_bytes(size_t nr, size_t k, const td_gemm_groups *groups) {
    (void)groups;
    return (nr / 2 * k * 4 + 63) & ~(size_t)63;
}

static void pack(const td_tile_layout *l, void *tile, const td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    const size_t   half = l->nr / 2;
    const td_bf16 *high_rows = w->rows, *low_rows = high_rows + half * k;
    uint32_t      *out = tile;
    (void)groups;
    for (size_t j = 0; j < k; j++)
        for (size_t i = 0; i < half; i++) *out++ = (uint32_t)high_rows[i * k + j] << 16 | low_rows[i * k + j];
}

static void unpack(const td_tile_layout *l, const void *tile, td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    const size_t    half = l->nr / 2;
    td_bf16        *high_rows = w->rows, *low_rows = high_rows + half * k;
    const uint32_t *in = tile;
    (void)groups;
    for (size_t j = 0; j < k; j++)
        for (size_t i = 0; i < half; i++, in++) {
            high_rows[i * k + j] = (td_bf16)(*in >> 16);
            low_rows[i * k + j] = (td_bf16)*in;
        }
}

const td_tile_layout td_bf16_16 = {
    .name = "bf16_16", .nr = 16, .kr = 1, .run = 1, .tile_bytes = tile_bytes, .pack = pack, .unpack = unpack};
const td_tile_layout td_bf16_32 = {
    .name = "bf16_32", .nr = 32, .kr = 1, .run = 1, .tile_bytes = tile_bytes, .pack = pack, .unpack = unpack};
