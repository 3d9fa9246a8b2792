/*
 * What blocks are written in: launches of kernels.
 *
 * DESIGN. A run is one block over one step. Failures stay in it: after the first, nothing more is launched. Sizes are those
 * of the bucket; how many rows there are, kernels read from the device (td_cuda_count).
 */
#ifndef TD_NPU_CUDA_CUDA_OP_H
#define TD_NPU_CUDA_CUDA_OP_H

#include "core/memory/mem.h"
#include "npu/cuda/cuda_device.h"

#define TD_CUDA_GRID_MAX 65535 /* blocks along y and z */

typedef struct {
    td_cuda_npu   *d;
    td_cu_stream   stream;
    const td_step *step;
    char          *scratch, *library; /* of the block; of cuBLASLt's products (cuda_product.h), NULL: none */
    uint32_t       launches;          /* so far */
    td_status      status;
} td_cuda_run;

/** Rows of something: how many there are, as a word of device memory, and how many there can be. */
typedef struct {
    const void *count;
    uint32_t    most;
} td_cuda_count;

typedef struct {
    size_t x, y, z; /* blocks; none along one of them: nothing is launched */
} td_cuda_grid;

/** Launch with n_args pointers to the arguments, which are copied. @param shared bytes of dynamic shared memory. */
void td_cuda_launch(td_cuda_run *r, td_cuda_kernel_id id, td_cuda_grid grid, size_t shared, void *const *args,
                    size_t n_args);

/* TD_CUDA_LAUNCH(r, EMBED, grid, shared, TD_P(pointer), TD_U(number), TD_F(real)…) */
#define TD_P(pointer) (&(const void *){pointer})
#define TD_U(number) (&(uint32_t){(uint32_t)(number)})
#define TD_F(real) (&(float){real})
#define TD_CUDA_LAUNCH(r, id, grid, shared, ...)                                       \
    td_cuda_launch(r, TD_CUDA_KERNEL_##id, grid, shared, (void *const[]){__VA_ARGS__}, \
                   sizeof((void *const[]){__VA_ARGS__}) / sizeof(void *))
#define TD_GRID(...) ((td_cuda_grid){__VA_ARGS__})
/** Launch a kernel, by its td_cuda_kernel_id, that has a block for each row; or one in its variant for rows of k values. */
#define TD_CUDA_LAUNCH_ONE(r, id, rows, ...)                                    \
    td_cuda_launch(r, id, TD_GRID(rows, 1, 1), 0, (void *const[]){__VA_ARGS__}, \
                   sizeof((void *const[]){__VA_ARGS__}) / sizeof(void *))
#define TD_CUDA_LAUNCH_ROWS(r, id, k, rows, ...) \
    TD_CUDA_LAUNCH_ONE(r, (k) <= TD_CUDA_SHORT_MAX ? TD_CUDA_KERNEL_##id##_SHORT : TD_CUDA_KERNEL_##id, rows, __VA_ARGS__)

/** Whether a block of threads can have so much dynamic shared memory. */
TD_NODISCARD td_status td_cuda_need_shared(const td_cuda_npu *d, size_t bytes, const char *what, td_error *err);

/** Whether a row of so many values can be normed. */
TD_NODISCARD td_status td_cuda_check_norm(size_t values, size_t most, const char *what, td_error *err);

static inline td_cuda_count td_cuda_n_tok(const td_cuda_run *r) {
    return (td_cuda_count){&r->step->dev.counts->n_tok, r->step->max_tok};
}
static inline td_cuda_count td_cuda_n_out(const td_cuda_run *r) {
    return (td_cuda_count){&r->step->dev.counts->n_out, r->step->max_out};
}
static inline const void *td_cuda_n_seq(const td_cuda_run *r) {
    return &r->step->dev.counts->n_seq;
}

/** Where the step's first row is in a buffer with rows of so many bytes; NULL stays NULL. */
static inline void *td_cuda_at_row(const td_cuda_run *r, const void *buffer, size_t row_bytes) {
    return buffer ? (char *)(uintptr_t)buffer + r->step->first_row * row_bytes : NULL;
}

/** Put bytes behind what is used of a scratch. @return where. */
static inline size_t td_cuda_place(size_t *used, size_t bytes) {
    size_t at = *used;
    *used = at + td_round_up(bytes, 256);
    return at;
}

#endif
