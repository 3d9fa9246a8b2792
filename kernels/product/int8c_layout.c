/* Tiles of int8 per channel (int8c in kernels/product/tile_gemm.h): their size, packer and unpacker. */
#include "kernels/product/tile_kernels.h"

static size_t tile_bytes(size_t nr, size_t k, const td_gemm_groups *groups) {
    (void)groups;
    return nr * sizeof(float) + nr * k;
}

/* run and flip as in td_tile_layout; run is a constant where this is inlined. */
static inline __attribute__((always_inline)) void pack_as(size_t run, uint32_t flip, size_t nr, void *tile,
                                                          const td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
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

static inline __attribute__((always_inline)) void unpack_as(size_t run, uint32_t flip, size_t nr, const void *tile,
                                                            td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
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
LAYOUT(int8c_16x4, 16, 4, UNSIGNED)
LAYOUT(int8c_32x4, 32, 4, UNSIGNED)
LAYOUT(int8c_16x4s, 16, 4, SIGNED)
LAYOUT(int8c_16x8s, 16, 8, SIGNED)
