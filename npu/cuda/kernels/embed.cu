/*
 * Rows of the embedding table.
 *
 * Why it is shaped so. It is a copy: a thread takes a row's word of 16 bytes, and a row has several blocks, so that all its
 * reads are under way at once. Rows whose width is no multiple of eight go element by element.
 */
#include "npu/cuda/kernels/kernel.cuh"

/**
 * out[i, :] = table[token[i], :], i < *n_rows.
 * grid (hidden / TD_CUDA_EMBED_VALUES rounded up, rows of the bucket), block TD_CUDA_EMBED_THREADS.
 * @param table [vocab, hidden] bf16; 16-byte aligned, as out.
 * @param token [rows] ids; one that is not below vocab gives NaN.
 * @param out   [rows, hidden] bf16
 */
TD_KERNEL(TD_CUDA_EMBED_THREADS)
td_embed(const td_u32 *n_rows, const td_u32 *token, const td_bf16 *table, td_u32 vocab, td_u32 hidden, td_bf16 *out) {
    const size_t row = blockIdx.y;
    const td_u32 at = (blockIdx.x * TD_CUDA_EMBED_THREADS + threadIdx.x) * 8;
    if (row >= *n_rows || at >= hidden) return;
    const td_u32   id = token[row];
    const td_bf16 *from = table + static_cast<size_t>(id) * hidden;
    td_bf16       *to = out + row * hidden;
    if (hidden % 8 == 0 && id < vocab) {
        td_store(to + at, td_load<uint4>(from + at));
        return;
    }
    for (td_u32 i = at; i < min(at + 8, hidden); i++) to[i] = id < vocab ? from[i] : static_cast<td_bf16>(0x7fc0u);
}
