/*
 * The choice of experts from the router's logits, in all the variants of td_router_desc; and the sums that bring experts'
 * outputs back.
 *
 * Why it is shaped so. A row has some hundred experts, so a warp has a row, and all it needs is in its shared memory. The
 * largest are found one after the other, each as the maximum of words that hold value and index. So ties go to the lower
 * index without a branch, and the order of the lanes cannot matter. Some tens of steps of a few shuffles cost less than the
 * launch.
 */
#include "npu/cuda/kernels/kernel.cuh"

/* Larger values have larger words; of equal ones the lower index. NaN comes last; 0 is nobody. */
TD_FN td_u64 order_word(float v, td_u32 index) {
    const unsigned bits = __float_as_uint(v + 0.0f); /* -0 and 0 are equal */
    const unsigned order = v != v ? 1u : bits >> 31 ? ~bits : bits | 0x80000000u;
    return static_cast<td_u64>(order) << 32 | static_cast<unsigned>(~index);
}
TD_FN td_u32 index_of(td_u64 word) {
    return ~static_cast<td_u32>(word);
}
TD_FN td_u64 warp_largest(td_u64 v) {
    for (int bits = 16; bits; bits >>= 1) v = max(v, __shfl_xor_sync(TD_ALL_LANES, v, bits));
    return v;
}
TD_FN bool comes_before(float a, float b) {
    return a > b || (b != b && a == a);
}

/* The logits of the chosen become their softmax. By one thread. */
TD_FN void softmax_of(td_shared<float> score, td_shared<td_u32> chosen, td_u32 n) {
    float most = -td_infinity(), sum = 0;
    for (td_u32 k = 0; k < n; k++) most = score[chosen[k]] > most ? score[chosen[k]] : most;
    for (td_u32 k = 0; k < n; k++) {
        score[chosen[k]] = td_exp(score[chosen[k]] - most);
        sum += score[chosen[k]];
    }
    for (td_u32 k = 0; k < n; k++) score[chosen[k]] = score[chosen[k]] / sum;
}

/**
 * grid (rows), block 32, dynamic shared memory 3 * n_experts floats.
 * @param logits  [rows, n_experts]
 * @param logit_bias, bias  [n_experts] or NULL
 * @param kind    of score: TD_CUDA_SCORE_…; group 0: none, 1: maximum, 2: sum of the two best (td_router_group)
 * @param slot_of [n_experts] or NULL: the slot of an expert that is resident, whose ids are marked; else TD_CUDA_NO_SLOT
 * @param ids, weights  [rows, top_k]; top_k up to 32
 */
TD_KERNEL(32)
td_route(const td_u32 *n_rows, const float *logits, const float *logit_bias, const float *bias, td_u32 n_experts,
         td_u32 top_k, td_u32 kind, td_u32 group, td_u32 n_group, td_u32 topk_group, td_u32 normalise, float scale,
         const unsigned short *slot_of, unsigned short *ids, float *weights) {
    TD_SHARED_DYNAMIC(float, score);
    TD_SHARED(td_u32, chosen, 32);
    TD_SHARED(td_u32, sorted, 32);
    TD_SHARED(float, weight, 32);
    const size_t row = blockIdx.x;
    const td_u32 lane = threadIdx.x;
    if (row >= *n_rows) return;
    td_shared<float>  choice = score + n_experts;
    td_shared<td_u32> closed =
        td_shared_as<td_u32>(choice + n_experts); /* of an expert: its group was not taken, or it was chosen */
    const float *x = logits + row * n_experts;
    for (td_u32 e = lane; e < n_experts; e += 32) score[e] = logit_bias ? x[e] + logit_bias[e] : x[e];
    if (kind == TD_CUDA_SCORE_SIGMOID) {
        for (td_u32 e = lane; e < n_experts; e += 32) score[e] = 1.0f / (1.0f + td_exp(-score[e]));
    } else if (kind == TD_CUDA_SCORE_SOFTMAX) {
        float most = -td_infinity(), sum = 0;
        for (td_u32 e = lane; e < n_experts; e += 32) most = score[e] > most ? score[e] : most;
        most = td_warp_max(most);
        for (td_u32 e = lane; e < n_experts; e += 32) {
            score[e] = td_exp(score[e] - most);
            sum += score[e];
        }
        sum = td_warp_sum(sum);
        for (td_u32 e = lane; e < n_experts; e += 32) score[e] = score[e] / sum;
    }
    for (td_u32 e = lane; e < n_experts; e += 32) {
        choice[e] = bias ? score[e] + bias[e] : score[e];
        closed[e] = group != 0;
    }
    __syncwarp();
    if (group) {
        const td_u32 size = n_experts / n_group;
        td_u64       mine = 0; /* of the groups that are this lane's, the best that is not taken */
        td_u64       taken = ~0ull;
        for (td_u32 i = 0; i < topk_group; i++) {
            mine = 0;
            for (td_u32 g = lane; g < n_group; g += 32) {
                float best = choice[g * size], second = -td_infinity();
                for (td_u32 e = g * size + 1; e < (g + 1) * size; e++) {
                    const float c = choice[e];
                    if (comes_before(c, best)) {
                        second = best;
                        best = c;
                    } else if (e == g * size + 1 || comes_before(c, second)) {
                        second = c;
                    }
                }
                const td_u64 word = order_word(group == 2 && size > 1 ? best + second : best, g);
                if (word < taken) mine = max(mine, word);
            }
            taken = warp_largest(mine);
            for (td_u32 e = lane; e < size; e += 32) closed[index_of(taken) * size + e] = 0;
        }
        __syncwarp();
    }
    for (td_u32 k = 0; k < top_k; k++) {
        td_u64 best = 0;
        for (td_u32 e = lane; e < n_experts; e += 32)
            if (!closed[e]) best = max(best, order_word(choice[e], e));
        best = warp_largest(best);
        if (lane == 0) {
            chosen[k] = index_of(best);
            closed[index_of(best)] = 1;
        }
        __syncwarp();
    }
    if (lane != 0) return;
    if (kind == TD_CUDA_SCORE_SOFTMAX_CHOSEN) softmax_of(score, chosen, top_k);
    float sum = 0;
    for (td_u32 k = 0; k < top_k; k++) sum += score[chosen[k]];
    for (td_u32 k = 0; k < top_k; k++) { /* by descending weight, ties to the lower index */
        const td_u32 id = chosen[k];
        const float  w = (normalise ? score[id] / (sum + 1e-20f) : score[id]) * scale;
        td_u32       at = k;
        for (; at > 0 && (w > weight[at - 1] || (w == weight[at - 1] && id < sorted[at - 1])); at--) {
            weight[at] = weight[at - 1];
            sorted[at] = sorted[at - 1];
        }
        weight[at] = w;
        sorted[at] = id;
    }
    for (td_u32 k = 0; k < top_k; k++) {
        const td_u32 mark = slot_of && slot_of[sorted[k]] != TD_CUDA_NO_SLOT ? TD_CUDA_ID_RESIDENT : 0;
        ids[row * top_k + k] = static_cast<unsigned short>(sorted[k] | mark);
        weights[row * top_k + k] = weight[k];
    }
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
