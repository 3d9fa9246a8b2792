/*
 * The best logits of a row, and what its log-softmax needs: a step then brings kilobytes to the host instead of logits.
 *
 * Why it is shaped so. One block would read half a megabyte by itself, so a row is cut into parts. A block takes the k best
 * of one, and another one those of all parts' best. A logit and its id make one word of 64 bits that no other has, so the k
 * largest are a set that does not depend on any order. A part's words stay in registers; the smallest of the k largest is
 * found bit by bit, by counting those that reach a bound, until exactly k do. That needs no list, and no two threads add to
 * one word. What was found is put in order at the end, by counting the larger ones. The sum of exponentials has a maximum of
 * its own in each part; parts are added in a fixed tree.
 */
#include "npu/cuda/kernels/kernel.cuh"

#define TOP_VALUES (TD_CUDA_TOP_PART / TD_CUDA_TOP_THREADS)
#define TOP_KEPT 14 /* words of a thread that merges, in registers: 256 of 56 parts */
#define TOP_LANES 4 /* that share the counting of a word's place */

/* Larger logits have larger words, of equal ones the lower id, and NaN is the largest; 0 is nobody. */
TD_FN td_u64 logit_word(float v, td_u32 id) {
    const unsigned bits = __float_as_uint(v + 0.0f); /* -0 and 0 are equal */
    const unsigned order = v != v ? ~0u : bits >> 31 ? ~bits : bits | 0x80000000u;
    return static_cast<td_u64>(order) << 32 | static_cast<unsigned>(~id);
}

/**
 * A bound that exactly k of the block's words reach, or all but 0 where there are fewer. By all threads of the block.
 * @param kept words of this thread
 * @param rest, n those of the block beside them: thread t has rest[t], rest[t + threads], … below n
 * @param part 2 words a warp
 */
template <int KEPT>
TD_FN td_u64 bound_of_largest(const td_u64 (&kept)[KEPT], const td_u64 *rest, td_u32 n, td_u32 k, td_shared<td_u32> part) {
    const td_u32 lane = threadIdx.x % 32, warps = blockDim.x / 32;
    td_u64       bound = 0;
#pragma unroll 1
    for (int bit = 63; bit >= 0; bit--) {
        const td_u64            next = bound | 1ull << bit;
        const td_shared<td_u32> of_warp = part + bit % 2 * warps; /* in turns: one barrier a bit is enough */
        td_u32                  count = 0;
#pragma unroll
        for (int i = 0; i < KEPT; i++) count += kept[i] >= next;
        for (td_u32 i = threadIdx.x; i < n; i += blockDim.x) count += rest[i] >= next;
        count = __reduce_add_sync(TD_ALL_LANES, count);
        if (lane == 0) of_warp[threadIdx.x / 32] = count;
        __syncthreads();
        count = __reduce_add_sync(TD_ALL_LANES, lane < warps ? of_warp[lane] : 0u);
        if (count >= k) bound = next;
        if (count == k) break;
    }
    return max(bound, 1ull);
}

/**
 * Of each part of TD_CUDA_TOP_PART logits its k largest, and (max, sum of exp(logit - max)). grid (vocab / TOP_PART rounded
 * up, rows), block TOP_THREADS.
 * @param n_rows of the step's wanted rows
 * @param logits [rows, vocab]
 * @param words  [rows, parts, k] in any order; 0 where a part has fewer
 * @param sums   [rows, parts, 2], or NULL: none are wanted
 */
TD_KERNEL(TD_CUDA_TOP_THREADS)
td_top_parts(const td_u32 *n_rows, const float *logits, td_u32 vocab, td_u32 k, td_u64 *words, float *sums) {
    TD_SHARED(td_u32, count, 2 * TD_CUDA_TOP_THREADS / 32);
    TD_SHARED(float, part, TD_CUDA_TOP_THREADS / 32);
    TD_SHARED(td_u32, found, 1);
    const size_t row = blockIdx.y, of_part = row * gridDim.x + blockIdx.x;
    if (row >= *n_rows) return;
    const float *x = logits + row * vocab;
    const td_u32 first = blockIdx.x * TD_CUDA_TOP_PART, there = min(vocab - first, static_cast<td_u32>(TD_CUDA_TOP_PART));
    float        v[TOP_VALUES];
    td_u64       word[TOP_VALUES];
    if (threadIdx.x == 0) found[0] = 0;
#pragma unroll
    for (td_u32 i = 0; i < TOP_VALUES; i++) {
        const td_u32 at = threadIdx.x + i * TD_CUDA_TOP_THREADS;
        v[i] = at < there ? x[first + at] : -td_infinity();
    }
#pragma unroll
    for (td_u32 i = 0; i < TOP_VALUES; i++) {
        const td_u32 at = threadIdx.x + i * TD_CUDA_TOP_THREADS;
        word[i] = at < there ? logit_word(v[i], first + at) : 0;
    }
    const td_u64 bound = bound_of_largest(word, nullptr, 0, k, count);
    td_u64      *out = words + of_part * k;
#pragma unroll
    for (int i = 0; i < TOP_VALUES; i++)
        if (word[i] >= bound) out[atomicAdd(&found[0], 1u)] = word[i];
    for (td_u32 i = there + threadIdx.x; i < k; i += blockDim.x) out[i] = 0;
    if (!sums) return;
    float most = -td_infinity(), sum = 0;
#pragma unroll
    for (int i = 0; i < TOP_VALUES; i++) most = v[i] > most ? v[i] : most;
    most = td_block_largest(most, part);
#pragma unroll
    for (int i = 0; i < TOP_VALUES; i++) sum += v[i] == -td_infinity() ? 0.0f : td_exp(v[i] - most);
    sum = td_block_sum(sum, part);
    if (threadIdx.x == 0) {
        sums[of_part * 2] = most;
        sums[of_part * 2 + 1] = sum;
    }
}

/* out = (max, sum of exp(logit - max)) of a row from those of its parts, by a warp. */
TD_FN void merge_sums(const float *parts, td_u32 n, float *out) {
    float most = -td_infinity(), sum = 0;
    for (td_u32 i = threadIdx.x; i < n; i += 32) most = parts[i * 2] > most ? parts[i * 2] : most;
    most = td_warp_max(most);
    for (td_u32 i = threadIdx.x; i < n; i += 32) sum += parts[i * 2 + 1] * td_exp(parts[i * 2] - most);
    sum = td_warp_sum(sum);
    if (threadIdx.x == 0) {
        out[0] = most;
        out[1] = sum;
    }
}

/**
 * top[r, :] = the k largest of logits[r, :], descending, ties to the lower id; where a logit is NaN or +inf, top[r, 0].value
 * is NaN (td_top_desc). out[r, :] = (max, sum of exp(logit - max)): a logit's log-softmax is logit - max - log(sum). grid
 * (rows), block TOP_MERGE_THREADS.
 * @param k      up to TOP_MAX and vocab
 * @param words, sums  what td_top_parts left of so many parts
 * @param top    [rows, k] pairs of value and id (td_logit)
 * @param out    [rows, 2] (td_log_sum); not written where sums is NULL
 */
TD_KERNEL(TD_CUDA_TOP_MERGE_THREADS)
td_top(const td_u32 *n_rows, const float *logits, td_u32 vocab, td_u32 k, const td_u64 *words, const float *sums,
       td_u32 parts, uint2 *top, float *out) {
    TD_SHARED(td_u32, count, 2 * TD_CUDA_TOP_MERGE_THREADS / 32);
    TD_SHARED(td_u64, found, TD_CUDA_TOP_MAX);
    TD_SHARED(td_u32, n_found, 1);
    const size_t row = blockIdx.x;
    const td_u32 thread = threadIdx.x, n = parts * k,
                 kept = min(n, static_cast<td_u32>(TOP_KEPT) * TD_CUDA_TOP_MERGE_THREADS);
    if (row >= *n_rows) return;
    const float  *x = logits + row * vocab;
    const td_u64 *mine = words + row * n, *rest = mine + kept;
    td_u64        word[TOP_KEPT];
    if (thread == 0) n_found[0] = 0;
#pragma unroll
    for (td_u32 i = 0; i < TOP_KEPT; i++) {
        const td_u32 at = thread + i * TD_CUDA_TOP_MERGE_THREADS;
        word[i] = at < kept ? mine[at] : 0;
    }
    const td_u64 bound = bound_of_largest(word, rest, n - kept, k, count);
#pragma unroll
    for (int i = 0; i < TOP_KEPT; i++)
        if (word[i] >= bound) found[atomicAdd(&n_found[0], 1u)] = word[i];
    for (td_u32 i = thread; i < n - kept; i += blockDim.x)
        if (rest[i] >= bound) found[atomicAdd(&n_found[0], 1u)] = rest[i];
    if (sums && thread < 32) merge_sums(sums + row * parts * 2, parts, out + row * 2);
    __syncthreads();
    for (td_u32 first = 0; first < k; first += TD_CUDA_TOP_MERGE_THREADS / TOP_LANES) {
        const td_u32 i = first + thread / TOP_LANES;
        const td_u64 own = found[min(i, k - 1)];
        td_u32       place = 0;
        for (td_u32 j = thread % TOP_LANES; j < k; j += TOP_LANES) place += found[j] > own;
        for (td_u32 bits = 1; bits < TOP_LANES; bits *= 2) place += __shfl_xor_sync(TD_ALL_LANES, place, bits);
        if (i >= k || thread % TOP_LANES != 0) continue;
        const td_u32 id = ~static_cast<td_u32>(own);
        const float  value = x[id];
        const uint2  pair = {__float_as_uint(place == 0 && !(value < td_infinity()) ? td_nan() : value), id};
        td_store(top + row * k + place, pair);
    }
}
