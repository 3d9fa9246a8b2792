/*
 * What blocks are written in: launches of kernels, and products of rows with weights.
 *
 * DESIGN. A run is one block over one step. Failures stay in it: after the first, nothing more is launched. Sizes are those
 * of the bucket; how many rows there are, kernels read from the device (td_cuda_count).
 */
#ifndef TD_NPU_CUDA_CUDA_OP_H
#define TD_NPU_CUDA_CUDA_OP_H

#include "core/mem.h"
#include "npu/cuda/cuda_weight.h"

#define TD_CUDA_GRID_MAX 65535 /* blocks along y and z */

typedef struct {
    td_cuda_npu   *d;
    td_cu_stream   stream;
    const td_step *step;
    char          *scratch;
    uint32_t       launches; /* so far */
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

/** Whether a block of threads can have so much dynamic shared memory. */
TD_NODISCARD td_status td_cuda_need_shared(const td_cuda_npu *d, size_t bytes, const char *what, td_error *err);

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

/* ---- products ---------------------------------------------------------------------------------- */

/** Rows that are multiplied: as bf16, as codes with scales, or both. */
typedef struct {
    td_cuda_count n;
    const void   *x; /* bf16 [most, k] */
    const void   *q; /* [most, td_cuda_row_codes(k)], zeros behind k */
    const void   *scale;
} td_cuda_rows;

/** Where rows are prepared, in the block's scratch. */
typedef struct {
    size_t q, scale, x;
} td_cuda_rows_places;

/** Places for rows of k; x where they come as f32. */
td_cuda_rows_places td_cuda_place_rows(size_t *used, size_t rows, size_t k, bool of_f32);

/** The block's input from the step's first row on, as these weights take it. in_i8.q may be NULL; it, scale and in are those
 * of the descriptor. */
td_cuda_rows td_cuda_input(td_cuda_run *r, const td_cuda_rows_places *at, const td_npu_weight *const *w, size_t n_w,
                           const void *in, td_rows_i8 in_i8, size_t k);

/** x [most, k] f32, as the weight takes it. */
td_cuda_rows td_cuda_rows_of_f32(td_cuda_run *r, const td_cuda_rows_places *at, const td_npu_weight *w, td_cuda_count n,
                                 const void *x, size_t k);
/** x [most, k] bf16, as the weight takes it. */
td_cuda_rows td_cuda_rows_of_bf16(td_cuda_run *r, const td_cuda_rows_places *at, const td_npu_weight *w, td_cuda_count n,
                                  const void *x, size_t k);

/** out [most, w->n] = rows w^T + bias, in f32 or bf16. @param bias NULL: none. */
void td_cuda_product(td_cuda_run *r, const td_cuda_rows *rows, const td_npu_weight *w, const td_npu_weight *bias, void *out,
                     bool out_is_f32);

/** TD_CUDA_SCALE_… of the scales of groups. */
uint32_t td_cuda_scale_kind(td_dtype dtype);

/** Products in bf16 of a batch of heads: out[b] [most, n] = x[b] w[b]^T. Sizes are elements. */
typedef struct {
    td_cuda_count n_rows;
    const void   *x, *w;
    void         *out;
    size_t        n, k, ldx, x_head, w_head, ldo, out_head, heads;
    bool          by_columns; /* w[b] is [k, n] */
    bool          out_is_f32;
} td_cuda_heads_product;

void td_cuda_product_of_heads(td_cuda_run *r, const td_cuda_heads_product *p);

#endif
