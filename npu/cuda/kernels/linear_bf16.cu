/*
 * Rows times bf16 or f32 weights, for few rows: heads that were left in bf16, the absorbed matrices of latent attention, the
 * router.
 *
 * Why it is shaped so. As linear_w8a8.cu: weights are read once, in words of 16 bytes, as the 16 rows of the matrix
 * instruction. Sums are of floats here, so their order is fixed: a warp takes every eighth 32 of k, ascending, and the
 * warps' sums are added in the order of their numbers. The order depends on k alone, and a row of the product on its own
 * row. The router's products are of f32 and must not be rounded: they are fused multiply-adds, a warp an output. Those of
 * experts in slots have the CPU tier's order, one fused multiply-add a k: a thread has two outputs of one row, and the pace
 * is that of a chain of them.
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

/* Eight k of an output, from k on: of w [k, n] they lie in eight rows. */
TD_FN uint4 weights_of_column(const td_bf16 *column, td_u32 k, td_u32 n) {
    unsigned word[4];
#pragma unroll
    for (td_u32 i = 0; i < 4; i++)
        word[i] = column[static_cast<size_t>(k + i * 2) * n] |
                  static_cast<unsigned>(column[static_cast<size_t>(k + i * 2 + 1) * n]) << 16;
    return {word[0], word[1], word[2], word[3]};
}

template <int GROUPS, bool COLUMNS>
TD_FN void bf16_linear(const bf16_args &a, size_t x_at, size_t w_at, size_t out_at) {
    constexpr int ROWS = 8 * GROUPS;
    TD_SHARED(float, sums, BF16_WARPS *ROWS *TD_CUDA_TILE_N);
    const td_u32 first_row = blockIdx.y * ROWS, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const td_u32 rows = *a.n_rows;
    if (first_row >= rows) return;
    const td_bf16 *w[2], *x[GROUPS];
    float          acc[GROUPS][4];
    for (int half = 0; half < 2; half++) {
        const td_u32 output = blockIdx.x * TD_CUDA_TILE_N + g + half * 8;
        w[half] = output < a.n ? a.w + w_at + (COLUMNS ? output : static_cast<size_t>(output) * a.k) : nullptr;
    }
    for (int i = 0; i < GROUPS; i++) {
        const td_u32 row = first_row + i * 8 + g;
        x[i] = row < rows ? a.x + x_at + static_cast<size_t>(row) * a.ldx : nullptr;
        for (int e = 0; e < 4; e++) acc[i][e] = 0;
    }
    const uint4 zero = {0, 0, 0, 0};
#pragma unroll 2
    for (td_u32 k0 = warp * BF16_CHUNK; k0 < a.k; k0 += BF16_WARPS * BF16_CHUNK) {
        const td_u32 k = k0 + t * 8;
        uint4        part[2];
        for (int half = 0; half < 2; half++)
            part[half] = !w[half] || k >= a.k ? zero
                         : COLUMNS            ? weights_of_column(w[half], k, a.n)
                                              : td_load<uint4>(w[half] + k);
        const uint4    low = part[0], high = part[1];
        const unsigned first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
        for (int i = 0; i < GROUPS; i++) {
            const uint4    in = x[i] && k < a.k ? td_load<uint4>(x[i] + k) : zero;
            const unsigned b[2][2] = {{in.x, in.y}, {in.z, in.w}};
            td_mma_bf16(acc[i], first, b[0]);
            td_mma_bf16(acc[i], second, b[1]);
        }
    }
    for (int i = 0; i < GROUPS; i++)
        for (int e = 0; e < 4; e++) sums[(warp * ROWS + i * 8 + t * 2 + e % 2) * TD_CUDA_TILE_N + g + e / 2 * 8] = acc[i][e];
    __syncthreads();
    for (td_u32 i = threadIdx.x; i < ROWS * TD_CUDA_TILE_N; i += blockDim.x) {
        const td_u32 row = first_row + i / TD_CUDA_TILE_N, column = blockIdx.x * TD_CUDA_TILE_N + i % TD_CUDA_TILE_N;
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
 * out[b, r, :] = x[b, r, :] w[b]^T + bias for the matrices b of a batch (heads). grid (n / TILE_N rounded up, rows of the
 * bucket / rows of the variant rounded up, batch), block TD_CUDA_LINEAR_THREADS.
 * @param x_batch, w_batch, out_batch  elements between the matrices of a batch
 * @param k  a multiple of 8, as ldx and the batches' distances; x and w 16-byte aligned
 * A variant `columns` has w [k, n], of any alignment, and gives the same bits.
 */
#define BF16_LINEAR(name, groups, columns)                                                                            \
    TD_KERNEL(TD_CUDA_LINEAR_THREADS)                                                                                 \
    name(const td_u32 *n_rows, const td_bf16 *x, td_u32 ldx, td_u32 x_batch, const td_bf16 *w, td_u32 w_batch,        \
         const float *bias, td_u32 n, td_u32 k, void *out, td_u32 ldo, td_u32 out_batch, td_u32 out_is_f32) {         \
        const size_t b = blockIdx.z;                                                                                  \
        bf16_linear<groups, columns>({n_rows, x, w, bias, ldx, n, k, ldo, out_is_f32, out}, b * x_batch, b * w_batch, \
                                     b * out_batch);                                                                  \
    }
BF16_LINEAR(td_bf16_linear_8, 1, false)
BF16_LINEAR(td_bf16_linear_32, 4, false)
BF16_LINEAR(td_bf16_columns_8, 1, true)
BF16_LINEAR(td_bf16_columns_32, 4, true)

#define F32_ROWS 4

/**
 * out = x w^T for x in bf16 and w in f32: the router's logits, and the gates of shared experts. grid (n / 8 rounded up, rows
 * / 4 rounded up), block 256: a warp an output, for four rows.
 * @param x   [rows, k] bf16
 * @param w   [n, k]
 * @param out [rows, n] f32
 */
TD_KERNEL(256)
td_f32_linear(const td_u32 *n_rows, const td_bf16 *x, const float *w, td_u32 n, td_u32 k, float *out) {
    const td_u32 first_row = blockIdx.y * F32_ROWS, column = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    const td_u32 rows = *n_rows;
    if (first_row >= rows || column >= n) return;
    const float *weights = w + static_cast<size_t>(column) * k;
    float        acc[F32_ROWS] = {0, 0, 0, 0};
    for (td_u32 i = lane; i < k; i += 32) {
        const float v = weights[i];
        for (int r = 0; r < F32_ROWS; r++)
            if (first_row + r < rows) acc[r] = fmaf(v, td_from_bf16(x[static_cast<size_t>(first_row + r) * k + i]), acc[r]);
    }
    for (int r = 0; r < F32_ROWS; r++) {
        const float sum = td_warp_sum(acc[r]);
        if (lane == 0 && first_row + r < rows) out[static_cast<size_t>(first_row + r) * n + column] = sum;
    }
}

/* Of an expert in a slot, rows of bf16 or f32: a warp has a row, a thread two outputs. A word of a tile has a k of two rows,
 * nr / 2 apart, that of the first in its high half. */
template <class T>
TD_FN void packed_bf16(const packed_slots &slots, const td_u32 *row_at, const T *x, const expert_tile &rows,
                       const packed_out &out) {
    const td_cuda_packed &p = *slots.shape;
    const td_u8          *expert = packed_expert_at(slots, rows.expert);
    const td_u32          place = rows.first + threadIdx.x / 32, pair = threadIdx.x % 8, half = p.nr / 2;
    if (!expert || place >= rows.end) return;
    const packed_part own =
        packed_part_at(slots, expert, blockIdx.y * (TD_CUDA_PACKED_BF16_N / TD_CUDA_TILE_N) + threadIdx.x % 32 / 8);
    if (!own.tile) return;
    const T        *row = x + static_cast<size_t>(row_at ? row_at[place] : place) * p.k;
    const unsigned *w = reinterpret_cast<const unsigned *>(own.tile) + own.part * 8 + pair;
    float           acc[2] = {0, 0};
#pragma unroll 8
    for (td_u32 k = 0; k < p.k; k++) {
        const unsigned both = w[static_cast<size_t>(k) * half];
        const float    v = td_get(row, k);
        acc[0] = fmaf(__uint_as_float(both & 0xffff0000u), v, acc[0]);
        acc[1] = fmaf(__uint_as_float(both << 16), v, acc[1]);
    }
    for (td_u32 i = 0; i < 2; i++) {
        const td_u32 r = row_of_pair(p.nr, own.part, pair + i * 8);
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
