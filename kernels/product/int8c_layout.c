/* Tiles of int8 per channel (int8c in kernels/product/tile_gemm.h): their size, packer and unpacker. */
#include "kernels/product/tile_kernels.h"

static size_t tile_bytes(size_t nr, size_t k, const td_gemm_groups *groups) {
    (void)groups;
    return nr * sizeof(float) + nr * k;
}

/* run and flip as in td_tile_layout; run is a constant where this is inlined. */
INLINED void pack_as(size_t run, uint32_t flip, size_t nr, void *tile, const td_gemm_weights *w, size_t k,
                     const td_gemm_groups *groups) {
    const int8_t *rows = w->rows;
    uint8_t      *out = (uint8_t *)tile + nr * sizeof *w->scale;
    (void)groups;
    memcpy(tile, w->scale, nr * sizeof *w->scale);
    for (size_t g = 0; g < k; g += run)
        for (size_t i = 0; i < nr; i++)
            for (size_t j = g; j < g + run; j += 4, out += 4) {
                uint32_t four = load32(rows + i * k + j) ^ flip;
                memcpy(out, &four, 4);
            }
}

INLINED void unpack_as(size_t run, uint32_t flip, size_t nr, const void *tile, td_gemm_weights *w, size_t k,
                       const td_gemm_groups *groups) {
    int8_t        *rows = w->rows;
    const uint8_t *in = (const uint8_t *)tile + nr * sizeof *w->scale;
    (void)groups;
    memcpy(w->scale, tile, nr * sizeof *w->scale);
    for (size_t g = 0; g < k; g += run)
        for (size_t i = 0; i < nr; i++)
            for (size_t j = g; j < g + run; j += 4, in += 4) {
                uint32_t four = load32(in) ^ flip;
                memcpy(rows + i * k + j, &four, 4);
            }
}

#define UNSIGNED 0x80808080u /* code + 128 */
#define SIGNED 0u

#include "kernels/product/layout_runs.inc"

const td_tile_layout td_int8c_16x4 = {.name = "int8c_16x4", .nr = 16, .kr = 32, .run = 4, .flip = UNSIGNED, FUNCTIONS};
const td_tile_layout td_int8c_32x4 = {.name = "int8c_32x4", .nr = 32, .kr = 32, .run = 4, .flip = UNSIGNED, FUNCTIONS};
const td_tile_layout td_int8c_16x4s = {.name = "int8c_16x4s", .nr = 16, .kr = 32, .run = 4, .flip = SIGNED, FUNCTIONS};
const td_tile_layout td_int8c_16x8s = {.name = "int8c_16x8s", .nr = 16, .kr = 32, .run = 8, .flip = SIGNED, FUNCTIONS};
