/*
 * The best logits of a row, and what its log-softmax needs: a step then brings kilobytes to the host instead of logits.
 *
 * Why it is shaped so. A logit and its id make one word of 64 bits that no other has, so the k largest are a set that does
 * not depend on any order. The smallest of them is found digit by digit: counts of eight bits at a time, in shared memory,
 * of the words that agree with it so far. A ninth pass collects those that are not smaller, and each finds its place by
 * counting the larger ones. The row is read from the second-level cache, where the product has just left it.
 */
#include "npu/cuda/kernels/kernel.cuh"

#define TOP_BINS 256

TD_FN td_u64 logit_word(float v, td_u32 id) {
    const unsigned bits = __float_as_uint(v + 0.0f); /* -0 and 0 are equal */
    return static_cast<td_u64>(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | static_cast<unsigned>(~id);
}

/**
 * top[r, :] = the k largest of logits[r, :], descending, ties to the lower id; where a logit is NaN or +inf, top[r, 0].value
 * is NaN (td_top_desc). grid (rows), block TOP_THREADS.
 * @param n_rows of the step's wanted rows
 * @param logits [rows, vocab]
 * @param k      up to TOP_MAX and vocab
 * @param top    [rows, k] pairs of value and id (td_logit)
 */
TD_KERNEL(TD_CUDA_TOP_THREADS)
td_top(const td_u32 *n_rows, const float *logits, td_u32 vocab, td_u32 k, uint2 *top) {
    TD_SHARED(td_u32, count, TOP_BINS);
    TD_SHARED(td_u64, found, TD_CUDA_TOP_MAX);
    TD_SHARED(td_u32, state, 4); /* bin, how many are wanted in it, how many are found, whether a logit is not finite */
    const size_t row = blockIdx.x;
    const td_u32 thread = threadIdx.x;
    if (row >= *n_rows) return;
    const float *x = logits + row * vocab;
    td_u64       prefix = 0;
    td_u32       wanted = k;
    if (thread == 0) state[2] = state[3] = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (td_u32 i = thread; i < TOP_BINS; i += blockDim.x) count[i] = 0;
        __syncthreads();
        for (td_u32 id = thread; id < vocab; id += blockDim.x) {
            const float  v = x[id];
            const td_u64 word = logit_word(v, id);
            if (shift == 56 && !(v < td_infinity())) state[3] = 1;
            if (shift == 56 || word >> (shift + 8) == prefix)
                atomicAdd(&count[static_cast<td_u32>(word >> shift) & 255u], 1u);
        }
        __syncthreads();
        if (thread == 0) {
            td_u32 bin = TOP_BINS - 1, left = wanted;
            while (count[bin] < left) left -= count[bin--];
            state[0] = bin;
            state[1] = left;
        }
        __syncthreads();
        prefix = prefix << 8 | state[0];
        wanted = state[1];
    }
    for (td_u32 id = thread; id < vocab; id += blockDim.x) {
        const td_u64 word = logit_word(x[id], id);
        if (word >= prefix) found[atomicAdd(&state[2], 1u)] = word;
    }
    __syncthreads();
    for (td_u32 i = thread; i < k; i += blockDim.x) {
        const td_u64 word = found[i];
        td_u32       place = 0;
        for (td_u32 j = 0; j < k; j++) place += found[j] > word;
        const td_u32 id = ~static_cast<td_u32>(word);
        const float  value = place == 0 && state[3] ? td_nan() : x[id];
        const uint2  pair = {__float_as_uint(value), id};
        td_store(top + row * k + place, pair);
    }
}

/**
 * out[r, :] = (max, sum of exp(logit - max)) of logits[r, :]: a logit's log-softmax is logit - max - log(sum). grid (rows),
 * block TOP_THREADS.
 * @param out [rows, 2] (td_log_sum)
 */
TD_KERNEL(TD_CUDA_TOP_THREADS)
td_log_sums(const td_u32 *n_rows, const float *logits, td_u32 vocab, float *out) {
    TD_SHARED(float, part, TD_CUDA_TOP_THREADS / 32);
    const size_t row = blockIdx.x;
    if (row >= *n_rows) return;
    const float *x = logits + row * vocab;
    float        most = -td_infinity(), sum = 0;
    for (td_u32 i = threadIdx.x; i < vocab; i += blockDim.x) most = x[i] > most ? x[i] : most;
    most = td_warp_max(most);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = most;
    __syncthreads();
    most = part[0];
    for (td_u32 i = 1; i < blockDim.x / 32; i++) most = part[i] > most ? part[i] : most;
    __syncthreads();
    for (td_u32 i = threadIdx.x; i < vocab; i += blockDim.x) sum += td_exp(x[i] - most);
    sum = td_block_sum(sum, part);
    if (threadIdx.x == 0) {
        out[row * 2] = most;
        out[row * 2 + 1] = sum;
    }
}
