/* Routed experts that lie on the card: what their kernels share. */
#ifndef TD_NPU_CUDA_EXPERTS_CUH
#define TD_NPU_CUDA_EXPERTS_CUH

#include "npu/cuda/kernels/kernel.cuh"

/* An exact sum (kernels/exact_sum.h has the method): of no terms, {0, 0}. */
struct td_exact_sum {
    int high, low;
};

TD_FN void td_exact_add(td_exact_sum *sum, float weight, float y) {
    float t = weight * y; /* a NaN passes both limits */
    if (t < -TD_EXACT_MAX) t = -TD_EXACT_MAX;
    if (t > TD_EXACT_MAX) t = TD_EXACT_MAX;
    const float high = t + TD_EXACT_HIGH, low = t + (TD_EXACT_HIGH + TD_EXACT_LOW - high);
    sum->high = static_cast<int>(static_cast<unsigned>(sum->high) + __float_as_uint(high) - TD_EXACT_HIGH_BITS);
    sum->low = static_cast<int>(static_cast<unsigned>(sum->low) + __float_as_uint(low) - TD_EXACT_LOW_BITS);
}

TD_FN float td_exact_value(td_exact_sum sum) {
    const int most = TD_EXACT_WORD_MAX;
    if (sum.high > most || sum.high < -most || sum.low > most || sum.low < -most) return __uint_as_float(0x7fc00000u);
    const int carry = (sum.low + (1 << (TD_EXACT_CARRY_BITS - 1))) >> TD_EXACT_CARRY_BITS;
    return static_cast<float>(sum.high + carry) * TD_EXACT_HIGH_UNIT +
           static_cast<float>(sum.low - carry * (1 << TD_EXACT_CARRY_BITS)) * TD_EXACT_LOW_UNIT;
}

/* Rows of sums in memory (kernels/exact_sum.h): of each 16 values the high words, then the low ones. */
TD_FN size_t td_exact_words(td_u32 n) {
    return (static_cast<size_t>(n) + TD_EXACT_BLOCK - 1) / TD_EXACT_BLOCK * TD_EXACT_BLOCK * 2;
}
TD_FN size_t td_exact_at(td_u32 i) {
    return static_cast<size_t>(i) + i / TD_EXACT_BLOCK * TD_EXACT_BLOCK;
}
TD_FN td_exact_sum td_exact_load(const int *at) {
    return {at[0], at[TD_EXACT_BLOCK]};
}
TD_FN void td_exact_store(int *at, td_exact_sum sum) {
    at[0] = sum.high;
    at[TD_EXACT_BLOCK] = sum.low;
}

/** The number of a choice that counts; of another one it is none that there is. mark: 0, or TD_CUDA_ID_RESIDENT. */
TD_FN td_u32 expert_of(unsigned short id, td_u32 mark) {
    return id ^ mark;
}

/** Whether an expert lies in a slot of another card. slot_of: NULL, or as in td_resident_desc. */
TD_FN bool is_elsewhere(const unsigned short *slot_of, td_u32 expert) {
    return slot_of && slot_of[expert] == TD_CUDA_SLOT_ELSEWHERE;
}

/* Rows of one expert that a block computes: places first .. end - 1. */
struct expert_tile {
    td_u32 expert, first, end;
};

/** @return false: the step has fewer tiles, and the block nothing to do. */
TD_FN bool expert_tile_of_block(const td_u32 *totals, const td_u32 *tiles, expert_tile *out) {
    const td_u32 n_tiles = totals[1]; /* the four words are asked for together: each takes as long as all */
    *out = {tiles[blockIdx.x * 3], tiles[blockIdx.x * 3 + 1], tiles[blockIdx.x * 3 + 2]};
    return blockIdx.x < n_tiles;
}

#endif
