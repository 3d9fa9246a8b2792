/* config.json of a supported architecture as plain numbers; config_file.h reads it. */
#ifndef TD_MODEL_ARCH_MODEL_CONFIG_H
#define TD_MODEL_ARCH_MODEL_CONFIG_H

#include "core/dtype.h"
#include "kernels/glu.h"
#include "model/arch/quant_config.h"
#include "model/arch/vision_config.h"
#include "npu/npu.h"
#include "tandem.h"

#define TD_LAYERS_MAX 256
#define TD_ROPE_DIM_MAX 1024

typedef enum { TD_ROPE_PLAIN, TD_ROPE_YARN } td_rope_kind;

typedef struct {
    td_rope_kind kind;
    double       theta;
    uint32_t     dim;         /* rotated dims per head; 0: nothing is rotated */
    bool         interleaved; /* the checkpoint stores the rows as pairs (2i, 2i+1); the loader permutes them */
    double       factor;      /* plain: angles are divided by it ("linear" scaling; 1: none); YaRN: the extension */
    double       beta_fast, beta_slow, mscale, mscale_all_dim, attention_factor; /* YaRN; attention_factor 0: computed */
    bool         truncate; /* YaRN: round the correction range to whole dims (the default) */
    uint32_t     original_max_position;
    td_rope_axes axes; /* of images: pairs that their rows and columns turn */
} td_rope_config;

/** Layers of a gated DeltaNet (arXiv 2412.06464): each key head serves v_heads / k_heads value heads. Or of Kimi delta
 * attention (arXiv 2510.26692), with as many of either. */
typedef struct {
    td_delta_form form;
    uint32_t      k_heads, v_heads, k_dim, v_dim;
    uint32_t      low;   /* KDA: the rank of what decays and gates are made from */
    float         floor; /* KDA: of log decays; 0: none */
    uint32_t      conv;  /* the last values that the causal convolution takes, the token's own included */
} td_delta_config;

/** DeepSeek-V3.2 and GLM-5: indexers of tokens. DeepSeek-V4: residual streams of a token, attention over compressed rows, experts by
 * token. GLM-5.3: streams, and indexers whose keys stand for several tokens. */
typedef struct {
    uint32_t streams, mix_rounds;
    bool     plain_mtp; /* multi-token-prediction layers have one residual stream */
    float    mix_eps;
    uint32_t o_groups, o_lora;                  /* the output projection's first step: groups of heads, outputs of each */
    uint32_t index_heads, index_dim, index_top; /* with kv_lora an indexer of tokens (td_index_desc) */
    uint32_t index_pool;                        /* of tokens: tokens of an index key; 0: 1 */
    bool     index_pairs;                       /* of tokens: the checkpoint's rows that rope turns are pairs */
    uint8_t  indexed[TD_LAYERS_MAX];            /* 1: the layer has an indexer */
    uint8_t  ratio[TD_LAYERS_MAX];              /* tokens of a compressed row; 0: the layer has none */
    uint8_t  by_token[TD_LAYERS_MAX];           /* 1: a token's experts are those of a table */
} td_sparse_config;

#define TD_OVERLAP_RATIO 4 /* whose compressed rows overlap, and are chosen by an indexer */

typedef struct {
    const struct td_arch *arch;          /* the family (model/arch/arch.h); static */
    char                  arch_name[64]; /* the family, as `architectures` of config.json calls it */
    char                  model_type[64];
    uint32_t              hidden, n_layers, n_mtp_layers, vocab, max_position;
    float                 eps;
    bool                  tie_embeddings;
    /* attention */
    uint32_t         heads, kv_heads, head_dim;                  /* GQA */
    uint32_t         q_lora, kv_lora, nope_dim, rope_dim, v_dim; /* MLA; q_lora 0: q_proj */
    bool             attn_bias;                                  /* MLA: biases of q_a, kv_a, o (attention_bias) */
    bool             qkv_bias;                                   /* GQA: biases of q, k, v (Qwen2) */
    uint32_t         window;                /* keys that a token attends to in layers with a sliding window */
    uint8_t          slides[TD_LAYERS_MAX]; /* [n_layers + n_mtp_layers] 1: the layer has the window */
    bool             qk_norm;               /* GQA: RMS norm per head (Qwen3) */
    bool             qk_norm_rows;          /* qk_norm's norm is over all heads together (MiniMax-M2) */
    double           softmax_scale;         /* YaRN's mscale included */
    td_rope_config   rope;
    td_rope_config   rope_far;                /* of layers with compressed rows; dim 0: there are none */
    uint8_t          is_delta[TD_LAYERS_MAX]; /* [n_layers + n_mtp_layers] 1: a DeltaNet or KDA in the place of attention */
    td_delta_config  delta;
    td_sparse_config sparse; /* streams 0: none of it */
    /* feed-forward */
    uint32_t         inter; /* dense layers */
    uint32_t         moe_inter, n_experts, top_k;
    uint32_t         shared_inter; /* 0: no shared expert */
    bool             shared_gate;  /* Qwen2-MoE: sigmoid gate on the shared expert */
    uint32_t         n_group, topk_group;
    td_router_score  route_score;
    td_router_group  route_group;
    bool             route_bias; /* e_score_correction_bias */
    bool             norm_topk;
    bool             expert_bias; /* gate, up and down of routed experts have biases */
    td_glu           expert_glu;  /* the gated unit of routed experts; all 0: silu(gate) * up */
    double           routed_scale;
    uint8_t          is_moe[TD_LAYERS_MAX]; /* [n_layers + n_mtp_layers] */
    bool             mtp_rotated; /* the checkpoint's MTP layer is that of a rotated model (model/checkpoint/rotation.h);
                                    set by td_checkpoint_look_at_mtp */
    td_vision_config vision;
    /* tokens */
    uint32_t bos_id;             /* UINT32_MAX: none */
    uint32_t eos_ids[16], n_eos; /* config.json and generation_config.json together */
    /* how the checkpoint's weights are stored */
    td_quant_config quant;
    /* sampling defaults of generation_config.json: NAN / 0 where absent */
    double   temperature, top_p, repetition_penalty;
    uint32_t top_k_sampling;
} td_model_config;

/** Residual streams of a token; values of all of them. */
static inline uint32_t td_model_streams(const td_model_config *c) {
    return c->sparse.streams ? c->sparse.streams : 1;
}
/** Those of a layer. */
static inline uint32_t td_layer_streams(const td_model_config *c, uint32_t layer) {
    return c->sparse.plain_mtp && layer >= c->n_layers ? 1 : td_model_streams(c);
}
static inline size_t td_model_width(const td_model_config *c) {
    return (size_t)td_model_streams(c) * c->hidden;
}

/** Whether rows of latent attention attend to keys that an indexer chooses. */
static inline bool td_model_chooses_tokens(const td_model_config *c) {
    return c->kv_lora && c->sparse.index_top;
}

/** Index keys that a row of such attention chooses. */
static inline uint32_t td_model_index_choice(const td_model_config *c) {
    const td_index_desc x = {.top = c->sparse.index_top, .pool = c->sparse.index_pool};
    return td_index_choice(&x);
}

#define TD_FULL_STEP_LEAST 256 /* rows of a step, whatever the experts */
#define TD_EXPERT_ROWS_FULL 16 /* rows of an expert on average from which arithmetic hides the reading of its weights */

/** Rows of a step from which on reading weights does not hold it up. */
static inline uint32_t td_model_full_step(const td_model_config *c) {
    uint32_t rows = c->top_k ? (TD_EXPERT_ROWS_FULL * c->n_experts + c->top_k - 1) / c->top_k : 0;
    return rows > TD_FULL_STEP_LEAST ? rows : TD_FULL_STEP_LEAST;
}

/** Some of the layers 0 .. n_layers + n_mtp_layers - 1: first .. end - 1. */
typedef struct {
    uint32_t first, end;
} td_layer_range;

static inline td_layer_range td_all_layers(const td_model_config *c) {
    return (td_layer_range){0, c->n_layers + c->n_mtp_layers};
}

/** Number of layers with routed experts in the range. */
uint32_t td_moe_layers_in(const td_model_config *c, td_layer_range r);

/** Number of all layers with routed experts. */
uint32_t td_model_config_moe_layers(const td_model_config *c);

/**
 * inv_freq[dim/2] and the factor on cos and sin, by c->kind. YaRN: arXiv 2309.00071 as in DeepSeek's and transformers' code.
 */
void td_rope_frequencies(const td_rope_config *c, uint32_t max_position, double *inv_freq, double *cos_sin_scale);

/** What YaRN multiplies DeepSeek's softmax scale by: M(mscale_all_dim)^2, M(u) = 0.1 u ln(factor) + 1; 1 without YaRN or
 * without that key. */
double td_rope_softmax_factor(const td_rope_config *c);

/** Table [max_pos, dim] f32: cos of the dim/2 angles, then sin, both scaled. Caller owns table. */
void td_rope_table(const td_rope_config *c, uint32_t max_position, uint32_t max_pos, float *table);

#endif
