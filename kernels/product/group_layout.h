/* Where things lie in tiles of weights in groups (int4g and fp4g in kernels/product/tile_gemm.h). */
#ifndef TD_KERNELS_PRODUCT_GROUP_LAYOUT_H
#define TD_KERNELS_PRODUCT_GROUP_LAYOUT_H

#include "core/math/small_float.h"
#include "kernels/product/tile_gemm.h"
#include "kernels/rows/convert.h"

#define TO_LINE(bytes) (((bytes) + 63) & ~(size_t)63)

static inline bool has_factors(const td_gemm_groups *groups) {
    return td_dtype_bytes(groups->scale_dtype) == 1;
}

/* Bytes of the factors or zeros at a tile's beginning. */
static inline size_t head_bytes(size_t nr, size_t k, const td_gemm_groups *groups) {
    if (has_factors(groups)) return nr * sizeof(float);
    return groups->zero_points ? TO_LINE(k / groups->size * nr / 2) : 0;
}

/* k of a block: one group; scales of one byte are taken together until the codes behind them are aligned. */
static inline size_t block_k(const td_gemm_groups *groups) {
    return has_factors(groups) ? 64 : groups->size;
}

/* Of all rows of a tile: the scales of its groups, and its codes. */
static inline size_t block_bytes(size_t nr, const td_gemm_groups *groups) {
    return nr * td_dtype_bytes(groups->scale_dtype) * (block_k(groups) / groups->size) + nr / 2 * block_k(groups);
}

/* The scale of row i where a group's scales begin. */
static inline float scale_at(const uint8_t *scales, size_t i, td_dtype dtype) {
    float    scale;
    uint16_t half;
    switch (dtype) {
        case TD_DT_F8_E8M0: return td_e8m0_to_f32(scales[i]);
        case TD_DT_F8_E4M3: return td_e4m3_to_f32(scales[i]);
        case TD_DT_F32: memcpy(&scale, scales + i * sizeof scale, sizeof scale); return scale;
        default:
            memcpy(&half, scales + i * sizeof half, sizeof half);
            return dtype == TD_DT_F16 ? td_f16_to_f32(half) : td_bf16_to_f32(half);
    }
}

#endif
