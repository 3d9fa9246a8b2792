/*
 * The hand-over of rows between the card and the host's experts: one kernel carries them up and rings a bell, one waits for
 * a bell and carries rows down.
 *
 * Why it is shaped so. A copy is a node of a graph that takes some 2 us, however little it copies, and a row is 5 arrays of
 * which the longest has some KB. So a kernel reads all of them and writes into the host's pinned memory, or the other way
 * round. It carries the step's rows, not the bucket's: how many there are it reads from the card's memory. A row or two are
 * of one block. More are of several, of which each has 32 KiB on their way at a time: so the link is full with two or three.
 *
 * Where the ends of what is carried of an array are multiples of 16 bytes, it goes by vectors. Those of all arrays are counted
 * through: a thread has four of them under way, and the short arrays do not wait for the long one. What is left, as a few
 * scales, goes by words or bytes, by the threads that come last to vectors.
 *
 * Order. A block's writes come before its count in `came`, and the last block's count before the bell, which is set with a
 * release of system scope. So the host, which reads the bell with an acquire, sees all rows. Each block that carries rows
 * down reads the bell by itself, with an acquire. So no block waits for another, and what it reads is what the host wrote.
 * The last block to have read the bell silences it.
 *
 * Nothing but the bell ends a wait. On the same stream a ring has come before it, and who hears the ring always answers, also
 * in a pass that is broken off (bridge.h). The kernels of a process that ended are ended by the driver.
 */
#include "npu/cuda/kernels/kernel.cuh"

/* The rows of a launch. */
struct carried_rows {
    td_u8       *to[TD_CUDA_CARRIED];
    const td_u8 *from[TD_CUDA_CARRIED];
    size_t       bytes[TD_CUDA_CARRIED];
    td_u32       end[TD_CUDA_CARRIED]; /* vectors of the arrays up to this one's end; it may have none */
    td_u32       blocks;               /* that have something to carry, or one */
};

TD_FN size_t ends_of(const carried_rows &c, int i) {
    return reinterpret_cast<size_t>(c.to[i]) | reinterpret_cast<size_t>(c.from[i]) | c.bytes[i];
}

TD_FN carried_rows rows_to_carry(const td_u32 *n_rows, td_u8 *to0, const td_u8 *from0, td_u32 row0, td_u8 *to1,
                                 const td_u8 *from1, td_u32 row1, td_u8 *to2, const td_u8 *from2, td_u32 row2, td_u8 *to3,
                                 const td_u8 *from3, td_u32 row3) {
    const size_t rows = n_rows ? *n_rows : 0;
    carried_rows c = {
        {to0, to1, to2, to3}, {from0, from1, from2, from3}, {rows * row0, rows * row1, rows * row2, rows * row3}, {}, 0};
    size_t bytes = 0;
    td_u32 vectors = 0;
#pragma unroll
    for (int i = 0; i < TD_CUDA_CARRIED; i++) {
        bytes += c.bytes[i];
        if (ends_of(c, i) % 16 == 0) vectors += static_cast<td_u32>(c.bytes[i] / 16);
        c.end[i] = vectors;
    }
    c.blocks = static_cast<td_u32>((bytes + TD_CUDA_CARRY_BYTES - 1) / TD_CUDA_CARRY_BYTES);
    c.blocks = max(min(c.blocks, gridDim.x), 1u);
    return c;
}

/* Where vector n of all arrays' is. */
struct vector_places {
    td_u8       *to;
    const td_u8 *from;
};
TD_FN vector_places places_of_vector(const carried_rows &c, td_u32 n) {
    vector_places p = {c.to[0], c.from[0]};
    td_u32        begin = 0;
#pragma unroll
    for (int i = 1; i < TD_CUDA_CARRIED; i++)
        if (n >= c.end[i - 1]) p = {c.to[i], c.from[i]}, begin = c.end[i - 1];
    const size_t at = static_cast<size_t>(n - begin) * 16;
    return {p.to + at, p.from + at};
}

TD_FN void carry_vectors(const carried_rows &c) {
    const td_u32 step = c.blocks * TD_CUDA_CARRY_THREADS, n = c.end[TD_CUDA_CARRIED - 1];
    for (td_u32 first = blockIdx.x * TD_CUDA_CARRY_THREADS + threadIdx.x; first < n; first += TD_CUDA_CARRY_FLIGHT * step) {
        vector_places p[TD_CUDA_CARRY_FLIGHT] = {};
        uint4         held[TD_CUDA_CARRY_FLIGHT] = {};
#pragma unroll
        for (td_u32 i = 0; i < TD_CUDA_CARRY_FLIGHT; i++) {
            if (first + i * step >= n) continue;
            p[i] = places_of_vector(c, first + i * step);
            held[i] = td_load<uint4>(p[i].from);
        }
#pragma unroll
        for (td_u32 i = 0; i < TD_CUDA_CARRY_FLIGHT; i++)
            if (first + i * step < n) td_store(p[i].to, held[i]);
    }
}

TD_FN void carry_rest(const carried_rows &c) {
    const size_t step = static_cast<size_t>(c.blocks) * TD_CUDA_CARRY_THREADS;
    const size_t first = step - 1 - (blockIdx.x * TD_CUDA_CARRY_THREADS + threadIdx.x);
#pragma unroll
    for (int i = 0; i < TD_CUDA_CARRIED; i++) {
        if (ends_of(c, i) % 16 == 0) continue;
        if (ends_of(c, i) % 4 == 0)
            for (size_t at = first * 4; at < c.bytes[i]; at += step * 4)
                td_store(c.to[i] + at, td_load<td_u32>(c.from[i] + at));
        else
            for (size_t at = first; at < c.bytes[i]; at += step) c.to[i][at] = c.from[i][at];
    }
}

/* What is this block's. */
TD_FN void carry(const carried_rows &c) {
    carry_vectors(c);
    carry_rest(c);
}

/* For one thread of each block: whether all others have come here. What they did before comes before what this one does. */
TD_FN bool is_last(td_u32 *came, td_u32 blocks) {
    if (blocks == 1) return true;
    if (td_count_in_order(came) != blocks - 1) return false;
    *came = 0; /* as the next such kernel wants it */
    return true;
}

/**
 * Carry the step's rows and set the bell to 1. grid (blocks that the bucket's rows fill, TD_CUDA_CARRY_BLOCKS at most),
 * block TD_CUDA_CARRY_THREADS.
 * @param n_rows NULL: none are carried
 * @param to0..  row 0 of up to TD_CUDA_CARRIED arrays, in the card's memory or the host's; not read where row is 0
 * @param row0.. bytes of a row
 * @param came   0, and 0 again behind the kernel
 */
TD_KERNEL(TD_CUDA_CARRY_THREADS)
td_ring_rows(const td_u32 *n_rows, td_u8 *to0, const td_u8 *from0, td_u32 row0, td_u8 *to1, const td_u8 *from1, td_u32 row1,
             td_u8 *to2, const td_u8 *from2, td_u32 row2, td_u8 *to3, const td_u8 *from3, td_u32 row3, td_u32 *came,
             td_signal *bell) {
    const carried_rows c = rows_to_carry(n_rows, to0, from0, row0, to1, from1, row1, to2, from2, row2, to3, from3, row3);
    if (blockIdx.x >= c.blocks) return;
    carry(c);
    __syncthreads();
    if (threadIdx.x == 0 && is_last(came, c.blocks)) td_signal_set(bell, 1);
}

/** Wait until the bell is 1, set it to 0, and carry the step's rows. Arguments, grid and block as td_ring_rows's. */
TD_KERNEL(TD_CUDA_CARRY_THREADS)
td_await_rows(const td_u32 *n_rows, td_u8 *to0, const td_u8 *from0, td_u32 row0, td_u8 *to1, const td_u8 *from1, td_u32 row1,
              td_u8 *to2, const td_u8 *from2, td_u32 row2, td_u8 *to3, const td_u8 *from3, td_u32 row3, td_u32 *came,
              td_signal *bell) {
    const carried_rows c = rows_to_carry(n_rows, to0, from0, row0, to1, from1, row1, to2, from2, row2, to3, from3, row3);
    if (blockIdx.x >= c.blocks) return;
    if (threadIdx.x == 0)
        while (td_signal_get(bell) == 0) continue;
    __syncthreads();
    carry(c);
    if (threadIdx.x == 0 && is_last(came, c.blocks)) td_signal_silence(bell);
}
