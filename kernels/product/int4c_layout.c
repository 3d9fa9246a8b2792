/* Tiles of int4 per channel (int4c in kernels/product/tile_gemm.h): their size, packer and unpacker. */
#include "kernels/product/tile_kernels.h"

static size_t tile_bytes(size_t nr, size_t k, const td_gemm_groups *groups) {
    (void)groups;
    return nr * sizeof(float) + nr / 2 * k;
}

/* run and flip as in td_tile_layout; run is a constant where this is inlined. */
INLINED void pack_as(size_t run, uint32_t flip, size_t nr, void *tile, const td_gemm_weights *w, size_t k,
                     const td_gemm_groups *groups) {
    const size_t  half = nr / 2;
    const int8_t *low_rows = w->rows, *high_rows = low_rows + half * k;
    uint8_t      *out = (uint8_t *)tile + nr * sizeof *w->scale;
    (void)groups;
    memcpy(tile, w->scale, nr * sizeof *w->scale);
    for (size_t g = 0; g < k; g += run)
        for (size_t i = 0; i < half; i++)
            for (size_t j = g; j < g + run; j += 4, out += 4) {
                /* (code & 15) ^ 8 == code + 8 for codes of [-8, 7] */
                uint32_t low = (load32(low_rows + i * k + j) & 0x0f0f0f0fu) ^ 0x08080808u;
                uint32_t high = (load32(high_rows + i * k + j) & 0x0f0f0f0fu) ^ 0x08080808u ^ flip;
                uint32_t both = low | high << 4;
                memcpy(out, &both, 4);
            }
}

INLINED void unpack_as(size_t run, uint32_t flip, size_t nr, const void *tile, td_gemm_weights *w, size_t k,
                       const td_gemm_groups *groups) {
    const size_t   half = nr / 2;
    int8_t        *low_rows = w->rows, *high_rows = low_rows + half * k;
    const uint8_t *in = (const uint8_t *)tile + nr * sizeof *w->scale;
    (void)groups;
    memcpy(w->scale, tile, nr * sizeof *w->scale);
    for (size_t g = 0; g < k; g += run)
        for (size_t i = 0; i < half; i++, in += run)
            for (size_t b = 0; b < run; b++) {
                low_rows[i * k + g + b] = (int8_t)((in[b] & 15) - 8);
                high_rows[i * k + g + b] = (int8_t)(((in[b] >> 4) ^ (flip & 15)) - 8);
            }
}

#define UNSIGNED 0u
#define HIGH_SIGNED 0x08080808u

#include "kernels/product/layout_runs.inc"

const td_tile_layout td_int4c_16x4 = {.name = "int4c_16x4", .nr = 16, .kr = 32, .run = 4, .flip = UNSIGNED, FUNCTIONS};
const td_tile_layout td_int4c_32x4 = {.name = "int4c_32x4", .nr = 32, .kr = 32, .run = 4, .flip = UNSIGNED, FUNCTIONS};
const td_tile_layout td_int4c_16x4s = {.name = "int4c_16x4s", .nr = 16, .kr = 32, .run = 4, .flip = HIGH_SIGNED, FUNCTIONS};
const td_tile_layout td_int4c_16x8s = {.name = "int4c_16x8s", .nr = 16, .kr = 32, .run = 8, .flip = HIGH_SIGNED, FUNCTIONS};
