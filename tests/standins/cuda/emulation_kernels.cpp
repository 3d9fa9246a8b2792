/* Kernels for the tests of the emulation: small right ones, and one for each mistake that it is to find. */
#include "tests/standins/cuda/cuda_emulation.h"

#include "npu/cuda/kernels/kernel.cuh"

/* ---- right ----------------------------------------------------------------------------------- */

/* out[global index] = 1000 * block + thread, of a grid and blocks of three dimensions. */
TD_KERNEL(64) emu_index(td_u32 *out) {
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = 1000 * block + thread;
}

/* Each block reverses its n values through dynamic shared memory and adds the sum of all, from a static array. */
TD_KERNEL(256) emu_reverse(const int *in, int *out, td_u32 n) {
    TD_SHARED(int, sum, 1);
    TD_SHARED_DYNAMIC(int, copy);
    if (threadIdx.x == 0) sum[0] = 0;
    copy[threadIdx.x] = in[blockIdx.x * n + threadIdx.x];
    __syncthreads();
    atomicAdd(&sum[0], copy[threadIdx.x]);
    __syncthreads();
    out[blockIdx.x * n + threadIdx.x] = copy[n - 1 - threadIdx.x] + sum[0];
}

/* out[lane]: the lane's neighbour by xor 5, by down 3, lane 7's, the ballot of odd lanes, one after the other. */
TD_KERNEL(64) emu_warp(const td_u64 *in, td_u64 *out) {
    const td_u64 v = in[threadIdx.x];
    out[threadIdx.x * 4] = __shfl_xor_sync(TD_ALL_LANES, v, 5);
    out[threadIdx.x * 4 + 1] = __shfl_down_sync(TD_ALL_LANES, v, 3);
    out[threadIdx.x * 4 + 2] = __shfl_sync(TD_ALL_LANES, v, 7);
    __syncwarp();
    out[threadIdx.x * 4 + 3] = __ballot_sync(TD_ALL_LANES, (int)(v & 1));
}

/* d [16, 8] = a [16, 32] b [8, 32]^T, by both widths; and of bf16, a [16, 16], b [8, 16]. */
TD_KERNEL(32) emu_mma(const td_u8 *a, const td_u8 *b, int *d, const td_bf16 *fa, const td_bf16 *fb, float *fd) {
    const unsigned g = threadIdx.x / 4, t = threadIdx.x % 4;
    unsigned       wa[4], wb[2];
    int            sum[2][4] = {};
    for (unsigned i = 0; i < 4; i++) wa[i] = td_load<unsigned>(a + (g + i % 2 * 8) * 32 + i / 2 * 16 + t * 4);
    for (unsigned i = 0; i < 2; i++) wb[i] = td_load<unsigned>(b + g * 32 + i * 16 + t * 4);
    td_mma_s8_k32(sum[0], wa, wb);
    td_mma_s8_k16(sum[1], wa, wb);
    td_mma_s8_k16(sum[1], wa + 2, wb + 1);
    for (unsigned i = 0; i < 4; i++) {
        d[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = sum[0][i];
        d[128 + (g + i / 2 * 8) * 8 + t * 2 + i % 2] = sum[1][i];
    }
    float f[4] = {};
    for (unsigned i = 0; i < 4; i++) wa[i] = td_load<unsigned>(fa + (g + i % 2 * 8) * 16 + i / 2 * 8 + t * 2);
    for (unsigned i = 0; i < 2; i++) wb[i] = td_load<unsigned>(fb + g * 16 + i * 8 + t * 2);
    td_mma_bf16(f, wa, wb);
    for (unsigned i = 0; i < 4; i++) fd[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = f[i];
}

/* out = in through two groups of copies: the first is waited for alone. */
TD_KERNEL(64) emu_copies(const int *in, int *out) {
    TD_SHARED(int, copy, 64 * 8);
    td_async_16(copy + threadIdx.x * 8, in + threadIdx.x * 4, true);
    td_async_commit();
    td_async_16(copy + (threadIdx.x * 8 + 4), in, false);
    td_async_commit();
    td_async_wait<1>();
    __syncthreads();
    const unsigned other = 63 - threadIdx.x;
    for (unsigned i = 0; i < 4; i++) out[other * 8 + i] = copy[other * 8 + i];
    td_async_wait<0>();
    __syncthreads();
    for (unsigned i = 4; i < 8; i++) out[other * 8 + i] = copy[other * 8 + i];
}

/* ---- mistakes -------------------------------------------------------------------------------- */

TD_KERNEL(64) emu_half_a_barrier(int *out) {
    if (threadIdx.x < 32) __syncthreads();
    out[threadIdx.x] = 1;
}

TD_KERNEL(64) emu_two_barriers(int *out) {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    out[threadIdx.x] = 1;
}

TD_KERNEL(64) emu_half_a_shuffle(int *out) {
    if (threadIdx.x % 2) out[threadIdx.x] = __shfl_xor_sync(TD_ALL_LANES, 1, 1);
}

TD_KERNEL(64) emu_two_shuffles(int *out) {
    out[threadIdx.x] = threadIdx.x % 2 ? __shfl_xor_sync(TD_ALL_LANES, 1, 1) : __shfl_sync(TD_ALL_LANES, 1, 1);
}

TD_KERNEL(64) emu_some_lanes(int *out) {
    out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1, 1);
}

/* Lane 0 waits at the barrier for lanes that wait for it at a shuffle. */
TD_KERNEL(64) emu_crossed(int *out) {
    if (threadIdx.x == 0) __syncthreads();
    out[threadIdx.x] = __shfl_xor_sync(TD_ALL_LANES, 1, 1);
    if (threadIdx.x != 0) __syncthreads();
}

TD_KERNEL(64) emu_beyond_static(int *out) {
    TD_SHARED(int, array, 63);
    array[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = array[0];
}

TD_KERNEL(64) emu_beyond_dynamic(int *out) {
    TD_SHARED_DYNAMIC(int, array);
    out[threadIdx.x] = (array + threadIdx.x)[1];
}

TD_KERNEL(64) emu_too_much_static(int *out) {
    TD_SHARED(int, first, 8192);
    TD_SHARED(int, second, 8192);
    first[threadIdx.x] = second[threadIdx.x] = 1;
    out[threadIdx.x] = first[threadIdx.x];
}

TD_KERNEL(64) emu_not_aligned(int *out) {
    out[threadIdx.x] = (int)td_load<uint4>(out + 1).x;
}

TD_KERNEL(64) emu_no_wait(int *out) {
    TD_SHARED(int, copy, 64 * 4);
    td_async_16(copy + threadIdx.x * 4, out, true);
    td_async_commit();
    out[threadIdx.x] = copy[threadIdx.x * 4];
}

TD_KERNEL(64) emu_no_turn(int *out) {
    if (threadIdx.x == 63) return;
    td_take_turn();
    out[threadIdx.x] = 1;
}

/* A barrier is missing: what thread i reads depends on whether its neighbour has written. */
TD_KERNEL(64) emu_race(int *out) {
    TD_SHARED(int, array, 64);
    array[threadIdx.x] = (int)threadIdx.x;
    out[threadIdx.x] = array[(threadIdx.x + 1) % 64];
}

TD_CUDA_EXPORT(emu_index, 64)
TD_CUDA_EXPORT(emu_reverse, 256)
TD_CUDA_EXPORT(emu_warp, 64)
TD_CUDA_EXPORT(emu_mma, 32)
TD_CUDA_EXPORT(emu_copies, 64)
TD_CUDA_EXPORT(emu_no_wait, 64)
TD_CUDA_EXPORT(emu_no_turn, 64)
TD_CUDA_EXPORT(emu_half_a_barrier, 64)
TD_CUDA_EXPORT(emu_two_barriers, 64)
TD_CUDA_EXPORT(emu_half_a_shuffle, 64)
TD_CUDA_EXPORT(emu_two_shuffles, 64)
TD_CUDA_EXPORT(emu_some_lanes, 64)
TD_CUDA_EXPORT(emu_crossed, 64)
TD_CUDA_EXPORT(emu_beyond_static, 64)
TD_CUDA_EXPORT(emu_beyond_dynamic, 64)
TD_CUDA_EXPORT(emu_too_much_static, 64)
TD_CUDA_EXPORT(emu_not_aligned, 64)
TD_CUDA_EXPORT(emu_race, 64)
