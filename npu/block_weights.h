/*
 * Weights and blocks, as far as all backends agree on them: what a weight is made from, which weights a block's descriptor
 * points to, and what a descriptor has to be. Backends add what their hardware does not take.
 */
#ifndef TD_NPU_BLOCK_WEIGHTS_H
#define TD_NPU_BLOCK_WEIGHTS_H

#include "kernels/product/tile_gemm.h"
#include "npu/npu.h"

#define TD_WEIGHT_SIDE_MAX ((size_t)1 << 22) /* of any side, so that products of three sizes cannot overflow */
#define TD_KEYS_MAX ((uint32_t)1 << 24)      /* of attention */
#define TD_CONV_WIDTH_MAX 8
#define TD_STREAMS_MAX 16 /* of a token, with hyper-connections */
#define TD_SPARSE_HEADS_MAX 1024
#define TD_SPARSE_O_LORA 32 /* divides the outputs of a group of sparse attention */

/** First member of every backend's td_npu_weight. */
typedef struct {
    td_weight_format format;
    uint32_t         rank; /* of the source: 1 for vectors, and then n is 1 */
    size_t           n, k;
} td_weight_shape;

/** Whether a weight of this format has codes of four bits, in groups. */
static inline bool td_weight_is_grouped(td_weight_format f) {
    return f == TD_WEIGHT_INT4G || f == TD_WEIGHT_FP4G;
}

/**
 * Check the rank and the sides of what a weight is to be made from, and set its shape.
 * @param kept the format that the device keeps it in.
 * @return TD_EINVAL or TD_ENOTSUP, with a sentence.
 */
TD_NODISCARD td_status td_weight_check_sides(td_weight_format kept, const td_tensor_view *src, td_weight_shape *shape,
                                             td_error *err);

/**
 * The same, and its numbers: those that its format is made from.
 * @param groups out: of INT4G and FP4G; else unchanged.
 * @return TD_EINVAL or TD_ENOTSUP, with a sentence.
 */
TD_NODISCARD td_status td_weight_check_source(td_weight_format format, const td_tensor_view *src, td_weight_shape *shape,
                                              td_gemm_groups *groups, td_error *err);

/** The groups that take the most memory, for planning; of formats without groups all zero. @param group columns that share a
 * scale; 0: any. */
td_gemm_groups td_weight_largest_groups(td_weight_format format, uint32_t group);

/** What a block does with a weight. */
typedef enum {
    TD_USE_TABLE,  /* [any, k]; each row of the step reads one of its rows */
    TD_USE_LINEAR, /* multiplies every row of the step */
    TD_USE_SCORES, /* the same, always in f32: the router's, the shared expert's gate */
    TD_USE_LATENT, /* W_UK and W_UV, which are read once and multiply what the form of attention says */
    TD_USE_HEAD,   /* multiplies the rows whose logits are wanted */
    TD_USE_EXPERT, /* multiplies the rows that chose its expert */
    TD_USE_VECTOR, /* [k] f32: a norm, a bias, sinks */
    TD_USE_ROPE,   /* [any, k] f32 */
    TD_USE_TAPS,   /* [n, k] f32: of a convolution of n rows with k inputs each */
} td_weight_use;

typedef struct {
    const char                 *what; /* "q_a", for sentences */
    const td_npu_weight *const *w;    /* [count], the descriptor's; entries may be NULL; NULL where it has no list */
    uint32_t                    count;
    td_weight_use               use;
    size_t                      n, k;       /* that each must have; n 0: any */
    bool                        given_int8; /* the block's input is int8 already, and this reads it */
} td_block_weight;

#define TD_BLOCK_WEIGHTS_MAX 20

/** The weights of a block, by the sizes of its descriptor, vectors that it leaves out excepted; the weights may all be NULL,
 * and then the gate of a shared expert is not known of. @return how many there are. */
size_t td_block_weights(const td_block_desc *desc, td_block_weight list[TD_BLOCK_WEIGHTS_MAX]);

/**
 * Check a descriptor's kind and sizes; nothing is read from its lists of weights.
 * @param tok_max rows that a block of the device takes at most.
 * @return TD_EINVAL and a sentence.
 */
TD_NODISCARD td_status td_block_check(const td_block_desc *desc, uint32_t tok_max, td_error *err);
/** For devices without caps.resident. @return TD_ENOTSUP for blocks that only those with it have. */
TD_NODISCARD td_status td_block_check_slotless(const td_block_desc *desc, td_error *err);

/** For devices without caps.recurrent, which have nothing else of DeepSeek-V4 either: its streams, router and gated unit.
 * @return as td_block_check_slotless. */
TD_NODISCARD td_status td_block_check_stateless(const td_block_desc *desc, td_error *err);

/** Whether a step's rows are rows of the block's buffers. @return TD_EINVAL, and a line in the log. */
TD_NODISCARD td_status td_block_check_step(const td_block_desc *desc, const td_step *step);

/** Check the weights of a descriptor that td_block_check has passed. @return as it. */
TD_NODISCARD td_status td_block_check_weights(const td_block_desc *desc, td_error *err);

#endif
