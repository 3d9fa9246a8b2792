/* Tiles of int8 per channel (int8c in kernels/product/tile_gemm.h): their size, packer and unpacker. */
#include "kernels/product/tile_kernels.h"

static size_t tile_bytes(size_t nr, size_t k, const td_gemm_groups *groups) {
    (void)groups;
    return nr * sizeof(float) + nr * k;
}

/* run: k of a row that lie beside each other, 4 or 8. flip: what the bytes of codes are xored with. */
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

static void pack(size_t nr, void *tile, const td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    pack_as(4, UNSIGNED, nr, tile, w, k, groups);
}

static void unpack(size_t nr, const void *tile, td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    unpack_as(4, UNSIGNED, nr, tile, w, k, groups);
}

static void pack_signed(size_t nr, void *tile, const td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    pack_as(4, SIGNED, nr, tile, w, k, groups);
}

static void unpack_signed(size_t nr, const void *tile, td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    unpack_as(4, SIGNED, nr, tile, w, k, groups);
}

static void pack_eights(size_t nr, void *tile, const td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    pack_as(8, SIGNED, nr, tile, w, k, groups);
}

static void unpack_eights(size_t nr, const void *tile, td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    unpack_as(8, SIGNED, nr, tile, w, k, groups);
}

const td_tile_layout td_int8c_16x4 = {
    .name = "int8c_16x4", .nr = 16, .kr = 32, .tile_bytes = tile_bytes, .pack = pack, .unpack = unpack};
const td_tile_layout td_int8c_32x4 = {
    .name = "int8c_32x4", .nr = 32, .kr = 32, .tile_bytes = tile_bytes, .pack = pack, .unpack = unpack};
const td_tile_layout td_int8c_16x4s = {
    .name = "int8c_16x4s", .nr = 16, .kr = 32, .tile_bytes = tile_bytes, .pack = pack_signed, .unpack = unpack_signed};
const td_tile_layout td_int8c_16x8s = {
    .name = "int8c_16x8s", .nr = 16, .kr = 32, .tile_bytes = tile_bytes, .pack = pack_eights, .unpack = unpack_eights};
