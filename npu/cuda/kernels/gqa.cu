/*
 * Grouped-query attention: heads are normed, rotated and put into the cache; decode by spans; prefill by blocks of rows.
 *
 * Why it is shaped so. Decode reads a sequence's keys and values once, so what counts is that enough of these reads are
 * under way. A warp takes one span of 512 keys for all query heads of its group, with tiles of its own in shared memory. A
 * group has up to 16 heads: the matrix instruction has room for so many. The warp leaves the span's sums in memory, and
 * td_merge_spans puts the spans together. Prefill reuses keys: four warps share a tile for 64 rows of one head, the next
 * tile's keys arrive while values are multiplied, and spans are merged in registers. Both give a row the same bits
 * (attention.cuh), so which of the two computes it is a matter of speed: decode takes the sequences with fewer than `few`
 * rows in the step.
 */
#include "npu/cuda/kernels/attention.cuh"

#define PLACE_VALUES 8 /* of a lane: head_dim up to 256 */
#define PLACE_THREADS 128

/* The norm of a head, or of a whole row: values are multiplied with factor and gamma. */
struct head_norm {
    const float *gamma; /* of the head, or of the row's heads; NULL: no norm */
    bool         of_row;
    float        factor; /* of a row */
    float        eps;    /* of a head */
};

/* gamma NULL or not of_row: no row is read. By all threads of the block. */
TD_FN head_norm norm_of_row(const float *x, const float *gamma, bool of_row, float eps, td_u32 n, td_shared<float> part) {
    float sum = 0;
    if (!gamma || !of_row) return {gamma, false, 1, eps};
    for (td_u32 i = threadIdx.x; i < n; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
    return {gamma, true, 1.0f / sqrtf(td_block_sum(sum, part) / static_cast<float>(n) + eps), eps};
}

/* Norm and rotation of the first `rotated` values of head h by a warp; out(i, v) stores value i. */
template <class F>
TD_FN void place_head(const float *x, const head_norm &norm, td_u32 h, const float *angle, td_u32 rotated, td_u32 dim,
                      const F &out) {
    const td_u32 lane = threadIdx.x % 32;
    const float *gamma = norm.gamma && norm.of_row ? norm.gamma + static_cast<size_t>(h) * dim : norm.gamma;
    float        v[PLACE_VALUES], factor = norm.factor;
    for (int i = 0; i < PLACE_VALUES; i++) {
        const td_u32 at = lane + i * 32;
        v[i] = at < dim ? x[at] : 0.0f;
    }
    if (gamma && !norm.of_row) {
        float sum = 0;
        for (int i = 0; i < PLACE_VALUES; i++) sum = fmaf(v[i], v[i], sum);
        factor = 1.0f / sqrtf(td_warp_sum(sum) / static_cast<float>(dim) + norm.eps);
    }
    for (int i = 0; i < PLACE_VALUES; i++) {
        const td_u32 at = lane + i * 32;
        if (at >= dim) continue;
        const float mine = gamma ? v[i] * factor * gamma[at] : v[i];
        if (at >= rotated) {
            out(at, mine);
            continue;
        }
        const td_u32 half = rotated / 2, other = at < half ? at + half : at - half, place = at % half;
        const float  its = gamma ? x[other] * factor * gamma[other] : x[other];
        const float  cos = angle[place], sin = angle[half + place];
        out(at, at < half ? mine * cos - its * sin : mine * cos + its * sin);
    }
}

/**
 * Queries, keys and values of a row. grid (rows), block 128: a warp takes heads in turn.
 * @param q, k, v        [rows, heads * dim], [rows, kv_heads * dim] x 2: what the products gave
 * @param q_norm, k_norm [dim] or NULL; with norm_rows [heads * dim] and [kv_heads * dim], over a whole row
 * @param rope           [positions, rope_dim]: cos half | sin half, of the first rope_dim values of a head
 * @param q_out          [rows, heads, dim] bf16
 * @param k_cache, v_cache  [pages, kv_heads, PAGE, dim] bf16; the row goes to slot[row]
 */
TD_KERNEL(PLACE_THREADS)
td_gqa_place(const td_u32 *n_rows, const td_u32 *pos, const td_u32 *slot, const float *q, const float *k, const float *v,
             const float *q_norm, const float *k_norm, td_u32 norm_rows, float eps, const float *rope, td_u32 rope_dim,
             td_u32 heads, td_u32 kv_heads, td_u32 dim, td_bf16 *q_out, td_bf16 *k_cache, td_bf16 *v_cache) {
    TD_SHARED(float, part, PLACE_THREADS / 32);
    const size_t row = blockIdx.x;
    if (row >= *n_rows) return;
    const td_u32    q_width = heads * dim, kv_width = kv_heads * dim;
    const head_norm of_q = norm_of_row(q + row * q_width, q_norm, norm_rows, eps, q_width, part),
                    of_k = norm_of_row(k + row * kv_width, k_norm, norm_rows, eps, kv_width, part),
                    of_v = {nullptr, false, 1, 0};
    const float *angle = rope + static_cast<size_t>(pos[row]) * rope_dim;
    const td_u32 page = slot[row] / TD_CUDA_PAGE, offset = slot[row] % TD_CUDA_PAGE;
    for (td_u32 h = threadIdx.x / 32; h < heads + 2 * kv_heads; h += blockDim.x / 32) {
        const td_u32 group = h < heads ? 0 : (h - heads) % kv_heads;
        const size_t at = ((static_cast<size_t>(page) * kv_heads + group) * TD_CUDA_PAGE + offset) * dim;
        if (h < heads)
            place_head(q + (row * heads + h) * dim, of_q, h, angle, rope_dim, dim,
                       [&](td_u32 i, float x) { q_out[(row * heads + h) * dim + i] = td_to_bf16(x); });
        else if (h < heads + kv_heads)
            place_head(k + (row * kv_heads + group) * dim, of_k, group, angle, rope_dim, dim,
                       [&](td_u32 i, float x) { k_cache[at + i] = td_to_bf16(x); });
        else
            place_head(v + (row * kv_heads + group) * dim, of_v, group, nullptr, 0, dim,
                       [&](td_u32 i, float x) { v_cache[at + i] = td_to_bf16(x); });
    }
}

/* Where a sequence's keys are: key i of a group. */
struct paged_heads {
    const td_bf16                            *cache;
    const td_u32                             *pages; /* of the sequence */
    td_u32                                    kv_heads, group, dim;
    __device__ __forceinline__ const td_bf16 *operator()(td_u32 key) const {
        const size_t page = pages[key / TD_CUDA_PAGE];
        return cache + ((page * kv_heads + group) * TD_CUDA_PAGE + key % TD_CUDA_PAGE) * dim;
    }
};

/* Where the first tile begins that has a key that is seen. */
TD_FN td_u32 first_tile(const td_row_keys &seen) {
    return seen.from / TD_CUDA_TILE_KEYS * TD_CUDA_TILE_KEYS;
}

/* d + 8 elements a row. */
template <int D>
TD_FN void decode(const td_u32 *n_rows, td_u32 first_row, const td_u32 *n_seq, const td_u32 *seq_start, const td_u32 *pos,
                  const td_u32 *block_table, td_u32 block_stride, td_u32 few, const td_bf16 *q, const td_bf16 *k_cache,
                  const td_bf16 *v_cache, td_u32 heads, td_u32 kv_heads, td_u32 dim, td_u32 window, float scale,
                  td_u32 spans_max, float *partial) {
    TD_SHARED_DYNAMIC(td_bf16, shared);
    const td_u32 row = first_row + blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if (row >= *n_rows) return;
    const td_u32      seq = td_sequence_of(seq_start, *n_seq, row), block_keys = TD_CUDA_DECODE_SPANS * TD_CUDA_SPAN;
    const td_row_keys seen = td_keys_at(pos[row], window), of_rows[2] = {seen, seen};
    if (seq_start[seq + 1] - seq_start[seq] >= few || blockIdx.x * block_keys >= seen.end ||
        (blockIdx.x + 1) * block_keys <= seen.from)
        return;
    const td_u32 per_group = heads / kv_heads, blocks = (per_group + TD_CUDA_DECODE_HEADS - 1) / TD_CUDA_DECODE_HEADS;
    const td_u32 group = blockIdx.y / blocks, head = group * per_group + blockIdx.y % blocks * TD_CUDA_DECODE_HEADS;
    const td_u32 there = min(static_cast<td_u32>(TD_CUDA_DECODE_HEADS), (group + 1) * per_group - head);
    const td_u32 span = blockIdx.x * TD_CUDA_DECODE_SPANS + warp, begin = span * TD_CUDA_SPAN;

    td_shared<td_bf16> rows = shared;
    td_shared<td_bf16> k = shared + (TD_CUDA_DECODE_HEADS * (D + 8) + warp * 2 * TD_CUDA_TILE_KEYS * (D + 8));
    td_shared<td_bf16> v = k + TD_CUDA_TILE_KEYS * (D + 8);
    td_fetch_rows<D>(
        rows, TD_CUDA_DECODE_HEADS, there, dim,
        [&](td_u32 i) { return q + (static_cast<size_t>(row) * heads + head + i) * dim; }, threadIdx.x, blockDim.x);
    td_async_commit();
    td_async_wait<0>();
    __syncthreads();
    if (begin >= seen.end || begin + TD_CUDA_SPAN <= seen.from) return;

    const td_u32     *pages = block_table + static_cast<size_t>(seq) * block_stride;
    const paged_heads key_at = {k_cache, pages, kv_heads, group, dim}, value_at = {v_cache, pages, kv_heads, group, dim};
    const td_u32      end = min(seen.end, begin + TD_CUDA_SPAN);
    td_row_state      state = td_row_start();
    float             acc[D / 8][4];
    for (int j = 0; j < D / 8; j++)
        for (int e = 0; e < 4; e++) acc[j][e] = 0;
    for (td_u32 first = max(begin, first_tile(seen)); first < end; first += TD_CUDA_TILE_KEYS) {
        __syncwarp();
        td_fetch_rows<D>(
            k, TD_CUDA_TILE_KEYS, end - first, dim, [&](td_u32 i) { return key_at(first + i); }, lane, 32);
        td_fetch_rows<D>(
            v, TD_CUDA_TILE_KEYS, end - first, dim, [&](td_u32 i) { return value_at(first + i); }, lane, 32);
        td_async_commit();
        td_async_wait<0>();
        __syncwarp();
        td_attend_tile<D, D>(rows, k, v, first, of_rows, scale, state, acc);
    }
    for (int half = 0; half < 2; half++) {
        if (g + half * 8 >= there) continue;
        float *out =
            partial + ((static_cast<size_t>(blockIdx.z) * heads + head + g + half * 8) * spans_max + span) * (dim + 2);
        if (t == 0) {
            out[0] = state.max[half];
            out[1] = state.sum[half];
        }
        for (int j = 0; j < D / 8; j++)
            for (td_u32 e = 0; e < 2; e++)
                if (j * 8 + t * 2 + e < dim) out[2 + j * 8 + t * 2 + e] = acc[j][half * 2 + e];
    }
}

/**
 * The spans of rows of sequences that have fewer than `few` rows; a launch has the rows from first_row on that its grid has
 * room for. grid (spans_max / DECODE_SPANS rounded up, kv_heads * (heads / kv_heads / DECODE_HEADS rounded up), rows of the
 * launch), block ATTN_THREADS, dynamic shared memory DECODE_SHARED(D).
 * @param n_rows   of the step
 * @param q        [rows of the step, heads, dim] bf16; dim a multiple of 8 up to D
 * @param window   keys that a row meets at most, the last ones; 0: all. Spans without one of them are not written
 * @param partial  [rows of the launch, heads, spans_max, 2 + dim]: maximum, sum, values
 */
#define DECODE(D)                                                                                                       \
    TD_KERNEL(TD_CUDA_ATTN_THREADS)                                                                                     \
    td_gqa_decode_##D(const td_u32 *n_rows, td_u32 first_row, const td_u32 *n_seq, const td_u32 *seq_start,             \
                      const td_u32 *pos, const td_u32 *block_table, td_u32 block_stride, td_u32 few, const td_bf16 *q,  \
                      const td_bf16 *k_cache, const td_bf16 *v_cache, td_u32 heads, td_u32 kv_heads, td_u32 dim,        \
                      td_u32 window, float scale, td_u32 spans_max, float *partial) {                                   \
        decode<D>(n_rows, first_row, n_seq, seq_start, pos, block_table, block_stride, few, q, k_cache, v_cache, heads, \
                  kv_heads, dim, window, scale, spans_max, partial);                                                    \
    }
DECODE(64)
DECODE(128)

/**
 * The spans of rows, merged in order. grid (heads, rows of the launch), block MERGE_THREADS.
 * @param n_rows   of the step, of which the launch has those from first_row on
 * @param absorbed [sequences]: rows of sequences with 1 are written; or NULL: rows of sequences with fewer than `few` rows
 * @param window   as the spans were computed with
 * @param sinks    [heads] or NULL
 * @param partial  [rows of the launch, heads, spans_max, 2 + dim]
 * @param out      [rows of the launch, heads * dim] f32, or bf16 where out_bf16 is given
 */
TD_KERNEL(TD_CUDA_MERGE_THREADS)
td_merge_spans(const td_u32 *n_rows, td_u32 first_row, const td_u32 *n_seq, const td_u32 *seq_start, const td_u32 *pos,
               const td_u8 *absorbed, td_u32 few, td_u32 span_keys, td_u32 window, const float *sinks, const float *partial,
               td_u32 heads, td_u32 dim, td_u32 spans_max, float *out, td_bf16 *out_bf16) {
    const size_t row = blockIdx.y, head = blockIdx.x;
    const td_u32 of_step = first_row + blockIdx.y;
    if (of_step >= *n_rows) return;
    const td_u32      seq = td_sequence_of(seq_start, *n_seq, of_step);
    const td_row_keys seen = td_keys_at(pos[of_step], window);
    const td_u32      spans = (seen.end + span_keys - 1) / span_keys, first_span = seen.from / span_keys;
    if (absorbed ? !absorbed[seq] : seq_start[seq + 1] - seq_start[seq] >= few) return;
    const float *part = partial + (row * heads + head) * spans_max * (dim + 2);
    for (td_u32 i = threadIdx.x; i < dim; i += blockDim.x) {
        const float *first = part + static_cast<size_t>(first_span) * (dim + 2);
        float        most = first[0], sum = first[1], value = first[2 + i];
        for (td_u32 s = first_span + 1; s < spans; s++) {
            const float *other = part + static_cast<size_t>(s) * (dim + 2);
            float        factor, other_factor;
            td_merge_state(most, sum, other[0], other[1], factor, other_factor);
            value = value * factor + other[2 + i] * other_factor;
        }
        value = value * td_row_factor(most, sum, sinks ? sinks + head : nullptr);
        if (out_bf16)
            out_bf16[(row * heads + head) * dim + i] = td_to_bf16(value);
        else
            out[(row * heads + head) * dim + i] = value;
    }
}

template <int D>
TD_FN void prefill(const td_u32 *n_seq, const td_u32 *seq_start, const td_u32 *pos, const td_u32 *block_table,
                   td_u32 block_stride, td_u32 few, const td_bf16 *q, const td_bf16 *k_cache, const td_bf16 *v_cache,
                   td_u32 heads, td_u32 kv_heads, td_u32 dim, td_u32 window, const float *sinks, float scale, float *out) {
    TD_SHARED_DYNAMIC(td_bf16, shared);
    const td_u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, head = blockIdx.y;
    td_u32       seq, first_row, n_rows;
    if (!td_prefill_block(*n_seq, seq_start, nullptr, few, &seq, &first_row, &n_rows)) return;

    td_shared<td_bf16> rows = shared, k = shared + TD_CUDA_PREFILL_ROWS * (D + 8), v = k + TD_CUDA_TILE_KEYS * (D + 8);
    const td_u32      *pages = block_table + static_cast<size_t>(seq) * block_stride;
    const td_u32       group = head / (heads / kv_heads), keys = pos[first_row + n_rows - 1] + 1;
    const paged_heads  key_at = {k_cache, pages, kv_heads, group, dim}, value_at = {v_cache, pages, kv_heads, group, dim};
    const td_u32       begin = first_tile(td_keys_at(pos[first_row], window)); /* later rows see no earlier key */
    td_row_keys        seen[2] = {{0, 0}, {0, 0}};
    for (td_u32 half = 0; half < 2; half++) {
        const td_u32 row = warp * 16 + g + half * 8;
        if (row < n_rows) seen[half] = td_keys_at(pos[first_row + row], window);
    }
    td_fetch_rows<D>(
        rows, TD_CUDA_PREFILL_ROWS, n_rows, dim,
        [&](td_u32 i) { return q + (static_cast<size_t>(first_row + i) * heads + head) * dim; }, threadIdx.x, blockDim.x);
    td_fetch_rows<D>(
        k, TD_CUDA_TILE_KEYS, keys - begin, dim, [&](td_u32 i) { return key_at(begin + i); }, threadIdx.x, blockDim.x);
    td_async_commit();

    td_row_state total = td_row_start(), state = td_row_start();
    float        sums[D / 8][4], acc[D / 8][4];
    for (int j = 0; j < D / 8; j++)
        for (int e = 0; e < 4; e++) sums[j][e] = acc[j][e] = 0;
    for (td_u32 first = begin; first < keys; first += TD_CUDA_TILE_KEYS) {
        td_fetch_rows<D>(
            v, TD_CUDA_TILE_KEYS, keys - first, dim, [&](td_u32 i) { return value_at(first + i); }, threadIdx.x, blockDim.x);
        td_async_commit();
        td_async_wait<0>();
        __syncthreads();
        td_attend_tile<D, D>(rows + warp * 16 * (D + 8), k, v, first, seen, scale, state, acc);
        __syncthreads();
        const td_u32 next = first + TD_CUDA_TILE_KEYS;
        if (next < keys) {
            td_fetch_rows<D>(
                k, TD_CUDA_TILE_KEYS, keys - next, dim, [&](td_u32 i) { return key_at(next + i); }, threadIdx.x, blockDim.x);
            td_async_commit();
        }
        if (next % TD_CUDA_SPAN && next < keys) continue;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float        factor, other_factor;
            const td_u32 span = first / TD_CUDA_SPAN, first_span = seen[half].from / TD_CUDA_SPAN;
            if (span < first_span || span * TD_CUDA_SPAN >= seen[half].end) continue; /* a row without keys in this span */
            if (span == first_span) {
                total.max[half] = state.max[half];
                total.sum[half] = state.sum[half];
                factor = 0, other_factor = 1;
            } else {
                td_merge_state(total.max[half], total.sum[half], state.max[half], state.sum[half], factor, other_factor);
            }
#pragma unroll
            for (int j = 0; j < D / 8; j++)
                for (int e = half * 2; e < half * 2 + 2; e++)
                    sums[j][e] = span == first_span ? acc[j][e] : sums[j][e] * factor + acc[j][e] * other_factor;
        }
        state = td_row_start();
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            for (int e = 0; e < 4; e++) acc[j][e] = 0;
    }
#pragma unroll
    for (td_u32 half = 0; half < 2; half++) {
        const td_u32 row = warp * 16 + g + half * 8;
        if (row >= n_rows) continue;
        const float to_mean = td_row_factor(total.max[half], total.sum[half], sinks ? sinks + head : nullptr);
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            for (td_u32 e = 0; e < 2; e++)
                if (j * 8 + t * 2 + e < dim)
                    out[(static_cast<size_t>(first_row + row) * heads + head) * dim + j * 8 + t * 2 + e] =
                        sums[j][half * 2 + e] * to_mean;
    }
}

/**
 * Rows of sequences that have at least `few` rows. grid (PREFILL_ROWS blocks: rows of the bucket / PREFILL_ROWS rounded
 * down, plus its sequences; heads), block ATTN_THREADS, dynamic shared memory PREFILL_SHARED(D, D).
 * @param window as decode's; sinks [heads] or NULL
 * @param out    [rows, heads * dim] f32
 */
#define PREFILL(D)                                                                                                          \
    TD_KERNEL(TD_CUDA_ATTN_THREADS)                                                                                         \
    td_gqa_prefill_##D(const td_u32 *n_seq, const td_u32 *seq_start, const td_u32 *pos, const td_u32 *block_table,          \
                       td_u32 block_stride, td_u32 few, const td_bf16 *q, const td_bf16 *k_cache, const td_bf16 *v_cache,   \
                       td_u32 heads, td_u32 kv_heads, td_u32 dim, td_u32 window, const float *sinks, float scale,           \
                       float *out) {                                                                                        \
        prefill<D>(n_seq, seq_start, pos, block_table, block_stride, few, q, k_cache, v_cache, heads, kv_heads, dim,        \
                   window, sinks, scale, out);                                                                              \
    }
PREFILL(64)
PREFILL(128)
