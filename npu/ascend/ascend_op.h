/*
 * The vendor's operations with their tensors. Blocks are lists of these.
 *
 * DESIGN. A td_ascend_view says which numbers: where, of what type, which rows and columns. A td_ascend_run is one launch of
 * one block over one step. Each function below launches one operation: it makes the tensors, prepares it, sees that the
 * workspace is large enough, runs it in stream order and destroys the tensors. A failure is logged and stays in
 * r->status, and the rest of the run does nothing; so a block reads as a list of operations. An executor is used once,
 * also in captures, which hold what it enqueued. All operations of a card share one workspace: they run one after the
 * other.
 */
#ifndef TD_NPU_ASCEND_ASCEND_OP_H
#define TD_NPU_ASCEND_ASCEND_OP_H

#include "npu/ascend/ascend_device.h"
#include "npu/ascend/ascend_step.h"

#define TD_ASCEND_RANK_MAX 5
#define TD_ASCEND_TENSORS_MAX 24 /* of one operation */
#define TD_ASCEND_LISTS_MAX 8

typedef struct {
    void        *data; /* 32-byte aligned device memory */
    td_acl_dtype dtype;
    uint32_t     rank;
    int64_t      shape[TD_ASCEND_RANK_MAX], stride[TD_ASCEND_RANK_MAX], offset; /* in elements */
} td_ascend_view;

/** Rows first .. first + rows - 1 of an array [., width]. */
td_ascend_view td_ascend_rows_of(const void *data, td_acl_dtype dtype, size_t first, size_t rows, size_t width);
/** n values from `first` on. */
td_ascend_view td_ascend_vector(const void *data, td_acl_dtype dtype, size_t first, size_t n);
/** Columns first .. first + width - 1 of rows. */
td_ascend_view td_ascend_columns(td_ascend_view rows, size_t first, size_t width);
/** [rows, n, size] of rows [rows, .]: of every `step` columns the first `size`. */
td_ascend_view td_ascend_heads(td_ascend_view rows, size_t n, size_t step, size_t size);
/** The same numbers with a dimension of 1 before `at`. */
td_ascend_view td_ascend_unsqueeze(td_ascend_view v, uint32_t at);
/** The transpose of rows. */
td_ascend_view td_ascend_transposed(td_ascend_view rows);

typedef struct {
    td_ascend_npu       *d;
    td_npu_stream       *s;
    td_acl_stream        stream;
    const td_step       *step;
    td_ascend_step      *made;         /* the step as operations want it */
    td_ascend_cut       *cut;          /* the step as the block's attention wants it; NULL: it has none */
    td_ascend_route     *route;        /* of routed experts: their ids, places and counts; NULL: it has none */
    char                *rope;         /* cos and sin of the rows of all steps, [2, rows of the blocks' buffers, dim] bf16 */
    char                *scratch;      /* where td_ascend_places begin */
    char                *workspace_at; /* an update of a graph: where its operation has its workspace */
    size_t               workspace_most;  /* bytes there; an operation that asks for more fails. 0: the workspace grows */
    size_t               workspace_least; /* bytes that the next operation is given at least; 0 behind it */
    size_t               workspace_used;  /* that the last operation asked for, or was given at least */
    td_status            status;
    size_t               n_tensors;
    const td_acl_tensor *tensors[TD_ASCEND_TENSORS_MAX]; /* of the operation that is being prepared */
    size_t               n_lists;
    td_acl_tensor_list  *lists[TD_ASCEND_LISTS_MAX]; /* of the same operation; lists have tensors of their own */
} td_ascend_run;

/** A tensor of the operation that is being prepared; gone when it is launched. */
td_acl_tensor *td_ascend_tensor(td_ascend_run *r, td_ascend_view v);
/** The same for a weight in NZ: [k, n] of int8, its storage [n / 32, k / 16, 16, 32]. */
td_acl_tensor *td_ascend_tensor_nz(td_ascend_run *r, const void *data, size_t k, size_t n);
/** The same for a stack of weights in NZ: [stacked, k, n] of int8, its storage [stacked, n / 32, k / 16, 16, 32]. */
td_acl_tensor *td_ascend_tensor_nz_stack(td_ascend_run *r, const void *data, size_t stacked, size_t k, size_t n);
/** That stack of whole tiles as its storage is: [stacked, n / 32, k / 16, 16, 32]. */
td_acl_tensor *td_ascend_tensor_tiles(td_ascend_run *r, const void *data, size_t stacked, size_t k, size_t n);
/** A stack of 4-bit codes: [stacked, k, n] of int4, two a byte along n; a matrix [k, n] where stacked is 0. */
td_acl_tensor *td_ascend_tensor_int4(td_ascend_run *r, const void *data, size_t stacked, size_t k, size_t n);
/** A list of one such tensor, which it takes; gone when the operation is launched. */
td_acl_tensor_list *td_ascend_list(td_ascend_run *r, const td_acl_tensor *t);
/** The second half of a launch: what the first function has said, and the second function. */
void td_ascend_launch(td_ascend_run *r, const char *op, td_aclnn_status prepared, uint64_t workspace_bytes,
                      td_acl_executor *executor, td_aclnn_run run);
/** A first half that is no launch: it has told how many bytes the next operation may ask for. It is given so many. */
void td_ascend_reserve(td_ascend_run *r, const char *what, td_aclnn_status prepared, uint64_t workspace_bytes,
                       td_acl_executor *executor);
/** That the library has it, as an operation without which nothing can be done always is (ascend_loader.c). */
#define TD_ASCEND_HAS(r, op) ((r)->d->l->ops.op != NULL)

/** TD_ASCEND_OP(r, aclnnMm, T(a), T(b), T(out), 0): both functions of an operation; see above. */
#define TD_ASCEND_OP(r, op, ...)                                                                                \
    do {                                                                                                        \
        if ((r)->status == TD_OK) {                                                                             \
            uint64_t         bytes_ = 0;                                                                        \
            td_acl_executor *executor_ = NULL;                                                                  \
            td_aclnn_status  prepared_ = (r)->d->l->ops.op##GetWorkspaceSize(__VA_ARGS__, &bytes_, &executor_); \
            td_ascend_launch(r, #op, prepared_, bytes_, executor_, (r)->d->l->ops.op);                          \
        }                                                                                                       \
    } while (0)

/* What operations ask for as workspace is known when they are prepared; this is put aside for it. Latent attention asks for
 * most: 107 MiB with 20 cores and 125 with 24, by its tiling (ops-transformer, fia_tiling_nonquant_mla.cpp). */
#define TD_ASCEND_WORKSPACE_BYTES ((size_t)128 << 20)

#define TD_ASCEND_ALIGNMENT 512 /* of a block's arrays in its scratch */
/** The place of the next `bytes` of a block's scratch. */
size_t td_ascend_place(size_t *used, size_t bytes);

/* ---- what all blocks read ----------------------------------------------------------------------- */

/** The step's rows of one of the block's buffers [., width] of bf16. */
td_ascend_view td_ascend_in_rows(const td_ascend_run *r, const void *data, size_t width);
/** The step's rows of an array in the block's scratch, which has row 0 of the step first. */
td_ascend_view td_ascend_scratch_rows(const td_ascend_run *r, size_t at, td_acl_dtype dtype, size_t width);

/* ---- operations that several blocks launch --------------------------------------------------------- */

/** out = x / sqrt(mean(x^2) + eps) * gamma [n of f32] over the last dimension; rstd: scratch, an f32 a row. */
void td_ascend_op_norm(td_ascend_run *r, td_ascend_view x, const void *gamma, double eps, td_ascend_view out, void *rstd);
/**
 * Norm and int8 rule in one operation, f32 between them: x [rows, k] of bf16, gamma [k of bf16].
 * @param sum    scratch of x's size; it becomes 2 x.
 * @param unread scratch of TD_ASCEND_UNREAD_BYTES.
 */
void td_ascend_op_norm_quantize(td_ascend_run *r, td_ascend_view x, const void *gamma, double eps, td_ascend_view codes,
                                td_ascend_view scale, void *sum, char *unread);
#define TD_ASCEND_UNREAD_BYTES 1024
/** The norm in f32 and rounded in one operation: x, gamma and sum as above; floats [rows, k] of f32 and out [rows, k] of
 * bf16 without gaps; rstd: scratch, an f32 a row. */
void td_ascend_op_norm_cast(td_ascend_run *r, td_ascend_view x, const void *gamma, double eps, td_ascend_view floats,
                            td_ascend_view out, void *rstd, void *sum);
/** codes [rows, k] and scale [rows] by the int8 rule, but for a row of zeros, whose scale is 0. */
void td_ascend_op_quantize(td_ascend_run *r, td_ascend_view x, td_ascend_view codes, td_ascend_view scale);
/** x += y; y may be one row for all. */
void td_ascend_op_add_to(td_ascend_run *r, td_ascend_view x, td_ascend_view y);
void td_ascend_op_add(td_ascend_run *r, td_ascend_view a, td_ascend_view b, td_ascend_view out);
void td_ascend_op_cast(td_ascend_run *r, td_ascend_view x, td_ascend_view out);
/** out[i, :] = x[index[i], :] */
void td_ascend_op_gather(td_ascend_run *r, td_ascend_view x, td_ascend_view index, td_ascend_view out);
/** out = a b of floats, f32 sums. */
void td_ascend_op_product(td_ascend_run *r, td_ascend_view a, td_ascend_view b, td_ascend_view out);

#endif
