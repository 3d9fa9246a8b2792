/*
 * The choice of experts from the router's logits, in all the variants of td_router_desc; and the sums that bring experts'
 * outputs back.
 *
 * Why it is shaped so. A row has some hundred experts. A block has a row, and a thread an expert or two until scores are
 * known; a warp has a group of experts. From there on one warp has all of it. What it waits for is the chain of choices, one
 * after the other. So a value becomes a key, a number that is larger where the value is, and the warp's largest key is one
 * instruction. A lane has experts side by side in registers, and knows the second best of them while it waits to hear whether
 * its best is chosen: so a choice is a maximum and a vote. Ties go to the lower index, which is the lower lane. The weights of
 * the chosen are computed by a lane each, but for their sum, which is in the order of the choices. Loops are short: a step's
 * other kernels leave little of this code in an instruction cache.
 */
#include "npu/cuda/kernels/kernel.cuh"

#define WARPS (TD_CUDA_ROUTE_THREADS / 32)
#define AT_ONCE 8 /* values of other lanes that are asked for before the first is looked at */

/* Larger values have larger keys, equal ones the same. NaN comes last; 0 is no value's. */
TD_FN td_u32 key_of(float v) {
    const unsigned bits = __float_as_uint(v + 0.0f); /* -0 and 0 are equal */
    return v != v ? 1u : bits >> 31 ? ~bits : bits | 0x80000000u;
}
TD_FN float value_of(td_u32 key) {
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

/* Of lane k: the index of the k-th largest of 32 * KEPT keys; of equal ones the lower index is the larger. Keys of 0 are not
 * there, and others are as many as are wanted. */
template <int KEPT>
TD_FN td_u32 best_of_keys(td_shared<td_u32> keys, td_u32 wanted) {
    const td_u32 lane = threadIdx.x;
    td_u32       key[KEPT], id = 0, best = 0;
#pragma unroll
    for (int j = 0; j < KEPT; j += 4) {
        const uint4 four = td_load<uint4>(keys + (lane * KEPT + j));
        key[j] = four.x, key[j + 1] = four.y, key[j + 2] = four.z, key[j + 3] = four.w;
    }
#pragma unroll
    for (int j = 0; j < KEPT; j++) best = max(best, key[j]);
#pragma unroll 1
    for (td_u32 k = 0; k < wanted; k++) {
        const td_u32 most = __reduce_max_sync(TD_ALL_LANES, best);
        td_u32       at = 0, left[KEPT], second = 0; /* of this lane: its best, and what is left without it */
#pragma unroll
        for (int j = KEPT - 1; j >= 0; j--) at = key[j] == best ? j : at;
#pragma unroll
        for (td_u32 j = 0; j < KEPT; j++) {
            left[j] = at == j ? 0 : key[j];
            second = max(second, left[j]);
        }
        const td_u32 first = __ffs(static_cast<int>(__ballot_sync(TD_ALL_LANES, best == most))) - 1,
                     chosen = __shfl_sync(TD_ALL_LANES, lane * KEPT + at, first);
        if (lane == k) id = chosen;
        best = lane == first ? second : best;
#pragma unroll
        for (int j = 0; j < KEPT; j++) key[j] = lane == first ? left[j] : key[j];
    }
    return id;
}

/* The same of n keys, of more experts than lanes keep; those that are chosen become 0. */
TD_FN td_u32 best_of_many(td_shared<td_u32> keys, td_u32 n, td_u32 wanted) {
    const td_u32 lane = threadIdx.x;
    td_u32       id = 0;
#pragma unroll 1
    for (td_u32 k = 0; k < wanted; k++) {
        td_u32 best = 0, at = ~0u;
#pragma unroll 8
        for (td_u32 e = lane; e < n; e += 32) {
            const td_u32 other = keys[e];
            at = other > best ? e : at;
            best = max(best, other);
        }
        const td_u32 most = __reduce_max_sync(TD_ALL_LANES, best),
                     chosen = ~__reduce_max_sync(TD_ALL_LANES, best == most ? ~at : 0u);
        if (lane == k) id = chosen;
        if (at == chosen) keys[at] = 0; /* its own lane's: nobody else reads it */
    }
    return id;
}

/* v of the lanes from `first` on; zeros of those that are not below n */
template <class T>
TD_FN void of_lanes(T v, td_u32 first, td_u32 n, T out[AT_ONCE]) {
#pragma unroll
    for (td_u32 j = 0; j < AT_ONCE; j++) {
        const T of_lane = __shfl_sync(TD_ALL_LANES, v, first + j);
        out[j] = first + j < n ? of_lane : static_cast<T>(0);
    }
}

/* sum of v of the lanes below n, in their order; 0 is added behind them */
TD_FN float sum_in_order(float v, td_u32 n) {
    float sum = 0;
#pragma unroll 1
    for (td_u32 first = 0; first < n; first += AT_ONCE) {
        float other[AT_ONCE];
        of_lanes(v, first, n, other);
#pragma unroll
        for (td_u32 j = 0; j < AT_ONCE; j++) sum += other[j];
    }
    return sum;
}

/* The keys of experts outside of the best `wanted` groups become 0. A warp has each WARPS-th group.
 * @param of_group [n_group] shared */
TD_FN void close_groups(td_shared<td_u32> key, td_u32 size, td_u32 n_group, td_u32 wanted, bool of_two,
                        td_shared<td_u32> of_group) {
    const td_u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
    for (td_u32 group = warp; group < n_group; group += WARPS) {
        td_u32 best = 0, second = 0;
#pragma unroll 1
        for (td_u32 e = lane; e < size; e += 32) {
            const td_u32 other = key[group * size + e];
            second = max(second, min(best, other));
            best = max(best, other);
        }
        const td_u32 most = __reduce_max_sync(TD_ALL_LANES, best),
                     first = __ffs(static_cast<int>(__ballot_sync(TD_ALL_LANES, best == most))) - 1,
                     next = __reduce_max_sync(TD_ALL_LANES, lane == first ? second : best);
        if (lane == 0) of_group[group] = of_two && size > 1 ? key_of(value_of(most) + value_of(next)) : most;
    }
    __syncthreads();
#pragma unroll 1
    for (td_u32 group = warp; group < n_group; group += WARPS) {
        const td_u32 mine = of_group[group];
        td_u32       before = 0; /* groups that are better */
#pragma unroll 1
        for (td_u32 first = 0; first < n_group; first += 32) {
            const td_u32 at = first + lane, other = at < n_group ? of_group[at] : 0;
            before += __popc(__ballot_sync(TD_ALL_LANES, other > mine || (other == mine && at < group)));
        }
#pragma unroll 1
        for (td_u32 e = lane; before >= wanted && e < size; e += 32) key[group * size + e] = 0;
    }
    __syncthreads();
}

/**
 * grid (rows), block TD_CUDA_ROUTE_THREADS, dynamic shared memory TD_CUDA_ROUTE_SHARED(n_experts).
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
    TD_SHARED_DYNAMIC(td_u32, key); /* 0: not to be chosen any more; so are those behind the last expert's */
    TD_SHARED(float, part, WARPS);
    const size_t row = blockIdx.x;
    const td_u32 lane = threadIdx.x, padded = TD_CUDA_ROUTE_PADDED(n_experts);
    td_take_turn();
    if (row >= *n_rows) return;
    td_shared<float> score = td_shared_as<float>(key + padded);
    const float     *x = logits + row * n_experts;
    float            most = -td_infinity(), of_all = 0;
#pragma unroll 1
    for (td_u32 e = lane; e < padded; e += TD_CUDA_ROUTE_THREADS) {
        if (e >= n_experts) {
            key[e] = 0;
            continue;
        }
        const float logit = x[e], more = logit_bias ? logit_bias[e] : 0.0f, add = bias ? bias[e] : 0.0f,
                    v = logit_bias ? logit + more : logit,
                    s = kind == TD_CUDA_SCORE_SIGMOID ? 1.0f / (1.0f + td_exp(-v)) : v;
        score[e] = s;
        key[e] = kind == TD_CUDA_SCORE_SOFTMAX ? __float_as_uint(add) : key_of(s + add);
        most = s > most ? s : most;
    }
    if (kind == TD_CUDA_SCORE_SOFTMAX) {
        most = td_block_largest(most, part);
        for (td_u32 e = lane; e < n_experts; e += TD_CUDA_ROUTE_THREADS) {
            score[e] = td_exp(score[e] - most);
            of_all += score[e];
        }
        of_all = td_block_sum(of_all, part);
        for (td_u32 e = lane; e < n_experts; e += TD_CUDA_ROUTE_THREADS) {
            const float s = score[e] / of_all;
            score[e] = s;
            key[e] = key_of(s + __uint_as_float(key[e]));
        }
    }
    __syncthreads();
    if (group) close_groups(key, n_experts / n_group, n_group, topk_group, group == 2, key + padded + n_experts);
    if (lane >= 32) return;
    const td_u32 id = padded <= 256   ? best_of_keys<8>(key, top_k)
                      : padded <= 512 ? best_of_keys<16>(key, top_k)
                                      : best_of_many(key, n_experts, top_k);
    const td_u32 slot = lane < top_k && slot_of ? slot_of[id] : TD_CUDA_NO_SLOT;
    float        of_chosen = lane < top_k ? score[id] : -td_infinity();
    if (kind == TD_CUDA_SCORE_SOFTMAX_CHOSEN) {
        of_chosen = td_exp(of_chosen - td_warp_max(of_chosen));
        of_chosen = of_chosen / sum_in_order(of_chosen, top_k);
    }
    const float  sum = normalise ? sum_in_order(of_chosen, top_k) : 0.0f;
    const float  w = (normalise ? of_chosen / (sum + 1e-20f) : of_chosen) * scale;
    const td_u32 rank = key_of(w);
    td_u32       at = 0; /* by descending weight, ties to the lower index */
#pragma unroll 1
    for (td_u32 first = 0; first < top_k; first += AT_ONCE) {
        td_u32 other[AT_ONCE], its_id[AT_ONCE];
        of_lanes(rank, first, top_k, other);
        of_lanes(id, first, top_k, its_id);
#pragma unroll
        for (td_u32 j = 0; j < AT_ONCE; j++) at += other[j] > rank || (other[j] == rank && its_id[j] < id);
    }
    if (lane >= top_k) return;
    ids[row * top_k + at] = static_cast<unsigned short>(id | (slot != TD_CUDA_NO_SLOT ? TD_CUDA_ID_RESIDENT : 0));
    weights[row * top_k + at] = w;
}

/** x += (a + b + c), summed in that order in f32, NULL left out; rounded to bf16. grid (hidden / 256 rounded up, rows),
 * block 256; all [rows, hidden] bf16. */
TD_KERNEL(256)
td_combine(const td_u32 *n_rows, td_bf16 *x, const td_bf16 *a, const td_bf16 *b, const td_bf16 *c, td_u32 hidden) {
    const size_t row = blockIdx.y, column = blockIdx.x * 256 + threadIdx.x, at = row * hidden + column;
    td_take_turn();
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
