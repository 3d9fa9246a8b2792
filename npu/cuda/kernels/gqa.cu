/*
 * Grouped-query attention: heads are normed, rotated and put into the cache; decode by spans; prefill by blocks of rows.
 *
 * Why it is shaped so. Decode reads a sequence's keys and values once, so what counts is that enough of these reads are
 * under way. A block takes one span for all query heads of its group, which has up to 16: the matrix instruction has room for
 * so many. A row has up to 32 spans, so one stream of 4096 keys fills a card. Two tiles of keys and values are in shared
 * memory: one is fetched while four warps share the other, for scores by keys, for values by columns. Maxima, weights and
 * sums of the warps' parts go through shared memory, in the order of the keys. A block leaves the span's sums in memory, and
 * td_merge_spans puts the spans together. Prefill reuses keys: four warps share a tile for 64 rows of one head. The values of
 * a tile arrive while its scores are computed, the keys of the next one while values are multiplied. Spans are merged in
 * registers. Both give a row the same bits (attention.cuh), so which of the two computes it is a matter of speed. Decode takes
 * the sequences with fewer than `few` rows in the step; td_list_rows lists them where others are in the step, too.
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

/**
 * The rows of the sequences that decode computes, in order: those with 1 in `absorbed`, or without it those that have fewer
 * than `few` rows. grid (1), block 32.
 * @param list  [their rows, 2] row, sequence
 * @param count [n_pieces] how many there are in each piece of `most` of them
 */
TD_KERNEL(32)
td_list_rows(const td_u32 *n_seq, const td_u32 *seq_start, const td_u8 *absorbed, td_u32 few, td_u32 most, td_u32 n_pieces,
             td_u32 *list, td_u32 *count) {
    const td_u32 lane = threadIdx.x, n = *n_seq;
    td_u32       total = 0;
    for (td_u32 first = 0; first < n; first += 32) {
        const td_u32 seq = first + lane, begin = seq < n ? seq_start[seq] : 0;
        td_u32       rows = seq < n ? seq_start[seq + 1] - begin : 0;
        if (seq < n && (absorbed ? !absorbed[seq] : rows >= few)) rows = 0;
        td_u32 up_to = rows; /* of this lane and those before it */
        for (td_u32 by = 1; by < 32; by *= 2) {
            const td_u32 before = __shfl_sync(TD_ALL_LANES, up_to, static_cast<int>(lane - by));
            if (lane >= by) up_to += before;
        }
        td_u32 *to = list + static_cast<size_t>(total + up_to - rows) * 2;
        for (td_u32 i = 0; i < rows; i++) {
            to[i * 2] = begin + i;
            to[i * 2 + 1] = seq;
        }
        total += __shfl_sync(TD_ALL_LANES, up_to, 31);
    }
    for (td_u32 piece = lane; piece < n_pieces; piece += 32)
        count[piece] = total > piece * most ? min(total - piece * most, most) : 0;
}

/* Where the keys of a page and group begin, from a tile's first key on. */
TD_FN size_t tile_at(const td_u32 *pages, td_u32 key, td_u32 kv_heads, td_u32 group, td_u32 dim) {
    const size_t page = pages[key / TD_CUDA_PAGE];
    return ((page * kv_heads + group) * TD_CUDA_PAGE + key % TD_CUDA_PAGE) * dim;
}

/* d + 8 elements a row. */
template <int D>
TD_FN void decode(const td_u32 *n_rows, const td_u32 *list, const td_u32 *n_seq, const td_u32 *seq_start, const td_u32 *pos,
                  const td_u32 *block_table, td_u32 block_stride, const td_bf16 *q, const td_bf16 *k_cache,
                  const td_bf16 *v_cache, td_u32 heads, td_u32 kv_heads, td_u32 dim, td_u32 window, float scale,
                  td_u32 spans_max, float *partial) {
    constexpr int THREADS = TD_CUDA_ATTN_THREADS, WARPS = THREADS / 32, KEYS = TD_CUDA_TILE_KEYS / WARPS,
                  FRAGMENTS = D / 8 / WARPS, TILE = TD_CUDA_TILE_KEYS * (D + 8), P_STRIDE = TD_CUDA_TILE_KEYS + 8,
                  HEADS = TD_CUDA_DECODE_HEADS;
    static_assert(KEYS == 16, "a warp sums its keys as prefill does a quarter of a tile");
    TD_SHARED_DYNAMIC(td_bf16, shared);
    const td_u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, span = blockIdx.x;
    td_u32       row, seq;
    if (!td_decode_row(n_rows, list, n_seq, seq_start, blockIdx.z, &row, &seq)) return;
    const td_row_keys seen = td_keys_at(pos[row], window);
    const td_u32      span_keys = td_span_keys(seen.end, spans_max), begin = max(span * span_keys, td_first_tile(seen)),
                 end = min(seen.end, (span + 1) * span_keys);
    if (begin >= end) return;
    const td_u32 per_group = heads / kv_heads, blocks = (per_group + HEADS - 1) / HEADS;
    const td_u32 group = blockIdx.y / blocks, head = group * per_group + blockIdx.y % blocks * HEADS;
    const td_u32 there = min(static_cast<td_u32>(HEADS), (group + 1) * per_group - head);

    const td_u32      *pages = block_table + static_cast<size_t>(seq) * block_stride;
    td_shared<td_bf16> rows = shared, tiles = rows + HEADS * (D + 8);
    td_shared<float>   most_of = td_shared_as<float>(tiles + 4 * TILE), sum_of = most_of + WARPS * HEADS;
    const auto         tile_of = [&](td_u32 first) { return tiles + first / TD_CUDA_TILE_KEYS % 2 * (2 * TILE); };
    const auto         fetch = [&](td_u32 first) {
        const size_t at = tile_at(pages, first, kv_heads, group, dim);
        td_fetch_rows<TD_CUDA_TILE_KEYS, D, D + 8, THREADS>(tile_of(first), end - first, dim, k_cache + at, dim);
        td_fetch_rows<TD_CUDA_TILE_KEYS, D, D + 8, THREADS>(tile_of(first) + TILE, end - first, dim, v_cache + at, dim);
        td_async_commit();
    };
    td_fetch_rows<HEADS, D, D + 8, THREADS>(rows, there, dim, q + (static_cast<size_t>(row) * heads + head) * dim, dim);
    fetch(begin);
    if (begin + TD_CUDA_TILE_KEYS < end) fetch(begin + TD_CUDA_TILE_KEYS);

    td_row_state state = td_row_start();
    float        acc[FRAGMENTS][4];
    for (int j = 0; j < FRAGMENTS; j++)
        for (int e = 0; e < 4; e++) acc[j][e] = 0;
#pragma unroll 1
    for (td_u32 first = begin; first < end; first += TD_CUDA_TILE_KEYS) {
        const td_u32 next = first + TD_CUDA_TILE_KEYS;
        if (first == begin && next < end)
            td_async_wait<1>();
        else
            td_async_wait<0>();
        __syncthreads(); /* the tile is there, and nobody reads the one before it any more */
        if (first != begin && next < end) fetch(next);
        const td_shared<td_bf16> k = tile_of(first), v = k + TILE, p = k; /* weights go where the keys were */
        const td_place<td_bf16>  p_at = td_place_of(p + td_row_part(P_STRIDE)),
                                v_at = td_place_of(v + (warp * FRAGMENTS * 8 + td_row_part(D + 8)));
        float s[2][4];
        td_tile_scores<D, KEYS>(rows, k + warp * KEYS * (D + 8), s);
        for (int half = 0; half < 2; half++) {
            const float most = td_tile_scale<KEYS>(s, half, first + warp * KEYS, seen, scale);
            if (t == 0) most_of[warp * HEADS + g + half * 8] = most;
        }
        __syncthreads();
        float factor[2];
        for (int half = 0; half < 2; half++) {
            const td_u32 at = g + half * 8;
            float        most = state.max[half];
            for (int w = 0; w < WARPS; w++) most = most_of[w * HEADS + at] > most ? most_of[w * HEADS + at] : most;
            const float base = td_row_base(most);
            factor[half] = td_exp_near(state.max[half] - base);
            state.max[half] = most;
            sum_of[(warp * HEADS + at) * 4 + t] = td_tile_weigh(s, half, base);
            for (int j = 0; j < 2; j++)
                td_store<unsigned>(p + (at * P_STRIDE + warp * KEYS + j * 8 + t * 2),
                                   td_bf16_pair(s[j][half * 2], s[j][half * 2 + 1]));
        }
        __syncthreads();
        for (int half = 0; half < 2; half++) {
            float quarter[WARPS];
            for (int w = 0; w < WARPS; w++) quarter[w] = sum_of[(w * HEADS + g + half * 8) * 4 + t];
            state.sum[half] = state.sum[half] * factor[half] + td_tile_sum(quarter);
        }
        for (int j = 0; j < FRAGMENTS; j++)
            for (int e = 0; e < 4; e++) acc[j][e] *= factor[e / 2];
#pragma unroll
        for (int i = 0; i < TD_CUDA_TILE_KEYS; i += 16) {
            unsigned a[4];
            td_load_matrices(a, p_at + i);
#pragma unroll
            for (int j = 0; j < FRAGMENTS; j += 2) {
                unsigned b[4];
                td_load_matrices_transposed(b, v_at + (i * (D + 8) + j * 8));
                td_mma_bf16(acc[j], a, b);
                td_mma_bf16(acc[j + 1], a, b + 2);
            }
        }
    }
    for (int half = 0; half < 2; half++) {
        if (g + half * 8 >= there) continue;
        float *out =
            partial + ((static_cast<size_t>(blockIdx.z) * heads + head + g + half * 8) * spans_max + span) * (dim + 2);
        if (warp == 0 && t == 0) {
            out[0] = state.max[half];
            out[1] = state.sum[half];
        }
        for (int j = 0; j < FRAGMENTS; j++)
            for (td_u32 e = 0; e < 2; e++) {
                const td_u32 column = (warp * FRAGMENTS + j) * 8 + t * 2 + e;
                if (column < dim) out[2 + column] = acc[j][half * 2 + e];
            }
    }
}

/**
 * The spans of rows that decode computes. grid (spans_max, kv_heads * (heads / kv_heads / DECODE_HEADS rounded up), rows of
 * the launch), block ATTN_THREADS, dynamic shared memory DECODE_SHARED(D).
 * @param n_rows   of the launch; list as td_decode_row's
 * @param q        [rows of the step, heads, dim] bf16; dim a multiple of 8 up to D
 * @param window   keys that a row meets at most, the last ones; 0: all. Spans without one of them are not written
 * @param spans_max  of a row (td_span_keys), up to SPANS
 * @param partial  [rows of the launch, heads, spans_max, 2 + dim]: maximum, sum, values
 */
#define DECODE(D)                                                                                                       \
    TD_KERNEL(TD_CUDA_ATTN_THREADS)                                                                                     \
    td_gqa_decode_##D(const td_u32 *n_rows, const td_u32 *list, const td_u32 *n_seq, const td_u32 *seq_start,           \
                      const td_u32 *pos, const td_u32 *block_table, td_u32 block_stride, const td_bf16 *q,              \
                      const td_bf16 *k_cache, const td_bf16 *v_cache, td_u32 heads, td_u32 kv_heads, td_u32 dim,        \
                      td_u32 window, float scale, td_u32 spans_max, float *partial) {                                   \
        decode<D>(n_rows, list, n_seq, seq_start, pos, block_table, block_stride, q, k_cache, v_cache, heads, kv_heads, \
                  dim, window, scale, spans_max, partial);                                                              \
    }
DECODE(64)
DECODE(128)

#define MERGED_AT_ONCE 8 /* spans */

/* A row's spans, as they lie in memory, and how they are merged: of each, what is multiplied with what came before it, and its
 * own weight. */
struct merged_spans {
    const float     *part; /* of the first span: maximum, sum, values */
    td_u32           n, dim;
    td_shared<float> max_of, sum_of, factor_of, weight_of;
};

/* COLUMNS values of a row and head, TD_CUDA_MERGE_THREADS apart, from `first` on; zeros behind the row's. */
template <int COLUMNS>
TD_FN void merge_columns(const merged_spans &m, td_u32 first, const float *sink, float value[COLUMNS]) {
    float most = -td_infinity(), sum = 0;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) value[c] = 0;
#pragma unroll 1
    for (td_u32 begin = 0; begin < m.n; begin += MERGED_AT_ONCE) {
        float other[MERGED_AT_ONCE][COLUMNS]; /* all are asked for before the first is used */
#pragma unroll
        for (td_u32 i = 0; i < MERGED_AT_ONCE; i++) {
            const float *from = m.part + (min(begin + i, m.n - 1) * (m.dim + 2) + 2 + first);
#pragma unroll
            for (td_u32 c = 0; c < COLUMNS; c++)
                other[i][c] = first + c * TD_CUDA_MERGE_THREADS < m.dim ? from[c * TD_CUDA_MERGE_THREADS] : 0.0f;
        }
#pragma unroll
        for (td_u32 i = 0; i < MERGED_AT_ONCE; i++) { /* those behind the last change nothing */
            const bool   is_there = begin + i < m.n;
            const td_u32 s = min(begin + i, m.n - 1);
            const float  before = m.factor_of[s], own = m.weight_of[s];
            most = m.max_of[s] > most ? m.max_of[s] : most;
            sum = is_there ? sum * before + m.sum_of[s] * own : sum; /* as td_merge_state */
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) value[c] = is_there ? value[c] * before + other[i][c] * own : value[c];
        }
    }
    const float factor = td_row_factor(most, sum, sink);
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) value[c] = value[c] * factor;
}

/* The same, to where row and head have them. */
template <int COLUMNS>
TD_FN void merge_to(const merged_spans &m, const float *sink, float *out, td_bf16 *out_bf16) {
    const td_u32 first = blockIdx.z * TD_CUDA_MERGE_THREADS * COLUMNS + threadIdx.x;
    float        value[COLUMNS];
    merge_columns<COLUMNS>(m, first, sink, value);
#pragma unroll
    for (td_u32 c = 0; c < COLUMNS; c++) {
        const td_u32 at = first + c * TD_CUDA_MERGE_THREADS;
        if (at >= m.dim) break;
        if (out_bf16)
            out_bf16[at] = td_to_bf16(value[c]);
        else
            out[at] = value[c];
    }
}

/**
 * The spans of rows, merged in order. grid (heads, rows of the launch, dim / MERGE_VALUES(dim) rounded up), block
 * MERGE_THREADS: what all of a head's values need is computed once for each block.
 * @param n_rows   of the launch; list as td_decode_row's
 * @param window   as the spans were computed with
 * @param sinks    [heads] or NULL
 * @param partial  [rows of the launch, heads, spans_max, 2 + dim]; spans_max up to SPANS
 * @param out      [rows of the step, heads * dim] f32, or where out_bf16 is given [rows of the launch, heads * dim] bf16
 */
TD_KERNEL(TD_CUDA_MERGE_THREADS)
td_merge_spans(const td_u32 *n_rows, const td_u32 *list, const td_u32 *n_seq, const td_u32 *seq_start, const td_u32 *pos,
               td_u32 window, const float *sinks, const float *partial, td_u32 heads, td_u32 dim, td_u32 spans_max,
               float *out, td_bf16 *out_bf16) {
    TD_SHARED(float, max_of, TD_CUDA_SPANS);
    TD_SHARED(float, sum_of, TD_CUDA_SPANS);
    TD_SHARED(float, factor_of, TD_CUDA_SPANS);
    TD_SHARED(float, weight_of, TD_CUDA_SPANS);
    const td_u32 head = blockIdx.x;
    td_u32       row, seq;
    if (!td_decode_row(n_rows, list, n_seq, seq_start, blockIdx.y, &row, &seq)) return;
    const td_row_keys seen = td_keys_at(pos[row], window);
    const td_u32      span_keys = td_span_keys(seen.end, spans_max), first_span = seen.from / span_keys,
                 spans = (seen.end + span_keys - 1) / span_keys - first_span;
    const size_t of_launch = static_cast<size_t>(blockIdx.y) * heads + head;
    const float *part = partial + (of_launch * spans_max + first_span) * (dim + 2);
    if (threadIdx.x < spans) {
        max_of[threadIdx.x] = part[static_cast<size_t>(threadIdx.x) * (dim + 2)];
        sum_of[threadIdx.x] = part[static_cast<size_t>(threadIdx.x) * (dim + 2) + 1];
    }
    __syncthreads();
    if (threadIdx.x < spans) {
        float before = -td_infinity();
        for (td_u32 s = 0; s < threadIdx.x; s++) before = max_of[s] > before ? max_of[s] : before;
        float sum = 0, most = before;
        td_merge_state(most, sum, max_of[threadIdx.x], sum_of[threadIdx.x], factor_of[threadIdx.x], weight_of[threadIdx.x]);
    }
    __syncthreads();
    const merged_spans m = {part, spans, dim, max_of, sum_of, factor_of, weight_of};
    const float       *sink = sinks ? sinks + head : nullptr;
    float             *to = out ? out + (static_cast<size_t>(row) * heads + head) * dim : nullptr;
    td_bf16           *to_bf16 = out_bf16 ? out_bf16 + of_launch * dim : nullptr;
    if (dim > TD_CUDA_MERGE_THREADS)
        merge_to<TD_CUDA_MERGE_COLUMNS>(m, sink, to, to_bf16);
    else
        merge_to<1>(m, sink, to, to_bf16);
}

template <int D>
TD_FN void prefill(const td_u32 *n_seq, const td_u32 *seq_start, const td_u32 *pos, const td_u32 *block_table,
                   td_u32 block_stride, td_u32 few, const td_bf16 *q, const td_bf16 *k_cache, const td_bf16 *v_cache,
                   td_u32 heads, td_u32 kv_heads, td_u32 dim, td_u32 window, const float *sinks, float scale,
                   td_u32 spans_max, float *out) {
    TD_SHARED_DYNAMIC(td_bf16, shared);
    const td_u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, head = blockIdx.y;
    td_u32       seq, first_row, n_rows;
    if (!td_prefill_block(*n_seq, seq_start, nullptr, few, &seq, &first_row, &n_rows)) return;

    td_shared<td_bf16> rows = shared, k = shared + TD_CUDA_PREFILL_ROWS * (D + 8), v = k + TD_CUDA_TILE_KEYS * (D + 8);
    const td_u32      *pages = block_table + static_cast<size_t>(seq) * block_stride;
    const td_u32       group = head / (heads / kv_heads), keys = pos[first_row + n_rows - 1] + 1;
    const td_u32       begin = td_first_tile(td_keys_at(pos[first_row], window)); /* later rows see no earlier key */
    td_row_keys        seen[2] = {{0, 0}, {0, 0}};
    td_u32             span_keys[2] = {1, 1}, span_end[2] = {0, 0}; /* of the span under way */
    for (td_u32 half = 0; half < 2; half++) {
        const td_u32 row = warp * 16 + g + half * 8;
        if (row >= n_rows) continue;
        seen[half] = td_keys_at(pos[first_row + row], window);
        span_keys[half] = td_span_keys(seen[half].end, spans_max);
        span_end[half] = min(seen[half].end, (seen[half].from / span_keys[half] + 1) * span_keys[half]);
    }
    const auto fetch = [&](td_shared<td_bf16> to, const td_bf16 *cache, td_u32 first) {
        td_fetch_rows<TD_CUDA_TILE_KEYS, D, D + 8, TD_CUDA_ATTN_THREADS>(
            to, keys - first, dim, cache + tile_at(pages, first, kv_heads, group, dim), dim);
        td_async_commit();
    };
    td_fetch_rows<TD_CUDA_PREFILL_ROWS, D, D + 8, TD_CUDA_ATTN_THREADS>(
        rows, n_rows, dim, q + (static_cast<size_t>(first_row) * heads + head) * dim, static_cast<size_t>(heads) * dim);
    fetch(k, k_cache, begin);

    td_row_state total = td_row_start(), state = td_row_start();
    float        sums[D / 8][4], acc[D / 8][4];
    for (int j = 0; j < D / 8; j++)
        for (int e = 0; e < 4; e++) sums[j][e] = acc[j][e] = 0;
#pragma unroll 1
    for (td_u32 first = begin; first < keys; first += TD_CUDA_TILE_KEYS) {
        const td_u32 next = first + TD_CUDA_TILE_KEYS;
        td_async_wait<0>();
        __syncthreads(); /* the keys are there, and nobody reads the values before them any more */
        fetch(v, v_cache, first);
        float s[TD_CUDA_TILE_KEYS / 8][4];
        td_tile_scores<D, TD_CUDA_TILE_KEYS>(rows + warp * 16 * (D + 8), k, s);
        td_tile_weights<D / 8>(s, first, seen, scale, state, acc);
        td_async_wait<0>();
        __syncthreads(); /* the values are there, and nobody reads the keys any more */
        if (next < keys) fetch(k, k_cache, next);
        td_tile_values<D>(s, v, acc);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (first >= span_end[half] || next < span_end[half]) continue; /* no span of this row ends here */
            float factor, other_factor;
            td_merge_state(total.max[half], total.sum[half], state.max[half], state.sum[half], factor, other_factor);
            state.max[half] = -td_infinity();
            state.sum[half] = 0;
            span_end[half] = min(seen[half].end, span_end[half] + span_keys[half]);
#pragma unroll
            for (int j = 0; j < D / 8; j++)
                for (int e = half * 2; e < half * 2 + 2; e++) {
                    sums[j][e] = sums[j][e] * factor + acc[j][e] * other_factor;
                    acc[j][e] = 0;
                }
        }
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
 * @param window, spans_max as decode's; sinks [heads] or NULL
 * @param out    [rows, heads * dim] f32
 */
#define PREFILL(D)                                                                                                        \
    TD_KERNEL(TD_CUDA_ATTN_THREADS)                                                                                       \
    td_gqa_prefill_##D(const td_u32 *n_seq, const td_u32 *seq_start, const td_u32 *pos, const td_u32 *block_table,        \
                       td_u32 block_stride, td_u32 few, const td_bf16 *q, const td_bf16 *k_cache, const td_bf16 *v_cache, \
                       td_u32 heads, td_u32 kv_heads, td_u32 dim, td_u32 window, const float *sinks, float scale,         \
                       td_u32 spans_max, float *out) {                                                                    \
        prefill<D>(n_seq, seq_start, pos, block_table, block_stride, few, q, k_cache, v_cache, heads, kv_heads, dim,      \
                   window, sinks, scale, spans_max, out);                                                                 \
    }
PREFILL(64)
PREFILL(128)
