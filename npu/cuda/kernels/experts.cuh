/* Routed experts that lie on the card: what their kernels share. */
#ifndef TD_NPU_CUDA_EXPERTS_CUH
#define TD_NPU_CUDA_EXPERTS_CUH

#include "npu/cuda/kernels/kernel.cuh"

/* Rows of one expert that a block computes: places first .. end - 1. */
struct expert_tile {
    td_u32 expert, first, end;
};

/** @return false: the step has fewer tiles, and the block nothing to do. */
TD_FN bool expert_tile_of_block(const td_u32 *totals, const td_u32 *tiles, expert_tile *out) {
    if (blockIdx.y >= totals[1]) return false;
    *out = {tiles[blockIdx.y * 3], tiles[blockIdx.y * 3 + 1], tiles[blockIdx.y * 3 + 2]};
    return true;
}

#endif
