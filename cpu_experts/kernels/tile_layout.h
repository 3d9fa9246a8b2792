/* Packing and unpacking of the tiles that cpu_experts/expert_gemm.h describes; `half` is nr / 2. */
#ifndef TD_CPU_EXPERTS_KERNELS_TILE_LAYOUT_H
#define TD_CPU_EXPERTS_KERNELS_TILE_LAYOUT_H

#include "core/dtype.h"

static inline uint32_t tile_load32(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline size_t int4c_tile_bytes(size_t half, size_t k) {
    return half * 2 * sizeof(float) + half * k;
}

static inline void int4c_pack(size_t half, void *tile, const int8_t *rows, const float *scale, size_t k) {
    memcpy(tile, scale, half * 2 * sizeof *scale);
    uint8_t *out = (uint8_t *)tile + half * 2 * sizeof *scale;
    for (size_t g = 0; g < k; g += 4)
        for (size_t i = 0; i < half; i++, out += 4) {
            /* (code & 15) ^ 8 == code + 8 for codes of [-8, 7] */
            uint32_t low = (tile_load32(rows + i * k + g) & 0x0f0f0f0fu) ^ 0x08080808u;
            uint32_t high = (tile_load32(rows + (half + i) * k + g) & 0x0f0f0f0fu) ^ 0x08080808u;
            uint32_t both = low | high << 4;
            memcpy(out, &both, 4);
        }
}

static inline void int4c_unpack(size_t half, const void *tile, int8_t *rows, float *scale, size_t k) {
    memcpy(scale, tile, half * 2 * sizeof *scale);
    const uint8_t *in = (const uint8_t *)tile + half * 2 * sizeof *scale;
    for (size_t g = 0; g < k; g += 4)
        for (size_t i = 0; i < half; i++, in += 4)
            for (size_t b = 0; b < 4; b++) {
                rows[i * k + g + b] = (int8_t)((in[b] & 15) - 8);
                rows[(half + i) * k + g + b] = (int8_t)((in[b] >> 4) - 8);
            }
}

static inline size_t bf16_tile_bytes(size_t half, size_t k) {
    return (half * k * 4 + 63) & ~(size_t)63;
}

static inline void bf16_pack(size_t half, void *tile, const td_bf16 *rows, size_t k) {
    uint32_t *out = tile;
    for (size_t j = 0; j < k; j++)
        for (size_t i = 0; i < half; i++) *out++ = (uint32_t)rows[i * k + j] << 16 | rows[(half + i) * k + j];
}

static inline void bf16_unpack(size_t half, const void *tile, td_bf16 *rows, size_t k) {
    const uint32_t *in = tile;
    for (size_t j = 0; j < k; j++)
        for (size_t i = 0; i < half; i++, in++) {
            rows[i * k + j] = (td_bf16)(*in >> 16);
            rows[(half + i) * k + j] = (td_bf16)*in;
        }
}

#endif
