/*
 * The weights of a model by role, and the words with which a family's table (weight_table.h) describes them. Layers
 * n_layers .. n_layers + n_mtp_layers - 1 are the multi-token-prediction (MTP) layers: ordinary layers with six tensors
 * more, or seven in a rotated model (model/checkpoint/rotation.h), or ten where tokens have several residual streams.
 */
#ifndef TD_MODEL_ARCH_WEIGHT_ROLES_H
#define TD_MODEL_ARCH_WEIGHT_ROLES_H

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
    TD_ROLE_O_BIAS,
    TD_ROLE_SINKS,
    TD_ROLE_Q_NORM,
    TD_ROLE_K_NORM,
    /* gated DeltaNet, Kimi delta attention */
    TD_ROLE_DELTA_QKV, /* and z, where it has no tensor of its own; of KDA, as DELTA_CONV, q alone */
    TD_ROLE_DELTA_K,
    TD_ROLE_DELTA_V,
    TD_ROLE_DELTA_Z,
    TD_ROLE_DELTA_B, /* and a, where it has no tensor of its own */
    TD_ROLE_DELTA_A,
    TD_ROLE_DELTA_CONV,
    TD_ROLE_DELTA_CONV_K,
    TD_ROLE_DELTA_CONV_V,
    TD_ROLE_DELTA_A_LOG,
    TD_ROLE_DELTA_DT_BIAS,
    TD_ROLE_DELTA_A_LOW, /* KDA: what DELTA_A and DELTA_Z read */
    TD_ROLE_DELTA_Z_LOW,
    TD_ROLE_DELTA_NORM,
    TD_ROLE_DELTA_O,
    /* hyper-connections: the mixtures before attention, before the feed-forward, and before the head */
    TD_ROLE_MIX_ATTENTION,
    TD_ROLE_MIX_ATTENTION_BASE,
    TD_ROLE_MIX_ATTENTION_SCALE,
    TD_ROLE_MIX_EXPERTS,
    TD_ROLE_MIX_EXPERTS_BASE,
    TD_ROLE_MIX_EXPERTS_SCALE,
    TD_ROLE_MIX_HEAD,
    TD_ROLE_MIX_HEAD_BASE,
    TD_ROLE_MIX_HEAD_SCALE,
    /* DeepSeek-V4's attention, whose q_a, q_b, kv_a and norms are those of MLA by name */
    TD_ROLE_O_A,
    TD_ROLE_COMPRESS_KV,
    TD_ROLE_COMPRESS_GATE,
    TD_ROLE_COMPRESS_APE,
    TD_ROLE_COMPRESS_NORM,
    TD_ROLE_INDEX_Q,
    TD_ROLE_INDEX_WEIGHTS,
    TD_ROLE_INDEX_KV,
    TD_ROLE_INDEX_GATE,
    TD_ROLE_INDEX_APE,
    TD_ROLE_INDEX_NORM,
    /* DeepSeek-V3.2's indexer of tokens, which has INDEX_Q and INDEX_WEIGHTS, too */
    TD_ROLE_INDEX_K,
    TD_ROLE_INDEX_K_NORM,
    TD_ROLE_INDEX_K_BIAS,
    /* layers without experts */
    TD_ROLE_DENSE_GATE,
    TD_ROLE_DENSE_UP,
    TD_ROLE_DENSE_DOWN,
    /* layers with experts */
    TD_ROLE_ROUTER,
    TD_ROLE_ROUTER_BIAS,   /* for the choice alone */
    TD_ROLE_LOGIT_BIAS,    /* on the router's logits */
    TD_ROLE_TOKEN_EXPERTS, /* [vocab, top_k] */
    TD_ROLE_SHARED_GATE,
    TD_ROLE_SHARED_UP,
    TD_ROLE_SHARED_DOWN,
    TD_ROLE_SHARED_OUT_GATE, /* Qwen2-MoE: [1, hidden] */
    TD_ROLE_EXPERT_GATE,
    TD_ROLE_EXPERT_UP,
    TD_ROLE_EXPERT_DOWN, /* one per expert */
    TD_ROLE_EXPERT_GATE_BIAS,
    TD_ROLE_EXPERT_UP_BIAS,
    TD_ROLE_EXPERT_DOWN_BIAS,
    /* MTP layers; embedding, norm and head are absent in some checkpoints, which then share the model's */
    TD_ROLE_MTP_ENORM,
    TD_ROLE_MTP_HNORM,
    TD_ROLE_MTP_EH_PROJ,
    TD_ROLE_MTP_E_PROJ, /* DeepSeek-V4: the two halves of it, */
    TD_ROLE_MTP_H_PROJ, /* this one of each residual stream */
    TD_ROLE_MTP_MIX_HEAD,
    TD_ROLE_MTP_MIX_HEAD_BASE,
    TD_ROLE_MTP_MIX_HEAD_SCALE,
    TD_ROLE_MTP_EMBED,
    TD_ROLE_MTP_NORM,
    TD_ROLE_MTP_HEAD,
    TD_ROLE_MTP_UNROTATE, /* of a rotated model */
    TD_ROLE_COUNT,
} td_role;

/** What one card of several holds of a weight (model/shard.h). */
typedef enum {
    TD_SPLIT_WHOLE,   /* all of it, on every card */
    TD_SPLIT_ROWS,    /* a stretch of its outputs: rows of a matrix, elements of a bias */
    TD_SPLIT_COLUMNS, /* a stretch of its inputs: the cards' products are summed */
    TD_SPLIT_CARD_0,  /* all of it, on the first card alone: a bias on such a sum, which is added once */
} td_split;

/** Which tier has a weight, depending on the part of a model that is loaded (td_model_part). */
typedef enum {
    TD_PLACE_LAYER,                 /* the device, with the layer */
    TD_PLACE_WHOLE_MODEL,           /* the device, if the part is the whole model */
    TD_PLACE_ENDS,                  /* the device, if the part is the whole model, or the MTP layer, which reads it, too */
    TD_PLACE_EXPERTS,               /* the expert store of the CPU; the device, if the part has experts there */
    TD_PLACE_SHARED,                /* none: the main model's is read in its place, and the two must be equal */
    TD_PLACE_SHARED_UNLESS_ROTATED, /* the same; of a rotated model as TD_PLACE_WHOLE_MODEL */
} td_place;

/** How a rotation R of the residual stream acts on a weight (model/checkpoint/rotation.h). */
typedef enum {
    TD_ROTATION_NONE,
    TD_ROTATION_GAIN,   /* the gain of a norm of the stream: becomes 1 */
    TD_ROTATION_READS,  /* W diag(g) R, g the norm's gain; without a norm W R */
    TD_ROTATION_WRITES, /* R^T W */
    TD_ROTATION_JOINS,  /* reads with the first half of its columns, and writes */
    TD_ROTATION_UNDOES, /* exists only in rotated models: as READS, of the identity */
} td_rotation_kind;

typedef struct {
    td_rotation_kind kind;
    td_role          norm; /* TD_ROLE_COUNT: none */
} td_rotation_effect;

/** What dummy weights are filled with. */
typedef enum { TD_FILLING_RANDOM, TD_FILLING_ONES, TD_FILLING_ZEROS, TD_FILLING_EXPERTS } td_filling;

#endif
