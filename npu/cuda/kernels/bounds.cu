/*
 * What a card can do at most: kernels that do one thing and nothing else, to measure it by.
 *
 * Reading: threads side by side take 16 bytes each, four such loads of a thread are under way at a time, and every byte is
 * read once. Products: the matrix instructions that the other kernels use, on operands that stay in registers, in chains
 * that do not wait for each other. On cards of compute capability 9.0 and later these instructions are not the fastest that
 * there are (docs/cuda.md, "Bounds").
 *
 * Each thread writes what came out, so that a compiler leaves nothing away and a test can tell that all was done. Sums are
 * of integers, and of bf16 products that are whole numbers: they are exact.
 */
#include "npu/cuda/kernels/kernel.cuh"

TD_FN size_t own_place() {
    return static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

/** out[a thread of the grid] = the exclusive or of the words that it reads of `from`, n times 16 bytes. block
 * TD_CUDA_BOUND_THREADS, any grid along x. */
TD_KERNEL(TD_CUDA_BOUND_THREADS)
td_bound_read(const uint4 *from, td_u32 n, td_u32 *out) {
    const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
    const uint4  zero = {0, 0, 0, 0};
    td_u32       sum = 0;
    for (size_t i = own_place(); i < n; i += 4 * threads) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = i + j * threads < n ? td_load<uint4>(from + i + j * threads) : zero;
#pragma unroll
        for (int j = 0; j < 4; j++) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    out[own_place()] = sum;
}

/* Operand words that differ between lanes and are no zeros. */
TD_FN td_u32 operand(td_u32 lane, td_u32 i) {
    return (lane * 6 + i + 1) * 2654435761u;
}

/** out[a thread of the grid] = the sum of its results of rounds * TD_CUDA_BOUND_CHAINS products of 16 x 32 by 32 x 8. block
 * TD_CUDA_BOUND_THREADS, any grid along x. Exact up to 65536 rounds. */
TD_KERNEL(TD_CUDA_BOUND_THREADS)
td_bound_int8(td_u32 rounds, int *out) {
    const td_u32 lane = threadIdx.x % 32;
    int          acc[TD_CUDA_BOUND_CHAINS][4] = {};
    unsigned     a[4], b[2];
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = operand(lane, i) & 0x03030303u;
#pragma unroll
    for (int i = 0; i < 2; i++) b[i] = operand(lane, 4 + i) & 0x03030303u;
    for (td_u32 r = 0; r < rounds; r++) {
#pragma unroll
        for (int j = 0; j < TD_CUDA_BOUND_CHAINS; j++) td_mma_s8_k32(acc[j], a, b);
    }
    int sum = 0;
#pragma unroll
    for (int j = 0; j < TD_CUDA_BOUND_CHAINS; j++) sum += acc[j][0] + acc[j][1] + acc[j][2] + acc[j][3];
    out[own_place()] = sum;
}

/** The same with products of 16 x 16 by 16 x 8 in bf16: all values are 1 or -1. */
TD_KERNEL(TD_CUDA_BOUND_THREADS)
td_bound_bf16(td_u32 rounds, float *out) {
    const td_u32 lane = threadIdx.x % 32;
    float        acc[TD_CUDA_BOUND_CHAINS][4] = {};
    unsigned     a[4], b[2];
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = (operand(lane, i) & 0x80008000u) | 0x3f803f80u;
#pragma unroll
    for (int i = 0; i < 2; i++) b[i] = (operand(lane, 4 + i) & 0x80008000u) | 0x3f803f80u;
    for (td_u32 r = 0; r < rounds; r++) {
#pragma unroll
        for (int j = 0; j < TD_CUDA_BOUND_CHAINS; j++) td_mma_bf16(acc[j], a, b);
    }
    float sum = 0;
#pragma unroll
    for (int j = 0; j < TD_CUDA_BOUND_CHAINS; j++) sum += acc[j][0] + acc[j][1] + acc[j][2] + acc[j][3];
    out[own_place()] = sum;
}
