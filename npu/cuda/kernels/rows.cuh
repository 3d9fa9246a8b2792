/*
 * Rows that a block keeps in its registers: eight values of a thread at a time, and their int8 codes.
 *
 * Why it is shaped so. A row of some thousand values is a few loads of 16 bytes a thread. What costs is waiting for memory,
 * so all of them are asked for before the first is used, and what later passes need stays in registers. Thread t has the
 * values from 8 t on, and those a multiple of 8 * (threads of the block) further, whatever the row's alignment; so sums have
 * one order for each length. WHOLE says that rows begin at multiples of 16 bytes and have multiples of eight values; others
 * are read and written one by one.
 */
#ifndef TD_NPU_CUDA_ROWS_CUH
#define TD_NPU_CUDA_ROWS_CUH

#include "npu/cuda/kernels/kernel.cuh"

#define ROW_VECTOR 8

TD_FN bool is_aligned(const void *p, size_t bytes) {
    return reinterpret_cast<size_t>(p) % bytes == 0;
}

/** Eight values of a row of k as they lie, from `at` on; zeros behind its end. */
struct row_bf16 {
    uint4 words;
};
struct row_f32 {
    uint4 low, high;
};

template <bool WHOLE>
TD_FN row_bf16 row_load(const td_bf16 *row, td_u32 at, td_u32 k) {
    unsigned word[4] = {0, 0, 0, 0};
    if (WHOLE) {
        if (at < k) return {td_load<uint4>(row + at)};
    } else {
#pragma unroll
        for (td_u32 i = 0; i < ROW_VECTOR; i++)
            if (at + i < k) word[i / 2] |= static_cast<unsigned>(row[at + i]) << i % 2 * 16;
    }
    return {{word[0], word[1], word[2], word[3]}};
}
template <bool WHOLE>
TD_FN row_f32 row_load(const float *row, td_u32 at, td_u32 k) {
    unsigned word[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (WHOLE) {
        if (at < k) return {td_load<uint4>(row + at), td_load<uint4>(row + at + 4)};
    } else {
#pragma unroll
        for (td_u32 i = 0; i < ROW_VECTOR; i++)
            if (at + i < k) word[i] = __float_as_uint(row[at + i]);
    }
    return {{word[0], word[1], word[2], word[3]}, {word[4], word[5], word[6], word[7]}};
}

TD_FN void row_values(const row_bf16 &from, float v[ROW_VECTOR]) {
    const unsigned word[4] = {from.words.x, from.words.y, from.words.z, from.words.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i * 2] = __uint_as_float(word[i] << 16);
        v[i * 2 + 1] = __uint_as_float(word[i] & 0xffff0000u);
    }
}
TD_FN void row_values(const row_f32 &from, float v[ROW_VECTOR]) {
    const unsigned word[8] = {from.low.x,  from.low.y,  from.low.z,  from.low.w,
                              from.high.x, from.high.y, from.high.z, from.high.w};
#pragma unroll
    for (int i = 0; i < ROW_VECTOR; i++) v[i] = __uint_as_float(word[i]);
}

TD_FN row_bf16 row_rounded(const float v[ROW_VECTOR]) {
    return {{td_bf16_pair(v[0], v[1]), td_bf16_pair(v[2], v[3]), td_bf16_pair(v[4], v[5]), td_bf16_pair(v[6], v[7])}};
}

/** Of a row of k, those that are there. */
template <bool WHOLE>
TD_FN void row_store(td_bf16 *row, td_u32 at, td_u32 k, const row_bf16 &v) {
    const unsigned word[4] = {v.words.x, v.words.y, v.words.z, v.words.w};
    if (WHOLE) {
        if (at < k) td_store(row + at, v.words);
    } else {
#pragma unroll
        for (td_u32 i = 0; i < ROW_VECTOR; i++)
            if (at + i < k) row[at + i] = static_cast<td_bf16>(word[i / 2] >> i % 2 * 16);
    }
}
template <bool WHOLE>
TD_FN void row_store(td_bf16 *row, td_u32 at, td_u32 k, const float v[ROW_VECTOR]) {
    row_store<WHOLE>(row, at, k, row_rounded(v));
}
template <bool WHOLE>
TD_FN void row_store(float *row, td_u32 at, td_u32 k, const float v[ROW_VECTOR]) {
    if (WHOLE) {
        if (at >= k) return;
#pragma unroll
        for (int i = 0; i < ROW_VECTOR; i += 4) {
            const uint4 words = {__float_as_uint(v[i]), __float_as_uint(v[i + 1]), __float_as_uint(v[i + 2]),
                                 __float_as_uint(v[i + 3])};
            td_store(row + at + i, words);
        }
    } else {
#pragma unroll
        for (td_u32 i = 0; i < ROW_VECTOR; i++)
            if (at + i < k) row[at + i] = v[i];
    }
}
template <bool WHOLE>
TD_FN void row_store_codes(td_i8 *row, td_u32 at, td_u32 k, const float v[ROW_VECTOR], float inverse) {
    const unsigned word[2] = {td_codes(v, inverse), td_codes(v + 4, inverse)};
    if (WHOLE) {
        const uint2 words = {word[0], word[1]};
        if (at < k) td_store(row + at, words);
    } else {
#pragma unroll
        for (td_u32 i = 0; i < ROW_VECTOR; i++)
            if (at + i < k) row[at + i] = static_cast<td_i8>(word[i / 4] >> i % 4 * 8);
    }
}

TD_FN unsigned row_magnitude(const float v[ROW_VECTOR]) {
    unsigned most = 0;
#pragma unroll
    for (int i = 0; i < ROW_VECTOR; i++) most = max(most, td_magnitude(v[i]));
    return most;
}

/**
 * The codes of a row and its scale, by all threads of the block (npu.h, int8 rule). load(at) gives eight values as they lie,
 * zeros from k on; values(them, v) what becomes of them. KEPT vectors of a thread stay in registers; those of a longer row
 * are read twice.
 * @param q [stride], stride a multiple of eight, 8-byte aligned
 */
template <int KEPT, class L, class V>
TD_FN void row_codes(const L &load, const V &values, td_u32 stride, td_i8 *q, float *scale_out, td_shared<unsigned> part) {
    const td_u32       begin = threadIdx.x * ROW_VECTOR, step = blockDim.x * ROW_VECTOR;
    decltype(load(0u)) raw[KEPT];
    float              kept[KEPT][ROW_VECTOR], other[ROW_VECTOR], scale;
    unsigned           amax = 0;
#pragma unroll
    for (int j = 0; j < KEPT; j++) raw[j] = load(begin + j * step);
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        values(raw[j], kept[j]);
        amax = max(amax, row_magnitude(kept[j]));
    }
    for (td_u32 at = begin + KEPT * step; at < stride; at += step) {
        values(load(at), other);
        amax = max(amax, row_magnitude(other));
    }
    amax = td_block_max(amax, part);
    const float inverse = td_inverse_scale(amax, &scale);
#pragma unroll
    for (int j = 0; j < KEPT; j++) row_store_codes<true>(q, begin + j * step, stride, kept[j], inverse);
    for (td_u32 at = begin + KEPT * step; at < stride; at += step) {
        values(load(at), other);
        row_store_codes<true>(q, at, stride, other, inverse);
    }
    if (threadIdx.x == 0) *scale_out = scale;
}

#endif
