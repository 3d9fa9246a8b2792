/*
 * Rows of the embedding table.
 *
 * Why it is shaped so. It is a copy: a block takes a row, and its threads the row's words of 16 bytes one after the other,
 * so that each read and write is of whole sectors. Rows whose width is no multiple of eight go element by element.
 */
#include "npu/cuda/kernels/kernel.cuh"

/**
 * out[i, :] = table[token[i], :], i < *n_rows.
 * grid (rows of the bucket), block TD_CUDA_EMBED_THREADS.
 * @param table [vocab, hidden] bf16; 16-byte aligned, as out.
 * @param token [rows] ids; one that is not below vocab gives NaN.
 * @param out   [rows, hidden] bf16
 */
TD_KERNEL(TD_CUDA_EMBED_THREADS)
td_embed(const td_u32 *n_rows, const td_u32 *token, const td_bf16 *table, td_u32 vocab, td_u32 hidden, td_bf16 *out) {
    const size_t row = blockIdx.x;
    if (row >= *n_rows) return;
    const td_u32   id = token[row];
    const td_bf16 *from = table + static_cast<size_t>(id) * hidden;
    td_bf16       *to = out + row * hidden;
    if (id >= vocab) {
        for (td_u32 i = threadIdx.x; i < hidden; i += blockDim.x) to[i] = 0x7fc0u;
    } else if (hidden % 8 == 0) {
        for (td_u32 i = threadIdx.x * 8; i < hidden; i += blockDim.x * 8) td_store(to + i, td_load<uint4>(from + i));
    } else {
        for (td_u32 i = threadIdx.x; i < hidden; i += blockDim.x) to[i] = from[i];
    }
}
