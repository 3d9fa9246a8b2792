/*
 * softmax(q K^T * scale) V for 16 query rows of a warp: what decode and prefill share.
 *
 * Why it is shaped so. Keys go in tiles of 64: scores by the matrix instruction, a running maximum, then values times
 * probabilities in bf16. Each row of the instruction is independent of the others, so a row has the same bits beside
 * whatever other rows it is computed. A tile of which a row sees no key leaves the row's sums as they are. A row's tiles are
 * cut into spans, whose length depends on how many keys there are up to the row's own alone (td_span_keys). Each span begins
 * anew. They are merged in ascending order, by td_merge_state in registers (prefill) or from memory (decode): both give the
 * same bits. A tile never crosses a page, so its rows are one piece of memory and its page is looked up once. Tiles lie
 * in shared memory with rows of d + 8 elements, so that eight rows' 16 bytes are of 32 banks, as ldmatrix wants them. Where a
 * lane reads them is computed once a tile (td_place): a profiler on an H200 found that most instructions of a warp were the
 * same addresses again. exp is the card's instruction (td_exp_near), since its weights are rounded to bf16.
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

/** Keys of a span of a row that has so many up to its own: whole tiles, SPAN_TILES at least, and `most` spans at most. */
TD_FN td_u32 td_span_keys(td_u32 keys, td_u32 most) {
    const td_u32 tiles = (keys + TD_CUDA_TILE_KEYS - 1) / TD_CUDA_TILE_KEYS;
    return max(static_cast<td_u32>(TD_CUDA_SPAN_TILES), (tiles + most - 1) / most) * TD_CUDA_TILE_KEYS;
}

/** Where the first tile begins that has a key that is seen. */
TD_FN td_u32 td_first_tile(const td_row_keys &seen) {
    return seen.from / TD_CUDA_TILE_KEYS * TD_CUDA_TILE_KEYS;
}

/** Where this lane's part of matrices lies, for td_load_matrices: of a 16 x 16 matrix as rows, which gives the a words. */
TD_FN td_u32 td_row_part(td_u32 stride) {
    const td_u32 lane = threadIdx.x % 32;
    return lane % 16 * stride + lane / 16 * 8;
}
/** Of 16 columns of k 0..15, which lie as 16 rows: the b words, of columns 0..7 the first two, of the others those behind. The
 * same of columns that lie as columns, with k as 16 rows, are td_row_part's, transposed. */
TD_FN td_u32 td_column_part(td_u32 stride) {
    const td_u32 lane = threadIdx.x % 32;
    return (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
}

/** s[j] = scores of 16 rows with KEYS keys, fragments of 8 keys. @param q, k [16, DK + 8], [KEYS, DK + 8] shared */
template <int DK, int KEYS>
TD_FN void td_tile_scores(td_shared<td_bf16> q, td_shared<td_bf16> k, float s[KEYS / 8][4]) {
    const td_place<td_bf16> q_at = td_place_of(q + td_row_part(DK + 8)), k_at = td_place_of(k + td_column_part(DK + 8));
    for (int j = 0; j < KEYS / 8; j++)
        for (int e = 0; e < 4; e++) s[j][e] = 0;
#pragma unroll
    for (int d = 0; d < DK; d += 16) {
        unsigned a[4];
        td_load_matrices(a, q_at + d);
#pragma unroll
        for (int j = 0; j < KEYS / 8; j += 2) {
            unsigned b[4];
            td_load_matrices(b, k_at + (j * 8 * (DK + 8) + d));
            td_mma_bf16(s[j], a, b);
            td_mma_bf16(s[j + 1], a, b + 2);
        }
    }
}

/** Scale scores, those of keys that are not seen become -inf. @param first number of the first key @return the largest of
 * this lane's row g + 8 * half, over the lanes of that row */
template <int KEYS>
TD_FN float td_tile_scale(float s[KEYS / 8][4], int half, td_u32 first, const td_row_keys &keys, float scale) {
    const td_u32 t = threadIdx.x % 4;
    float        most = -td_infinity();
    if (first >= keys.from && first + KEYS <= keys.end) {
        for (int j = 0; j < KEYS / 8; j++)
            for (int e = 0; e < 2; e++) s[j][half * 2 + e] *= scale;
    } else {
        for (int j = 0; j < KEYS / 8; j++)
            for (int e = 0; e < 2; e++) {
                const td_u32 key = first + j * 8 + t * 2 + e;
                float       &x = s[j][half * 2 + e];
                x = key >= keys.from && key < keys.end ? x * scale : -td_infinity();
            }
    }
    for (int j = 0; j < KEYS / 8; j++)
        for (int e = 0; e < 2; e++) most = s[j][half * 2 + e] > most ? s[j][half * 2 + e] : most;
    for (int bits = 1; bits < 4; bits *= 2) {
        const float other = __shfl_xor_sync(TD_ALL_LANES, most, bits);
        most = other > most ? other : most;
    }
    return most;
}
/** What a row's weights are relative to: its maximum. Of a row that has met no key it is 0, so that exp of what the row has,
 * -inf, is 0. */
TD_FN float td_row_base(float most) {
    return most == -td_infinity() ? 0.0f : most;
}
/** Scores to weights. @return this lane's sum over 16 keys: two fragments */
TD_FN float td_tile_weigh(float s[2][4], int half, float base) {
    float sum = 0;
    for (int j = 0; j < 2; j++)
        for (int e = 0; e < 2; e++) {
            float &x = s[j][half * 2 + e];
            x = td_exp_near(x - base);
            sum += x;
        }
    return sum;
}
/** Sums over 16 keys of the four lanes of a row, to the row's sum over the tile: first over the tile's quarters, then over
 * lanes. */
TD_FN float td_tile_sum(const float quarter[TD_CUDA_TILE_KEYS / 16]) {
    float sum = quarter[0];
    for (int i = 1; i < TD_CUDA_TILE_KEYS / 16; i++) sum += quarter[i];
    for (int bits = 1; bits < 4; bits *= 2) sum = sum + __shfl_xor_sync(TD_ALL_LANES, sum, bits);
    return sum;
}
/**
 * Weights of 16 rows and a tile of keys.
 * @param s     TILE_KEYS / 8 fragments of scores, which become weights
 * @param first number of the tile's first key
 * @param keys  of this lane's two rows
 * @param acc   N fragments: rows g, g + 8
 */
template <int N>
TD_FN void td_tile_weights(float s[TD_CUDA_TILE_KEYS / 8][4], td_u32 first, const td_row_keys keys[2], float scale,
                           td_row_state &state, float acc[N][4]) {
    float factor[2]; /* of the sums so far */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = td_tile_scale<TD_CUDA_TILE_KEYS>(s, half, first, keys[half], scale), quarter[TD_CUDA_TILE_KEYS / 16];
        most = state.max[half] > most ? state.max[half] : most;
        const float base = td_row_base(most);
        factor[half] = td_exp_near(state.max[half] - base);
        for (int i = 0; i < TD_CUDA_TILE_KEYS / 16; i++) quarter[i] = td_tile_weigh(s + i * 2, half, base);
        state.max[half] = most;
        state.sum[half] = state.sum[half] * factor[half] + td_tile_sum(quarter);
    }
    if (__ballot_sync(TD_ALL_LANES, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
        for (int j = 0; j < N; j++)
            for (int e = 0; e < 4; e++) acc[j][e] *= factor[e / 2];
    }
}

/** acc += weights of 16 rows and a tile of keys, times DV values of a key. @param v [TILE_KEYS, DV + 8] shared */
template <int DV>
TD_FN void td_tile_values(const float s[TD_CUDA_TILE_KEYS / 8][4], td_shared<td_bf16> v, float acc[DV / 8][4]) {
    const td_place<td_bf16> v_at = td_place_of(v + td_row_part(DV + 8));
#pragma unroll
    for (int i = 0; i < TD_CUDA_TILE_KEYS; i += 16) {
        const float   *low = s[i / 8], *high = s[i / 8 + 1];
        const unsigned a[4] = {td_bf16_pair(low[0], low[1]), td_bf16_pair(low[2], low[3]), td_bf16_pair(high[0], high[1]),
                               td_bf16_pair(high[2], high[3])};
#pragma unroll
        for (int j = 0; j < DV / 8; j += 2) {
            unsigned b[4];
            td_load_matrices_transposed(b, v_at + (i * (DV + 8) + j * 8));
            td_mma_bf16(acc[j], a, b);
            td_mma_bf16(acc[j + 1], a, b + 2);
        }
    }
}

/** Start copies of ROWS rows of d elements, `pitch` elements apart, into shared rows that are STRIDE apart; up to D elements of
 * each row, and rows from `there` on, become zeros. By a block of THREADS, a multiple of D / 8. d and D are multiples of 8. */
template <int ROWS, int D, int STRIDE, int THREADS>
TD_FN void td_fetch_rows(td_shared<td_bf16> to, td_u32 there, td_u32 d, const td_bf16 *from, size_t pitch) {
    constexpr int           AT_ONCE = THREADS / (D / 8);
    const td_u32            row = threadIdx.x / (D / 8), column = threadIdx.x % (D / 8) * 8;
    const td_place<td_bf16> at = td_place_of(to + (row * STRIDE + column));
    const td_bf16          *source = from + row * pitch + column;
    if (ROWS < AT_ONCE && row >= ROWS) return;
#pragma unroll
    for (int i = 0; i < ROWS; i += AT_ONCE) td_async_16(at + i * STRIDE, source + i * pitch, row + i < there && column < d);
}

/** The slot of a tile's first key; the others follow. */
TD_FN size_t td_slot_of(const td_u32 *pages, td_u32 key) {
    return static_cast<size_t>(pages[key / TD_CUDA_PAGE]) * TD_CUDA_PAGE + key % TD_CUDA_PAGE;
}

/** The sequence that a row of the step is of: seq_start[s] <= row < seq_start[s + 1]. */
TD_FN td_u32 td_sequence_of(const td_u32 *seq_start, td_u32 n_seq, td_u32 row) {
    if (row < n_seq && seq_start[row] == row && seq_start[row + 1] > row) return row; /* all before it have one row */
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

/** A row that decode computes: number i of the launch. list: [rows of the launch, 2] rows and their sequences
 * (td_list_rows); NULL: all rows of the step. @return false: the launch has not so many. */
TD_FN bool td_decode_row(const td_u32 *n_rows, const td_u32 *list, const td_u32 *n_seq, const td_u32 *seq_start, td_u32 i,
                         td_u32 *row, td_u32 *seq) {
    if (i >= *n_rows) return false;
    *row = list ? list[i * 2] : i;
    *seq = list ? list[i * 2 + 1] : td_sequence_of(seq_start, *n_seq, i);
    return true;
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
