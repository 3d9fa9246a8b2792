/*
 * What a block has to read and to compute: a lower bound that any schedule shares. For metrics, for the bounds of `tandem
 * bench`, and for `tandem plan`, which has no weights.
 *
 * Read once: weights of matrix products, the embedding rows of the tokens, and the KV of every sequence. Computed: two
 * operations a multiply-add of products, scores and sums of values. Products of int8 rows count as int8, and so do an
 * indexer's scores with bf16 activations; all else counts as f32, attention in 16-bit integers too. Left out: norms, rope,
 * softmax, biases, activations, the KV that is written, and the scales of its rows.
 */
#ifndef TD_NPU_BLOCK_WORK_H
#define TD_NPU_BLOCK_WORK_H

#include "npu/block_weights.h"

/** Bytes of a row of k weights; of formats in groups the weight knows them. */
uint64_t td_work_row_bytes(td_weight_format format, uint64_t k);

/** A product with a matrix, for so many rows; none: nothing is read. */
void td_work_add_product(td_tier_work *sum, td_weight_format format, uint64_t n, uint64_t k, uint64_t row_bytes,
                         uint64_t rows);

/** The formats of a model's weights where they are not there yet; those of scores are f32. */
typedef struct {
    td_weight_format linear, latent, table;
} td_block_formats;

/** Rows that a block's linears multiply: those of a linear by itself are all streams of the tokens. */
uint64_t td_work_linear_rows(const td_block_desc *desc, uint64_t n_tok);

/** The products of a block's run, by its sizes; its weights may all be NULL. */
void td_work_add_matrices(td_tier_work *sum, const td_block_desc *desc, const td_block_formats *formats, uint64_t n_tok,
                          uint64_t n_out);

/** What attention goes over of one sequence. */
typedef struct {
    uint64_t rows;     /* of the step */
    uint64_t keys;     /* those of the step included */
    bool     absorbed; /* MLA's form */
} td_work_sequence;

/** Attention of one sequence: its KV, scores and sums of values, of MLA also what W_UK and W_UV multiply. Of a recurrent
 * layer: its state and its open block, and the products with them. Nothing for other blocks. */
void td_work_add_attention(td_tier_work *sum, const td_block_desc *desc, size_t act_bytes, const td_work_sequence *s);

#endif
