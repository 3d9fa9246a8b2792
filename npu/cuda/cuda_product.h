/* Products of rows with weights: by our own kernels, and of many int8 rows by cuBLASLt. */
#ifndef TD_NPU_CUDA_CUDA_PRODUCT_H
#define TD_NPU_CUDA_CUDA_PRODUCT_H

#include "npu/cuda/cuda_op.h"
#include "npu/cuda/cuda_weight.h"

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

/** The same as codes. */
td_cuda_rows td_cuda_input_codes(td_cuda_run *r, const td_cuda_rows_places *at, const void *in, td_rows_i8 in_i8, size_t k);

/** x [most, k] f32, as the weight takes it. */
td_cuda_rows td_cuda_rows_of_f32(td_cuda_run *r, const td_cuda_rows_places *at, const td_npu_weight *w, td_cuda_count n,
                                 const void *x, size_t k);
/** What the gated unit makes of gate and up [most, k] f32, as codes. */
td_cuda_rows td_cuda_gated_rows(td_cuda_run *r, const td_cuda_rows_places *at, td_cuda_count n, td_glu glu, const void *gate,
                                const void *up, size_t k);
/** x [most, k] bf16, as the weight takes it. */
td_cuda_rows td_cuda_rows_of_bf16(td_cuda_run *r, const td_cuda_rows_places *at, const td_npu_weight *w, td_cuda_count n,
                                  const void *x, size_t k);

/** A matrix that rows are multiplied with. */
typedef struct {
    const td_npu_weight *w, *bias; /* bias NULL: none */
    void                *out;      /* [most, w->n] = rows w^T + bias */
} td_cuda_factor;

static inline const void *td_cuda_bias(const td_cuda_factor *f) {
    return f->bias ? f->bias->data : NULL;
}

/** Products of the same rows, in f32 or bf16; those of few int8 rows in one launch. @param n_of up to TD_CUDA_FACTORS_MAX,
 * all with the same k. */
#define TD_CUDA_FACTORS_MAX 3
void td_cuda_products(td_cuda_run *r, const td_cuda_rows *rows, const td_cuda_factor *of, size_t n_of, bool out_is_f32);
/** One of them. */
void td_cuda_product(td_cuda_run *r, const td_cuda_rows *rows, const td_npu_weight *w, const td_npu_weight *bias, void *out,
                     bool out_is_f32);

/** Bytes of scratch that the products of a block of so many rows need beside its own, 0: there is no library. */
size_t td_cuda_library_bytes(const td_cuda_npu *d, uint32_t max_tok);
/**
 * The same of W8A8 weights and more than TD_CUDA_LINEAR_ROWS_MAX rows, by cuBLASLt; with up: out in f32 = silu(rows w^T) *
 * (rows up^T).
 * @return false: our own kernels have to do all of it, and give the same bits
 */
bool td_cuda_product_by_library(td_cuda_run *r, const td_cuda_rows *rows, const td_npu_weight *w, const td_npu_weight *up,
                                const void *bias, void *out, bool out_is_f32);

/** A kernel for products of rows, and what a block of it computes. */
typedef struct {
    td_cuda_kernel_id id;
    uint32_t          rows, outputs;
} td_cuda_variant;
/**
 * Of n_of variants, by ascending rows: the first that takes all rows in one block. Where such blocks are fewer than the
 * card's multiprocessors, a smaller one: its blocks read the same weights, one from memory and the others from the cache.
 */
td_cuda_variant td_cuda_variant_for(const td_cuda_npu *d, const td_cuda_variant *of, size_t n_of, size_t rows,
                                    size_t outputs);

/** TD_CUDA_SCALE_… of the scales of groups. */
uint32_t td_cuda_scale_kind(td_dtype dtype);

/** Products in bf16 of a batch of heads: out[b] [most, n] = x[b] w[b]^T. Sizes are elements. */
typedef struct {
    td_cuda_count n_rows;
    const void   *x, *w;
    void         *out;
    size_t        n, k, ldx, x_head, w_head, ldo, out_head, heads;
    bool          by_columns; /* w[b] is [k, n]; all sizes are multiples of eight, and out is bf16 */
    bool          out_is_f32;
} td_cuda_heads_product;

void td_cuda_product_of_heads(td_cuda_run *r, const td_cuda_heads_product *p);

/** out [most, outputs] f32 = x w^T of rows in bf16 [most, k] and weights in f32 [outputs, k], which are not rounded. */
void td_cuda_product_f32(td_cuda_run *r, td_cuda_count n, const void *x, const td_npu_weight *w, size_t outputs, size_t k,
                         void *out);

#endif
