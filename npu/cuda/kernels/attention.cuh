/*
 * softmax(q K^T * scale) V by one warp for 16 query rows: what decode and prefill share.
 *
 * Why it is shaped so. A warp keeps its rows' sums in registers and goes through the keys of a span in tiles of 64: scores
 * by the matrix instruction, a running maximum, then values times probabilities in bf16. Each row of the instruction is
 * independent of the others, so a row has the same bits beside whatever other rows it is computed. A tile of which a row
 * sees no key leaves the row's sums as they are. Spans begin anew at multiples of TD_CUDA_SPAN keys and are
 * merged in ascending order, by td_merge_state in registers (prefill) or from memory (decode): both give the same bits.
 * Tiles lie in shared memory with rows of d + 8 elements, so that the 32 lanes' words are of 32 banks.
 */
#ifndef TD_NPU_CUDA_ATTENTION_CUH
#define TD_NPU_CUDA_ATTENTION_CUH

#include "npu/cuda/kernels/kernel.cuh"

/** Two rows of a lane: g and g + 8 of its warp's 16. */
struct td_row_state {
    float max[2], sum[2];
};

TD_FN td_row_state td_row_start() {
    return {{-td_infinity(), -td_infinity()}, {0, 0}};
}

/** Keys that a row sees: from <= key < end. */
struct td_row_keys {
    td_u32 from, end;
};
/** Of a row at a position: all up to its own, or with a window the last `window` of these. */
TD_FN td_row_keys td_keys_at(td_u32 pos, td_u32 window) {
    return {window && window <= pos ? pos + 1 - window : 0, pos + 1};
}

/** What a row's values are multiplied with at the end: 1 / the sum of its weights. A sink weighs as a key does, and has no
 * value. @param sink of the head, or NULL */
TD_FN float td_row_factor(float max, float sum, const float *sink) {
    if (!sink) return 1.0f / sum;
    const float most = *sink > max ? *sink : max, factor = max == most ? 1.0f : td_exp(max - most);
    return factor / (sum * factor + td_exp(*sink - most));
}

/** into := the softmax over both parts' keys; returns what to multiply the values of each with. Parts without keys have max
 * -inf and sum 0. */
TD_FN void td_merge_state(float &max, float &sum, float other_max, float other_sum, float &factor, float &other_factor) {
    const float most = other_max > max ? other_max : max;
    factor = max == most ? 1.0f : td_exp(max - most);
    other_factor = other_max == most ? 1.0f : td_exp(other_max - most);
    sum = sum * factor + other_sum * other_factor;
    max = most;
}

/**
 * One tile of keys for 16 rows.
 * @param q      [16, DK + 8] shared: the rows
 * @param k, v   [TILE_KEYS, DK + 8], [TILE_KEYS, DV + 8] shared
 * @param first  number of the tile's first key
 * @param keys   of this lane's two rows
 * @param acc    DV / 8 fragments: rows g, g + 8
 */
template <int DK, int DV>
TD_FN void td_attend_tile(td_shared<td_bf16> q, td_shared<td_bf16> k, td_shared<td_bf16> v, td_u32 first,
                          const td_row_keys keys[2], float scale, td_row_state &state, float acc[DV / 8][4]) {
    constexpr int TILES = TD_CUDA_TILE_KEYS / 8;
    const td_u32  lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float         s[TILES][4];
    for (int j = 0; j < TILES; j++)
        for (int e = 0; e < 4; e++) s[j][e] = 0;
#pragma unroll
    for (int d = 0; d < DK; d += 16) {
        unsigned a[4];
        for (int e = 0; e < 4; e++) a[e] = td_load<unsigned>(q + ((g + e % 2 * 8) * (DK + 8) + d + e / 2 * 8 + t * 2));
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            unsigned b[2];
            for (int e = 0; e < 2; e++) b[e] = td_load<unsigned>(k + ((j * 8 + g) * (DK + 8) + d + e * 8 + t * 2));
            td_mma_bf16(s[j], a, b);
        }
    }
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = -td_infinity();
        for (int j = 0; j < TILES; j++)
            for (int e = 0; e < 2; e++) {
                const td_u32 key = first + j * 8 + t * 2 + e;
                const bool   seen = key >= keys[half].from && key < keys[half].end;
                float       &x = s[j][half * 2 + e];
                x = seen ? x * scale : -td_infinity();
                most = x > most ? x : most;
            }
        for (int bits = 1; bits < 4; bits *= 2) {
            const float other = __shfl_xor_sync(TD_ALL_LANES, most, bits);
            most = other > most ? other : most;
        }
        most = state.max[half] > most ? state.max[half] : most;
        factor[half] = state.max[half] == most ? 1.0f : td_exp(state.max[half] - most);
        float sum = 0;
        for (int j = 0; j < TILES; j++)
            for (int e = 0; e < 2; e++) {
                float &x = s[j][half * 2 + e];
                x = x == -td_infinity() ? 0.0f : td_exp(x - most);
                sum += x;
            }
        for (int bits = 1; bits < 4; bits *= 2) sum = sum + __shfl_xor_sync(TD_ALL_LANES, sum, bits);
        state.max[half] = most;
        state.sum[half] = state.sum[half] * factor[half] + sum;
    }
#pragma unroll
    for (int j = 0; j < DV / 8; j++)
        for (int e = 0; e < 4; e++) acc[j][e] *= factor[e / 2];
#pragma unroll
    for (int i = 0; i < TD_CUDA_TILE_KEYS; i += 16) {
        const float   *low = s[i / 8], *high = s[i / 8 + 1];
        const unsigned a[4] = {td_bf16_pair(low[0], low[1]), td_bf16_pair(low[2], low[3]), td_bf16_pair(high[0], high[1]),
                               td_bf16_pair(high[2], high[3])};
#pragma unroll
        for (int j = 0; j < DV / 8; j++) {
            unsigned b[2];
            td_load_transposed(b, v + ((i + lane % 16) * (DV + 8) + j * 8));
            td_mma_bf16(acc[j], a, b);
        }
    }
}

/** Start copies of `rows` rows of d elements into shared rows that are STRIDE apart; up to D elements of each row, and rows
 * from `there` on, become zeros. By `threads` threads, of which this is number `thread`. d and D are multiples of 8. */
template <int D, int STRIDE = D + 8, class F>
TD_FN void td_fetch_rows(td_shared<td_bf16> to, td_u32 rows, td_u32 there, td_u32 d, const F &row_at, td_u32 thread,
                         td_u32 threads) {
#pragma unroll 1 /* copies are under way by themselves; addresses would take registers from the sums */
    for (td_u32 i = thread; i < rows * (D / 8); i += threads) {
        const td_u32   row = i / (D / 8), column = i % (D / 8) * 8;
        const bool     wanted = row < there && column < d;
        const td_bf16 *from = wanted ? row_at(row) + column : row_at(0);
        td_async_16(to + (row * STRIDE + column), from, wanted);
    }
}

/** The sequence that a row of the step is of: seq_start[s] <= row < seq_start[s + 1]. */
TD_FN td_u32 td_sequence_of(const td_u32 *seq_start, td_u32 n_seq, td_u32 row) {
    td_u32 low = 0, high = n_seq - 1;
    while (low < high) {
        const td_u32 middle = (low + high + 1) / 2;
        if (seq_start[middle] <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/** The rows of a block of prefill: number blockIdx.x of the blocks of sequences that are prefill's, which have at least
 * `few` rows, or with `absorbed` 0 there. @return false: there are not so many. */
TD_FN bool td_prefill_block(td_u32 n_seq, const td_u32 *seq_start, const td_u8 *absorbed, td_u32 few, td_u32 *seq,
                            td_u32 *first_row, td_u32 *n_rows) {
    td_u32 block = blockIdx.x;
    for (td_u32 s = 0; s < n_seq; s++) {
        const td_u32 rows = seq_start[s + 1] - seq_start[s],
                     blocks = (rows + TD_CUDA_PREFILL_ROWS - 1) / TD_CUDA_PREFILL_ROWS;
        if (absorbed ? absorbed[s] : rows < few) continue;
        if (block < blocks) {
            *seq = s;
            *first_row = seq_start[s] + block * TD_CUDA_PREFILL_ROWS;
            *n_rows = min(static_cast<td_u32>(TD_CUDA_PREFILL_ROWS), rows - block * TD_CUDA_PREFILL_ROWS);
            return true;
        }
        block -= blocks;
    }
    return false;
}

#endif
