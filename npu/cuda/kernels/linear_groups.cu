/*
 * Rows times weights of four bits in groups, as quantised checkpoints have them. These are unsigned codes with a scale and
 * perhaps a zero a group (AWQ, GPTQ, compressed-tensors), or e2m1 with a scale a group and a factor a row (MXFP4, NVFP4).
 *
 * Why it is shaped so. As linear_w8a8.cu, but each group's sum is multiplied with the group's scale before groups are added,
 * in ascending order with one fused multiply-add each: the bits of the host's kernels (kernels/product/tile_gemm.h). So the
 * warps of a block take 128 k each, and leave their groups' sums, which are integers, and the scales in shared memory. Then a
 * thread an output adds those of all warps in order. The fewer rows there are, the more k have room between two such turns:
 * of one row all k of most matrices.
 *
 * A warp has the codes, zeros and scales of four times 128 k on the way, of e2m1 of two, and asks for the next before the
 * outputs are added. With the blocks that the registers allow these are some 50 to 64 KB a multiprocessor. Nothing else is
 * loaded but activations, which come from the caches. Codes of a row lie in words of 16 bytes a lane, in the order in which
 * the matrix instruction takes them (cuda_pack.h). e2m1 becomes twice its value by byte permutations, an integer. A block
 * takes 8 rows of activations, or 16 that share the unpacking. Blocks of other rows lie beside it along x, so that they find
 * the weights in the second-level cache. Experts in slots are read as their tiles are (packed.cuh).
 */
#include "npu/cuda/kernels/packed.cuh"

#define GROUP_WARPS (TD_CUDA_LINEAR_THREADS / 32)
/* Words for a block of k and 16 outputs are records of a group each: 16 scales, and 16 sums of each row. */
#define GROUP_RECORDS 640

struct group_rows {
    const td_u32 *row_of; /* [rows] the row of x that row i is, or NULL: i */
    const td_i8  *x;      /* [*, ldx] */
    td_u32        ldx;
    const float  *x_scale;
};

TD_FN size_t source_row(const group_rows &a, td_u32 row) {
    return a.row_of ? a.row_of[row] : row;
}

struct group_args {
    group_rows   in;
    const td_u8 *codes; /* [n, blocks of k, 64] */
    const void  *scale; /* [n, k / size] */
    td_u32       scale_kind;
    const td_u8 *zero;   /* [n, k / size] or NULL: 8 */
    const float *factor; /* [n]: e2m1 */
    const float *bias;
    td_u32       n, k, size, out_is_f32;
    void        *out; /* [rows, n] */
};

/* By a product with a power of two, which is exact, of subnormal numbers too. */
TD_FN float half_to_float(td_u32 h) {
    const td_u32 sign = (h & 0x8000u) << 16, rest = (h & 0x7fffu) << 13;
    const float  v = __uint_as_float(rest) * 0x1p112f;
    return __uint_as_float(sign | (rest < 0x7c00u << 13 ? __float_as_uint(v) : rest | 0x7f800000u));
}
TD_FN float e4m3_to_float(td_u32 c) {
    const td_u32 sign = (c & 0x80u) << 24, rest = c & 0x7fu;
    const float  v = __uint_as_float(rest << 20) * 0x1p120f;
    return rest == 0x7fu ? td_nan() : __uint_as_float(sign | __float_as_uint(v));
}
TD_FN float e8m0_to_float(td_u32 c) {
    if (c == 255) return td_nan();
    return __uint_as_float(c ? c << 23 : 0x400000u); /* 2^-127 has no exponent of its own */
}
/* Scales of e2m1 have a byte, those of other codes two or four. */
template <bool FLOAT>
TD_FN td_u32 scale_bits(const void *scale, td_u32 kind, size_t i) {
    if (FLOAT) return static_cast<const td_u8 *>(scale)[i];
    return kind == TD_CUDA_SCALE_F32 ? static_cast<const td_u32 *>(scale)[i] : static_cast<const unsigned short *>(scale)[i];
}
template <bool FLOAT>
TD_FN float scale_of_bits(td_u32 bits, td_u32 kind) {
    if (FLOAT) return kind == TD_CUDA_SCALE_E4M3 ? e4m3_to_float(bits) : e8m0_to_float(bits);
    return kind == TD_CUDA_SCALE_F32    ? __uint_as_float(bits)
           : kind == TD_CUDA_SCALE_BF16 ? __uint_as_float(bits << 16)
                                        : half_to_float(bits);
}

/* Four codes of e2m1 in the nibbles of a half word to twice their values. */
TD_FN unsigned e2m1_twice(unsigned half) {
    const unsigned of = half & 0x7777u, minus = __byte_perm(0x0000ff00u, 0, half >> 3 & 0x1111u);
    return (__byte_perm(0x03020100u, 0x0c080604u, of) & ~minus) | (__byte_perm(0xfdfeff00u, 0xf4f8fafcu, of) & minus);
}

/* Four codes of [0, 15] in bytes, less a zero of as much. */
TD_FN unsigned less_zero(unsigned codes, unsigned zero) {
    return ((codes | 0x80808080u) - zero * 0x01010101u) ^ 0x80808080u; /* no byte borrows */
}

/* What a lane loads of TD_CUDA_GROUP_BLOCK k, as it lies in memory. */
struct group_words {
    unsigned codes[8];
    unsigned scales[4], zeros[2]; /* of output lane % 16 and every second group of these k, from lane / 16 on */
};

/* Sums over groups of 8 * GROUPS rows from first_row on, those before `rows`, and 16 outputs. Called by all threads.
 *   weights.fetch(block, codes)        of a block of k
 *   weights.words(codes, j, zeros, c)  of the j-th 32 of these k, as the matrix instruction takes them; zeros: of outputs g
 *                                      and g + 8
 *   weights.scale_word(group), .scale_value(word)  the scale of output lane % 16 as it lies in memory, and as a number
 *   weights.zero_word(group), .zero_value(word)    so its zero; not called without has_zeros
 * @return the sum of row threadIdx.x / 16 and output threadIdx.x % 16 */
template <int GROUPS, bool FLOAT, class WEIGHTS>
TD_FN float group_sums(const group_rows &a, td_u32 k_all, td_u32 size, td_u32 first_row, td_u32 rows,
                       const WEIGHTS &weights) {
    constexpr td_u32 SCALES = FLOAT ? 4 : 2; /* of a lane and block of k at most */
    constexpr td_u32 CHUNKS = FLOAT ? 2 : 4; /* blocks of k that a warp has on the way */
    TD_SHARED(td_u32, records, GROUP_RECORDS * 16);
    const td_u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const td_u32 shift = 31 - static_cast<td_u32>(__clz(static_cast<int>(size))), groups = k_all >> shift;
    const td_u32 blocks = (k_all + TD_CUDA_GROUP_BLOCK - 1) / TD_CUDA_GROUP_BLOCK, per_block = TD_CUDA_GROUP_BLOCK >> shift;
    group_words  on_the_way[CHUNKS];
    const auto   load = [&](td_u32 first) {
#pragma unroll
        for (td_u32 c = 0; c < CHUNKS; c++) {
            const td_u32 block = first + c * GROUP_WARPS + warp;
            if (block >= blocks) continue;
            weights.fetch(block, on_the_way[c].codes);
#pragma unroll
            for (td_u32 i = 0; i < SCALES; i++) {
                const td_u32 of_block = i * 2 + lane / 16, group = block * per_block + of_block;
                if (of_block >= per_block || group >= groups) continue;
                on_the_way[c].scales[i] = weights.scale_word(group);
                if (!FLOAT && weights.has_zeros) on_the_way[c].zeros[i] = weights.zero_word(group);
            }
        }
    };
    const td_u32 n = min(rows - first_row, 8u * GROUPS), record = n + 1;
    const td_u32 row = threadIdx.x / 16, output = threadIdx.x % 16;
    const td_i8 *x[GROUPS]; /* rows behind the last are the last one, and not added */
    for (td_u32 i = 0; i < GROUPS; i++) x[i] = a.x + source_row(a, first_row + min(i * 8 + g, n - 1)) * a.ldx + t * 4;
    td_u32 turn = CHUNKS; /* blocks of a warp whose records have room together */
    while (turn > 1 && turn * GROUP_WARPS * per_block * record > GROUP_RECORDS) turn /= 2;
    float acc = 0;

    /* Where a sum is in its record: the lanes of a warp write to other banks. Of a lane's own sums, once. */
    const auto place = [](td_u32 of_row, td_u32 column) { return (of_row + 1) * 16 + ((column + of_row * 4) & 15); };
    td_u32     own[4];
    for (td_u32 e = 0; e < 4; e++) own[e] = place(t * 2 + e % 2, g + e / 2 * 8);
    /* Makes the records of a block of k. first: the first one's place */
    const auto multiply = [&](const group_words &w, td_u32 block, td_u32 first) {
        int          sum[GROUPS][4] = {};
        const td_u32 begin = td_hidden(first * record * 16), step = td_hidden(record * 16);
        unsigned     zeros[2] = {8, 8};
        const auto   leave = [&](td_u32 group) {
            const td_u32 base = begin + group * step;
#pragma unroll
            for (td_u32 i = 0; i < GROUPS; i++)
#pragma unroll
                for (td_u32 e = 0; e < 4; e++) {
                    /* Rows i * 8 and 0 have the same order of columns. */
                    if (i * 8 + t * 2 + e % 2 < n) records[base + i * 128 + own[e]] = static_cast<td_u32>(sum[i][e]);
                    sum[i][e] = 0;
                }
        };
#pragma unroll
        for (td_u32 i = 0; i < SCALES; i++) {
            const td_u32 of_block = i * 2 + lane / 16;
            if (of_block < per_block && block * per_block + of_block < groups)
                records[begin + of_block * step + lane % 16] = __float_as_uint(weights.scale_value(w.scales[i]));
        }
#pragma unroll
        for (td_u32 j = 0; j < 4; j++) {
            unsigned b[GROUPS][2], c[4];
#pragma unroll
            for (td_u32 i = 0; i < GROUPS; i++)
                for (td_u32 half = 0; half < 2; half++)
                    b[i][half] = td_load<unsigned>(x[i] + block * TD_CUDA_GROUP_BLOCK + j * 32 + half * 16);
            if (!FLOAT && weights.has_zeros) {
                const td_u32 group = j * 32 >> shift, from = g + (group & 1) * 16,
                             word = weights.zero_value(j > 1 && size == 32 ? w.zeros[1] : w.zeros[0]);
                zeros[0] = __shfl_sync(TD_ALL_LANES, word, static_cast<int>(from));
                zeros[1] = __shfl_sync(TD_ALL_LANES, word, static_cast<int>(from + 8));
            }
            weights.words(w.codes, j, zeros, c);
            if (FLOAT && size == 16) {
                for (td_u32 i = 0; i < GROUPS; i++) td_mma_s8_k16(sum[i], c, b[i]);
                leave(j * 2);
                for (td_u32 i = 0; i < GROUPS; i++) td_mma_s8_k16(sum[i], c + 2, b[i] + 1);
                leave(j * 2 + 1);
            } else {
                for (td_u32 i = 0; i < GROUPS; i++) td_mma_s8_k32(sum[i], c, b[i]);
                if (((j + 1) * 32 & (size - 1)) == 0) leave(j * 32 >> shift);
            }
        }
    };
    const auto add = [&](td_u32 first_group) {
        const td_u32 some = min(turn * GROUP_WARPS * per_block, groups - first_group);
        const td_u32 mine = place(row, output);
#pragma unroll 4
        for (td_u32 i = 0; i < some; i++)
            acc = fmaf(static_cast<float>(static_cast<int>(records[i * record * 16 + mine])),
                       __uint_as_float(records[i * record * 16 + output]), acc);
    };

    constexpr td_u32 STEP = CHUNKS * GROUP_WARPS;
#pragma unroll 1
    for (td_u32 next = 0; next < blocks + STEP; next += STEP) { /* the first time nothing has come yet, the last all has */
        const td_u32 first = next - STEP;
#pragma unroll
        for (td_u32 c = 0; c < CHUNKS; c++) {
            const td_u32 block = first + c * GROUP_WARPS + warp, of_turn = c & (turn - 1), done = c + 1 - turn;
            if (next && block < blocks) multiply(on_the_way[c], block, (of_turn * GROUP_WARPS + warp) * per_block);
            if (c + 1 == CHUNKS) load(next);
            if (!next || of_turn + 1 < turn || first + done * GROUP_WARPS >= blocks) continue;
            __syncthreads();
            if (row < n) add((first + done * GROUP_WARPS) * per_block);
            __syncthreads();
        }
    }
    return acc;
}

/* Weights as cuda_weight.h has them: what group_sums asks. Pointers are the lane's. */
template <bool FLOAT>
struct group_weights {
    const td_u8 *codes_of[2]; /* of outputs g and g + 8 */
    const void  *scales_at;
    const td_u8 *zeros_at;
    td_u32       kind;
    bool         has_zeros;

    TD_METHOD void fetch(td_u32 block, unsigned *codes) const {
#pragma unroll
        for (td_u32 half = 0; half < 2; half++) {
            const uint4 v = td_load_once<uint4>(codes_of[half] + static_cast<size_t>(block) * 64);
            codes[half * 4] = v.x, codes[half * 4 + 1] = v.y, codes[half * 4 + 2] = v.z, codes[half * 4 + 3] = v.w;
        }
    }
    TD_METHOD void words(const unsigned *codes, td_u32 j, const unsigned *zeros, unsigned *out) const {
#pragma unroll
        for (td_u32 half = 0; half < 2; half++) {
            const unsigned word = codes[half * 4 + j];
            out[half] = FLOAT ? e2m1_twice(word & 0xffffu) : less_zero(word & 0x0f0f0f0fu, zeros[half]);
            out[half + 2] = FLOAT ? e2m1_twice(word >> 16) : less_zero(word >> 4 & 0x0f0f0f0fu, zeros[half]);
        }
    }
    TD_METHOD td_u32 scale_word(td_u32 group) const {
        return scale_bits<FLOAT>(scales_at, kind, group);
    }
    TD_METHOD float scale_value(td_u32 word) const {
        return scale_of_bits<FLOAT>(word, kind);
    }
    TD_METHOD td_u32 zero_word(td_u32 group) const {
        return zeros_at[group];
    }
    TD_METHOD td_u32 zero_value(td_u32 word) const {
        return word;
    }
};

/* 8 * GROUPS rows from first_row on, those before `rows`. Outputs behind the last are the last one, and not stored. */
template <int GROUPS, bool FLOAT>
TD_FN void group_linear(const group_args &a, td_u32 first_row, td_u32 rows) {
    const td_u32 first_output = blockIdx.y * TD_CUDA_TILE_N, column = first_output + threadIdx.x % TD_CUDA_TILE_N;
    const td_u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, out_row = first_row + threadIdx.x / TD_CUDA_TILE_N;
    const size_t groups = a.k / a.size, row_bytes = (a.k + TD_CUDA_GROUP_BLOCK - 1) / TD_CUDA_GROUP_BLOCK * 64;
    const size_t own = min(column, a.n - 1), scale_bytes = FLOAT ? 1 : a.scale_kind == TD_CUDA_SCALE_F32 ? 4 : 2;
    if (first_row >= rows) return;
    const group_weights<FLOAT> weights = {{a.codes + min(first_output + g, a.n - 1) * row_bytes + t * 16,
                                           a.codes + min(first_output + g + 8, a.n - 1) * row_bytes + t * 16},
                                          static_cast<const td_u8 *>(a.scale) + own * groups * scale_bytes,
                                          a.zero ? a.zero + own * groups : nullptr,
                                          a.scale_kind,
                                          a.zero != nullptr};
    const float                factor = FLOAT ? a.factor[own] * 0.5f : 0, bias = a.bias ? a.bias[own] : 0;
    float                      acc = group_sums<GROUPS, FLOAT>(a.in, a.k, a.size, first_row, rows, weights);
    if (threadIdx.x >= GROUPS * 8 * TD_CUDA_TILE_N || column >= a.n || out_row >= rows) return;
    if (FLOAT) acc = acc * factor;
    acc = acc * a.in.x_scale[source_row(a.in, out_row)];
    if (a.bias) acc += bias;
    if (a.out_is_f32)
        static_cast<float *>(a.out)[static_cast<size_t>(out_row) * a.n + column] = acc;
    else
        static_cast<td_bf16 *>(a.out)[static_cast<size_t>(out_row) * a.n + column] = td_to_bf16(acc);
}

/**
 * grid (rows of the bucket / rows of the variant rounded up, n / TILE_N rounded up), block TD_CUDA_LINEAR_THREADS. A variant
 * of 16 rows wants groups of 32 k and more.
 * @param x      [rows, ldx] codes; ldx at least k rounded up to TD_CUDA_GROUP_BLOCK, zeros from k on
 * @param codes  [n, blocks of TD_CUDA_GROUP_BLOCK, 64 bytes] (cuda_pack.h), 16-byte aligned
 * @param scale  [n, k / size] of the kind TD_CUDA_SCALE_…
 * @param zero   [n, k / size] or NULL: all are 8
 * @param k      a multiple of size; size 32, 64 or 128, of e2m1 16 or 32
 * @param out    [rows, n]
 */
#define INT4_LINEAR(name, groups)                                                                                       \
    TD_KERNEL_BLOCKS(TD_CUDA_LINEAR_THREADS, 2)                                                                         \
    name(const td_u32 *n_rows, const td_i8 *x, td_u32 ldx, const float *x_scale, const td_u8 *codes, const void *scale, \
         td_u32 scale_kind, const td_u8 *zero, const float *bias, td_u32 n, td_u32 k, td_u32 size, void *out,           \
         td_u32 out_is_f32) {                                                                                           \
        group_linear<groups, false>(                                                                                    \
            {{nullptr, x, ldx, x_scale}, codes, scale, scale_kind, zero, nullptr, bias, n, k, size, out_is_f32, out},   \
            blockIdx.x * 8 * groups, *n_rows);                                                                          \
    }
INT4_LINEAR(td_int4_linear_8, 1)
INT4_LINEAR(td_int4_linear_16, 2)
/** @param factor [n] */
#define FP4_LINEAR(name, groups)                                                                                        \
    TD_KERNEL_BLOCKS(TD_CUDA_LINEAR_THREADS, 3)                                                                         \
    name(const td_u32 *n_rows, const td_i8 *x, td_u32 ldx, const float *x_scale, const td_u8 *codes, const void *scale, \
         td_u32 scale_kind, const float *factor, const float *bias, td_u32 n, td_u32 k, td_u32 size, void *out,         \
         td_u32 out_is_f32) {                                                                                           \
        group_linear<groups, true>(                                                                                     \
            {{nullptr, x, ldx, x_scale}, codes, scale, scale_kind, nullptr, factor, bias, n, k, size, out_is_f32, out}, \
            blockIdx.x * 8 * groups, *n_rows);                                                                          \
    }
FP4_LINEAR(td_fp4_linear_8, 1)
FP4_LINEAR(td_fp4_linear_16, 2)

/**
 * out [places, n] f32 = x w^T of each expert's rows. grid (tiles, n / TILE_N rounded up), block TD_CUDA_LINEAR_THREADS; of
 * tiles as td_experts_place makes them with as many rows as the variant's.
 * @param row_at [places] the row of x that a place has; NULL: x has a row for each place
 * @param w      [n_experts]
 */
#define EXPERTS_IN_GROUPS(name, groups, is_float)                                                                           \
    TD_KERNEL_BLOCKS(TD_CUDA_LINEAR_THREADS, is_float ? 3 : 2)                                                              \
    name(const td_u32 *totals, const td_u32 *tiles, const td_u32 *row_at, const td_i8 *x, td_u32 ldx, const float *x_scale, \
         const td_cuda_expert_matrix *w, td_u32 scale_kind, td_u32 n, td_u32 k, td_u32 size, float *out) {                  \
        expert_tile tile;                                                                                                   \
        if (!expert_tile_of_block(totals, tiles, &tile)) return;                                                            \
        const td_cuda_expert_matrix &own = w[tile.expert];                                                                  \
        group_linear<groups, is_float>({{row_at, x, ldx, x_scale},                                                          \
                                        td_device_pointer<const td_u8>(own.data),                                           \
                                        td_device_pointer<const td_u8>(own.scale),                                          \
                                        scale_kind,                                                                         \
                                        td_device_pointer<const td_u8>(own.zero),                                           \
                                        td_device_pointer<const float>(own.factor),                                         \
                                        nullptr,                                                                            \
                                        n,                                                                                  \
                                        k,                                                                                  \
                                        size,                                                                               \
                                        1,                                                                                  \
                                        out},                                                                               \
                                       tile.first, tile.end);                                                               \
    }
EXPERTS_IN_GROUPS(td_experts_int4_8, 1, false)
EXPERTS_IN_GROUPS(td_experts_int4_16, 2, false)
EXPERTS_IN_GROUPS(td_experts_fp4_8, 1, true)
EXPERTS_IN_GROUPS(td_experts_fp4_16, 2, true)

/* The codes of e2m1 of four bytes, one a byte, to twice their values. */
TD_FN unsigned e2m1_of_bytes(unsigned four) {
    return e2m1_twice(__byte_perm(four | four >> 4, 0, 0x4420));
}

/* The same of a part of a tile in a slot. */
template <bool FLOAT>
struct packed_group_weights {
    const td_u8 *codes_at, *scales_at, *zeros_at; /* those of a pair have a byte together */
    td_u32       nr, flip, kind, block_bytes, shift, size_shift;
    bool         has_zeros;

    /* From one 16 k to the next all lanes go equally far. */
    TD_METHOD void fetch(td_u32 block, unsigned *out) const {
        const td_u8 *at = codes_at + static_cast<size_t>(block) * ((TD_CUDA_GROUP_BLOCK >> shift) * block_bytes);
#pragma unroll
        for (td_u32 i = 0; i < 8; i++)
            out[i] =
                td_load_once<unsigned>(at + ((i * 16 >> shift) * block_bytes + (i * 16 & ((1u << shift) - 1)) * (nr / 2)));
    }
    TD_METHOD void words(const unsigned *codes, td_u32 j, const unsigned *of_outputs, unsigned *c) const {
#pragma unroll
        for (td_u32 i = 0; i < 2; i++) {
            const unsigned low = low_codes(codes[j * 2 + i]), high = high_codes(codes[j * 2 + i], flip);
            c[i * 2] = FLOAT ? e2m1_of_bytes(low) : less_zero(low, of_outputs[0]);
            c[i * 2 + 1] = FLOAT ? e2m1_of_bytes(high) : less_zero(high, of_outputs[1]);
        }
    }
    TD_METHOD td_u32 scale_word(td_u32 group) const {
        const td_u32 inner = shift - size_shift;
        return scale_bits<FLOAT>(scales_at + static_cast<size_t>(group >> inner) * block_bytes, kind,
                                 (group & ((1u << inner) - 1)) * nr);
    }
    TD_METHOD float scale_value(td_u32 word) const {
        return scale_of_bits<FLOAT>(word, kind);
    }
    TD_METHOD td_u32 zero_word(td_u32 group) const {
        return zeros_at[static_cast<size_t>(group) * (nr / 2)];
    }
    TD_METHOD td_u32 zero_value(td_u32 word) const {
        return word >> (threadIdx.x % 16 < 8 ? 0 : 4) & 15;
    }
};

/* Of an expert in a slot: the 16 outputs of a part of a tile. */
template <int GROUPS, bool FLOAT>
TD_FN void packed_groups(const packed_slots &slots, const group_rows &in, const expert_tile &rows, const packed_out &out) {
    const td_cuda_packed &p = *slots.shape;
    const td_u8          *expert = packed_expert_at(slots, rows.expert);
    if (!expert) return;
    const packed_part own = packed_part_at(slots, expert, blockIdx.y);
    if (!own.tile) return;
    const td_u32 half = p.nr / 2, output = threadIdx.x % TD_CUDA_TILE_N, row = row_of_pair(p.nr, own.part, output);
    const td_u32 size_shift = 31 - static_cast<td_u32>(__clz(static_cast<int>(p.group_size)));
    const td_u32 pair = own.part * 8 + threadIdx.x % 32 / 4, k = threadIdx.x % 4 * 4;
    const td_u8 *blocks = own.tile + p.head_bytes;
    const td_u8 *codes = blocks + ((p.nr * p.scale_bytes) << (p.block_shift - size_shift)) +
                         (p.run == 8 ? ((k >> 3) * half + pair) * 8 + (k & 7) : k * half + pair * 4);
    const packed_group_weights<FLOAT> weights = {codes,
                                                 blocks + row * p.scale_bytes,
                                                 own.tile + own.part * 8 + output % 8,
                                                 p.nr,
                                                 p.flip,
                                                 p.scale_kind,
                                                 p.block_bytes,
                                                 p.block_shift,
                                                 size_shift,
                                                 p.has_zeros != 0};
    const float                       factor = FLOAT ? reinterpret_cast<const float *>(own.tile)[row] * 0.5f : 0;
    float                             acc = group_sums<GROUPS, FLOAT>(in, p.k, p.group_size, rows.first, rows.end, weights);
    const td_u32                      place = rows.first + threadIdx.x / TD_CUDA_TILE_N;
    if (threadIdx.x >= GROUPS * 8 * TD_CUDA_TILE_N || place >= rows.end || own.column + row >= p.n) return;
    if (FLOAT) acc = acc * factor;
    packed_store(out, own, p.n, place, row, acc * in.x_scale[source_row(in, place)]);
}

/** As td_packed_int8_8 (linear_w8a8.cu); shape->k is a multiple of TD_CUDA_GROUP_BLOCK. A variant of 16 rows wants groups of
 * 32 k and more. */
#define PACKED_GROUPS(name, groups, is_float)                                                                               \
    TD_KERNEL_BLOCKS(TD_CUDA_LINEAR_THREADS, is_float ? 3 : 2)                                                              \
    name(const td_u32 *totals, const td_u32 *tiles, const td_u32 *row_at, const td_i8 *x, const float *x_scale, td_u32 ldk, \
         const td_cuda_packed *shape, const td_cuda_packed_tile *packed, const td_exchange *slots,                          \
         const unsigned short *slot_of, float *out, float *up) {                                                            \
        expert_tile tile;                                                                                                   \
        if (!expert_tile_of_block(totals, tiles, &tile)) return;                                                            \
        packed_groups<groups, is_float>({shape, packed, slots, slot_of}, {row_at, x, ldk, x_scale}, tile, {out, up});       \
    }
PACKED_GROUPS(td_packed_int4_groups_8, 1, false)
PACKED_GROUPS(td_packed_int4_groups_16, 2, false)
PACKED_GROUPS(td_packed_fp4_groups_8, 1, true)
PACKED_GROUPS(td_packed_fp4_groups_16, 2, true)
