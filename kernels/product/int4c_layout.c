/* Tiles of int4 per channel (int4c in kernels/product/tile_gemm.h): their size, packer and unpacker. */
#include "kernels/product/tile_kernels.h"

static size_t tile_bytes(size_t nr, size_t k, const td_gemm_groups *groups) {
    (void)groups;
    return nr * sizeof(float) + nr / 2 * k;
}

/* run: k of a row that lie beside each other, 4 or 8. high_xor: what makes high nibbles of codes in two's complement: 8 to a
 * byte, or, for those layouts that keep them as they are, 0. */
static inline __attribute__((always_inline)) void pack_as(size_t run, uint32_t high_xor, size_t nr, void *tile,
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
                uint32_t high = (load32(high_rows + i * k + j) & 0x0f0f0f0fu) ^ high_xor;
                uint32_t both = low | high << 4;
                memcpy(out, &both, 4);
            }
}

static inline __attribute__((always_inline)) void unpack_as(size_t run, uint32_t high_xor, size_t nr, const void *tile,
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
                high_rows[i * k + g + b] = (int8_t)(((in[b] >> 4) ^ (high_xor & 15) ^ 8) - 8);
            }
}

#define BOTH_UNSIGNED 0x08080808u
#define HIGH_SIGNED 0u

static void pack(size_t nr, void *tile, const td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    pack_as(4, BOTH_UNSIGNED, nr, tile, w, k, groups);
}

static void unpack(size_t nr, const void *tile, td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    unpack_as(4, BOTH_UNSIGNED, nr, tile, w, k, groups);
}

static void pack_signed(size_t nr, void *tile, const td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    pack_as(4, HIGH_SIGNED, nr, tile, w, k, groups);
}

static void unpack_signed(size_t nr, const void *tile, td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    unpack_as(4, HIGH_SIGNED, nr, tile, w, k, groups);
}

static void pack_eights(size_t nr, void *tile, const td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    pack_as(8, HIGH_SIGNED, nr, tile, w, k, groups);
}

static void unpack_eights(size_t nr, const void *tile, td_gemm_weights *w, size_t k, const td_gemm_groups *groups) {
    unpack_as(8, HIGH_SIGNED, nr, tile, w, k, groups);
}

const td_tile_layout td_int4c_16x4 = {
    .name = "int4c_16x4", .nr = 16, .kr = 32, .tile_bytes = tile_bytes, .pack = pack, .unpack = unpack};
const td_tile_layout td_int4c_32x4 = {
    .name = "int4c_32x4", .nr = 32, .kr = 32, .tile_bytes = tile_bytes, .pack = pack, .unpack = unpack};
const td_tile_layout td_int4c_16x4s = {
    .name = "int4c_16x4s", .nr = 16, .kr = 32, .tile_bytes = tile_bytes, .pack = pack_signed, .unpack = unpack_signed};
const td_tile_layout td_int4c_16x8s = {
    .name = "int4c_16x8s", .nr = 16, .kr = 32, .tile_bytes = tile_bytes, .pack = pack_eights, .unpack = unpack_eights};
