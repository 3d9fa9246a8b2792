/*
 * Multi-head latent attention: latents and rope parts are put into the cache; absorbed rows by spans; expanded rows by
 * blocks, over keys and values that are computed from the latents first.
 *
 * Why it is shaped so. In the absorbed form all heads read the same keys, and the values are a part of these. A tile of 32
 * keys in shared memory serves up to 64 heads, while the next one is fetched. Eight warps share the work on a tile. For scores
 * they take heads, keys, and halves of the columns, so that a fragment that is loaded serves several products. For values they
 * take columns, since the sums of 512 columns are too many for one warp's registers. Between them four lanes weigh a row's keys
 * in shared memory. A row's bits are the same with 16 and with 64 heads a block: with few rows, blocks of 16 heads fill a card,
 * with more, blocks of 64 read the keys less often. A span leaves its sums in memory, and td_merge_spans (gqa.cu) puts the
 * spans together. In the expanded form, that of a prompt, a row multiplies with 192 and 128 columns a key instead
 * of 576 and 512. But then keys and values must be computed from the latents: once for all rows of the step, a head after
 * the other, into memory that the caller lends. Which of the two forms a row takes is the sequence's property (npu.h), never
 * the step's.
 */
#include "npu/cuda/kernels/attention.cuh"

/* Four values of x from `at` on in bf16. Behind the first `plain` ones x is rotated by angle: cos half | sin half. */
TD_FN uint2 rotated_values(const float *x, td_u32 at, td_u32 plain, td_u32 half, const float *angle) {
    const uint4 own = td_load<uint4>(x + at);
    float       v[4] = {__uint_as_float(own.x), __uint_as_float(own.y), __uint_as_float(own.z), __uint_as_float(own.w)};
    if (at >= plain) {
        const bool   is_low = at - plain < half;
        const td_u32 place = is_low ? at - plain : at - plain - half;
        const uint4  other = td_load<uint4>(x + (is_low ? at + half : at - half)), cosine = td_load<uint4>(angle + place),
                    sine = td_load<uint4>(angle + half + place);
        const unsigned its[4] = {other.x, other.y, other.z, other.w}, c[4] = {cosine.x, cosine.y, cosine.z, cosine.w},
                       s[4] = {sine.x, sine.y, sine.z, sine.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float mine = v[i] * __uint_as_float(c[i]), more = __uint_as_float(its[i]) * __uint_as_float(s[i]);
            v[i] = is_low ? mine - more : mine + more;
        }
    }
    return {td_bf16_pair(v[0], v[1]), td_bf16_pair(v[2], v[3])};
}

/* out = norm(x) * gamma in bf16, by a block. */
TD_FN void place_latent(const float *x, const float *gamma, float eps, td_u32 kv_lora, td_bf16 *out, td_shared<float> part) {
    const td_u32 at = threadIdx.x * 4;
    const bool   mine = at < kv_lora;
    const uint4  zero = {0, 0, 0, 0}, raw = mine ? td_load<uint4>(x + at) : zero,
                by = mine ? td_load<uint4>(gamma + at) : zero;
    float v[4] = {__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z), __uint_as_float(raw.w)};
    float sum = 0;
    for (int i = 0; i < 4; i++) sum = fmaf(v[i], v[i], sum);
    const float factor = 1.0f / sqrtf(td_block_sum(sum, part) / static_cast<float>(kv_lora) + eps);
    const uint2 words = {
        td_bf16_pair(v[0] * factor * __uint_as_float(by.x), v[1] * factor * __uint_as_float(by.y)),
        td_bf16_pair(v[2] * factor * __uint_as_float(by.z), v[3] * factor * __uint_as_float(by.w)),
    };
    if (mine) td_store(out + at, words);
}

/**
 * Queries in bf16, their rope parts rotated; latent = norm(kv[:, :kv_lora]) and the rotated rope part, to the cache.
 * grid (1 + (heads * (nope + rope_dim) + rope_dim) / LATENT_PLACE_VALUES rounded up, rows), block LATENT_PLACE_THREADS: the
 * first block has the latent, the others what is rotated, value by value.
 * @param q      [rows, heads, nope + rope_dim] f32; all sizes are multiples of 8, kv_lora up to LATENT_MAX
 * @param kv     [rows, kv_lora + rope_dim] f32
 * @param rope   [positions, rope_dim]: cos half | sin half
 * @param q_out  as q, in bf16
 * @param latent_cache, rope_cache  [slots, kv_lora], [slots, rope_dim] bf16
 */
TD_KERNEL(TD_CUDA_LATENT_PLACE_THREADS)
td_mla_place(const td_u32 *n_rows, const td_u32 *pos, const td_u32 *slot, const float *q, const float *kv,
             const float *gamma, float eps, const float *rope, td_u32 heads, td_u32 nope, td_u32 rope_dim, td_u32 kv_lora,
             td_bf16 *q_out, td_bf16 *latent_cache, td_bf16 *rope_cache) {
    TD_SHARED(float, part, TD_CUDA_LATENT_PLACE_THREADS / 32);
    const size_t row = blockIdx.y;
    if (row >= *n_rows) return;
    const float *latent = kv + row * (kv_lora + rope_dim);
    const size_t to = slot[row];
    if (blockIdx.x == 0) {
        place_latent(latent, gamma, eps, kv_lora, latent_cache + to * kv_lora, part);
        return;
    }
    const float *angle = rope + static_cast<size_t>(pos[row]) * rope_dim;
    const td_u32 dim = nope + rope_dim, width = heads * dim,
                 i = ((blockIdx.x - 1) * TD_CUDA_LATENT_PLACE_THREADS + threadIdx.x) * 4, at = i % dim;
    if (i < width)
        td_store(q_out + row * width + i, rotated_values(q + row * width + (i - at), at, nope, rope_dim / 2, angle));
    else if (i - width < rope_dim)
        td_store(rope_cache + to * rope_dim + (i - width),
                 rotated_values(latent + kv_lora, i - width, 0, rope_dim / 2, angle));
}

/**
 * Copies of rows between those of the step and those of a launch. grid (any number of blocks, rows of the launch), block 128.
 * @param n_rows of the launch; list as td_decode_row's
 * @param words  of a row, of 16 bytes
 * @param to_step 0: to := the listed rows of `from`; 1: the listed rows of `to` := from
 */
TD_KERNEL(128)
td_copy_listed(const td_u32 *n_rows, const td_u32 *list, td_u32 words, td_u32 to_step, const uint4 *from, uint4 *to) {
    const td_u32 i = blockIdx.y;
    if (i >= *n_rows) return;
    const size_t row = list[i * 2], source = (to_step ? i : row) * words, target = (to_step ? row : i) * words;
    for (td_u32 at = blockIdx.x * blockDim.x + threadIdx.x; at < words; at += gridDim.x * blockDim.x)
        td_store<uint4>(to + target + at, td_load<uint4>(from + source + at));
}

struct latent_args {
    const td_u32  *n_rows, *list, *n_seq, *seq_start, *pos, *block_table;
    td_u32         block_stride;
    const td_bf16 *q_latent, *q, *latent_cache, *rope_cache;
    td_u32         heads, kv_lora, nope, rope_dim;
    float          scale;
    td_u32         spans_max;
    float         *partial;
};

/* Where a score of the first or the second half of the products is, and where a weight is: a row's weights lie in the place of
 * its scores. Rows follow each other without a gap, so that 64 heads fit an A100; groups of eight change places by the row, so
 * that eight rows are of different banks. */
template <int HEADS>
TD_FN td_u32 score_at(td_u32 half, td_u32 row, td_u32 key) {
    return (half * HEADS + row) * TD_CUDA_LATENT_KEYS + (key ^ (row % 4 * 8));
}
TD_FN td_u32 weight_at(td_u32 row, td_u32 key) {
    return row * 2 * TD_CUDA_LATENT_KEYS + (key / 8 ^ row % 8) * 8 + key % 8;
}

/* What a warp takes of a tile's scores: a half of the columns, of 64 heads 32 heads and 16 keys, of 16 heads all of them and
 * 8 keys. Places are this lane's, so that the loop over columns adds nothing but constants. Of 16 heads the rows stay in
 * registers. */
template <int HEADS>
struct latent_scores {
    static constexpr int WIDTH = TD_CUDA_LATENT_MAX + TD_CUDA_LATENT_ROPE_MAX, STRIDE = TD_CUDA_LATENT_STRIDE,
                         BANDS = HEADS == 64 ? 2 : 1, FRAGMENTS = BANDS, /* of eight keys */
        STEPS = WIDTH / 2 / 32, KEPT = HEADS == 64 ? 1 : WIDTH / 32;
    static_assert(HEADS == 64 || HEADS == 16, "how warps share a tile");
    td_u32            half;
    td_place<td_bf16> q, k;   /* k: in the first tile */
    td_place<float>   out[2]; /* of the fragments of keys, of which 16 heads have one */
    unsigned          kept[KEPT][4];
};
template <int HEADS>
TD_FN latent_scores<HEADS> latent_scores_of(td_shared<td_bf16> q, td_shared<td_bf16> tiles, td_shared<float> scores) {
    using shape = latent_scores<HEADS>;
    const td_u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp / 4, column = half * (shape::WIDTH / 2),
                 row = HEADS == 64 ? warp % 4 / 2 * 32 : 0, key = HEADS == 64 ? warp % 2 * 16 : warp % 4 * 8,
                 k_row = HEADS == 64 ? lane / 16 * 8 + lane % 8 : lane % 8,
                 k_column = HEADS == 64 ? lane / 8 % 2 * 8 : lane / 8 * 8;
    return {half,
            td_place_of(q + (row * shape::STRIDE + column + td_row_part(shape::STRIDE))),
            td_place_of(tiles + ((key + k_row) * shape::STRIDE + column + k_column)),
            {td_place_of(scores + score_at<HEADS>(half, row + lane / 4, key + lane % 4 * 2)),
             td_place_of(scores + score_at<HEADS>(half, row + lane / 4, (key + lane % 4 * 2) ^ 8))},
            {}};
}
/* When the rows are in shared memory. */
template <int HEADS>
TD_FN void latent_rows_keep(latent_scores<HEADS> &r) {
    if constexpr (HEADS == 16) {
#pragma unroll
        for (int i = 0; i < r.KEPT; i++) td_load_matrices(r.kept[i], r.q + i * 16);
    }
}

/* Scores of all heads with the keys of a tile. Columns that no latent has are zeros; unless all are there, these
 * are left out. */
template <int HEADS, bool ALL>
TD_FN void latent_score(const latent_scores<HEADS> &r, td_u32 tile, td_u32 kv_lora) {
    using shape = latent_scores<HEADS>;
    const td_place<td_bf16> k = r.k + tile;
    float                   s[shape::BANDS][shape::FRAGMENTS][4];
    for (int m = 0; m < shape::BANDS; m++)
        for (int j = 0; j < shape::FRAGMENTS; j++)
            for (int e = 0; e < 4; e++) s[m][j][e] = 0;
#pragma unroll
    for (int i = 0; i < shape::STEPS; i++) {
        const td_u32 d = r.half * (shape::WIDTH / 2) + i * 32;
        if (!ALL && d >= kv_lora && d + 32 <= TD_CUDA_LATENT_MAX) continue;
        unsigned b[2][4];
        if (HEADS == 64) {
            td_load_matrices(b[0], k + i * 32);
            td_load_matrices(b[1], k + (i * 32 + 16));
        } else {
            unsigned both[4]; /* of eight keys, the words of two steps */
            td_load_matrices(both, k + i * 32);
            for (int e = 0; e < 2; e++) b[0][e] = both[e], b[1][e] = both[2 + e];
        }
#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int m = 0; m < shape::BANDS; m++) {
                unsigned x[4];
                if constexpr (HEADS == 64)
                    td_load_matrices(x, r.q + (m * 16 * shape::STRIDE + i * 32 + step * 16));
                else
                    for (int e = 0; e < 4; e++) x[e] = r.kept[i * 2 + step][e];
                for (int j = 0; j < shape::FRAGMENTS; j++) td_mma_bf16(s[m][j], x, b[step] + j * 2);
            }
    }
#pragma unroll
    for (int m = 0; m < shape::BANDS; m++)
        for (int j = 0; j < shape::FRAGMENTS; j++)
            for (int e = 0; e < 4; e += 2) {
                const uint2 pair = {__float_as_uint(s[m][j][e]), __float_as_uint(s[m][j][e + 1])};
                td_store(r.out[j] + (m * 16 + e / 2 * 8) * TD_CUDA_LATENT_KEYS, pair);
            }
}

/* What four lanes know of a head: each weighs eight keys of a tile. */
struct latent_row {
    td_place<float>   scores;
    td_place<td_bf16> weights;
    td_place<float>   factor;
    td_u32            first_key;
    float             max, sum;
};
/* Scores of keys before `end` to weights, which lie in the scores' place. */
template <int HEADS>
TD_FN void latent_weigh(latent_row &r, td_u32 first, td_u32 end, float scale) {
    float most = r.max, part = 0, x[8];
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        const uint4  low = td_load<uint4>(r.scores + i), high = td_load<uint4>(r.scores + (HEADS * TD_CUDA_LATENT_KEYS + i));
        const td_u32 a[4] = {low.x, low.y, low.z, low.w}, b[4] = {high.x, high.y, high.z, high.w};
        for (int j = 0; j < 4; j++) x[i + j] = __uint_as_float(a[j]) + __uint_as_float(b[j]);
    }
    for (int i = 0; i < 8; i++) {
        x[i] = first + r.first_key + i < end ? x[i] * scale : -td_infinity();
        most = x[i] > most ? x[i] : most;
    }
    for (int bits = 1; bits < 4; bits *= 2) {
        const float other = __shfl_xor_sync(TD_ALL_LANES, most, bits);
        most = other > most ? other : most;
    }
    const float base = td_row_base(most), factor = td_exp_near(r.max - base); /* of the sums so far */
    for (int i = 0; i < 8; i++) {
        x[i] = td_exp_near(x[i] - base);
        part += x[i];
    }
    for (int bits = 1; bits < 4; bits *= 2) part = part + __shfl_xor_sync(TD_ALL_LANES, part, bits);
    __syncwarp(); /* the row's scores are read */
    const uint4 weights = {td_bf16_pair(x[0], x[1]), td_bf16_pair(x[2], x[3]), td_bf16_pair(x[4], x[5]),
                           td_bf16_pair(x[6], x[7])};
    td_store(r.weights, weights);
    r.max = most;
    r.sum = r.sum * factor + part;
    if (r.first_key == 0) td_store(r.factor, __float_as_uint(factor));
}

/* HEADS heads of a row in one span. */
template <int HEADS>
TD_FN void latent_span(const latent_args &a) {
    constexpr int LATENT = TD_CUDA_LATENT_MAX, ROPE = TD_CUDA_LATENT_ROPE_MAX, THREADS = TD_CUDA_LATENT_THREADS,
                  BANDS = HEADS / 16, STRIDE = TD_CUDA_LATENT_STRIDE, KEYS = TD_CUDA_LATENT_KEYS, TILE = KEYS * STRIDE,
                  COLUMNS = LATENT / 8 / (THREADS / 32); /* fragments of a warp */
    TD_SHARED_DYNAMIC(td_bf16, shared);
    const td_u32 row = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    td_u32       of_step, seq;
    if (!td_decode_row(a.n_rows, a.list, a.n_seq, a.seq_start, row, &of_step, &seq)) return;
    const td_u32 keys = a.pos[of_step] + 1, span_keys = td_span_keys(keys, a.spans_max), begin = blockIdx.x * span_keys;
    if (begin >= keys) return;
    const td_u32 end = min(keys, begin + span_keys), head = blockIdx.y * HEADS,
                 there = min(static_cast<td_u32>(HEADS), a.heads - head);
    const td_u32 *pages = a.block_table + static_cast<size_t>(seq) * a.block_stride;

    td_shared<td_bf16> q = shared, tiles = q + HEADS * STRIDE;
    td_shared<float>   scores = td_shared_as<float>(tiles + 2 * TILE), factors = scores + 2 * HEADS * KEYS;
    td_shared<td_bf16> weights = td_shared_as<td_bf16>(scores);
    const size_t       first_head = static_cast<size_t>(row) * a.heads + head;
    td_fetch_rows<HEADS, LATENT, STRIDE, THREADS>(q, there, a.kv_lora, a.q_latent + first_head * a.kv_lora, a.kv_lora);
    td_fetch_rows<HEADS, ROPE, STRIDE, THREADS>(q + LATENT, there, a.rope_dim,
                                                a.q + first_head * (a.nope + a.rope_dim) + a.nope, a.nope + a.rope_dim);
    const auto fetch = [&](td_u32 first) {
        const td_shared<td_bf16> to = tiles + first / KEYS % 2 * TILE;
        const size_t             slot = td_slot_of(pages, first);
        td_fetch_rows<KEYS, LATENT, STRIDE, THREADS>(to, end - first, a.kv_lora, a.latent_cache + slot * a.kv_lora,
                                                     a.kv_lora);
        td_fetch_rows<KEYS, ROPE, STRIDE, THREADS>(to + LATENT, end - first, a.rope_dim, a.rope_cache + slot * a.rope_dim,
                                                   a.rope_dim);
        td_async_commit();
    };
    fetch(begin);
    if (begin + KEYS < end) fetch(begin + KEYS);

    const td_u32            mine = threadIdx.x / 4, place = mine < HEADS ? mine : 0, first_key = threadIdx.x % 4 * 8;
    latent_scores<HEADS>    rows = latent_scores_of<HEADS>(q, tiles, scores);
    latent_row              softmax = {td_place_of(scores + score_at<HEADS>(0, place, first_key)),
                                       td_place_of(weights + weight_at(place, first_key)),
                                       td_place_of(factors + place),
                                       first_key,
                                       -td_infinity(),
                                       0};
    const td_place<float>   factor_at = td_place_of(factors + g);
    const td_place<td_bf16> x_at[2] = {td_place_of(weights + weight_at(lane % 16, lane / 16 * 8)),
                                       td_place_of(weights + weight_at(lane % 16, 16 + lane / 16 * 8))},
                            value_at = td_place_of(tiles + (warp * COLUMNS * 8 + td_row_part(STRIDE)));
    float acc[BANDS][COLUMNS][4];
    for (int m = 0; m < BANDS; m++)
        for (int j = 0; j < COLUMNS; j++)
            for (int e = 0; e < 4; e++) acc[m][j][e] = 0;
#pragma unroll 1
    for (td_u32 first = begin; first < end; first += KEYS) {
        const td_u32 tile = first / KEYS % 2 * TILE;
        if (first == begin && first + KEYS < end)
            td_async_wait<1>();
        else
            td_async_wait<0>();
        __syncthreads(); /* the tile is there, and nobody reads the one before it any more */
        if (first != begin && first + KEYS < end) fetch(first + KEYS);
        if (first == begin) latent_rows_keep(rows);
        if (a.kv_lora == TD_CUDA_LATENT_MAX)
            latent_score<HEADS, true>(rows, tile, a.kv_lora);
        else
            latent_score<HEADS, false>(rows, tile, a.kv_lora);
        __syncthreads();
        if (mine < HEADS) latent_weigh<HEADS>(softmax, first, end, a.scale);
        __syncthreads();
        float factor[BANDS][2];
        bool  changed = false;
        for (int m = 0; m < BANDS; m++)
            for (int half = 0; half < 2; half++) {
                factor[m][half] = __uint_as_float(td_load<unsigned>(factor_at + (m * 16 + half * 8)));
                changed = changed || factor[m][half] != 1.0f;
            }
        if (__ballot_sync(TD_ALL_LANES, changed)) {
#pragma unroll
            for (int m = 0; m < BANDS; m++)
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    for (int e = 0; e < 4; e++) acc[m][j][e] *= factor[m][e / 2];
        }
        if (warp * COLUMNS * 8 >= a.kv_lora) continue; /* columns that no latent has */
#pragma unroll
        for (int i = 0; i < KEYS; i += 16) {
            unsigned x[BANDS][4];
#pragma unroll
            for (int m = 0; m < BANDS; m++) td_load_matrices(x[m], x_at[i / 16] + m * 16 * 2 * KEYS);
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 2) {
                unsigned b[4];
                td_load_matrices_transposed(b, value_at + tile + (i * STRIDE + j * 8));
#pragma unroll
                for (int m = 0; m < BANDS; m++) {
                    td_mma_bf16(acc[m][j], x[m], b);
                    td_mma_bf16(acc[m][j + 1], x[m], b + 2);
                }
            }
        }
    }
    const auto out_of = [&](td_u32 i) {
        return a.partial + ((first_head + i) * a.spans_max + blockIdx.x) * (a.kv_lora + 2);
    };
    if (mine < there && first_key == 0) {
        out_of(mine)[0] = softmax.max;
        out_of(mine)[1] = softmax.sum;
    }
#pragma unroll
    for (int m = 0; m < BANDS; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const td_u32 at = m * 16 + g + half * 8;
            if (at >= there) continue;
            float *out = out_of(at) + 2;
            for (int j = 0; j < COLUMNS; j++) {
                const td_u32 column = (warp * COLUMNS + j) * 8 + t * 2;
                const uint2  pair = {__float_as_uint(acc[m][j][half * 2]), __float_as_uint(acc[m][j][half * 2 + 1])};
                if (column < a.kv_lora) td_store(out + column, pair);
            }
        }
}

/**
 * The spans of absorbed rows. grid (spans_max, heads / HEADS rounded up, rows of the launch), block LATENT_THREADS, dynamic
 * shared memory LATENT_SHARED(HEADS).
 * @param n_rows   of the launch; list as td_decode_row's
 * @param q_latent [rows of the launch, heads, kv_lora] bf16; kv_lora a multiple of 8 up to LATENT_MAX
 * @param q        [rows of the launch, heads, nope + rope_dim] bf16, of which the rope parts are read; nope and rope_dim
 *                 multiples of 8, rope_dim up to LATENT_ROPE_MAX
 * @param partial  [rows of the launch, heads, spans_max, 2 + kv_lora], for td_merge_spans
 */
#define LATENT(HEADS)                                                                                                      \
    TD_KERNEL(TD_CUDA_LATENT_THREADS)                                                                                      \
    td_mla_absorbed_##HEADS(const td_u32 *n_rows, const td_u32 *list, const td_u32 *n_seq, const td_u32 *seq_start,        \
                            const td_u32 *pos, const td_u32 *block_table, td_u32 block_stride, const td_bf16 *q_latent,    \
                            const td_bf16 *q, const td_bf16 *latent_cache, const td_bf16 *rope_cache, td_u32 heads,        \
                            td_u32 kv_lora, td_u32 nope, td_u32 rope_dim, float scale, td_u32 spans_max, float *partial) { \
        latent_span<HEADS>({n_rows, list, n_seq, seq_start, pos, block_table, block_stride, q_latent, q, latent_cache,     \
                            rope_cache, heads, kv_lora, nope, rope_dim, scale, spans_max, partial});                       \
    }
LATENT(16)
LATENT(64)

/**
 * Keys and values of some heads, from the latents of sequences that are not absorbed. Two stages of 64 columns of keys and
 * weights are in shared memory: one is fetched while four warps multiply the other. A warp has 32 keys and 64 outputs, so that
 * a fragment serves two to four products. grid (any number of blocks, which take EXPAND_KEYS keys of a sequence each in turn;
 * heads * ((nope + v_dim) / EXPAND_OUT rounded up)), block ATTN_THREADS, dynamic shared memory EXPAND_SHARED.
 * @param kv_b      [heads, nope + v_dim, kv_lora] bf16: those heads' rows
 * @param expanded  [slots, heads, nope + v_dim] bf16: as the cache has them; of a page that sequences share, each writes the
 *                  same
 */
TD_KERNEL(TD_CUDA_ATTN_THREADS)
td_mla_expand(const td_u32 *n_seq, const td_u32 *kv_len, const td_u32 *block_table, td_u32 block_stride,
              const td_u8 *absorbed, const td_bf16 *latent_cache, td_u32 kv_lora, const td_bf16 *kv_b, td_u32 heads,
              td_u32 per_head, td_bf16 *expanded) {
    constexpr int KEYS = TD_CUDA_EXPAND_KEYS, OUT = TD_CUDA_EXPAND_OUT, DEPTH = TD_CUDA_EXPAND_DEPTH, STRIDE = DEPTH + 8,
                  STAGE = (KEYS + OUT) * STRIDE, FRAGMENTS = OUT / 2 / 8;
    TD_SHARED_DYNAMIC(td_bf16, shared);
    const td_u32 blocks = (per_head + OUT - 1) / OUT, head = blockIdx.y / blocks, first_out = blockIdx.y % blocks * OUT,
                 warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, key = warp / 2 * 32,
                 out = warp % 2 * (OUT / 2), n = *n_seq;
    const td_bf16          *w = kv_b + (static_cast<size_t>(head) * per_head + first_out) * kv_lora;
    const td_place<td_bf16> key_at = td_place_of(shared + (key * STRIDE + td_row_part(STRIDE))),
                            out_at = td_place_of(shared + ((KEYS + out) * STRIDE + td_column_part(STRIDE)));
    td_u32 at = blockIdx.x; /* of the blocks of keys that are left */
    for (td_u32 seq = 0; seq < n; seq++) {
        if (absorbed[seq]) continue;
        const td_u32  keys = kv_len[seq], key_blocks = (keys + KEYS - 1) / KEYS;
        const td_u32 *pages = block_table + static_cast<size_t>(seq) * block_stride;
        for (; at < key_blocks; at += gridDim.x) {
            const td_u32   begin = at * KEYS, there = keys - begin;
            const size_t   slot = td_slot_of(pages, begin);
            const td_bf16 *latent = latent_cache + slot * kv_lora;
            const auto     fetch = [&](td_u32 k) {
                const td_shared<td_bf16> to = shared + k / DEPTH % 2 * STAGE;
                td_fetch_rows<KEYS, DEPTH, STRIDE, TD_CUDA_ATTN_THREADS>(to, there, kv_lora - k, latent + k, kv_lora);
                td_fetch_rows<OUT, DEPTH, STRIDE, TD_CUDA_ATTN_THREADS>(to + KEYS * STRIDE, per_head - first_out,
                                                                        kv_lora - k, w + k, kv_lora);
                td_async_commit();
            };
            float acc[2][FRAGMENTS][4];
            for (int m = 0; m < 2; m++)
                for (int j = 0; j < FRAGMENTS; j++)
                    for (int e = 0; e < 4; e++) acc[m][j][e] = 0;
            __syncthreads(); /* nobody reads the last keys any more */
            fetch(0);
#pragma unroll 1
            for (td_u32 k = 0; k < kv_lora; k += DEPTH) {
                const td_u32 stage = k / DEPTH % 2 * STAGE;
                td_async_wait<0>();
                __syncthreads();
                if (k + DEPTH < kv_lora) fetch(k + DEPTH);
#pragma unroll
                for (int d = 0; d < DEPTH; d += 16) {
                    unsigned x[2][4];
                    for (int m = 0; m < 2; m++) td_load_matrices(x[m], key_at + stage + (m * 16 * STRIDE + d));
#pragma unroll
                    for (int j = 0; j < FRAGMENTS; j += 2) {
                        unsigned b[4];
                        td_load_matrices(b, out_at + stage + (j * 8 * STRIDE + d));
                        for (int m = 0; m < 2; m++) {
                            td_mma_bf16(acc[m][j], x[m], b);
                            td_mma_bf16(acc[m][j + 1], x[m], b + 2);
                        }
                    }
                }
            }
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (td_u32 half = 0; half < 2; half++) {
                    const td_u32 of = key + m * 16 + g + half * 8;
                    if (of >= there) continue;
                    td_bf16 *to = expanded + ((slot + of) * heads + head) * per_head + first_out + out;
#pragma unroll
                    for (int j = 0; j < FRAGMENTS; j++)
                        if (first_out + out + j * 8 + t * 2 < per_head)
                            td_store<unsigned>(to + (j * 8 + t * 2),
                                               td_bf16_pair(acc[m][j][half * 2], acc[m][j][half * 2 + 1]));
                }
        }
        at -= key_blocks;
    }
}

/**
 * Rows of sequences that are not absorbed, for the heads that are expanded. grid (as td_gqa_prefill's, heads), block
 * ATTN_THREADS, dynamic shared memory PREFILL_SHARED(EXPANDED_NOPE_MAX + LATENT_ROPE_MAX, EXPANDED_DV_MAX).
 * @param q        [rows, all_heads, nope + rope_dim] bf16
 * @param expanded as td_mla_expand's; nope up to EXPANDED_NOPE_MAX, v_dim up to EXPANDED_DV_MAX, multiples of 8
 * @param out      [rows, all_heads, v_dim] f32
 */
TD_KERNEL(TD_CUDA_ATTN_THREADS)
td_mla_prefill(const td_u32 *n_seq, const td_u32 *seq_start, const td_u32 *pos, const td_u32 *block_table,
               td_u32 block_stride, const td_u8 *absorbed, const td_bf16 *q, const td_bf16 *rope_cache,
               const td_bf16 *expanded, td_u32 heads, td_u32 first_head, td_u32 all_heads, td_u32 nope, td_u32 rope_dim,
               td_u32 v_dim, float scale, float *out) {
    constexpr int NOPE = TD_CUDA_EXPANDED_NOPE_MAX, DK = NOPE + TD_CUDA_LATENT_ROPE_MAX, DV = TD_CUDA_EXPANDED_DV_MAX,
                  ROWS = TD_CUDA_PREFILL_ROWS, KEYS = TD_CUDA_TILE_KEYS, THREADS = TD_CUDA_ATTN_THREADS;
    TD_SHARED_DYNAMIC(td_bf16, shared);
    const td_u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4,
                 head = first_head + blockIdx.y;
    td_u32 seq, first_row, n_rows;
    if (!td_prefill_block(*n_seq, seq_start, absorbed, 0, &seq, &first_row, &n_rows)) return;
    td_shared<td_bf16> rows = shared, k = rows + TD_CUDA_PREFILL_ROWS * (DK + 8), v = k + TD_CUDA_TILE_KEYS * (DK + 8);
    const td_u32       keys = pos[first_row + n_rows - 1] + 1, dk = nope + rope_dim, per_head = nope + v_dim;
    const td_u32      *pages = block_table + static_cast<size_t>(seq) * block_stride;
    td_row_keys        seen[2] = {{0, 0}, {0, 0}};
    for (td_u32 half = 0; half < 2; half++) {
        const td_u32 row = warp * 16 + g + half * 8;
        if (row < n_rows) seen[half] = td_keys_at(pos[first_row + row], 0);
    }
    /* Rows have the part without rope in their first NOPE columns, then the rope part; what is between is zeros. */
    const td_bf16 *own = q + (static_cast<size_t>(first_row) * all_heads + head) * dk;
    const size_t   row_pitch = static_cast<size_t>(all_heads) * dk, key_pitch = static_cast<size_t>(heads) * per_head;
    td_fetch_rows<ROWS, NOPE, DK + 8, THREADS>(rows, n_rows, nope, own, row_pitch);
    td_fetch_rows<ROWS, DK - NOPE, DK + 8, THREADS>(rows + NOPE, n_rows, rope_dim, own + nope, row_pitch);
    const auto fetch_keys = [&](td_u32 first) {
        const size_t slot = td_slot_of(pages, first);
        td_fetch_rows<KEYS, NOPE, DK + 8, THREADS>(k, keys - first, nope, expanded + (slot * heads + blockIdx.y) * per_head,
                                                   key_pitch);
        td_fetch_rows<KEYS, DK - NOPE, DK + 8, THREADS>(k + NOPE, keys - first, rope_dim, rope_cache + slot * rope_dim,
                                                        rope_dim);
        td_async_commit();
    };
    fetch_keys(0);
    td_row_state state = td_row_start();
    float        acc[DV / 8][4];
    for (int j = 0; j < DV / 8; j++)
        for (int e = 0; e < 4; e++) acc[j][e] = 0;
#pragma unroll 1
    for (td_u32 first = 0; first < keys; first += TD_CUDA_TILE_KEYS) {
        td_async_wait<0>();
        __syncthreads(); /* the keys are there, and nobody reads the values before them any more */
        td_fetch_rows<KEYS, DV, DV + 8, THREADS>(
            v, keys - first, v_dim, expanded + (td_slot_of(pages, first) * heads + blockIdx.y) * per_head + nope, key_pitch);
        td_async_commit();
        float s[TD_CUDA_TILE_KEYS / 8][4];
        td_tile_scores<DK, TD_CUDA_TILE_KEYS>(rows + warp * 16 * (DK + 8), k, s);
        td_tile_weights<DV / 8>(s, first, seen, scale, state, acc);
        td_async_wait<0>();
        __syncthreads(); /* the values are there, and nobody reads the keys any more */
        if (first + TD_CUDA_TILE_KEYS < keys) fetch_keys(first + TD_CUDA_TILE_KEYS);
        td_tile_values<DV>(s, v, acc);
    }
    for (td_u32 half = 0; half < 2; half++) {
        const td_u32 row = warp * 16 + g + half * 8;
        if (row >= n_rows) continue;
        const float inverse = 1.0f / state.sum[half];
#pragma unroll
        for (int j = 0; j < DV / 8; j++)
            for (td_u32 e = 0; e < 2; e++)
                if (j * 8 + t * 2 + e < v_dim)
                    out[(static_cast<size_t>(first_row + row) * all_heads + head) * v_dim + j * 8 + t * 2 + e] =
                        acc[j][half * 2 + e] * inverse;
    }
}
