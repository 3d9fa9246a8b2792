/*
 * Routed experts that lie on the card: which rows each of them has, and the sums of what they gave.
 *
 * Why it is shaped so. The host does not know which experts a step's rows choose, and a captured launch serves every step.
 * So the rows are put in the order of their experts on the card, and cut into tiles of one expert each. A product's blocks
 * take a tile each (td_experts_… in linear_w8a8.cu and linear_groups.cu), and those beyond the last tile return. Each
 * expert's block counts all choices for itself: some thousand integers, read from the second-level cache, cost less than a
 * second launch that would wait for the first one's counts. Places are given in the order of the rows. A row's sum is exact
 * (kernels/exact_sum.h), so its bits depend on the row alone, and are those of the CPU tier for the same outputs.
 */
#include "npu/cuda/kernels/experts.cuh"

/**
 * The rows first .. first + most - 1 of the step, as far as they are there, by expert. A pair is a row and one of its top_k
 * choices; its place is where it comes in the order of experts, and among those of an expert in that of rows.
 * grid (n_experts), block TD_CUDA_PLACE_THREADS, dynamic shared memory n_experts ints.
 * @param ids      [most, top_k], of the first of these rows on
 * @param mark     0, or TD_CUDA_ID_RESIDENT: only choices that are marked count
 * @param begin_choice, end_choice of a row's choices: only those count
 * @param slot_of  [n_experts]: choices of experts elsewhere do not count; NULL: none is
 * @param row_at   [most * top_k] of a place: its row, of the step
 * @param place_of [most, top_k] of a pair; not written where an id is no expert's
 * @param tiles    [*, 3]: expert, first place, place behind the last; up to tile_rows places each
 * @param totals   [2]: places, tiles
 */
TD_KERNEL(TD_CUDA_PLACE_THREADS)
td_experts_place(const td_u32 *n_rows, td_u32 first, td_u32 most, const unsigned short *ids, td_u32 n_experts, td_u32 top_k,
                 td_u32 mark, td_u32 begin_choice, td_u32 end_choice, const unsigned short *slot_of, td_u32 tile_rows,
                 td_u32 *row_at, td_u32 *place_of, td_u32 *tiles, td_u32 *totals) {
    TD_SHARED_DYNAMIC(int, count);
    TD_SHARED(int, before, 2); /* places and tiles of the experts before this one */
    TD_SHARED(td_u32, of_warp, TD_CUDA_PLACE_THREADS / 32);
    const td_u32 rows = *n_rows > first ? min(*n_rows - first, most) : 0, pairs = rows * top_k, expert = blockIdx.x;
    const td_u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const auto   chosen_at = [&](td_u32 i) {
        const td_u32 e = expert_of(ids[i], mark);
        const bool   counts = i % top_k >= begin_choice && i % top_k < end_choice;
        return counts && e < n_experts && !is_elsewhere(slot_of, e) ? e : n_experts;
    };
    for (td_u32 i = threadIdx.x; i < n_experts; i += blockDim.x) count[i] = 0;
    if (threadIdx.x < 2) before[threadIdx.x] = 0;
    __syncthreads();
    for (td_u32 i = threadIdx.x; i < pairs; i += blockDim.x)
        if (chosen_at(i) < n_experts) atomicAdd(&count[chosen_at(i)], 1);
    __syncthreads();
    for (td_u32 i = threadIdx.x; i < expert; i += blockDim.x) {
        atomicAdd(&before[0], count[i]);
        atomicAdd(&before[1], static_cast<int>((static_cast<td_u32>(count[i]) + tile_rows - 1) / tile_rows));
    }
    __syncthreads();
    const td_u32 begin = static_cast<td_u32>(before[0]), end = begin + static_cast<td_u32>(count[expert]);
    const td_u32 first_tile = static_cast<td_u32>(before[1]), n_tiles = (end - begin + tile_rows - 1) / tile_rows;
    td_u32       next = begin;
    for (td_u32 base = 0; base < pairs && begin < end; base += blockDim.x) {
        const td_u32   i = base + threadIdx.x;
        const bool     mine = i < pairs && chosen_at(i) == expert;
        const unsigned chosen = __ballot_sync(TD_ALL_LANES, mine);
        if (lane == 0) of_warp[warp] = static_cast<td_u32>(__popc(chosen));
        __syncthreads();
        td_u32 place = next + static_cast<td_u32>(__popc(chosen & ((1u << lane) - 1)));
        for (td_u32 w = 0; w < blockDim.x / 32; w++) {
            if (w < warp) place += of_warp[w];
            next += of_warp[w];
        }
        if (mine) {
            row_at[place] = first + i / top_k;
            place_of[i] = place;
        }
        __syncthreads();
    }
    for (td_u32 i = threadIdx.x; i < n_tiles; i += blockDim.x) {
        td_u32 *tile = tiles + (first_tile + i) * 3;
        tile[0] = expert;
        tile[1] = begin + i * tile_rows;
        tile[2] = min(begin + (i + 1) * tile_rows, end);
    }
    if (expert + 1 == n_experts && threadIdx.x == 0) {
        totals[0] = end;
        totals[1] = first_tile + n_tiles;
    }
}

/* The exact sum of a column over the choices of a row that count, of weight * x[its place]. slot_of: of a choice that has no
 * slot the term is a NaN, as it would be of ids that are no expert's; one elsewhere has none; NULL: there are none. */
TD_FN td_exact_sum sum_of_choices(const unsigned short *ids, const float *weights, const td_u32 *place_of, td_u32 n_experts,
                                  td_u32 top_k, td_u32 begin_choice, td_u32 end_choice, td_u32 mark,
                                  const unsigned short *slot_of, const float *x, td_u32 hidden, size_t row, td_u32 column) {
    td_exact_sum sum = {0, 0};
    for (size_t pair = row * top_k + begin_choice; pair < row * top_k + end_choice; pair++) {
        const td_u32 e = expert_of(ids[pair], mark);
        if (e < n_experts && is_elsewhere(slot_of, e)) continue;
        if (e < n_experts && (!slot_of || slot_of[e] != TD_CUDA_NO_SLOT))
            td_exact_add(&sum, weights[pair], x[static_cast<size_t>(place_of[pair]) * hidden + column]);
        else if (slot_of && e < TD_CUDA_ID_RESIDENT)
            td_exact_add(&sum, 1, td_nan());
    }
    return sum;
}

/**
 * out = the exact sum over a row's experts of weight * x[its place], rounded once.
 * grid (hidden / 256 rounded up, most), block 256.
 * @param ids, weights, place_of [most, top_k], out [most, hidden] bf16, of row `first` of the step on
 * @param x [places, hidden]
 */
TD_KERNEL(256)
td_experts_sum(const td_u32 *n_rows, td_u32 first, const unsigned short *ids, const float *weights, const td_u32 *place_of,
               td_u32 n_experts, td_u32 top_k, const float *x, td_u32 hidden, td_bf16 *out) {
    const size_t row = blockIdx.y;
    const td_u32 column = blockIdx.x * 256 + threadIdx.x;
    if (first + row >= *n_rows || column >= hidden) return;
    out[row * hidden + column] = td_to_bf16(td_exact_value(
        sum_of_choices(ids, weights, place_of, n_experts, top_k, 0, top_k, 0, nullptr, x, hidden, row, column)));
}

/** The same over the choices that td_experts_place counts, as the words of a part of the sum. A choice that is marked, and
 * has no slot, makes the row's sums NaNs. @param sums [most, words of a row of hidden sums] */
TD_KERNEL(256)
td_experts_part(const td_u32 *n_rows, td_u32 first, const unsigned short *ids, const float *weights, const td_u32 *place_of,
                td_u32 n_experts, td_u32 top_k, td_u32 begin_choice, td_u32 end_choice, const unsigned short *slot_of,
                const float *x, td_u32 hidden, int *sums) {
    const size_t row = blockIdx.y;
    const td_u32 column = blockIdx.x * 256 + threadIdx.x;
    if (first + row >= *n_rows || column >= hidden) return;
    td_exact_store(sums + row * td_exact_words(hidden) + td_exact_at(column),
                   sum_of_choices(ids, weights, place_of, n_experts, top_k, begin_choice, end_choice, TD_CUDA_ID_RESIDENT,
                                  slot_of, x, hidden, row, column));
}

/** out = the values of the sums a + b, rounded once. grid (hidden / 256 rounded up, rows), block 256. a, b as
 * td_experts_part's sums, out [rows, hidden] bf16. */
TD_KERNEL(256)
td_join(const td_u32 *n_rows, const int *a, const int *b, td_u32 hidden, td_bf16 *out) {
    const size_t row = blockIdx.y;
    const td_u32 column = blockIdx.x * 256 + threadIdx.x;
    if (row >= *n_rows || column >= hidden) return;
    const size_t       at = row * td_exact_words(hidden) + td_exact_at(column);
    const td_exact_sum x = td_exact_load(a + at), y = td_exact_load(b + at);
    const td_exact_sum sum = {static_cast<int>(static_cast<td_u32>(x.high) + static_cast<td_u32>(y.high)),
                              static_cast<int>(static_cast<td_u32>(x.low) + static_cast<td_u32>(y.low))};
    out[row * hidden + column] = td_to_bf16(td_exact_value(sum));
}
