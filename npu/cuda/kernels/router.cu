/*
 * The choice of experts from the router's logits, in all the variants of td_router_desc; and the sums that bring experts'
 * outputs back.
 *
 * Why it is shaped so. A row has some hundred experts. A block has a row, and a thread an expert or two until scores are
 * known; from there on one warp has all of it, in shared memory. What it waits for is the chain of choices, one after the
 * other. So a value becomes a key, a number that is larger where the
 * value is, and the warp's largest key is two instructions. A lane remembers the best of its own experts, and only the lane
 * whose expert was chosen looks again. Lanes share a group where there are fewer groups than lanes. Ties go to the lower
 * index, so the order of the lanes cannot matter. The weights of the chosen are computed by a lane each, but for their sum,
 * which is in the order of the choices.
 */
#include "npu/cuda/kernels/kernel.cuh"

#define AT_ONCE 8 /* keys of a lane that are read before the first is looked at */

/* Larger values have larger keys, equal ones the same. NaN comes last; 0 is no value's. */
TD_FN td_u32 key_of(float v) {
    const unsigned bits = __float_as_uint(v + 0.0f); /* -0 and 0 are equal */
    return v != v ? 1u : bits >> 31 ? ~bits : bits | 0x80000000u;
}
TD_FN float value_of(td_u32 key) {
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

/* Of some indices, the one with the largest key; of equal ones the lowest. */
struct best_key {
    td_u32 key, index;
};
/* Of first, first + 32, … below n. */
TD_FN best_key best_of(td_shared<td_u32> keys, td_u32 first, td_u32 n) {
    best_key best = {0, ~0u};
    for (td_u32 base = first; base < n; base += 32 * AT_ONCE) {
        td_u32 key[AT_ONCE];
#pragma unroll
        for (td_u32 j = 0; j < AT_ONCE; j++) key[j] = base + j * 32 < n ? keys[base + j * 32] : 0;
#pragma unroll
        for (td_u32 j = 0; j < AT_ONCE; j++) best = key[j] > best.key ? best_key{key[j], base + j * 32} : best;
    }
    return best;
}
TD_FN td_u32 warp_best(const best_key &mine) {
    const td_u32 most = __reduce_max_sync(TD_ALL_LANES, mine.key);
    return ~__reduce_max_sync(TD_ALL_LANES, mine.key == most ? ~mine.index : 0u);
}

/* sum of v of the lanes below n, in their order */
TD_FN float sum_in_order(float v, td_u32 n) {
    float sum = 0;
    for (td_u32 i = 0; i < n; i++) sum += __shfl_sync(TD_ALL_LANES, v, i);
    return sum;
}

/* The keys of experts outside of the best `wanted` groups become 0. @param of_group [n_group] shared */
TD_FN void close_groups(td_shared<td_u32> key, td_u32 n_experts, td_u32 n_group, td_u32 wanted, bool of_two,
                        td_shared<td_u32> of_group) {
    const td_u32 lane = threadIdx.x, size = n_experts / n_group;
    td_u32       lanes = 32; /* that share a group */
    while (lanes > 1 && lanes * n_group > 32) lanes /= 2;
    for (td_u32 first = 0; first < n_group; first += 32 / lanes) {
        const td_u32 group = first + lane / lanes;
        td_u32       best = 0, second = 0;
#pragma unroll 8
        for (td_u32 e = lane % lanes; group < n_group && e < size; e += lanes) {
            const td_u32 other = key[group * size + e];
            second = max(second, min(best, other));
            best = max(best, other);
        }
        for (td_u32 bits = 1; bits < lanes; bits *= 2) {
            const td_u32 its_best = __shfl_xor_sync(TD_ALL_LANES, best, bits),
                         its_second = __shfl_xor_sync(TD_ALL_LANES, second, bits);
            second = max(max(second, its_second), min(best, its_best));
            best = max(best, its_best);
        }
        if (group < n_group && lane % lanes == 0)
            of_group[group] = of_two && size > 1 ? key_of(value_of(best) + value_of(second)) : best;
    }
    __syncwarp();
    for (td_u32 i = 0; i < wanted; i++) {
        const td_u32 taken = warp_best(best_of(of_group, lane, n_group));
        __syncwarp();
        if (lane == 0) of_group[taken] = 0;
        __syncwarp();
    }
    for (td_u32 e = lane; e < n_experts; e += 32)
        if (e / size >= n_group || of_group[e / size]) key[e] = 0;
}

/**
 * grid (rows), block TD_CUDA_ROUTE_THREADS, dynamic shared memory 3 * n_experts floats.
 * @param logits  [rows, n_experts]
 * @param logit_bias, bias  [n_experts] or NULL
 * @param kind    of score: TD_CUDA_SCORE_…; group 0: none, 1: maximum, 2: sum of the two best (td_router_group)
 * @param slot_of [n_experts] or NULL: the slot of an expert that is resident, whose ids are marked; else TD_CUDA_NO_SLOT
 * @param ids, weights  [rows, top_k]; top_k up to 32
 */
TD_KERNEL(TD_CUDA_ROUTE_THREADS)
td_route(const td_u32 *n_rows, const float *logits, const float *logit_bias, const float *bias, td_u32 n_experts,
         td_u32 top_k, td_u32 kind, td_u32 group, td_u32 n_group, td_u32 topk_group, td_u32 normalise, float scale,
         const unsigned short *slot_of, unsigned short *ids, float *weights) {
    TD_SHARED_DYNAMIC(float, score);
    TD_SHARED(float, part, TD_CUDA_ROUTE_THREADS / 32);
    const size_t row = blockIdx.x;
    const td_u32 lane = threadIdx.x;
    if (row >= *n_rows) return;
    td_shared<float>  added = score + n_experts;
    td_shared<td_u32> key = td_shared_as<td_u32>(added); /* 0: not to be chosen any more */
    const float      *x = logits + row * n_experts;
    float             most = -td_infinity(), of_all = 0;
    for (td_u32 e = lane; e < n_experts; e += TD_CUDA_ROUTE_THREADS) {
        const float logit = x[e], more = logit_bias ? logit_bias[e] : 0.0f;
        added[e] = bias ? bias[e] : 0.0f;
        const float v = logit_bias ? logit + more : logit;
        score[e] = kind == TD_CUDA_SCORE_SIGMOID ? 1.0f / (1.0f + td_exp(-v)) : v;
        most = v > most ? v : most;
    }
    if (kind == TD_CUDA_SCORE_SOFTMAX) {
        most = td_block_largest(most, part);
        for (td_u32 e = lane; e < n_experts; e += TD_CUDA_ROUTE_THREADS) {
            score[e] = td_exp(score[e] - most);
            of_all += score[e];
        }
        of_all = td_block_sum(of_all, part);
        for (td_u32 e = lane; e < n_experts; e += TD_CUDA_ROUTE_THREADS) score[e] = score[e] / of_all;
    }
    for (td_u32 e = lane; e < n_experts; e += TD_CUDA_ROUTE_THREADS) key[e] = key_of(score[e] + added[e]);
    __syncthreads();
    if (lane >= 32) return;
    if (group) close_groups(key, n_experts, n_group, topk_group, group == 2, key + n_experts);
    best_key mine = best_of(key, lane, n_experts);
    td_u32   id = 0; /* of lane k: what was chosen as the k-th */
    for (td_u32 k = 0; k < top_k; k++) {
        const td_u32 best = warp_best(mine);
        if (lane == k) id = best;
        if (mine.index != best) continue;
        key[best] = 0;
        mine = best_of(key, lane, n_experts);
    }
    float of_chosen = lane < top_k ? score[id] : -td_infinity();
    if (kind == TD_CUDA_SCORE_SOFTMAX_CHOSEN) {
        of_chosen = td_exp(of_chosen - td_warp_max(of_chosen));
        of_chosen = of_chosen / sum_in_order(of_chosen, top_k);
    }
    const float  sum = sum_in_order(of_chosen, top_k);
    const float  w = (normalise ? of_chosen / (sum + 1e-20f) : of_chosen) * scale;
    const td_u32 rank = key_of(w);
    td_u32       at = 0; /* by descending weight, ties to the lower index */
    for (td_u32 k = 0; k < top_k; k++) {
        const td_u32 other = __shfl_sync(TD_ALL_LANES, rank, k), its_id = __shfl_sync(TD_ALL_LANES, id, k);
        at += other > rank || (other == rank && its_id < id);
    }
    if (lane >= top_k) return;
    const td_u32 mark = slot_of && slot_of[id] != TD_CUDA_NO_SLOT ? TD_CUDA_ID_RESIDENT : 0;
    ids[row * top_k + at] = static_cast<unsigned short>(id | mark);
    weights[row * top_k + at] = w;
}

/** x += (a + b + c), summed in that order in f32, NULL left out; rounded to bf16. grid (hidden / 256 rounded up, rows),
 * block 256; all [rows, hidden] bf16. */
TD_KERNEL(256)
td_combine(const td_u32 *n_rows, td_bf16 *x, const td_bf16 *a, const td_bf16 *b, const td_bf16 *c, td_u32 hidden) {
    const size_t row = blockIdx.y, column = blockIdx.x * 256 + threadIdx.x, at = row * hidden + column;
    if (row >= *n_rows || column >= hidden || (!a && !b && !c)) return;
    const td_bf16 *add[3] = {a, b, c};
    float          sum = 0;
    bool           any = false;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        if (!add[i]) continue;
        sum = any ? sum + td_from_bf16(add[i][at]) : td_from_bf16(add[i][at]);
        any = true;
    }
    x[at] = td_to_bf16(td_from_bf16(x[at]) + sum);
}

/** out = x * sigmoid(gate of the row). grid (hidden / 256 rounded up, rows), block 256. x [rows, hidden] f32, gate [rows],
 * out [rows, hidden] bf16. */
TD_KERNEL(256)
td_gate_rows(const td_u32 *n_rows, const float *x, const float *gate, td_u32 hidden, td_bf16 *out) {
    const size_t row = blockIdx.y, column = blockIdx.x * 256 + threadIdx.x;
    if (row >= *n_rows || column >= hidden) return;
    out[row * hidden + column] = td_to_bf16(x[row * hidden + column] * (1.0f / (1.0f + td_exp(-gate[row]))));
}
