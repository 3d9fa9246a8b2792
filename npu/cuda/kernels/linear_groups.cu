/*
 * Rows times weights of four bits in groups, as quantised checkpoints have them: unsigned codes with a scale and perhaps a
 * zero a group (AWQ, GPTQ, compressed-tensors), or e2m1 with a scale a group and a factor a row (MXFP4, NVFP4).
 *
 * Why it is shaped so. As linear_w8a8.cu, but each group's sum is multiplied with the group's scale before groups are added,
 * in ascending order with one fused multiply-add each: the bits of the host's kernels (kernels/product/tile_gemm.h). So the
 * warps of a block take 128 k each, leave their groups' sums, which are integers, in shared memory, and a thread an output
 * adds those of all warps in order; then the next 128 k of each. Codes of a row lie in words of 16 bytes a lane, in the
 * order in which the matrix instruction takes them (cuda_pack.h); e2m1 becomes twice its value by byte permutations, an
 * integer. A block takes eight rows of activations.
 */
#include "npu/cuda/kernels/experts.cuh"

#define GROUP_WARPS (TD_CUDA_LINEAR_THREADS / 32)
#define GROUP_ROWS 8
#define GROUP_OUTPUTS (GROUP_ROWS * TD_CUDA_TILE_N)
#define GROUPS_OF_BLOCK_MAX (TD_CUDA_GROUP_BLOCK / 16)

struct group_args {
    const td_u32 *row_of; /* [rows] the row of x that row i is, or NULL: i */
    const td_i8  *x;      /* [*, ldx] */
    td_u32        ldx;
    const float  *x_scale;
    const td_u8  *codes; /* [n, blocks of k, 64] */
    const void   *scale; /* [n, k / size] */
    td_u32        scale_kind;
    const td_u8  *zero;   /* [n, k / size] or NULL: 8 */
    const float  *factor; /* [n]: e2m1 */
    const float  *bias;
    td_u32        n, k, size, ldo, out_is_f32;
    void         *out;
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

TD_FN size_t source_row(const group_args &a, td_u32 row) {
    return a.row_of ? a.row_of[row] : row;
}

/* Rows from first_row on, those before `rows`. */
template <bool FLOAT>
TD_FN void group_linear(const group_args &a, td_u32 first_row, td_u32 rows) {
    TD_SHARED(int, sums, GROUP_WARPS *GROUPS_OF_BLOCK_MAX *GROUP_OUTPUTS);
    const td_u32 warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if (first_row >= rows) return;
    const td_u32 groups = a.k / a.size, blocks = (a.k + TD_CUDA_GROUP_BLOCK - 1) / TD_CUDA_GROUP_BLOCK;
    const td_u32 per_block = TD_CUDA_GROUP_BLOCK / a.size, first_output = blockIdx.x * TD_CUDA_TILE_N;
    const td_u32 row = first_row + g;
    const td_i8 *x = row < rows ? a.x + source_row(a, row) * a.ldx : nullptr;
    float        acc = 0; /* of output threadIdx.x % 16 of row threadIdx.x / 16, in half of the threads */
    const td_u32 column = first_output + threadIdx.x % TD_CUDA_TILE_N;

    for (td_u32 first = 0; first < blocks; first += GROUP_WARPS) {
        const td_u32 block = first + warp;
        if (block < blocks) {
            unsigned w[2][4];
            for (int half = 0; half < 2; half++) {
                const td_u32 output = first_output + g + half * 8;
                const uint4  zero = {0, 0, 0, 0};
                const uint4  v = output < a.n
                                     ? td_load<uint4>(a.codes + (static_cast<size_t>(output) * blocks + block) * 64 + t * 16)
                                     : zero;
                w[half][0] = v.x, w[half][1] = v.y, w[half][2] = v.z, w[half][3] = v.w;
            }
            int sum[4] = {0, 0, 0, 0};
#pragma unroll
            for (td_u32 j = 0; j < 4; j++) {
                const td_u32 k = block * TD_CUDA_GROUP_BLOCK + j * 32;
                unsigned     b[2] = {0, 0}, codes[4];
                for (td_u32 i = 0; i < 2 && x; i++) b[i] = td_load<unsigned>(x + k + i * 16 + t * 4);
                for (int half = 0; half < 2; half++) {
                    const unsigned word = w[half][j];
                    if (FLOAT) {
                        codes[half] = e2m1_twice(word & 0xffffu);
                        codes[half + 2] = e2m1_twice(word >> 16);
                    } else {
                        const td_u32 output = first_output + g + half * 8, group = k / a.size;
                        const td_u32 zero = a.zero && output < a.n && group < groups
                                                ? a.zero[static_cast<size_t>(output) * groups + group]
                                                : 8u;
                        codes[half] = __vsub4(word & 0x0f0f0f0fu, zero * 0x01010101u);
                        codes[half + 2] = __vsub4(word >> 4 & 0x0f0f0f0fu, zero * 0x01010101u);
                    }
                }
                const auto leave = [&](td_u32 group) { /* of this warp's block */
                                                       for (int e = 0; e < 4; e++) {
                                                           sums[(warp * GROUPS_OF_BLOCK_MAX + group) * GROUP_OUTPUTS +
                                                                (t * 2 + e % 2) * TD_CUDA_TILE_N + g + e / 2 * 8] = sum[e];
                                                           sum[e] = 0;
                                                       }
                };
                if (a.size == 16) {
                    td_mma_s8_k16(sum, codes, b);
                    leave(j * 2);
                    td_mma_s8_k16(sum, codes + 2, b + 1);
                    leave(j * 2 + 1);
                } else {
                    td_mma_s8_k32(sum, codes, b);
                    if ((j + 1) * 32 % a.size == 0) leave(j * 32 / a.size);
                }
            }
        }
        __syncthreads();
        if (threadIdx.x < GROUP_OUTPUTS && column < a.n) {
            for (td_u32 i = 0; i < GROUP_WARPS * per_block; i++) {
                const td_u32 group = first * per_block + i;
                if (group >= groups) break;
                const int sum = sums[(i / per_block * GROUPS_OF_BLOCK_MAX + i % per_block) * GROUP_OUTPUTS + threadIdx.x];
                acc = fmaf(static_cast<float>(sum),
                           group_scale(a.scale, a.scale_kind, static_cast<size_t>(column) * groups + group), acc);
            }
        }
        __syncthreads();
    }
    const td_u32 out_row = first_row + threadIdx.x / TD_CUDA_TILE_N;
    if (threadIdx.x >= GROUP_OUTPUTS || column >= a.n || out_row >= rows) return;
    if (FLOAT) acc = acc * (a.factor[column] * 0.5f);
    acc = acc * a.x_scale[source_row(a, out_row)];
    if (a.bias) acc += a.bias[column];
    if (a.out_is_f32)
        static_cast<float *>(a.out)[static_cast<size_t>(out_row) * a.ldo + column] = acc;
    else
        static_cast<td_bf16 *>(a.out)[static_cast<size_t>(out_row) * a.ldo + column] = td_to_bf16(acc);
}

/**
 * grid (n / TILE_N rounded up, rows of the bucket / 8 rounded up), block TD_CUDA_LINEAR_THREADS.
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
        {nullptr, x, ldx, x_scale, codes, scale, scale_kind, zero, nullptr, bias, n, k, size, ldo, out_is_f32, out},
        blockIdx.y * GROUP_ROWS, *n_rows);
}
/** @param factor [n] */
TD_KERNEL(TD_CUDA_LINEAR_THREADS)
td_fp4_linear(const td_u32 *n_rows, const td_i8 *x, td_u32 ldx, const float *x_scale, const td_u8 *codes, const void *scale,
              td_u32 scale_kind, const float *factor, const float *bias, td_u32 n, td_u32 k, td_u32 size, void *out,
              td_u32 ldo, td_u32 out_is_f32) {
    group_linear<true>(
        {nullptr, x, ldx, x_scale, codes, scale, scale_kind, nullptr, factor, bias, n, k, size, ldo, out_is_f32, out},
        blockIdx.y * GROUP_ROWS, *n_rows);
}

/**
 * out [places, n] f32 = x w^T of each expert's rows. grid (n / TILE_N rounded up, tiles), block TD_CUDA_LINEAR_THREADS; of
 * tiles as td_experts_place makes them with 8 rows.
 * @param row_at [places] the row of x that a place has; NULL: x has a row for each place
 * @param w      [n_experts]
 */
#define EXPERTS_IN_GROUPS(name, is_float)                                                                                 \
    TD_KERNEL(TD_CUDA_LINEAR_THREADS)                                                                                     \
    name(const td_u32 *totals, const td_u32 *tiles, const td_u32 *row_at, const td_i8 *x, td_u32 ldx,                     \
         const float *x_scale, const td_cuda_expert_matrix *w, td_u32 scale_kind, td_u32 n, td_u32 k, td_u32 size,        \
         float *out) {                                                                                                    \
        expert_tile tile;                                                                                                 \
        if (!expert_tile_of_block(totals, tiles, &tile)) return;                                                          \
        const td_cuda_expert_matrix &own = w[tile.expert];                                                                \
        group_linear<is_float>({row_at, x, ldx, x_scale, td_device_pointer<const td_u8>(own.data),                        \
                                td_device_pointer<const td_u8>(own.scale), scale_kind,                                    \
                                td_device_pointer<const td_u8>(own.zero), td_device_pointer<const float>(own.factor),     \
                                nullptr, n, k, size, n, 1, out},                                                          \
                               tile.first, tile.end);                                                                     \
    }
EXPERTS_IN_GROUPS(td_experts_int4, false)
EXPERTS_IN_GROUPS(td_experts_fp4, true)
