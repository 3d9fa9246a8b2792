/*
 * What a block has to read and to compute: a lower bound that any schedule shares. For metrics, for the bounds of `tandem
 * bench`, and for `tandem plan`, which has no weights.
 *
 * Read once: weights of matrix products, the embedding rows of the tokens, and the KV of every sequence. Computed: two
 * operations a multiply-add of products, scores and sums of values; products of int8 rows in int8, all else counts as f32,
 * attention in 16-bit integers too. Left out: norms, rope, softmax, biases, activations, the KV that is written, and the
 * scales of its rows.
 */
#ifndef TD_NPU_BLOCK_WORK_H
#define TD_NPU_BLOCK_WORK_H

#include "npu/npu.h"

typedef enum {
    TD_MATRIX_TABLE,  /* of which each row of the step reads one row */
    TD_MATRIX_LINEAR, /* multiplies every row of the step */
    TD_MATRIX_SCORES, /* the same, always in f32: the router's, the shared expert's gate */
    TD_MATRIX_LATENT, /* W_UK and W_UV, which are read once and multiply what the form of attention says */
    TD_MATRIX_HEAD,   /* multiplies the rows whose logits are wanted */
} td_matrix_use;

typedef struct {
    const td_npu_weight *w; /* or NULL, where the descriptor has none */
    td_matrix_use        use;
    uint64_t             n, k;
} td_block_matrix;

#define TD_BLOCK_MATRICES_MAX 5

/** The matrices that the block reads, by the sizes of its descriptor; its weights may all be NULL, and then the gate of a
 * shared expert is not known of. @return how many there are. */
size_t td_block_matrices(const td_block_desc *desc, td_block_matrix list[TD_BLOCK_MATRICES_MAX]);

/** Bytes of a row of k weights; of formats in groups the weight knows them. */
uint64_t td_work_row_bytes(td_weight_format format, uint64_t k);

/** A product with a matrix, for so many rows; none: nothing is read. */
void td_work_add_product(td_tier_work *sum, td_weight_format format, uint64_t n, uint64_t k, uint64_t row_bytes,
                         uint64_t rows);

/** The formats of a model's weights where they are not there yet; those of scores are f32. */
typedef struct {
    td_weight_format linear, latent, table;
} td_block_formats;

/** The products of a block's run, by its sizes; its weights may all be NULL. */
void td_work_add_matrices(td_tier_work *sum, const td_block_desc *desc, const td_block_formats *formats, uint64_t n_tok,
                          uint64_t n_out);

/** What attention goes over of one sequence. */
typedef struct {
    uint64_t rows;     /* of the step */
    uint64_t keys;     /* those of the step included */
    bool     absorbed; /* MLA's form */
} td_work_sequence;

/** Attention of one sequence: its KV, scores and sums of values, of MLA also what W_UK and W_UV multiply. Nothing for other
 * blocks. */
void td_work_add_attention(td_tier_work *sum, const td_block_desc *desc, size_t act_bytes, const td_work_sequence *s);

#endif
