/* The order of four-bit codes on a card: a lane of the matrix instruction loads its codes of 128 k at once. */
#ifndef TD_NPU_CUDA_PACK_H
#define TD_NPU_CUDA_PACK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "npu/cuda/kernels/cuda_shapes.h"

/** Bytes of a row of k codes. */
static inline size_t td_cuda_packed_bytes(size_t k) {
    return (k + TD_CUDA_GROUP_BLOCK - 1) / TD_CUDA_GROUP_BLOCK * (TD_CUDA_GROUP_BLOCK / 2);
}

/**
 * A row of codes, a byte each in [0, 15], to packed ones. Lane t's word for 32 k has those at 4t + i and 16 + 4t + i, i < 4.
 * Of unsigned codes in the low and the high nibble of byte i, of e2m1 in nibbles i and 4 + i. What is behind k becomes 0.
 */
static inline void td_cuda_pack_codes(const uint8_t *codes, size_t k, int is_e2m1, uint8_t *out) {
    memset(out, 0, td_cuda_packed_bytes(k));
    for (size_t at = 0; at < k; at++) {
        const size_t block = at / TD_CUDA_GROUP_BLOCK, chunk = at % TD_CUDA_GROUP_BLOCK / 32, high = at % 32 / 16,
                     lane = at % 16 / 4, i = at % 4, nibble = is_e2m1 ? high * 4 + i : i * 2 + high;
        out[block * (TD_CUDA_GROUP_BLOCK / 2) + lane * 16 + chunk * 4 + nibble / 2] |=
            (uint8_t)(codes[at] << nibble % 2 * 4);
    }
}

#endif
