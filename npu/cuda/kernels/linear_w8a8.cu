/*
 * Rows times int8 weights, for few rows: y = (sum of codes' products) * weight's scale * row's scale + bias.
 *
 * Why it is shaped so. With up to some tens of rows the product is as fast as its weights arrive. So each weight is read
 * once, in words of 16 bytes that go straight into the registers of the matrix instruction, and everything else fits around
 * that. Weights are the instruction's 16 rows, rows of activations its 8 columns. A lane's 16 bytes are four words of
 * neighbouring k, where the instruction wants words 16 k apart. As the activations are read in the same manner, both have
 * the same k at the same place, and which k that is does not matter to a sum. The warps of a block take 64 k each in turn;
 * their sums meet in shared memory, by integer addition, which has no order. So the bits depend on neither the number of
 * rows nor on the variant that computes them.
 *
 * As fast as they arrive means that enough of them are on the way. A warp asks for 4 KB (of 9 rows and more 2 to 4 KB)
 * before it multiplies, and for the next while others multiply. They are neighbouring k of a row, so that lines of the cache
 * are used up at once. With the four blocks that a multiprocessor holds that is 128 KB of one to eight rows. The first are
 * asked for before the kernel knows how many rows there are. Matrices of the same rows (q, k, v) come in one launch, so that
 * small ones fill a card together.
 *
 * A variant _R takes R rows in a block. More rows are more blocks, beside each other along x: they read the same weights at
 * about the same time, one from memory and the others from the second-level cache. Variants of many rows also compute more
 * outputs in a block, so that the activations, which come from that cache, are not what limits.
 *
 * Of routed experts a block has a tile of one expert's rows, which lie anywhere among the step's (experts.cu). Their weights
 * are rows as of any linear, or tiles in slots, of int8 or int4 with a scale a row (packed.cuh).
 */
#include "npu/cuda/kernels/packed.cuh"

#define CHUNK 64 /* k that a warp multiplies at a time */

struct int8_rows {
    const td_u32 *row_of;  /* [rows] the row of x that row i is, or NULL: i */
    const td_i8  *x;       /* [*, ldk] */
    const float  *x_scale; /* [*] */
    td_u32        ldk;
};

TD_FN size_t source_row(const int8_rows &a, td_u32 row) {
    return a.row_of ? a.row_of[row] : row;
}

struct linear_args {
    int8_rows    in;
    const td_i8 *w;       /* [n, ldk] */
    const float *w_scale; /* [n] */
    const td_i8 *up;      /* SWIGLU: w is the gate; else not read */
    const float *up_scale;
    const float *bias; /* [n] or NULL */
    td_u32       n, out_is_f32;
    void        *out; /* [rows, n] */
};

TD_FN float scaled(int sum, float w_scale, float x_scale) {
    return static_cast<float>(sum) * w_scale * x_scale;
}

TD_FN void store_output(const linear_args &a, size_t row, td_u32 column, float v) {
    if (a.bias) v += a.bias[column];
    if (a.out_is_f32)
        static_cast<float *>(a.out)[row * a.n + column] = v;
    else
        static_cast<td_bf16 *>(a.out)[row * a.n + column] = td_to_bf16(v);
}

/* Where the sums of a row begin: the lanes of a warp add to other banks. */
template <int TILES>
constexpr td_u32 SUMS_STRIDE = 16 * TILES + 4;

/* sums [8 * GROUPS, SUMS_STRIDE] of the codes of rows from first_row on, and TILES tiles of weights. Called by all threads.
 *   w_k              k of the weights; what activations have behind it is zeros
 *   fetch(j, k)      the codes k .. k + 15 of the rows g and g + 8 of tile j, as they lie in memory
 *   words(raw, out)  the same: out[half], 16 bytes of row g + 8 * half
 *   count()          how many rows there are; asked when the first weights are on the way
 * @return count(), or 0 where that is not above first_row: there are no sums then */
template <int GROUPS, int TILES, class FETCH, class WORDS, class COUNT>
TD_FN td_u32 int8_sums(const int8_rows &a, td_u32 first_row, td_u32 w_k, const FETCH &fetch, const WORDS &words,
                       const COUNT &count, td_shared<int> sums) {
    constexpr int    CHUNKS = GROUPS == 1 ? 4 : GROUPS < 8 ? 2 : 1; /* that a thread has on the way */
    constexpr bool   W_AHEAD = GROUPS < 8, X_AHEAD = GROUPS < 4;    /* before they are needed: else there are no registers */
    constexpr td_u32 STRIDE = SUMS_STRIDE<TILES>, STEP = TD_CUDA_LINEAR_THREADS / 32 * CHUNKS * CHUNK;
    const td_u32     warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const td_i8     *x[GROUPS]; /* rows behind the last are the last one, and not stored */
    td_u32           k = warp * CHUNKS * CHUNK;
    decltype(fetch(0, 0u)) raw[CHUNKS][TILES];
    uint4                  in[X_AHEAD ? CHUNKS : 1][GROUPS];
    /* Chunks behind the end: some others' weights, times zeros. */
    const auto load_w = [&](td_u32 from) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int j = 0; j < TILES; j++) raw[c][j] = fetch(j, min(from + c * CHUNK + t * 16, w_k - 16));
    };
    const auto load_x = [&](td_u32 at, int to) {
        const uint4 zero = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            in[to][i] = td_load<uint4>(x[i] + min(at, a.ldk - CHUNK));
            if (CHUNKS > 1 && at >= a.ldk) in[to][i] = zero;
        }
    };
    const auto load_all_x = [&](td_u32 from) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) load_x(from + c * CHUNK, c);
    };
    if (W_AHEAD && k < a.ldk) load_w(k);
#pragma unroll 1
    for (td_u32 i = threadIdx.x; i < 8 * GROUPS * STRIDE; i += TD_CUDA_LINEAR_THREADS) sums[i] = 0;
    const td_u32 rows = count();
    if (first_row >= rows) return 0;
    int acc[GROUPS][TILES][4];
    for (int i = 0; i < GROUPS; i++) {
        x[i] = a.x + source_row(a, min(first_row + i * 8 + g, rows - 1)) * a.ldk + t * 16;
        for (int j = 0; j < TILES; j++)
            for (int e = 0; e < 4; e++) acc[i][j][e] = 0;
    }
    if (X_AHEAD && k < a.ldk) load_all_x(k);
    __syncthreads();
#pragma unroll 1
    for (; k < a.ldk; k += STEP) {
        if (!W_AHEAD) load_w(k);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int of_x = X_AHEAD ? c : 0;
            if (!X_AHEAD) load_x(k + c * CHUNK, 0);
#pragma unroll
            for (int j = 0; j < TILES; j++) {
                uint4 of_rows[2];
                words(raw[c][j], of_rows);
                const uint4    low = of_rows[0], high = of_rows[1];
                const unsigned a0[4] = {low.x, high.x, low.y, high.y}, a1[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
                for (int i = 0; i < GROUPS; i++) {
                    const uint4    v = in[of_x][i];
                    const unsigned b[2][2] = {{v.x, v.y}, {v.z, v.w}};
                    td_mma_s8_k32(acc[i][j], a0, b[0]);
                    td_mma_s8_k32(acc[i][j], a1, b[1]);
                }
            }
        }
        if (W_AHEAD && k + STEP < a.ldk) {
            load_w(k + STEP);
            if (X_AHEAD) load_all_x(k + STEP);
        }
    }
    for (int i = 0; i < GROUPS; i++)
        for (int e = 0; e < 4; e++) {
            const td_u32 row = i * 8 + t * 2 + e % 2;
            if (first_row + row >= rows) continue;
            for (int j = 0; j < TILES; j++) atomicAdd(&sums[row * STRIDE + j * 16 + g + e / 2 * 8], acc[i][j][e]);
        }
    __syncthreads();
    return rows;
}

struct two_rows {
    uint4 of[2];
};

/* 8 * GROUPS rows from first_row on, those before count(), and TILES tiles of weights, the block_n-th of them. SWIGLU: the
 * first eight of a tile's 16 are of the gate, the others of the up matrix at the same outputs. */
template <int GROUPS, int TILES, bool SWIGLU, class COUNT>
TD_FN void linear(const linear_args &a, td_u32 block_n, td_u32 first_row, const COUNT &count) {
    constexpr int    ROWS = 8 * GROUPS, OUTPUTS = 16 * TILES / (SWIGLU ? 2 : 1);
    constexpr td_u32 STRIDE = SUMS_STRIDE<TILES>;
    TD_SHARED(int, sums, ROWS *STRIDE);
    const td_u32 g = threadIdx.x % 32 / 4, place = threadIdx.x % OUTPUTS, column = block_n * OUTPUTS + place;
    const td_u32 own = min(column, a.n - 1); /* outputs behind the last are multiplied, and not stored */
    const td_i8 *w[TILES][2];
    if (first_row && first_row >= count()) return;
    for (int j = 0; j < TILES; j++)
        for (int half = 0; half < 2; half++) {
            const td_u32 output = block_n * OUTPUTS + (SWIGLU ? j * 8 + g : j * 16 + g + half * 8);
            w[j][half] = (SWIGLU && half ? a.up : a.w) + static_cast<size_t>(min(output, a.n - 1)) * a.in.ldk;
        }
    const auto   fetch = [&](int j, td_u32 k) { return two_rows{{td_load_ahead(w[j][0] + k), td_load_ahead(w[j][1] + k)}}; };
    const auto   words = [](const two_rows &raw, uint4 *out) { out[0] = raw.of[0], out[1] = raw.of[1]; };
    const float  w_scale = a.w_scale[own], up_scale = SWIGLU ? a.up_scale[own] : 0;
    const td_u32 rows = int8_sums<GROUPS, TILES>(a.in, first_row, a.in.ldk, fetch, words, count, sums);

    for (td_u32 r = threadIdx.x / OUTPUTS; r < ROWS; r += TD_CUDA_LINEAR_THREADS / OUTPUTS) {
        const td_u32 row = first_row + r;
        if (row >= rows || column >= a.n) break;
        const float  x_scale = a.in.x_scale[source_row(a.in, row)];
        const td_u32 at = r * STRIDE + (SWIGLU ? place / 8 * 16 + place % 8 : place);
        const float  v = scaled(sums[at], w_scale, x_scale);
        store_output(a, row, column, SWIGLU ? td_silu(v) * scaled(sums[at + 8], up_scale, x_scale) : v);
    }
}

TD_FN td_u32 rows_in_turn(const td_u32 *n_rows) {
    td_take_turn();
    return *n_rows;
}

/**
 * Up to three matrices for the same rows. grid (rows of the bucket / rows of the variant rounded up, for each matrix n / (16 *
 * tiles) rounded up, one after the other), block TD_CUDA_LINEAR_THREADS; tiles: 1, of _32 2, of _64 4.
 * @param x   [rows, ldk], ldk a multiple of TD_CUDA_QUANT_STRIDE, and codes beyond the true k are zeros; so are the weights'
 * @param w   [n, ldk], its w_scale and bias [n], bias NULL: none; n 0: no more matrices
 * @param out [rows, n]
 */
#define LINEAR(name, groups, tiles, blocks_at_once)                                                                        \
    TD_KERNEL_BLOCKS(TD_CUDA_LINEAR_THREADS, blocks_at_once)                                                               \
    name(const td_u32 *n_rows, const td_i8 *x, const float *x_scale, td_u32 ldk, td_u32 out_is_f32, const td_i8 *w,        \
         const float *w_scale, const float *bias, td_u32 n, void *out, const td_i8 *w1, const float *w_scale1,             \
         const float *bias1, td_u32 n1, void *out1, const td_i8 *w2, const float *w_scale2, const float *bias2, td_u32 n2, \
         void *out2) {                                                                                                     \
        const td_u32 blocks = (n + 16 * tiles - 1) / (16 * tiles), blocks1 = (n1 + 16 * tiles - 1) / (16 * tiles);         \
        td_u32       block_n = blockIdx.y;                                                                                 \
        linear_args  a = {{nullptr, x, x_scale, ldk}, w, w_scale, nullptr, nullptr, bias, n, out_is_f32, out};             \
        if (block_n >= blocks + blocks1) {                                                                                 \
            block_n -= blocks + blocks1, a.w = w2, a.w_scale = w_scale2, a.bias = bias2, a.n = n2, a.out = out2;           \
        } else if (block_n >= blocks) {                                                                                    \
            block_n -= blocks, a.w = w1, a.w_scale = w_scale1, a.bias = bias1, a.n = n1, a.out = out1;                     \
        }                                                                                                                  \
        linear<groups, tiles, false>(a, block_n, blockIdx.x * 8 * groups, [&] { return rows_in_turn(n_rows); });           \
    }
LINEAR(td_w8a8_8, 1, 1, 4)
LINEAR(td_w8a8_16, 2, 1, 3)
LINEAR(td_w8a8_32, 4, 2, 2)
LINEAR(td_w8a8_64, 8, 4, 1)

/** out [rows, n] f32 = silu(x gate^T) * (x up^T). As above, of one pair, and a block has half as many outputs. */
#define SWIGLU(name, groups, tiles, blocks_at_once)                                                                   \
    TD_KERNEL_BLOCKS(TD_CUDA_LINEAR_THREADS, blocks_at_once)                                                          \
    name(const td_u32 *n_rows, const td_i8 *x, const float *x_scale, td_u32 ldk, const td_i8 *gate,                   \
         const float *gate_scale, const td_i8 *up, const float *up_scale, td_u32 n, float *out) {                     \
        linear<groups, tiles, true>({{nullptr, x, x_scale, ldk}, gate, gate_scale, up, up_scale, nullptr, n, 1, out}, \
                                    blockIdx.y, blockIdx.x * 8 * groups, [&] { return rows_in_turn(n_rows); });       \
    }
SWIGLU(td_w8a8_swiglu_8, 1, 1, 4)
SWIGLU(td_w8a8_swiglu_16, 2, 1, 3)
SWIGLU(td_w8a8_swiglu_32, 4, 2, 2)
SWIGLU(td_w8a8_swiglu_64, 8, 4, 1)

/**
 * out [places, n] f32 = x w^T of each expert's rows, or silu(x gate^T) * (x up^T). As above with a tile of rows for each
 * blockIdx.x; of tiles as td_experts_place makes them with as many rows as the variant's.
 * @param row_at [places] the row of x that a place has; NULL: x has a row for each place
 * @param w, up  [n_experts]; up is not read without SWIGLU
 */
#define EXPERTS(name, groups, tiles_of_weights, swiglu)                                                         \
    TD_KERNEL(TD_CUDA_LINEAR_THREADS)                                                                           \
    name(const td_u32 *totals, const td_u32 *tiles, const td_u32 *row_at, const td_i8 *x, const float *x_scale, \
         const td_cuda_expert_matrix *w, const td_cuda_expert_matrix *up, td_u32 n, td_u32 ldk, float *out) {   \
        expert_tile tile;                                                                                       \
        if (!expert_tile_of_block(totals, tiles, &tile)) return;                                                \
        const td_cuda_expert_matrix &own = w[tile.expert], &other = swiglu ? up[tile.expert] : own;             \
        linear<groups, tiles_of_weights, swiglu>({{row_at, x, x_scale, ldk},                                    \
                                                  td_device_pointer<const td_i8>(own.data),                     \
                                                  td_device_pointer<const float>(own.scale),                    \
                                                  td_device_pointer<const td_i8>(other.data),                   \
                                                  td_device_pointer<const float>(other.scale),                  \
                                                  nullptr,                                                      \
                                                  n,                                                            \
                                                  1,                                                            \
                                                  out},                                                         \
                                                 blockIdx.y, tile.first, [&] { return tile.end; });             \
    }
EXPERTS(td_experts_w8a8_8, 1, 1, false)
EXPERTS(td_experts_w8a8_64, 8, 4, false)
EXPERTS(td_experts_swiglu_8, 1, 1, true)
EXPERTS(td_experts_swiglu_64, 8, 4, true)

/* 16 codes of two rows of a tile of int8, as RUN k of each lie there. row0: of the first. */
template <int RUN>
TD_FN two_rows load_int8(const td_u8 *codes, td_u32 nr, td_u32 row0, td_u32 k) {
    const td_u8 *at = codes + (static_cast<size_t>(k) * nr + row0 * RUN);
    if (RUN == 8) return {{td_load_once<uint4>(at), td_load_once<uint4>(at + nr * 8)}};
    const td_u32 step = nr * 4;
    const uint2  a = td_load_once<uint2>(at), b = td_load_once<uint2>(at + step), c = td_load_once<uint2>(at + step * 2),
                d = td_load_once<uint2>(at + step * 3);
    return {{{a.x, a.y, b.x, b.y}, {c.x, c.y, d.x, d.y}}};
}
template <int RUN>
TD_FN void words_of_int8(const two_rows &raw, td_u32 flip, uint4 *out) {
    const uint4 a = raw.of[0], b = raw.of[1];
    if (RUN == 8)
        out[0] = {a.x, a.y, b.x, b.y}, out[1] = {a.z, a.w, b.z, b.w};
    else
        out[0] = {a.x, a.z, b.x, b.z}, out[1] = {a.y, a.w, b.y, b.w};
    for (int half = 0; half < 2; half++)
        out[half] = {out[half].x ^ flip, out[half].y ^ flip, out[half].z ^ flip, out[half].w ^ flip};
}

/* The same of int4: a byte has a code of both rows. pair: the number of the rows' pair. */
template <int RUN>
TD_FN uint4 load_int4(const td_u8 *codes, td_u32 nr, td_u32 pair, td_u32 k) {
    const td_u32 half = nr / 2, step = half * RUN;
    const td_u8 *at = codes + (static_cast<size_t>(k) * half + pair * RUN);
    if (RUN == 8) {
        const uint2 a = td_load_once<uint2>(at), b = td_load_once<uint2>(at + step);
        return {a.x, a.y, b.x, b.y};
    }
    return {td_load_once<unsigned>(at), td_load_once<unsigned>(at + step), td_load_once<unsigned>(at + step * 2),
            td_load_once<unsigned>(at + step * 3)};
}
TD_FN void words_of_int4(const uint4 &v, td_u32 flip, uint4 *out) {
    const unsigned eight = 0x08080808u;
    out[0] = {__vsub4(low_codes(v.x), eight), __vsub4(low_codes(v.y), eight), __vsub4(low_codes(v.z), eight),
              __vsub4(low_codes(v.w), eight)};
    out[1] = {__vsub4(high_codes(v.x, flip), eight), __vsub4(high_codes(v.y, flip), eight),
              __vsub4(high_codes(v.z, flip), eight), __vsub4(high_codes(v.w, flip), eight)};
}

/* Of an expert in a slot; TILES parts of tiles. A tile of either format begins with the scales of its rows. */
template <int GROUPS, int TILES, bool INT4, int RUN>
TD_FN void packed_linear(const packed_slots &slots, const int8_rows &in, const expert_tile &rows, const packed_out &out,
                         td_shared<int> sums) {
    constexpr int         COLUMNS = 16 * TILES;
    constexpr td_u32      STRIDE = SUMS_STRIDE<TILES>;
    const td_cuda_packed &p = *slots.shape;
    const td_u8          *expert = packed_expert_at(slots, rows.expert), *codes[TILES];
    const td_u32          g = threadIdx.x % 32 / 4, place = threadIdx.x % COLUMNS, slot = place % 16;
    const td_u32          nr = p.nr, flip = p.flip;
    if (!expert) return;
    const td_u32 last = p.n_tiles * (nr / TD_CUDA_TILE_N) - 1; /* those behind it are multiplied, and not stored */
    td_u32       first[TILES];                                 /* of the tile's rows or pairs, that of this lane */
    for (int j = 0; j < TILES; j++) {
        const packed_part part = packed_part_at(slots, expert, min(blockIdx.y * TILES + j, last));
        codes[j] = part.tile + nr * 4;
        first[j] = INT4 ? part.part * 8 + g : part.part * 16 + g * 2;
    }
    const packed_part own = packed_part_at(slots, expert, blockIdx.y * TILES + place / 16);
    const td_u32      row = INT4 ? row_of_pair(nr, own.part, slot) : own.part * 16 + slot % 8 * 2 + slot / 8;
    const bool        is_there = own.tile && own.column + row < p.n;
    const float       scale = is_there ? reinterpret_cast<const float *>(own.tile)[row] : 0;
    const auto        fetch = [&](int j, td_u32 k) {
        if constexpr (INT4)
            return load_int4<RUN>(codes[j], nr, first[j], k);
        else
            return load_int8<RUN>(codes[j], nr, first[j], k);
    };
    const auto words = [&](const decltype(fetch(0, 0u)) &raw, uint4 *to) {
        if constexpr (INT4)
            words_of_int4(raw, flip, to);
        else
            words_of_int8<RUN>(raw, flip, to);
    };
    int8_sums<GROUPS, TILES>(
        in, rows.first, p.k, fetch, words, [&] { return rows.end; }, sums);
    for (td_u32 r = threadIdx.x / COLUMNS; r < 8 * GROUPS; r += TD_CUDA_LINEAR_THREADS / COLUMNS) {
        const td_u32 at = rows.first + r;
        if (at >= rows.end || !is_there) break;
        packed_store(out, own, p.n, at, row, scaled(sums[r * STRIDE + place], scale, in.x_scale[source_row(in, at)]));
    }
}

/**
 * out, up [places, n] f32 = x w^T of each expert's rows, of experts in slots. grid (tiles of rows, n_tiles * nr / (16 *
 * parts) rounded up), block TD_CUDA_LINEAR_THREADS; parts: of _8 1, of _64 4.
 * @param row_at as above
 * @param x      [*, ldk] codes, ldk a multiple of TD_CUDA_QUANT_STRIDE, zeros from the true k on
 * @param shape, packed  of gate and up together, or of down; [n_tiles]
 * @param slots, slot_of as in td_resident_desc; the rows of an expert without a slot are not written
 * @param up     where up's values go; not written of down
 */
#define PACKED(name, groups, parts, int4)                                                                                   \
    TD_KERNEL(TD_CUDA_LINEAR_THREADS)                                                                                       \
    name(const td_u32 *totals, const td_u32 *tiles, const td_u32 *row_at, const td_i8 *x, const float *x_scale, td_u32 ldk, \
         const td_cuda_packed *shape, const td_cuda_packed_tile *packed, const td_exchange *slots,                          \
         const unsigned short *slot_of, float *out, float *up) {                                                            \
        TD_SHARED(int, sums, 8 * groups * SUMS_STRIDE<parts>);                                                              \
        expert_tile tile;                                                                                                   \
        if (!expert_tile_of_block(totals, tiles, &tile)) return;                                                            \
        const packed_slots at = {shape, packed, slots, slot_of};                                                            \
        const int8_rows    in = {row_at, x, x_scale, ldk};                                                                  \
        if (shape->run == 8)                                                                                                \
            packed_linear<groups, parts, int4, 8>(at, in, tile, {out, up}, sums);                                           \
        else                                                                                                                \
            packed_linear<groups, parts, int4, 4>(at, in, tile, {out, up}, sums);                                           \
    }
PACKED(td_packed_int8_8, 1, 1, false)
PACKED(td_packed_int8_64, 8, 4, false)
PACKED(td_packed_int4_8, 1, 1, true)
PACKED(td_packed_int4_64, 8, 4, true)

/**
 * What becomes of a library's int32 sums of the rows from first_row on: out [*, n] = sums' scales + bias, or f32 silu(gate)
 * * up where there are up's sums. Scaled as above: the same bits. grid (n / 256 rounded up, rows of the sums), block 256.
 * @param sums, up_sums [rows of the grid, n]; up_sums NULL: none, and up_scale is not read
 */
TD_KERNEL(256)
td_w8a8_epilogue(const td_u32 *n_rows, td_u32 first_row, const int *sums, const int *up_sums, const float *x_scale,
                 const float *w_scale, const float *up_scale, const float *bias, td_u32 n, void *out, td_u32 out_is_f32) {
    const size_t row = first_row + blockIdx.y;
    const td_u32 column = blockIdx.x * 256 + threadIdx.x;
    if (row >= *n_rows || column >= n) return;
    const linear_args a = {{nullptr, nullptr, x_scale, 0}, nullptr, w_scale, nullptr, nullptr, bias, n, out_is_f32, out};
    const size_t      at = static_cast<size_t>(blockIdx.y) * n + column;
    const float       v = scaled(sums[at], w_scale[column], x_scale[row]);
    store_output(a, row, column, up_sums ? td_silu(v) * scaled(up_sums[at], up_scale[column], x_scale[row]) : v);
}
