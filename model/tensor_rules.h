/*
 * The weights of a model: for every role its name in the checkpoint, its shape, how the device tier keeps it, and when it
 * exists.
 *
 * One table serves all architectures; what differs is a condition on the configuration. Layers n_layers .. n_layers +
 * n_mtp_layers - 1 are the multi-token-prediction layers: ordinary layers with six tensors more, or seven
 * (model/rotation.h).
 */
#ifndef TD_MODEL_TENSOR_RULES_H
#define TD_MODEL_TENSOR_RULES_H

#include "model/model_config.h"
#include "npu/npu.h"

typedef enum {
    /* the whole model */
    TD_ROLE_EMBED,
    TD_ROLE_LM_HEAD,
    TD_ROLE_FINAL_NORM,
    /* every layer */
    TD_ROLE_INPUT_NORM,
    TD_ROLE_POST_NORM,
    /* MLA */
    TD_ROLE_Q_A,
    TD_ROLE_Q_A_BIAS,
    TD_ROLE_Q_A_NORM,
    TD_ROLE_Q_B,
    TD_ROLE_MLA_Q,
    TD_ROLE_KV_A,
    TD_ROLE_KV_A_BIAS,
    TD_ROLE_KV_A_NORM,
    TD_ROLE_KV_B,
    TD_ROLE_MLA_O,
    TD_ROLE_MLA_O_BIAS,
    /* GQA */
    TD_ROLE_Q,
    TD_ROLE_K,
    TD_ROLE_V,
    TD_ROLE_O,
    TD_ROLE_Q_BIAS,
    TD_ROLE_K_BIAS,
    TD_ROLE_V_BIAS,
    TD_ROLE_Q_NORM,
    TD_ROLE_K_NORM,
    /* layers without experts */
    TD_ROLE_DENSE_GATE,
    TD_ROLE_DENSE_UP,
    TD_ROLE_DENSE_DOWN,
    /* layers with experts */
    TD_ROLE_ROUTER,
    TD_ROLE_ROUTER_BIAS,
    TD_ROLE_SHARED_GATE,
    TD_ROLE_SHARED_UP,
    TD_ROLE_SHARED_DOWN,
    TD_ROLE_SHARED_OUT_GATE, /* Qwen2-MoE: [1, hidden] */
    TD_ROLE_EXPERT_GATE,
    TD_ROLE_EXPERT_UP,
    TD_ROLE_EXPERT_DOWN, /* one per expert */
    /* MTP layers; embedding, norm and head are absent in some checkpoints, which then share the model's */
    TD_ROLE_MTP_ENORM,
    TD_ROLE_MTP_HNORM,
    TD_ROLE_MTP_EH_PROJ,
    TD_ROLE_MTP_EMBED,
    TD_ROLE_MTP_NORM,
    TD_ROLE_MTP_HEAD,
    TD_ROLE_MTP_UNTURN, /* of a rotated model */
    TD_ROLE_COUNT,
} td_role;

/** Rows that RoPE turns: of every `block` rows the last `rope` ones. rope 0: none. */
typedef struct {
    uint32_t block, rope;
} td_rope_rows;

/** What one card of several holds of a weight (model/shard.h), routed experts where they are on cards. */
typedef enum {
    TD_SPLIT_WHOLE,   /* all of it, on every card */
    TD_SPLIT_ROWS,    /* a stretch of its outputs: rows of a matrix, elements of a bias */
    TD_SPLIT_COLUMNS, /* a stretch of its inputs: the cards' products are summed */
    TD_SPLIT_CARD_0,  /* all of it, on the first card alone: a bias on such a sum, which is added once */
} td_split;

/** After "model.layers.N." of an MTP layer: who has it is rotated. */
#define TD_MTP_UNTURN_NAME "hidden_proj.weight"

typedef struct {
    char             name[160]; /* "model.layers.3.self_attn.o_proj.weight" */
    uint32_t         rank;      /* 1 or 2 */
    size_t           shape[2];
    td_weight_format format; /* TD_WEIGHT_W8A8: int8 when the device tier is quantised, else bf16 */
    td_split         split;
    td_rope_rows     rope_rows; /* set only where the checkpoint's pairs are interleaved */
    td_role
        fallback; /* the role that stands in when the checkpoint has no such tensor; TD_ROLE_COUNT: none, it is required */
} td_tensor_spec;

/**
 * The weight of a role. @param layer, expert ignored by roles without them.
 * @return false when a model of this configuration has no such weight there (a bias that is switched off, a router in a
 * dense layer).
 */
bool td_tensor_spec_get(const td_model_config *c, td_role role, uint32_t layer, uint32_t expert, td_tensor_spec *out);

/** How often a role occurs: layers and experts to loop over. Roles of the whole model: 1 and 1. */
void td_role_extent(const td_model_config *c, td_role role, uint32_t *n_layers, uint32_t *n_experts);

#endif
