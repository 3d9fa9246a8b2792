/*
 * Rows times bf16 or f32 weights, for few rows: heads that were left in bf16, the absorbed matrices of latent attention, the
 * router.
 *
 * Why it is shaped so. As linear_w8a8.cu: weights are read once, in words of 16 bytes, as the 16 rows of the matrix
 * instruction. Sums are of floats here, so their order is fixed: a warp takes every eighth 32 of k, ascending, and the
 * warps' sums are added in the order of their numbers. The order depends on k alone, and a row of the product on its own
 * row.
 *
 * Weights by columns have neighbouring outputs side by side, and k is short: there a warp has 64 outputs and all of k, and
 * words are put together in registers. So nothing goes through shared memory.
 *
 * The router's products are of f32 and must not be rounded: they are fused multiply-adds. Its matrix is some megabytes, so
 * for one row a block has one output, and all that its threads read is under way at once. For more rows a block has 32 sums,
 * since then the rows are what is read most. Thread t sums every 256th four of k, ascending, lanes and warps in a fixed
 * tree: both give the same bits.
 *
 * Those of experts in slots have the CPU tier's order, one fused multiply-add a k. A thread has two outputs of one row, and
 * the pace of a block is that of a chain of them. What keeps the memory busy is that all warps copy ahead.
 */
#include "npu/cuda/kernels/packed.cuh"

#define BF16_CHUNK 32
#define BF16_WARPS (TD_CUDA_LINEAR_THREADS / 32)

struct bf16_args {
    const td_u32  *n_rows;
    const td_bf16 *x; /* [rows, ldx] */
    const td_bf16 *w; /* [n, k] */
    const float   *bias;
    td_u32         ldx, n, k, ldo, out_is_f32;
    void          *out;
};

template <int GROUPS>
TD_FN void bf16_linear(const bf16_args &a, size_t x_at, size_t w_at, size_t out_at) {
    constexpr int    ROWS = 8 * GROUPS, CHUNKS = GROUPS == 1 ? 4 : 2; /* that a thread has on the way */
    constexpr td_u32 STEP = CHUNKS * BF16_WARPS * BF16_CHUNK;
    TD_SHARED(float, sums, BF16_WARPS *ROWS *TD_CUDA_TILE_N);
    const td_u32   first_row = blockIdx.x * ROWS, first_output = blockIdx.y * TD_CUDA_TILE_N;
    const td_u32   warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const td_bf16 *w[2], *x[GROUPS]; /* outputs and rows behind the last are the last one, and not stored */
    uint4          part[CHUNKS][2], in[CHUNKS][GROUPS];
    float          acc[GROUPS][4];
    const uint4    zero = {0, 0, 0, 0};
    for (int half = 0; half < 2; half++)
        w[half] = a.w + w_at + static_cast<size_t>(min(first_output + g + half * 8, a.n - 1)) * a.k;
    const auto load = [&](td_u32 from) {
#pragma unroll
        for (td_u32 c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                part[c][half] = td_load_ahead(w[half] + min(from + c * BF16_WARPS * BF16_CHUNK + t * 8, a.k - 8));
    };
    const auto load_x = [&](td_u32 from) {
#pragma unroll
        for (td_u32 c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int i = 0; i < GROUPS; i++)
                in[c][i] = td_load<uint4>(x[i] + min(from + c * BF16_WARPS * BF16_CHUNK + t * 8, a.k - 8));
    };
    td_u32 k0 = warp * BF16_CHUNK;
    if (k0 < a.k) load(k0);
    td_take_turn();
    const td_u32 rows = *a.n_rows;
    if (first_row >= rows) return;
    for (int i = 0; i < GROUPS; i++) {
        x[i] = a.x + x_at + static_cast<size_t>(min(first_row + i * 8 + g, rows - 1)) * a.ldx;
        for (int e = 0; e < 4; e++) acc[i][e] = 0;
    }
    if (k0 < a.k) load_x(k0);
#pragma unroll 1
    for (; k0 < a.k; k0 += STEP) {
#pragma unroll
        for (td_u32 c = 0; c < CHUNKS; c++) {
            const td_u32 first = k0 + c * BF16_WARPS * BF16_CHUNK, k = first + t * 8;
            if (first >= a.k) continue;
            const uint4    low = k < a.k ? part[c][0] : zero, high = k < a.k ? part[c][1] : zero;
            const unsigned a0[4] = {low.x, high.x, low.y, high.y}, a1[4] = {low.z, high.z, low.w, high.w};
            for (int i = 0; i < GROUPS; i++) {
                const uint4    v = k < a.k ? in[c][i] : zero;
                const unsigned b[2][2] = {{v.x, v.y}, {v.z, v.w}};
                td_mma_bf16(acc[i], a0, b[0]);
                td_mma_bf16(acc[i], a1, b[1]);
            }
        }
        if (k0 + STEP >= a.k) continue;
        load(k0 + STEP);
        load_x(k0 + STEP);
    }
    for (int i = 0; i < GROUPS; i++)
        for (int e = 0; e < 4; e++) sums[(warp * ROWS + i * 8 + t * 2 + e % 2) * TD_CUDA_TILE_N + g + e / 2 * 8] = acc[i][e];
    __syncthreads();
    for (td_u32 i = threadIdx.x; i < ROWS * TD_CUDA_TILE_N; i += blockDim.x) {
        const td_u32 row = first_row + i / TD_CUDA_TILE_N, column = first_output + i % TD_CUDA_TILE_N;
        if (row >= rows || column >= a.n) continue;
        float v = sums[i];
        for (td_u32 s = 1; s < BF16_WARPS; s++) v += sums[s * ROWS * TD_CUDA_TILE_N + i];
        if (a.bias) v += a.bias[column];
        const size_t at = out_at + static_cast<size_t>(row) * a.ldo + column;
        if (a.out_is_f32)
            static_cast<float *>(a.out)[at] = v;
        else
            static_cast<td_bf16 *>(a.out)[at] = td_to_bf16(v);
    }
}

/**
 * out[b, r, :] = x[b, r, :] w[b]^T + bias for the matrices b of a batch (heads). grid (rows of the bucket / rows of the
 * variant rounded up, n / TILE_N rounded up, batch), block TD_CUDA_LINEAR_THREADS.
 * @param x_batch, w_batch, out_batch  elements between the matrices of a batch
 * @param k  a multiple of 8, as ldx and the batches' distances; x and w 16-byte aligned
 */
#define BF16_LINEAR(name, groups)                                                                              \
    TD_KERNEL(TD_CUDA_LINEAR_THREADS)                                                                          \
    name(const td_u32 *n_rows, const td_bf16 *x, td_u32 ldx, td_u32 x_batch, const td_bf16 *w, td_u32 w_batch, \
         const float *bias, td_u32 n, td_u32 k, void *out, td_u32 ldo, td_u32 out_batch, td_u32 out_is_f32) {  \
        const size_t b = blockIdx.z;                                                                           \
        bf16_linear<groups>({n_rows, x, w, bias, ldx, n, k, ldo, out_is_f32, out}, b * x_batch, b * w_batch,   \
                            b * out_batch);                                                                    \
    }
BF16_LINEAR(td_bf16_linear_8, 1)
BF16_LINEAR(td_bf16_linear_32, 4)

/* Of rows k and k + 1 of a matrix by columns, eight columns each: the pair of column c. */
TD_FN unsigned pair_of_column(const uint4 &first, const uint4 &second, int c) {
    const unsigned a[4] = {first.x, first.y, first.z, first.w}, b[4] = {second.x, second.y, second.z, second.w};
    return __byte_perm(a[c / 2], b[c / 2], c % 2 ? 0x7632u : 0x5410u);
}

/* A lane has eight columns, those at its group's number, and eight k, those at its place. A matrix instruction takes columns
 * 2m and 2m + 1 of every lane; its words are pairs of k. DEPTH times 32 k are under way. What is beyond the rows', the
 * columns' or k's end is the last one again, and for k multiplied with 0. */
template <int GROUPS, int DEPTH>
TD_FN void bf16_columns(const td_u32 *n_rows, const td_bf16 *x, td_u32 ldx, const td_bf16 *w, td_u32 n, td_u32 k,
                        td_bf16 *out, td_u32 ldo) {
    constexpr int  ROWS = 8 * GROUPS, VECTOR = 8;
    const td_u32   first_row = blockIdx.y * ROWS, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const td_u32   column = blockIdx.x * TD_CUDA_COLUMNS_N + threadIdx.x / 32 * 64 + g * VECTOR;
    const td_bf16 *weights = w + min(column, n - VECTOR), *in[GROUPS];
    uint4          word[DEPTH][VECTOR];
    float          acc[GROUPS][4][4];
    const auto     at_depth = [&](td_u32 k0, td_u32 d) { return min(k0 + d * BF16_CHUNK + t * VECTOR, k - VECTOR); };
    const auto     load = [&](td_u32 k0) {
#pragma unroll
        for (td_u32 d = 0; d < DEPTH; d++)
#pragma unroll
            for (td_u32 i = 0; i < VECTOR; i++)
                word[d][i] = td_load_ahead(weights + static_cast<size_t>(at_depth(k0, d) + i) * n);
    };
    load(0);
    td_take_turn();
    const td_u32 rows = *n_rows;
    if (first_row >= rows || column - g * VECTOR >= n) return;
    for (td_u32 i = 0; i < GROUPS; i++) {
        in[i] = x + static_cast<size_t>(min(first_row + i * 8 + g, rows - 1)) * ldx;
        for (int e = 0; e < 16; e++) acc[i][e / 4][e % 4] = 0;
    }
#pragma unroll 1
    for (td_u32 k0 = 0; k0 < k; k0 += DEPTH * BF16_CHUNK) {
        uint4 values[DEPTH][GROUPS];
#pragma unroll
        for (td_u32 d = 0; d < DEPTH; d++)
#pragma unroll
            for (int i = 0; i < GROUPS; i++) values[d][i] = td_load<uint4>(in[i] + at_depth(k0, d));
#pragma unroll
        for (td_u32 d = 0; d < DEPTH; d++) {
            const bool there = k0 + d * BF16_CHUNK + t * VECTOR < k;
#pragma unroll
            for (int m = 0; m < 4; m++) {
                unsigned part[2][4];
#pragma unroll
                for (int e = 0; e < 8; e++) /* column 2m or 2m + 1, of k pair e / 2 */
                    part[e / 4][e % 4] = pair_of_column(word[d][e / 2 * 2], word[d][e / 2 * 2 + 1], m * 2 + e % 2);
#pragma unroll
                for (int i = 0; i < GROUPS; i++) {
                    const uint4    v = values[d][i];
                    const unsigned b[2][2] = {{there ? v.x : 0, there ? v.y : 0}, {there ? v.z : 0, there ? v.w : 0}};
                    td_mma_bf16(acc[i][m], part[0], b[0]);
                    td_mma_bf16(acc[i][m], part[1], b[1]);
                }
            }
        }
        if (k0 + DEPTH * BF16_CHUNK < k) load(k0 + DEPTH * BF16_CHUNK);
    }
    for (int i = 0; i < GROUPS; i++)
        for (td_u32 half = 0; half < 2; half++) {
            const td_u32 row = first_row + i * 8 + t * 2 + half;
            if (row >= rows || column >= n) continue;
            unsigned pair[4];
            for (int m = 0; m < 4; m++) pair[m] = td_bf16_pair(acc[i][m][half], acc[i][m][half + 2]);
            const uint4 words = {pair[0], pair[1], pair[2], pair[3]};
            td_store(out + static_cast<size_t>(row) * ldo + column, words);
        }
}

/**
 * out[b, r, :] = x[b, r, :] w[b] in bf16 for the matrices b of a batch (heads), w[b] [k, n]. grid (n / TD_CUDA_COLUMNS_N
 * rounded up, rows of the bucket / rows of the variant rounded up, batch), block TD_CUDA_LINEAR_THREADS.
 * @param x_batch, w_batch, out_batch  elements between the matrices of a batch
 * @param k  a multiple of 8, as n, ldx, ldo and the batches' distances; x, w and out 16-byte aligned
 */
#define BF16_COLUMNS(name, groups, depth)                                                                                \
    TD_KERNEL_BLOCKS(TD_CUDA_LINEAR_THREADS, 1)                                                                          \
    name(const td_u32 *n_rows, const td_bf16 *x, td_u32 ldx, td_u32 x_batch, const td_bf16 *w, td_u32 w_batch, td_u32 n, \
         td_u32 k, td_bf16 *out, td_u32 ldo, td_u32 out_batch) {                                                         \
        const size_t b = blockIdx.z;                                                                                     \
        bf16_columns<groups, depth>(n_rows, x + b * x_batch, ldx, w + b * w_batch, n, k, out + b * out_batch, ldo);      \
    }
BF16_COLUMNS(td_bf16_columns_8, 1, 4)
BF16_COLUMNS(td_bf16_columns_32, 4, 1)

#define F32_WARPS (TD_CUDA_F32_THREADS / 32)
#define F32_STEP (TD_CUDA_F32_THREADS * 4)

/* Four values of a row of k: of f32 weights, and of bf16. WHOLE: k is a multiple of four, and behind the row's end come its
 * last values again, so that no load waits for a condition. */
template <bool WHOLE>
TD_FN uint4 four_weights(const float *w, td_u32 at, td_u32 k) {
    if (WHOLE) return td_load_ahead(w + min(at, k - 4));
    unsigned word[4] = {0, 0, 0, 0};
#pragma unroll
    for (td_u32 i = 0; i < 4; i++)
        if (at + i < k) word[i] = __float_as_uint(w[at + i]);
    return {word[0], word[1], word[2], word[3]};
}
template <bool WHOLE>
TD_FN uint2 four_values(const td_bf16 *x, td_u32 at, td_u32 k) {
    if (WHOLE) return td_load<uint2>(x + min(at, k - 4));
    unsigned word[2] = {0, 0};
#pragma unroll
    for (td_u32 i = 0; i < 4; i++)
        if (at + i < k) word[i / 2] |= static_cast<unsigned>(x[at + i]) << i % 2 * 16;
    return {word[0], word[1]};
}

TD_FN float four_products(float sum, const uint4 &w, const uint2 &x) {
    sum = fmaf(__uint_as_float(w.x), __uint_as_float(x.x << 16), sum);
    sum = fmaf(__uint_as_float(w.y), __uint_as_float(x.x & 0xffff0000u), sum);
    sum = fmaf(__uint_as_float(w.z), __uint_as_float(x.y << 16), sum);
    return fmaf(__uint_as_float(w.w), __uint_as_float(x.y & 0xffff0000u), sum);
}

/* Of N sums of the warp's lanes: lane i has the i-th (of N = 32) after. Each step halves what a lane has, and adds its
 * partner's part of what it keeps: the additions of td_warp_sum. */
template <int N>
TD_FN float sum_of_lane(float *v) {
    constexpr int HALF = N / 2;
    if constexpr (HALF > 0) {
        const bool upper = threadIdx.x & HALF;
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            const float mine = upper ? v[i + HALF] : v[i], other = upper ? v[i] : v[i + HALF];
            v[i] = mine + __shfl_xor_sync(TD_ALL_LANES, other, HALF);
        }
        return sum_of_lane<HALF>(v);
    }
    return v[0];
}

struct f32_args {
    const td_u32  *n_rows;
    const td_bf16 *x;
    const float   *w;
    td_u32         n, k;
    float         *out;
};

/* The last step of a sum: those of the warps, in the order of their numbers. */
TD_FN void store_sum(const f32_args &a, td_shared<float> sums, td_u32 stride, td_u32 row, td_u32 column) {
    float v = sums[0];
    for (td_u32 warp = 1; warp < F32_WARPS; warp++) v += sums[warp * stride];
    a.out[static_cast<size_t>(row) * a.n + column] = v;
}

/* One row and one output of a block; DEPTH loads of weights of a thread are under way. */
template <bool WHOLE>
TD_FN void f32_linear_1(const f32_args &a) {
    constexpr int DEPTH = 8;
    TD_SHARED(float, sums, F32_WARPS);
    const td_bf16 *x = a.x + static_cast<size_t>(blockIdx.y) * a.k;
    const float   *w = a.w + static_cast<size_t>(blockIdx.x) * a.k;
    float          acc = 0;
    uint4          weights[DEPTH];
    const auto     load = [&](td_u32 k0) {
#pragma unroll
        for (int j = 0; j < DEPTH; j++) weights[j] = four_weights<WHOLE>(w, k0 + j * F32_STEP, a.k);
    };
    if (WHOLE) load(threadIdx.x * 4);
    td_take_turn();
    if (blockIdx.y >= *a.n_rows) return;
#pragma unroll 1
    for (td_u32 k0 = threadIdx.x * 4; k0 < a.k; k0 += DEPTH * F32_STEP) {
        uint2 values[DEPTH];
        if (!WHOLE) load(k0);
#pragma unroll
        for (int j = 0; j < DEPTH; j++) values[j] = four_values<WHOLE>(x, k0 + j * F32_STEP, a.k);
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
            if (k0 + j * F32_STEP < a.k) acc = four_products(acc, weights[j], values[j]);
        if (WHOLE && k0 + DEPTH * F32_STEP < a.k) load(k0 + DEPTH * F32_STEP);
    }
    acc = td_warp_sum(acc);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = acc;
    __syncthreads();
    if (threadIdx.x == 0) store_sum(a, sums, 1, blockIdx.y, blockIdx.x);
}

/* Eight rows and four outputs of a block. */
template <bool WHOLE>
TD_FN void f32_linear_8(const f32_args &a) {
    constexpr int DEPTH = 2;
    TD_SHARED(float, sums, F32_WARPS * 32);
    const td_u32 first_row = blockIdx.y * TD_CUDA_F32_ROWS, first = blockIdx.x * TD_CUDA_F32_OUTPUTS, rows = *a.n_rows,
                 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const td_bf16 *x[TD_CUDA_F32_ROWS]; /* beyond the last one: that one again, of which nothing is stored */
    const float   *w[TD_CUDA_F32_OUTPUTS];
    float          acc[32];
    for (td_u32 i = 0; i < TD_CUDA_F32_ROWS; i++) x[i] = a.x + static_cast<size_t>(min(first_row + i, rows - 1)) * a.k;
    for (td_u32 i = 0; i < TD_CUDA_F32_OUTPUTS; i++) w[i] = a.w + static_cast<size_t>(min(first + i, a.n - 1)) * a.k;
    for (int i = 0; i < 32; i++) acc[i] = 0;
    for (td_u32 k0 = threadIdx.x * 4; k0 < a.k; k0 += DEPTH * F32_STEP) {
        uint4 weights[DEPTH][TD_CUDA_F32_OUTPUTS];
        uint2 values[DEPTH][TD_CUDA_F32_ROWS];
#pragma unroll
        for (int j = 0; j < DEPTH; j++) {
#pragma unroll
            for (int i = 0; i < TD_CUDA_F32_OUTPUTS; i++) weights[j][i] = four_weights<WHOLE>(w[i], k0 + j * F32_STEP, a.k);
#pragma unroll
            for (int i = 0; i < TD_CUDA_F32_ROWS; i++) values[j][i] = four_values<WHOLE>(x[i], k0 + j * F32_STEP, a.k);
        }
#pragma unroll
        for (int j = 1; j < DEPTH; j++)
#pragma unroll
            for (int i = 0; i < TD_CUDA_F32_ROWS; i++)
                if (k0 + j * F32_STEP >= a.k) values[j][i] = {0, 0};
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
#pragma unroll
            for (int i = 0; i < 32; i++)
                acc[i] = four_products(acc[i], weights[j][i % TD_CUDA_F32_OUTPUTS], values[j][i / TD_CUDA_F32_OUTPUTS]);
    }
    sums[warp * 32 + lane] = sum_of_lane<32>(acc);
    __syncthreads();
    const td_u32 row = first_row + lane / TD_CUDA_F32_OUTPUTS, column = first + lane % TD_CUDA_F32_OUTPUTS;
    if (warp == 0 && row < rows && column < a.n) store_sum(a, sums + lane, 32, row, column);
}

/**
 * out = x w^T for x in bf16 and w in f32: the router's logits, and the gates of shared experts. Block TD_CUDA_F32_THREADS,
 * grid of td_f32_linear_1 (n, rows), of _8 (n / TD_CUDA_F32_OUTPUTS, rows / TD_CUDA_F32_ROWS, both rounded up). Both give
 * the same bits.
 * @param x   [rows, k] bf16
 * @param w   [n, k], 16-byte aligned
 * @param out [rows, n] f32
 */
TD_KERNEL_BLOCKS(TD_CUDA_F32_THREADS, 2)
td_f32_linear_1(const td_u32 *n_rows, const td_bf16 *x, const float *w, td_u32 n, td_u32 k, float *out) {
    const f32_args a = {n_rows, x, w, n, k, out};
    if (k % 4 == 0)
        f32_linear_1<true>(a);
    else
        f32_linear_1<false>(a);
}
TD_KERNEL_BLOCKS(TD_CUDA_F32_THREADS, 1)
td_f32_linear_8(const td_u32 *n_rows, const td_bf16 *x, const float *w, td_u32 n, td_u32 k, float *out) {
    const f32_args a = {n_rows, x, w, n, k, out};
    td_take_turn();
    if (blockIdx.y * TD_CUDA_F32_ROWS >= *n_rows) return;
    if (k % 4 == 0)
        f32_linear_8<true>(a);
    else
        f32_linear_8<false>(a);
}

#define PACKED_K 64 /* of a stage */
#define PACKED_STAGES 4
#define PACKED_WORDS (PACKED_K * TD_CUDA_PACKED_BF16_N / 2)

/* Of an expert in a slot, rows of bf16 or f32: a warp has a row, a lane two outputs. A word of a tile has a k of two rows, nr
 * / 2 apart, that of the first in its high half. All warps copy, with PACKED_STAGES - 1 stages on the way, as the warps that
 * have rows are too few to have enough loads under way. */
template <class T>
TD_FN void packed_bf16(const packed_slots &slots, const td_u32 *row_at, const T *x, const expert_tile &rows,
                       const packed_out &out) {
    TD_SHARED(unsigned, words, PACKED_STAGES *PACKED_WORDS); /* [stages, PACKED_K, lanes] */
    const td_cuda_packed &p = *slots.shape;
    const td_u8          *expert = packed_expert_at(slots, rows.expert), *from[2];
    const td_u32          place = rows.first + threadIdx.x / 32, lane = threadIdx.x % 32, half = p.nr / 2, k_all = p.k;
    const td_u32 first_part = blockIdx.y * (TD_CUDA_PACKED_BF16_N / TD_CUDA_TILE_N), k_of_copy = threadIdx.x % 128 / 2;
    td_u32       to[2];
    if (!expert) return;
    const packed_part own = packed_part_at(slots, expert, first_part + lane / 8);
    for (td_u32 i = 0; i < 2; i++) { /* 16 bytes of a k and a part each */
        const td_u32      part = i * 2 + threadIdx.x / 128, side = threadIdx.x % 2;
        const packed_part of = packed_part_at(slots, expert, first_part + part);
        from[i] = of.tile ? of.tile + of.part * 32 + k_of_copy * half * 4 + side * 16 : nullptr;
        to[i] = k_of_copy * 32 + part * 8 + side * 4;
    }
    const auto copy = [&](td_u32 k, td_u32 stage) {
        for (td_u32 i = 0; i < 2; i++) {
            const bool wanted = from[i] && k + k_of_copy < k_all;
            td_async_16(words + (stage * PACKED_WORDS + to[i]),
                        wanted ? from[i] + static_cast<size_t>(k) * half * 4 : expert, wanted);
        }
        td_async_commit();
    };
    for (td_u32 stage = 0; stage + 1 < PACKED_STAGES; stage++) copy(stage * PACKED_K, stage);
    const T *row = x + static_cast<size_t>(row_at && place < rows.end ? row_at[place] : min(place, rows.end - 1)) * k_all;
    float    acc[2] = {0, 0};
    td_u32   stage = 0;
    for (td_u32 k0 = 0; k0 < k_all; k0 += PACKED_K, stage = (stage + 1) % PACKED_STAGES) {
        td_async_wait<PACKED_STAGES - 2>();
        __syncthreads();
        copy(k0 + (PACKED_STAGES - 1) * PACKED_K, (stage + PACKED_STAGES - 1) % PACKED_STAGES);
        const td_u32 some = place < rows.end ? min(k_all - k0, static_cast<td_u32>(PACKED_K)) : 0;
#pragma unroll 16
        for (td_u32 k = 0; k < some; k++) {
            const unsigned both = words[stage * PACKED_WORDS + k * 32 + lane];
            const float    v = td_get(row, k0 + k);
            acc[0] = fmaf(__uint_as_float(both & 0xffff0000u), v, acc[0]);
            acc[1] = fmaf(__uint_as_float(both << 16), v, acc[1]);
        }
    }
    td_async_wait<0>();
    if (place >= rows.end || !own.tile) return;
    for (td_u32 i = 0; i < 2; i++) {
        const td_u32 r = row_of_pair(p.nr, own.part, lane % 8 + i * 8);
        if (own.column + r < p.n) packed_store(out, own, p.n, place, r, acc[i]);
    }
}

/** As td_packed_int8_8 (linear_w8a8.cu), but grid (tiles of rows, n_tiles * nr / 64 rounded up), tiles as td_experts_place
 * makes them with 8 rows. @param x [*, k] bf16, or f32 */
#define PACKED_BF16(name, type)                                                                                       \
    TD_KERNEL(TD_CUDA_LINEAR_THREADS)                                                                                 \
    name(const td_u32 *totals, const td_u32 *tiles, const td_u32 *row_at, const type *x, const td_cuda_packed *shape, \
         const td_cuda_packed_tile *packed, const td_exchange *slots, const unsigned short *slot_of, float *out,      \
         float *up) {                                                                                                 \
        expert_tile tile;                                                                                             \
        if (!expert_tile_of_block(totals, tiles, &tile)) return;                                                      \
        packed_bf16({shape, packed, slots, slot_of}, row_at, x, tile, {out, up});                                     \
    }
PACKED_BF16(td_packed_bf16, td_bf16)
PACKED_BF16(td_packed_bf16_f32, float)
