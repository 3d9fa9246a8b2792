/*
 * The weights of a model by role. All that is known of one is a row of its family's table (model/arch/), and here what that
 * row says of a model with this configuration. Layers n_layers .. n_layers +
 * n_mtp_layers - 1 are the multi-token-prediction layers: ordinary layers with six tensors more, or seven
 * (model/checkpoint/rotation.h).
 */
#ifndef TD_MODEL_ARCH_TENSOR_RULES_H
#define TD_MODEL_ARCH_TENSOR_RULES_H

#include "model/arch/model_config.h"
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

/** Which tier has a weight, and for which part of a model (td_model_part). */
typedef enum {
    TD_PLACE_LAYER,                /* the device, with the layer */
    TD_PLACE_WHOLE_MODEL,          /* the device, where the whole model is */
    TD_PLACE_ENDS,                 /* the device, where the whole model is, or the MTP layer, which reads it too */
    TD_PLACE_EXPERTS,              /* the expert store of the CPU; the device, where the part has experts there */
    TD_PLACE_SHARED,               /* none: the model's own is read in its place, and the two must be equal */
    TD_PLACE_SHARED_UNLESS_TURNED, /* the same; a rotated model's is on the device, where the whole model is */
} td_place;

/** How a rotation R of the residual stream acts on a weight (model/checkpoint/rotation.h). */
typedef enum {
    TD_TURN_NONE,
    TD_TURN_GAIN,   /* of a norm of the stream: becomes 1 */
    TD_TURN_READS,  /* W diag(g) R, g the norm's gain; without a norm W R */
    TD_TURN_WRITES, /* R^T W */
    TD_TURN_JOINS,  /* reads with the first half of its columns, and writes */
    TD_TURN_UNDOES, /* exists in rotated models alone: reads, made of the identity */
} td_turn;

typedef struct {
    td_turn kind;
    td_role norm; /* TD_ROLE_COUNT: none */
} td_turning;

/** What dummy weights are filled with. */
typedef enum { TD_FILLING_RANDOM, TD_FILLING_ONES, TD_FILLING_ZEROS } td_filling;

typedef struct {
    char             name[160]; /* "model.layers.3.self_attn.o_proj.weight" */
    uint32_t         rank;      /* 1 or 2 */
    size_t           shape[2];
    td_weight_format format; /* of the device tier when it is quantised; TD_WEIGHT_W8A8: bf16 or f32 when it is not */
    bool             linear; /* td_model_weight_format gives it another format then */
    td_place         place;
    td_split         split;
    td_rope_rows     rope_rows; /* set only where the checkpoint's pairs are interleaved */
    td_turning       turning;
    td_filling       filling;
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

/** Whether a role is of routed experts; of the whole model, and not of its layers. */
bool td_role_is_expert(const td_model_config *c, td_role role);
bool td_role_is_of_model(const td_model_config *c, td_role role);

#endif
