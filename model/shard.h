/*
 * Tensor parallelism: what each of several cards holds of the device tier's weights (Megatron-LM, arXiv 1909.08053, section
 * 3).
 *
 * Heads, the intermediate dimensions of the MLPs (of routed experts where the cards have them) and the vocabulary are cut
 * into equal consecutive stretches, one a card. How each weight follows from that is in the tensor rules (td_split). A
 * number of cards that does not divide all of these is refused. A model with fewer key-value heads than cards is refused,
 * too: a head cannot lie on several cards.
 */
#ifndef TD_MODEL_SHARD_H
#define TD_MODEL_SHARD_H

#include "model/arch/tensor_rules.h"

#define TD_SHARDS_MAX 64

/** Card `index` of `count`; {0, 1}: everything. */
typedef struct {
    uint32_t index, count;
} td_shard;

/**
 * Whether a model can be cut for so many cards; codes in groups are looked at when they are loaded (model/shard_cut.h).
 * @param experts  whether the cards have the routed experts, too.
 * @return TD_EINVAL: the sentence names --tensor-parallel-size, what it does not divide, and all sizes that would do.
 */
TD_NODISCARD td_status td_shard_check(const td_model_config *c, uint32_t count, bool experts, td_error *err);

/** The sizes of td_model_config that are cut, as one card has them. Sizes that a model does not use mean nothing. */
typedef struct {
    uint32_t heads, kv_heads, inter, shared_inter, moe_inter;
    uint32_t delta_k_heads, delta_v_heads;
    uint32_t vocab; /* rows of the head, from index * vocab on; the embedding is whole */
} td_shard_sizes;

/** @param s its count must pass td_shard_check; also in the functions below. */
td_shard_sizes td_shard_sizes_of(const td_model_config *c, td_shard s);

/** What a card holds of a weight: a stretch of each of its dimensions, as many as td_tensor_spec.rank. */
typedef struct {
    size_t first[2], shape[2];
} td_shard_part;

/** @return false: the card holds none of it. */
bool td_shard_part_of(const td_tensor_spec *spec, td_shard s, td_shard_part *out);

#endif
