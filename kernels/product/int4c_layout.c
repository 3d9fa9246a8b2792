/* Tiles of int4 per channel (int4c in kernels/product/tile_gemm.h): their size, packer and unpacker. */
#include "kernels/product/tile_kernels.h"

static size_t tile_bytes(size_t nr, size_t k, const td_gemm_groups *groups) {
    (void)groups;
    return nr * sizeof(float) + nr / 2 * k;
}

/* run and flip as in td_tile_layout; run is a constant where this is inlined. */
static inline __attribute__((always_inline)) void pack_as(size_t run, uint32_t flip, size_t nr, void *tile,
                                                          const td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
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

static inline __attribute__((always_inline)) void unpack_as(size_t run, uint32_t flip, size_t nr, const void *tile,
                                                            td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
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

static void pack(const td_tile_layout *l, void *tile, const td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    if (l->run == 4)
        pack_as(4, l->flip, l->nr, tile, w, k, groups);
    else
        pack_as(8, l->flip, l->nr, tile, w, k, groups);
}

static void unpack(const td_tile_layout *l, const void *tile, td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    if (l->run == 4)
        unpack_as(4, l->flip, l->nr, tile, w, k, groups);
    else
        unpack_as(8, l->flip, l->nr, tile, w, k, groups);
}

#define LAYOUT(named, rows, of_run, flips)                       \
    const td_tile_layout td_##named = {.name = #named,           \
                                       .nr = rows,               \
                                       .kr = 32,                 \
                                       .run = of_run,            \
                                       .flip = flips,            \
                                       .tile_bytes = tile_bytes, \
                                       .pack = pack,             \
                                       .unpack = unpack};
LAYOUT(int4c_16x4, 16, 4, UNSIGNED)
LAYOUT(int4c_32x4, 32, 4, UNSIGNED)
LAYOUT(int4c_16x4s, 16, 4, HIGH_SIGNED)
LAYOUT(int4c_16x8s, 16, 8, HIGH_SIGNED)
