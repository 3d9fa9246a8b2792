/* Tiles of int8 per channel (int8c in kernels/product/tile_gemm.h): their size, packer and unpacker. */
#include "kernels/product/tile_kernels.h"

static size_t tile_bytes(size_t nr, size_t k, const td_gemm_groups *groups) {
    (void)groups;
    return nr * sizeof(float) + nr * k;
}

static void pack(size_t nr, void *tile, const td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    const int8_t *rows = w->rows;
    uint8_t      *out = (uint8_t *)tile + nr * sizeof *w->scale;
    (void)groups;
    memcpy(tile, w->scale, nr * sizeof *w->scale);
    for (size_t g = 0; g < k; g += 4)
        for (size_t i = 0; i < nr; i++, out += 4) {
            uint32_t four = load32(rows + i * k + g) ^ 0x80808080u; /* code + 128 */
            memcpy(out, &four, 4);
        }
}

static void unpack(size_t nr, const void *tile, td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    int8_t        *rows = w->rows;
    const uint8_t *in = (const uint8_t *)tile + nr * sizeof *w->scale;
    (void)groups;
    memcpy(w->scale, tile, nr * sizeof *w->scale);
    for (size_t g = 0; g < k; g += 4)
        for (size_t i = 0; i < nr; i++, in += 4) {
            uint32_t four = load32(in) ^ 0x80808080u;
            memcpy(rows + i * k + g, &four, 4);
        }
}

const td_tile_layout td_int8c_16x4 = {.name = "int8c_16x4", .nr = 16, .kr = 32, .tile_bytes = tile_bytes, .pack = pack, .unpack = unpack};
const td_tile_layout td_int8c_32x4 = {.name = "int8c_32x4", .nr = 32, .kr = 32, .tile_bytes = tile_bytes, .pack = pack, .unpack = unpack};
