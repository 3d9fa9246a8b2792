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
 * A variant _R takes R rows in a block; more rows are more blocks, which read the weights again. Those of many rows also
 * compute more outputs in a block, so that the activations, which come from the second-level cache, are not what limits.
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
    td_u32       n, ldo, out_is_f32;
    void        *out; /* [rows, ldo] */
};

/* A weight row of a tile of 16; SWIGLU: the first eight are of the gate, the others of the up matrix at the same outputs. */
template <bool SWIGLU>
TD_FN const td_i8 *weight_row(const linear_args &a, td_u32 tile, td_u32 row) {
    const td_u32 output = SWIGLU ? tile * 8 + row % 8 : tile * 16 + row;
    if (output >= a.n) return nullptr;
    return (SWIGLU && row >= 8 ? a.up : a.w) + static_cast<size_t>(output) * a.in.ldk;
}

TD_FN float scaled(int sum, float w_scale, float x_scale) {
    return static_cast<float>(sum) * w_scale * x_scale;
}

TD_FN void store_output(const linear_args &a, size_t row, td_u32 column, float v) {
    if (a.bias) v += a.bias[column];
    if (a.out_is_f32)
        static_cast<float *>(a.out)[row * a.ldo + column] = v;
    else
        static_cast<td_bf16 *>(a.out)[row * a.ldo + column] = td_to_bf16(v);
}

/* sums [8 * GROUPS, 16 * TILES] of the codes of rows from first_row on, those before `rows`, and TILES tiles of weights.
 * Called by all threads. fetch(j, k, words): words[half] are the codes k .. k + 15 of row g + 8 * half of tile j. */
template <int GROUPS, int TILES, class F>
TD_FN void int8_sums(const int8_rows &a, td_u32 first_row, td_u32 rows, const F &fetch, td_shared<int> sums) {
    constexpr int ROWS = 8 * GROUPS, COLUMNS = 16 * TILES;
    const td_u32  warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const td_i8  *x[GROUPS];
    int           acc[GROUPS][TILES][4];
    for (int i = 0; i < GROUPS; i++) {
        const td_u32 row = first_row + i * 8 + g;
        x[i] = row < rows ? a.x + source_row(a, row) * a.ldk : nullptr;
        for (int j = 0; j < TILES; j++)
            for (int e = 0; e < 4; e++) acc[i][j][e] = 0;
    }
    const uint4 zero = {0, 0, 0, 0};
#pragma unroll(GROUPS > 4 ? 1 : 2)
    for (td_u32 k = warp * CHUNK; k < a.ldk; k += TD_CUDA_LINEAR_THREADS / 32 * CHUNK) {
        uint4 words[TILES][2];
        for (int j = 0; j < TILES; j++) fetch(j, k + t * 16, words[j]);
        for (int i = 0; i < GROUPS; i++) {
            const uint4    in = x[i] ? td_load<uint4>(x[i] + k + t * 16) : zero;
            const unsigned b[2][2] = {{in.x, in.y}, {in.z, in.w}};
            for (int j = 0; j < TILES; j++) {
                const uint4    low = words[j][0], high = words[j][1];
                const unsigned first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
                td_mma_s8_k32(acc[i][j], first, b[0]);
                td_mma_s8_k32(acc[i][j], second, b[1]);
            }
        }
    }

    for (td_u32 i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) sums[i] = 0;
    __syncthreads();
    for (int i = 0; i < GROUPS; i++)
        for (int j = 0; j < TILES; j++)
            for (int e = 0; e < 4; e++)
                atomicAdd(&sums[(i * 8 + t * 2 + e % 2) * COLUMNS + j * 16 + g + e / 2 * 8], acc[i][j][e]);
    __syncthreads();
}

/* 8 * GROUPS rows from first_row on, those before `rows`; TILES tiles of weights. */
template <int GROUPS, int TILES, bool SWIGLU>
TD_FN void linear(const linear_args &a, td_u32 first_row, td_u32 rows) {
    constexpr int ROWS = 8 * GROUPS, COLUMNS = 16 * TILES;
    TD_SHARED(int, sums, ROWS *COLUMNS);
    if (first_row >= rows) return;
    const td_i8 *w[TILES][2];
    for (int j = 0; j < TILES; j++)
        for (int half = 0; half < 2; half++)
            w[j][half] = weight_row<SWIGLU>(a, blockIdx.x * TILES + j, threadIdx.x % 32 / 4 + half * 8);
    const auto fetch = [&](int j, td_u32 k, uint4 *words) {
        const uint4 zero = {0, 0, 0, 0};
        for (int half = 0; half < 2; half++) words[half] = w[j][half] ? td_load<uint4>(w[j][half] + k) : zero;
    };
    int8_sums<GROUPS, TILES>(a.in, first_row, rows, fetch, sums);

    constexpr int OUTPUTS = SWIGLU ? COLUMNS / 2 : COLUMNS;
    for (td_u32 i = threadIdx.x; i < ROWS * OUTPUTS; i += blockDim.x) {
        const td_u32 row = first_row + i / OUTPUTS, place = i % OUTPUTS, column = blockIdx.x * OUTPUTS + place;
        if (row >= rows || column >= a.n) continue;
        const float x_scale = a.in.x_scale[source_row(a.in, row)];
        if (SWIGLU) {
            const td_u32 at = i / OUTPUTS * COLUMNS + place / 8 * 16 + place % 8;
            const float  gate = scaled(sums[at], a.w_scale[column], x_scale);
            store_output(a, row, column, td_silu(gate) * scaled(sums[at + 8], a.up_scale[column], x_scale));
        } else {
            store_output(a, row, column, scaled(sums[i], a.w_scale[column], x_scale));
        }
    }
}

/**
 * grid (n / (16 * tiles) rounded up, rows of the bucket / rows of the variant rounded up), block TD_CUDA_LINEAR_THREADS;
 * tiles: 1, of _32 2, of _64 4. Arguments are linear_args'; ldk is a multiple of TD_CUDA_QUANT_STRIDE, and codes beyond the
 * true k are zeros.
 */
#define LINEAR(name, groups, tiles)                                                                        \
    TD_KERNEL(TD_CUDA_LINEAR_THREADS)                                                                      \
    name(const td_u32 *n_rows, const td_i8 *x, const float *x_scale, const td_i8 *w, const float *w_scale, \
         const float *bias, td_u32 n, td_u32 ldk, void *out, td_u32 ldo, td_u32 out_is_f32) {              \
        linear<groups, tiles, false>(                                                                      \
            {{nullptr, x, x_scale, ldk}, w, w_scale, nullptr, nullptr, bias, n, ldo, out_is_f32, out},     \
            blockIdx.y * 8 * groups, *n_rows);                                                             \
    }
LINEAR(td_w8a8_8, 1, 1)
LINEAR(td_w8a8_16, 2, 1)
LINEAR(td_w8a8_32, 4, 2)
LINEAR(td_w8a8_64, 8, 4)

/** out [rows, ldo] f32 = silu(x gate^T) * (x up^T). As above, but a block has half as many outputs. */
#define SWIGLU(name, groups, tiles)                                                                                        \
    TD_KERNEL(TD_CUDA_LINEAR_THREADS)                                                                                      \
    name(const td_u32 *n_rows, const td_i8 *x, const float *x_scale, const td_i8 *gate, const float *gate_scale,           \
         const td_i8 *up, const float *up_scale, td_u32 n, td_u32 ldk, float *out, td_u32 ldo) {                           \
        linear<groups, tiles, true>({{nullptr, x, x_scale, ldk}, gate, gate_scale, up, up_scale, nullptr, n, ldo, 1, out}, \
                                    blockIdx.y * 8 * groups, *n_rows);                                                     \
    }
SWIGLU(td_w8a8_swiglu_8, 1, 1)
SWIGLU(td_w8a8_swiglu_16, 2, 1)
SWIGLU(td_w8a8_swiglu_32, 4, 2)
SWIGLU(td_w8a8_swiglu_64, 8, 4)

/**
 * out [places, n] f32 = x w^T of each expert's rows, or silu(x gate^T) * (x up^T). As above with a tile for each blockIdx.y;
 * of tiles as td_experts_place makes them with as many rows as the variant's.
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
                                                  n,                                                            \
                                                  1,                                                            \
                                                  out},                                                         \
                                                 tile.first, tile.end);                                         \
    }
EXPERTS(td_experts_w8a8_8, 1, 1, false)
EXPERTS(td_experts_w8a8_64, 8, 4, false)
EXPERTS(td_experts_swiglu_8, 1, 1, true)
EXPERTS(td_experts_swiglu_64, 8, 4, true)

/* 16 codes of two rows of a tile of int8, from k on; row0: of the first. */
TD_FN void fetch_int8(const td_cuda_packed &p, const td_u8 *codes, td_u32 row0, td_u32 k, uint4 *words) {
    const td_u8 *at = codes + (static_cast<size_t>(k) * p.nr + row0 * p.run);
    if (p.run == 8) {
        const uint4 a = td_load<uint4>(at), b = td_load<uint4>(at + p.nr * 8);
        words[0] = {a.x, a.y, b.x, b.y};
        words[1] = {a.z, a.w, b.z, b.w};
    } else {
        const td_u32 step = p.nr * 4;
        const uint2  a = td_load<uint2>(at), b = td_load<uint2>(at + step), c = td_load<uint2>(at + step * 2),
                    d = td_load<uint2>(at + step * 3);
        words[0] = {a.x, b.x, c.x, d.x};
        words[1] = {a.y, b.y, c.y, d.y};
    }
    for (int half = 0; half < 2; half++)
        words[half] = {words[half].x ^ p.flip, words[half].y ^ p.flip, words[half].z ^ p.flip, words[half].w ^ p.flip};
}

/* The same of int4: a byte has a code of both rows. pair: the number of the rows' pair. */
TD_FN void fetch_int4(const td_cuda_packed &p, const td_u8 *codes, td_u32 pair, td_u32 k, uint4 *words) {
    const td_u32 half = p.nr / 2;
    const td_u8 *at = codes + (static_cast<size_t>(k) * half + pair * p.run);
    uint4        v;
    if (p.run == 8) {
        const uint2 a = td_load<uint2>(at), b = td_load<uint2>(at + half * 8);
        v = {a.x, a.y, b.x, b.y};
    } else {
        const td_u32 step = half * 4;
        v = {td_load<unsigned>(at), td_load<unsigned>(at + step), td_load<unsigned>(at + step * 2),
             td_load<unsigned>(at + step * 3)};
    }
    const unsigned eight = 0x08080808u;
    words[0] = {__vsub4(low_codes(v.x), eight), __vsub4(low_codes(v.y), eight), __vsub4(low_codes(v.z), eight),
                __vsub4(low_codes(v.w), eight)};
    words[1] = {__vsub4(high_codes(v.x, p.flip), eight), __vsub4(high_codes(v.y, p.flip), eight),
                __vsub4(high_codes(v.z, p.flip), eight), __vsub4(high_codes(v.w, p.flip), eight)};
}

/* Of an expert in a slot; TILES parts of tiles. A tile of either format begins with the scales of its rows. */
template <int GROUPS, int TILES, bool INT4>
TD_FN void packed_linear(const packed_slots &slots, const int8_rows &in, const expert_tile &rows, const packed_out &out) {
    constexpr int ROWS = 8 * GROUPS, COLUMNS = 16 * TILES;
    TD_SHARED(int, sums, ROWS *COLUMNS);
    const td_cuda_packed &p = *slots.shape;
    const td_u8          *expert = packed_expert_at(slots, rows.expert);
    const td_u32          g = threadIdx.x % 32 / 4, head = p.nr * 4;
    if (!expert) return;
    packed_part part[TILES];
    for (int j = 0; j < TILES; j++) part[j] = packed_part_at(slots, expert, blockIdx.x * TILES + j);
    const auto fetch = [&](int j, td_u32 k, uint4 *words) {
        words[0] = words[1] = {0, 0, 0, 0};
        if (!part[j].tile || k >= p.k) return;
        if (INT4)
            fetch_int4(p, part[j].tile + head, part[j].part * 8 + g, k, words);
        else
            fetch_int8(p, part[j].tile + head, part[j].part * 16 + g * 2, k, words);
    };
    int8_sums<GROUPS, TILES>(in, rows.first, rows.end, fetch, sums);
    for (td_u32 i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) {
        const td_u32      place = rows.first + i / COLUMNS, slot = i % 16;
        const packed_part own = packed_part_at(slots, expert, blockIdx.x * TILES + i % COLUMNS / 16);
        const td_u32      row = INT4 ? row_of_pair(p.nr, own.part, slot) : own.part * 16 + slot % 8 * 2 + slot / 8;
        if (place >= rows.end || !own.tile || own.column + row >= p.n) continue;
        const float scale = reinterpret_cast<const float *>(own.tile)[row];
        packed_store(out, own, p.n, place, row, scaled(sums[i], scale, in.x_scale[source_row(in, place)]));
    }
}

/**
 * out, up [places, n] f32 = x w^T of each expert's rows, of experts in slots. grid (n_tiles * nr / (16 * parts) rounded up,
 * tiles of rows), block TD_CUDA_LINEAR_THREADS; parts: of _8 1, of _64 4.
 * @param row_at as above
 * @param x      [*, ldk] codes, ldk a multiple of TD_CUDA_QUANT_STRIDE, zeros from the true k on
 * @param shape, packed  of gate and up together, or of down; [n_tiles]
 * @param slots, slot_of as in td_resident_desc; the rows of an expert without a slot are not written
 * @param up     where up's values go; not written of down
 */
#define PACKED(name, groups, parts, int4)                                                                                   \
    TD_KERNEL(TD_CUDA_LINEAR_THREADS)                                                                                       \
    name(const td_u32 *totals, const td_u32 *tiles, const td_u32 *row_at, const td_i8 *x, const float *x_scale, td_u32 ldk, \
         const td_cuda_packed *shape, const td_cuda_packed_tile *packed, const td_exchange *slots, const unsigned short *slot_of, \
         float *out, float *up) {                                                                                           \
        expert_tile tile;                                                                                                   \
        if (!expert_tile_of_block(totals, tiles, &tile)) return;                                                            \
        packed_linear<groups, parts, int4>({shape, packed, slots, slot_of}, {row_at, x, x_scale, ldk}, tile, {out, up});    \
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
    const linear_args a = {{nullptr, nullptr, x_scale, 0}, nullptr, w_scale, nullptr, nullptr, bias, n, n, out_is_f32, out};
    const size_t      at = static_cast<size_t>(blockIdx.y) * n + column;
    const float       v = scaled(sums[at], w_scale[column], x_scale[row]);
    store_output(a, row, column, up_sums ? td_silu(v) * scaled(up_sums[at], up_scale[column], x_scale[row]) : v);
}
