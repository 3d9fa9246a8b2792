/*
 * Rows times weights of four bits in groups, as quantised checkpoints have them. These are unsigned codes with a scale and
 * perhaps a zero a group (AWQ, GPTQ, compressed-tensors), or e2m1 with a scale a group and a factor a row (MXFP4, NVFP4).
 *
 * Why it is shaped so. As linear_w8a8.cu, but each group's sum is multiplied with the group's scale before groups are added,
 * in ascending order with one fused multiply-add each: the bits of the host's kernels (kernels/product/tile_gemm.h). So the
 * warps of a block take 128 k each, leave their groups' sums, which are integers, in shared memory. Then a thread an output
 * adds those of all warps in order; then the next 128 k of each. Codes of a row lie in words of 16 bytes a lane, in the
 * order in which the matrix instruction takes them (cuda_pack.h); e2m1 becomes twice its value by byte permutations, an
 * integer. A block takes eight rows of activations. Experts in slots are read as their tiles are (packed.cuh).
 */
#include "npu/cuda/kernels/packed.cuh"

#define GROUP_WARPS (TD_CUDA_LINEAR_THREADS / 32)
#define GROUP_ROWS 8
#define GROUP_OUTPUTS (GROUP_ROWS * TD_CUDA_TILE_N)
#define GROUPS_OF_BLOCK_MAX (TD_CUDA_GROUP_BLOCK / 16)

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
    td_u32       n, k, size, ldo, out_is_f32;
    void        *out;
};

TD_FN float half_to_float(td_u32 h) {
    const td_u32 sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31u, mantissa = h & 1023u;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent) return __uint_as_float(sign | (exponent + 112u) << 23 | mantissa << 13);
    const float v = static_cast<float>(mantissa) * 5.9604644775390625e-8f; /* 2^-24 */
    return sign ? -v : v;
}
TD_FN float e4m3_to_float(td_u32 c) {
    const td_u32 sign = (c & 0x80u) << 24, exponent = c >> 3 & 15u, mantissa = c & 7u;
    if (exponent == 15 && mantissa == 7) return td_nan();
    if (exponent) return __uint_as_float(sign | (exponent + 120u) << 23 | mantissa << 20);
    const float v = static_cast<float>(mantissa) * 1.953125e-3f; /* 2^-9 */
    return sign ? -v : v;
}
TD_FN float e8m0_to_float(td_u32 c) {
    if (c == 255) return td_nan();
    return __uint_as_float(c ? c << 23 : 0x400000u); /* 2^-127 has no exponent of its own */
}
TD_FN float group_scale(const void *scale, td_u32 kind, size_t i) {
    switch (kind) {
        case TD_CUDA_SCALE_F32: return static_cast<const float *>(scale)[i];
        case TD_CUDA_SCALE_BF16: return td_from_bf16(static_cast<const td_bf16 *>(scale)[i]);
        case TD_CUDA_SCALE_F16: return half_to_float(static_cast<const unsigned short *>(scale)[i]);
        case TD_CUDA_SCALE_E4M3: return e4m3_to_float(static_cast<const td_u8 *>(scale)[i]);
        default: return e8m0_to_float(static_cast<const td_u8 *>(scale)[i]);
    }
}

/* Four codes of e2m1 in the nibbles of a half word to twice their values. */
TD_FN unsigned e2m1_twice(unsigned half) {
    const unsigned magnitude = __byte_perm(0x03020100u, 0x0c080604u, half & 0x7777u);
    const unsigned minus = __byte_perm(0x0000ff00u, 0, half >> 3 & 0x1111u);
    return __vsub4(magnitude ^ minus, minus);
}

/* The sum over groups, by half of the threads: of row threadIdx.x / 16 from first_row on, those before `rows`, and output
 * threadIdx.x % 16. Called by all threads.
 *   load(block, w)        w: eight words with the codes of TD_CUDA_GROUP_BLOCK k, of the lane's outputs g and g + 8
 *   codes(w, k, j, out)   of the j-th 32 of these k, which begin at k, as the matrix instruction takes them
 *   scale(group)          of this thread's output */
template <class LOAD, class CODES, class SCALE>
TD_FN float group_sums(const group_rows &a, td_u32 k_all, td_u32 size, td_u32 first_row, td_u32 rows, const LOAD &load,
                       const CODES &codes, const SCALE &scale) {
    TD_SHARED(int, sums, GROUP_WARPS *GROUPS_OF_BLOCK_MAX *GROUP_OUTPUTS);
    const td_u32 warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const td_u32 groups = k_all / size, blocks = (k_all + TD_CUDA_GROUP_BLOCK - 1) / TD_CUDA_GROUP_BLOCK;
    const td_u32 per_block = TD_CUDA_GROUP_BLOCK / size, row = first_row + g;
    const td_i8 *x = row < rows ? a.x + source_row(a, row) * a.ldx : nullptr;
    float        acc = 0;

    for (td_u32 first = 0; first < blocks; first += GROUP_WARPS) {
        const td_u32 block = first + warp;
        if (block < blocks) {
            unsigned w[8];
            load(block, w);
            int sum[4] = {0, 0, 0, 0};
#pragma unroll
            for (td_u32 j = 0; j < 4; j++) {
                const td_u32 k = block * TD_CUDA_GROUP_BLOCK + j * 32;
                unsigned     b[2] = {0, 0}, c[4];
                for (td_u32 i = 0; i < 2 && x; i++) b[i] = td_load<unsigned>(x + k + i * 16 + t * 4);
                codes(w, k, j, c);
                /* Writes the sums of a group of this warp's block. */
                const auto leave = [&](td_u32 group) {
                    for (int e = 0; e < 4; e++) {
                        const td_u32 output = (t * 2 + e % 2) * TD_CUDA_TILE_N + g + e / 2 * 8;
                        sums[(warp * GROUPS_OF_BLOCK_MAX + group) * GROUP_OUTPUTS + output] = sum[e];
                        sum[e] = 0;
                    }
                };
                if (size == 16) {
                    td_mma_s8_k16(sum, c, b);
                    leave(j * 2);
                    td_mma_s8_k16(sum, c + 2, b + 1);
                    leave(j * 2 + 1);
                } else {
                    td_mma_s8_k32(sum, c, b);
                    if ((j + 1) * 32 % size == 0) leave(j * 32 / size);
                }
            }
        }
        __syncthreads();
        if (threadIdx.x < GROUP_OUTPUTS) {
            for (td_u32 i = 0; i < GROUP_WARPS * per_block; i++) {
                const td_u32 group = first * per_block + i;
                if (group >= groups) break;
                const int sum = sums[(i / per_block * GROUPS_OF_BLOCK_MAX + i % per_block) * GROUP_OUTPUTS + threadIdx.x];
                acc = fmaf(static_cast<float>(sum), scale(group), acc);
            }
        }
        __syncthreads();
    }
    return acc;
}

/* Rows from first_row on, those before `rows`. */
template <bool FLOAT>
TD_FN void group_linear(const group_args &a, td_u32 first_row, td_u32 rows) {
    const td_u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, first_output = blockIdx.y * TD_CUDA_TILE_N;
    const td_u32 groups = a.k / a.size, blocks = (a.k + TD_CUDA_GROUP_BLOCK - 1) / TD_CUDA_GROUP_BLOCK;
    const td_u32 column = first_output + threadIdx.x % TD_CUDA_TILE_N;
    if (first_row >= rows) return;
    const auto load = [&](td_u32 block, unsigned *w) {
        for (int half = 0; half < 2; half++) {
            const td_u32 output = first_output + g + half * 8;
            const uint4  zero = {0, 0, 0, 0};
            const uint4  v =
                output < a.n ? td_load<uint4>(a.codes + (static_cast<size_t>(output) * blocks + block) * 64 + t * 16) : zero;
            w[half * 4] = v.x, w[half * 4 + 1] = v.y, w[half * 4 + 2] = v.z, w[half * 4 + 3] = v.w;
        }
    };
    const auto codes = [&](const unsigned *w, td_u32 k, td_u32 j, unsigned *out) {
        for (int half = 0; half < 2; half++) {
            const unsigned word = w[half * 4 + j];
            if (FLOAT) {
                out[half] = e2m1_twice(word & 0xffffu);
                out[half + 2] = e2m1_twice(word >> 16);
            } else {
                const td_u32 output = first_output + g + half * 8, group = k / a.size;
                const td_u32 zero =
                    a.zero && output < a.n && group < groups ? a.zero[static_cast<size_t>(output) * groups + group] : 8u;
                out[half] = __vsub4(word & 0x0f0f0f0fu, zero * 0x01010101u);
                out[half + 2] = __vsub4(word >> 4 & 0x0f0f0f0fu, zero * 0x01010101u);
            }
        }
    };
    const auto scale = [&](td_u32 group) {
        return column < a.n ? group_scale(a.scale, a.scale_kind, static_cast<size_t>(column) * groups + group) : 0.0f;
    };
    float        acc = group_sums(a.in, a.k, a.size, first_row, rows, load, codes, scale);
    const td_u32 out_row = first_row + threadIdx.x / TD_CUDA_TILE_N;
    if (threadIdx.x >= GROUP_OUTPUTS || column >= a.n || out_row >= rows) return;
    if (FLOAT) acc = acc * (a.factor[column] * 0.5f);
    acc = acc * a.in.x_scale[source_row(a.in, out_row)];
    if (a.bias) acc += a.bias[column];
    if (a.out_is_f32)
        static_cast<float *>(a.out)[static_cast<size_t>(out_row) * a.ldo + column] = acc;
    else
        static_cast<td_bf16 *>(a.out)[static_cast<size_t>(out_row) * a.ldo + column] = td_to_bf16(acc);
}

/**
 * grid (rows of the bucket / 8 rounded up, n / TILE_N rounded up), block TD_CUDA_LINEAR_THREADS.
 * @param x      [rows, ldx] codes; ldx at least k rounded up to TD_CUDA_GROUP_BLOCK, zeros from k on
 * @param codes  [n, blocks of TD_CUDA_GROUP_BLOCK, 64 bytes] (cuda_pack.h), 16-byte aligned
 * @param scale  [n, k / size] of the kind TD_CUDA_SCALE_…
 * @param zero   [n, k / size] or NULL: all are 8
 * @param k      a multiple of size; size 32, 64 or 128, of e2m1 16 or 32
 */
TD_KERNEL(TD_CUDA_LINEAR_THREADS)
td_int4_linear(const td_u32 *n_rows, const td_i8 *x, td_u32 ldx, const float *x_scale, const td_u8 *codes, const void *scale,
               td_u32 scale_kind, const td_u8 *zero, const float *bias, td_u32 n, td_u32 k, td_u32 size, void *out,
               td_u32 ldo, td_u32 out_is_f32) {
    group_linear<false>(
        {{nullptr, x, ldx, x_scale}, codes, scale, scale_kind, zero, nullptr, bias, n, k, size, ldo, out_is_f32, out},
        blockIdx.x * GROUP_ROWS, *n_rows);
}
/** @param factor [n] */
TD_KERNEL(TD_CUDA_LINEAR_THREADS)
td_fp4_linear(const td_u32 *n_rows, const td_i8 *x, td_u32 ldx, const float *x_scale, const td_u8 *codes, const void *scale,
              td_u32 scale_kind, const float *factor, const float *bias, td_u32 n, td_u32 k, td_u32 size, void *out,
              td_u32 ldo, td_u32 out_is_f32) {
    group_linear<true>(
        {{nullptr, x, ldx, x_scale}, codes, scale, scale_kind, nullptr, factor, bias, n, k, size, ldo, out_is_f32, out},
        blockIdx.x * GROUP_ROWS, *n_rows);
}

/**
 * out [places, n] f32 = x w^T of each expert's rows. grid (tiles, n / TILE_N rounded up), block TD_CUDA_LINEAR_THREADS; of
 * tiles as td_experts_place makes them with 8 rows.
 * @param row_at [places] the row of x that a place has; NULL: x has a row for each place
 * @param w      [n_experts]
 */
#define EXPERTS_IN_GROUPS(name, is_float)                                                                                   \
    TD_KERNEL(TD_CUDA_LINEAR_THREADS)                                                                                       \
    name(const td_u32 *totals, const td_u32 *tiles, const td_u32 *row_at, const td_i8 *x, td_u32 ldx, const float *x_scale, \
         const td_cuda_expert_matrix *w, td_u32 scale_kind, td_u32 n, td_u32 k, td_u32 size, float *out) {                  \
        expert_tile tile;                                                                                                   \
        if (!expert_tile_of_block(totals, tiles, &tile)) return;                                                            \
        const td_cuda_expert_matrix &own = w[tile.expert];                                                                  \
        group_linear<is_float>({{row_at, x, ldx, x_scale},                                                                  \
                                td_device_pointer<const td_u8>(own.data),                                                   \
                                td_device_pointer<const td_u8>(own.scale),                                                  \
                                scale_kind,                                                                                 \
                                td_device_pointer<const td_u8>(own.zero),                                                   \
                                td_device_pointer<const float>(own.factor),                                                 \
                                nullptr,                                                                                    \
                                n,                                                                                          \
                                k,                                                                                          \
                                size,                                                                                       \
                                n,                                                                                          \
                                1,                                                                                          \
                                out},                                                                                       \
                               tile.first, tile.end);                                                                       \
    }
EXPERTS_IN_GROUPS(td_experts_int4, false)
EXPERTS_IN_GROUPS(td_experts_fp4, true)

/* The codes of e2m1 of four bytes, one a byte, to twice their values. */
TD_FN unsigned e2m1_of_bytes(unsigned four) {
    return e2m1_twice(__byte_perm(four | four >> 4, 0, 0x4420));
}

/* Of an expert in a slot: the 16 outputs of a part of a tile. */
template <bool FLOAT>
TD_FN void packed_groups(const packed_slots &slots, const group_rows &in, const expert_tile &rows, const packed_out &out) {
    const td_cuda_packed &p = *slots.shape;
    const td_u8          *expert = packed_expert_at(slots, rows.expert);
    const td_u32          g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, half = p.nr / 2;
    if (!expert) return;
    const packed_part own = packed_part_at(slots, expert, blockIdx.y);
    if (!own.tile) return;
    const td_u32 pair = own.part * 8 + g, row = row_of_pair(p.nr, own.part, threadIdx.x % TD_CUDA_TILE_N);
    const td_u32 in_block = (1u << p.block_shift) / p.group_size, scales = in_block * p.nr * p.scale_bytes;
    const auto   block_of = [&](td_u32 k) {
        return own.tile + p.head_bytes + static_cast<size_t>(k >> p.block_shift) * p.block_bytes;
    };
    const auto load = [&](td_u32 block, unsigned *w) {
        for (td_u32 i = 0; i < 8; i++) {
            const td_u32 k = block * TD_CUDA_GROUP_BLOCK + i * 16 + t * 4, inner = k & ((1u << p.block_shift) - 1);
            w[i] = td_load<unsigned>(block_of(k) + scales + (inner / p.run * half + pair) * p.run + inner % p.run);
        }
    };
    const auto codes = [&](const unsigned *w, td_u32 k, td_u32 j, unsigned *c) {
        const td_u32 zeros = p.has_zeros ? own.tile[static_cast<size_t>(k / p.group_size) * half + pair] : 0x88u;
        for (td_u32 i = 0; i < 2; i++) {
            const td_u32 low = low_codes(w[j * 2 + i]), high = high_codes(w[j * 2 + i], p.flip);
            c[i * 2] = FLOAT ? e2m1_of_bytes(low) : __vsub4(low, (zeros & 15) * 0x01010101u);
            c[i * 2 + 1] = FLOAT ? e2m1_of_bytes(high) : __vsub4(high, (zeros >> 4) * 0x01010101u);
        }
    };
    const auto scale = [&](td_u32 group) {
        return group_scale(block_of(group * p.group_size), p.scale_kind, group % in_block * p.nr + row);
    };
    float        acc = group_sums(in, p.k, p.group_size, rows.first, rows.end, load, codes, scale);
    const td_u32 place = rows.first + threadIdx.x / TD_CUDA_TILE_N;
    if (threadIdx.x >= GROUP_OUTPUTS || place >= rows.end || own.column + row >= p.n) return;
    if (FLOAT) acc = acc * (reinterpret_cast<const float *>(own.tile)[row] * 0.5f);
    packed_store(out, own, p.n, place, row, acc * in.x_scale[source_row(in, place)]);
}

/** As td_packed_int8_8 (linear_w8a8.cu); shape->k is a multiple of TD_CUDA_GROUP_BLOCK. */
#define PACKED_GROUPS(name, is_float)                                                                                       \
    TD_KERNEL(TD_CUDA_LINEAR_THREADS)                                                                                       \
    name(const td_u32 *totals, const td_u32 *tiles, const td_u32 *row_at, const td_i8 *x, const float *x_scale, td_u32 ldk, \
         const td_cuda_packed *shape, const td_cuda_packed_tile *packed, const td_exchange *slots,                          \
         const unsigned short *slot_of, float *out, float *up) {                                                            \
        expert_tile tile;                                                                                                   \
        if (!expert_tile_of_block(totals, tiles, &tile)) return;                                                            \
        packed_groups<is_float>({shape, packed, slots, slot_of}, {row_at, x, ldk, x_scale}, tile, {out, up});               \
    }
PACKED_GROUPS(td_packed_int4_groups, false)
PACKED_GROUPS(td_packed_fp4_groups, true)
