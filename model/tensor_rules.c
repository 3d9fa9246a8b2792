#include "model/tensor_rules.h"

#include <stdio.h>

typedef enum {
    DIM_NONE,
    DIM_ONE,
    DIM_HIDDEN,
    DIM_TWO_HIDDEN,
    DIM_VOCAB,
    DIM_Q_LORA,
    DIM_KV_LORA,
    DIM_MLA_Q,
    DIM_KV_A,
    DIM_KV_B,
    DIM_MLA_V,
    DIM_GQA_Q,
    DIM_GQA_KV,
    DIM_HEAD,
    DIM_INTER,
    DIM_MOE_INTER,
    DIM_SHARED_INTER,
    DIM_EXPERTS
} dim;

static size_t dim_size(const td_model_config *c, dim d) {
    switch (d) {
        case DIM_NONE: return 0;
        case DIM_ONE: return 1;
        case DIM_HIDDEN: return c->hidden;
        case DIM_TWO_HIDDEN: return 2 * (size_t)c->hidden;
        case DIM_VOCAB: return c->vocab;
        case DIM_Q_LORA: return c->q_lora;
        case DIM_KV_LORA: return c->kv_lora;
        case DIM_MLA_Q: return (size_t)c->heads * (c->nope_dim + c->rope_dim);
        case DIM_KV_A: return (size_t)c->kv_lora + c->rope_dim;
        case DIM_KV_B: return (size_t)c->heads * (c->nope_dim + c->v_dim);
        case DIM_MLA_V: return (size_t)c->heads * c->v_dim;
        case DIM_GQA_Q: return (size_t)c->heads * c->head_dim;
        case DIM_GQA_KV: return (size_t)c->kv_heads * c->head_dim;
        case DIM_HEAD: return c->head_dim;
        case DIM_INTER: return c->inter;
        case DIM_MOE_INTER: return c->moe_inter;
        case DIM_SHARED_INTER: return c->shared_inter;
        case DIM_EXPERTS: return c->n_experts;
    }
    return 0;
}

typedef enum { IN_MODEL, IN_LAYER, IN_DENSE, IN_MOE, IN_EXPERT, IN_MTP } scope;
typedef enum { ROPE_NO, ROPE_Q, ROPE_KV_A } rope_use;
typedef bool (*condition)(const td_model_config *c);

static bool mla(const td_model_config *c) {
    return c->attn == TD_ATTN_MLA;
}
static bool mla_compressed_q(const td_model_config *c) {
    return mla(c) && c->q_lora > 0;
}
static bool mla_plain_q(const td_model_config *c) {
    return mla(c) && c->q_lora == 0;
}
static bool mla_bias(const td_model_config *c) {
    return mla(c) && c->attn_bias;
}
static bool mla_q_bias(const td_model_config *c) {
    return mla_compressed_q(c) && c->attn_bias;
}
static bool gqa(const td_model_config *c) {
    return c->attn == TD_ATTN_GQA;
}
static bool gqa_bias(const td_model_config *c) {
    return gqa(c) && c->qkv_bias;
}
static bool gqa_norm(const td_model_config *c) {
    return gqa(c) && c->qk_norm;
}
static bool router_bias(const td_model_config *c) {
    return c->route_bias;
}
static bool shared(const td_model_config *c) {
    return c->shared_inter > 0;
}
static bool shared_gated(const td_model_config *c) {
    return c->shared_inter > 0 && c->shared_gate;
}
static bool mtp_turned(const td_model_config *c) {
    return c->mtp_turned;
}

typedef struct {
    scope            where;
    const char      *name;      /* after "model.layers.N." or "model.layers.N.mlp.experts.E.", whole in IN_MODEL */
    const char      *qwen_name; /* where Qwen's differs, else NULL */
    dim              rows, cols;
    td_weight_format format;
    td_split         split;
    rope_use         rope;
    condition        when;     /* NULL: always */
    td_role          fallback; /* TD_ROLE_COUNT: required */
} rule;

#define W8 TD_WEIGHT_W8A8
#define BF TD_WEIGHT_BF16
#define FP TD_WEIGHT_F32
#define REQUIRED TD_ROLE_COUNT

/* The output dimension of what begins a parallel stretch (heads, MLP) is cut, the input dimension of what ends it; the sum
   over the cards follows. What a stretch begins from is on every card: the residual stream with its norms, MLA's latents,
   the router. The embedding too: its rows are read as they are, and cut by vocabulary every step would begin with a sum over
   the cards. */
#define WHOLE TD_SPLIT_WHOLE
#define ROWS TD_SPLIT_ROWS
#define COLUMNS TD_SPLIT_COLUMNS
#define CARD_0 TD_SPLIT_CARD_0

/* clang-format off */
static const rule RULES[TD_ROLE_COUNT] = {
    [TD_ROLE_EMBED]      = {IN_MODEL, "model.embed_tokens.weight", NULL, DIM_VOCAB, DIM_HIDDEN, BF, WHOLE, ROPE_NO, NULL, REQUIRED},
    [TD_ROLE_LM_HEAD]    = {IN_MODEL, "lm_head.weight", NULL, DIM_VOCAB, DIM_HIDDEN, W8, ROWS, ROPE_NO, NULL, REQUIRED},
    [TD_ROLE_FINAL_NORM] = {IN_MODEL, "model.norm.weight", NULL, DIM_HIDDEN, DIM_NONE, FP, WHOLE, ROPE_NO, NULL, REQUIRED},

    [TD_ROLE_INPUT_NORM] = {IN_LAYER, "input_layernorm.weight", NULL, DIM_HIDDEN, DIM_NONE, FP, WHOLE, ROPE_NO, NULL, REQUIRED},
    [TD_ROLE_POST_NORM]  = {IN_LAYER, "post_attention_layernorm.weight", NULL, DIM_HIDDEN, DIM_NONE, FP, WHOLE, ROPE_NO, NULL, REQUIRED},

    [TD_ROLE_Q_A]        = {IN_LAYER, "self_attn.q_a_proj.weight", NULL, DIM_Q_LORA, DIM_HIDDEN, W8, WHOLE, ROPE_NO, mla_compressed_q, REQUIRED},
    [TD_ROLE_Q_A_BIAS]   = {IN_LAYER, "self_attn.q_a_proj.bias", NULL, DIM_Q_LORA, DIM_NONE, FP, WHOLE, ROPE_NO, mla_q_bias, REQUIRED},
    [TD_ROLE_Q_A_NORM]   = {IN_LAYER, "self_attn.q_a_layernorm.weight", NULL, DIM_Q_LORA, DIM_NONE, FP, WHOLE, ROPE_NO, mla_compressed_q, REQUIRED},
    [TD_ROLE_Q_B]        = {IN_LAYER, "self_attn.q_b_proj.weight", NULL, DIM_MLA_Q, DIM_Q_LORA, W8, ROWS, ROPE_Q, mla_compressed_q, REQUIRED},
    [TD_ROLE_MLA_Q]      = {IN_LAYER, "self_attn.q_proj.weight", NULL, DIM_MLA_Q, DIM_HIDDEN, W8, ROWS, ROPE_Q, mla_plain_q, REQUIRED},
    [TD_ROLE_KV_A]       = {IN_LAYER, "self_attn.kv_a_proj_with_mqa.weight", NULL, DIM_KV_A, DIM_HIDDEN, W8, WHOLE, ROPE_KV_A, mla, REQUIRED},
    [TD_ROLE_KV_A_BIAS]  = {IN_LAYER, "self_attn.kv_a_proj_with_mqa.bias", NULL, DIM_KV_A, DIM_NONE, FP, WHOLE, ROPE_KV_A, mla_bias, REQUIRED},
    [TD_ROLE_KV_A_NORM]  = {IN_LAYER, "self_attn.kv_a_layernorm.weight", NULL, DIM_KV_LORA, DIM_NONE, FP, WHOLE, ROPE_NO, mla, REQUIRED},
    [TD_ROLE_KV_B]       = {IN_LAYER, "self_attn.kv_b_proj.weight", NULL, DIM_KV_B, DIM_KV_LORA, BF, ROWS, ROPE_NO, mla, REQUIRED},
    [TD_ROLE_MLA_O]      = {IN_LAYER, "self_attn.o_proj.weight", NULL, DIM_HIDDEN, DIM_MLA_V, W8, COLUMNS, ROPE_NO, mla, REQUIRED},
    [TD_ROLE_MLA_O_BIAS] = {IN_LAYER, "self_attn.o_proj.bias", NULL, DIM_HIDDEN, DIM_NONE, FP, CARD_0, ROPE_NO, mla_bias, REQUIRED},

    [TD_ROLE_Q]          = {IN_LAYER, "self_attn.q_proj.weight", NULL, DIM_GQA_Q, DIM_HIDDEN, W8, ROWS, ROPE_NO, gqa, REQUIRED},
    [TD_ROLE_K]          = {IN_LAYER, "self_attn.k_proj.weight", NULL, DIM_GQA_KV, DIM_HIDDEN, W8, ROWS, ROPE_NO, gqa, REQUIRED},
    [TD_ROLE_V]          = {IN_LAYER, "self_attn.v_proj.weight", NULL, DIM_GQA_KV, DIM_HIDDEN, W8, ROWS, ROPE_NO, gqa, REQUIRED},
    [TD_ROLE_O]          = {IN_LAYER, "self_attn.o_proj.weight", NULL, DIM_HIDDEN, DIM_GQA_Q, W8, COLUMNS, ROPE_NO, gqa, REQUIRED},
    [TD_ROLE_Q_BIAS]     = {IN_LAYER, "self_attn.q_proj.bias", NULL, DIM_GQA_Q, DIM_NONE, FP, ROWS, ROPE_NO, gqa_bias, REQUIRED},
    [TD_ROLE_K_BIAS]     = {IN_LAYER, "self_attn.k_proj.bias", NULL, DIM_GQA_KV, DIM_NONE, FP, ROWS, ROPE_NO, gqa_bias, REQUIRED},
    [TD_ROLE_V_BIAS]     = {IN_LAYER, "self_attn.v_proj.bias", NULL, DIM_GQA_KV, DIM_NONE, FP, ROWS, ROPE_NO, gqa_bias, REQUIRED},
    [TD_ROLE_Q_NORM]     = {IN_LAYER, "self_attn.q_norm.weight", NULL, DIM_HEAD, DIM_NONE, FP, WHOLE, ROPE_NO, gqa_norm, REQUIRED},
    [TD_ROLE_K_NORM]     = {IN_LAYER, "self_attn.k_norm.weight", NULL, DIM_HEAD, DIM_NONE, FP, WHOLE, ROPE_NO, gqa_norm, REQUIRED},

    [TD_ROLE_DENSE_GATE] = {IN_DENSE, "mlp.gate_proj.weight", NULL, DIM_INTER, DIM_HIDDEN, W8, ROWS, ROPE_NO, NULL, REQUIRED},
    [TD_ROLE_DENSE_UP]   = {IN_DENSE, "mlp.up_proj.weight", NULL, DIM_INTER, DIM_HIDDEN, W8, ROWS, ROPE_NO, NULL, REQUIRED},
    [TD_ROLE_DENSE_DOWN] = {IN_DENSE, "mlp.down_proj.weight", NULL, DIM_HIDDEN, DIM_INTER, W8, COLUMNS, ROPE_NO, NULL, REQUIRED},

    [TD_ROLE_ROUTER]      = {IN_MOE, "mlp.gate.weight", NULL, DIM_EXPERTS, DIM_HIDDEN, FP, WHOLE, ROPE_NO, NULL, REQUIRED},
    [TD_ROLE_ROUTER_BIAS] = {IN_MOE, "mlp.gate.e_score_correction_bias", NULL, DIM_EXPERTS, DIM_NONE, FP, WHOLE, ROPE_NO, router_bias, REQUIRED},
    [TD_ROLE_SHARED_GATE] = {IN_MOE, "mlp.shared_experts.gate_proj.weight", "mlp.shared_expert.gate_proj.weight", DIM_SHARED_INTER, DIM_HIDDEN, W8, ROWS, ROPE_NO, shared, REQUIRED},
    [TD_ROLE_SHARED_UP]   = {IN_MOE, "mlp.shared_experts.up_proj.weight", "mlp.shared_expert.up_proj.weight", DIM_SHARED_INTER, DIM_HIDDEN, W8, ROWS, ROPE_NO, shared, REQUIRED},
    [TD_ROLE_SHARED_DOWN] = {IN_MOE, "mlp.shared_experts.down_proj.weight", "mlp.shared_expert.down_proj.weight", DIM_HIDDEN, DIM_SHARED_INTER, W8, COLUMNS, ROPE_NO, shared, REQUIRED},
    [TD_ROLE_SHARED_OUT_GATE] = {IN_MOE, "mlp.shared_expert_gate.weight", NULL, DIM_ONE, DIM_HIDDEN, FP, WHOLE, ROPE_NO, shared_gated, REQUIRED},

    [TD_ROLE_EXPERT_GATE] = {IN_EXPERT, "gate_proj.weight", NULL, DIM_MOE_INTER, DIM_HIDDEN, BF, ROWS, ROPE_NO, NULL, REQUIRED},
    [TD_ROLE_EXPERT_UP]   = {IN_EXPERT, "up_proj.weight", NULL, DIM_MOE_INTER, DIM_HIDDEN, BF, ROWS, ROPE_NO, NULL, REQUIRED},
    [TD_ROLE_EXPERT_DOWN] = {IN_EXPERT, "down_proj.weight", NULL, DIM_HIDDEN, DIM_MOE_INTER, BF, COLUMNS, ROPE_NO, NULL, REQUIRED},

    [TD_ROLE_MTP_ENORM]   = {IN_MTP, "enorm.weight", NULL, DIM_HIDDEN, DIM_NONE, FP, WHOLE, ROPE_NO, NULL, REQUIRED},
    [TD_ROLE_MTP_HNORM]   = {IN_MTP, "hnorm.weight", NULL, DIM_HIDDEN, DIM_NONE, FP, WHOLE, ROPE_NO, NULL, REQUIRED},
    [TD_ROLE_MTP_EH_PROJ] = {IN_MTP, "eh_proj.weight", NULL, DIM_HIDDEN, DIM_TWO_HIDDEN, W8, WHOLE, ROPE_NO, NULL, REQUIRED},
    [TD_ROLE_MTP_EMBED]   = {IN_MTP, "embed_tokens.weight", NULL, DIM_VOCAB, DIM_HIDDEN, BF, WHOLE, ROPE_NO, NULL, TD_ROLE_EMBED},
    [TD_ROLE_MTP_NORM]    = {IN_MTP, "shared_head.norm.weight", NULL, DIM_HIDDEN, DIM_NONE, FP, WHOLE, ROPE_NO, NULL, TD_ROLE_FINAL_NORM},
    [TD_ROLE_MTP_HEAD]    = {IN_MTP, "shared_head.head.weight", NULL, DIM_VOCAB, DIM_HIDDEN, W8, ROWS, ROPE_NO, NULL, TD_ROLE_LM_HEAD},
    [TD_ROLE_MTP_UNTURN]  = {IN_MTP, TD_MTP_UNTURN_NAME, NULL, DIM_HIDDEN, DIM_HIDDEN, W8, WHOLE, ROPE_NO, mtp_turned, REQUIRED},
};
/* clang-format on */

static bool in_scope(const td_model_config *c, scope where, uint32_t layer) {
    uint32_t n_all = c->n_layers + c->n_mtp_layers;
    switch (where) {
        case IN_MODEL: return true;
        case IN_LAYER: return layer < n_all;
        case IN_DENSE: return layer < n_all && !c->is_moe[layer];
        case IN_MOE:
        case IN_EXPERT: return layer < n_all && c->is_moe[layer];
        case IN_MTP: return layer >= c->n_layers && layer < n_all;
    }
    return false;
}

bool td_tensor_spec_get(const td_model_config *c, td_role role, uint32_t layer, uint32_t expert, td_tensor_spec *out) {
    /* A tied model's head is its embedding, kept a second time in the head's format. */
    bool        tied_head = role == TD_ROLE_LM_HEAD && c->tie_embeddings;
    const rule *r = tied_head ? &RULES[TD_ROLE_EMBED] : &RULES[role];
    if (!in_scope(c, r->where, layer) || (r->when && !r->when(c))) return false;
    if (r->where == IN_EXPERT && expert >= c->n_experts) return false;

    bool        qwen = c->arch == TD_ARCH_QWEN2_MOE || c->arch == TD_ARCH_QWEN3_MOE;
    const char *name = qwen && r->qwen_name ? r->qwen_name : r->name;
    *out = (td_tensor_spec){.format = RULES[role].format, .split = RULES[role].split, .fallback = r->fallback};
    if (r->where == IN_MODEL)
        snprintf(out->name, sizeof out->name, "%s", name);
    else if (r->where == IN_EXPERT)
        snprintf(out->name, sizeof out->name, "model.layers.%u.mlp.experts.%u.%s", layer, expert, name);
    else
        snprintf(out->name, sizeof out->name, "model.layers.%u.%s", layer, name);
    out->rank = r->cols == DIM_NONE ? 1 : 2;
    out->shape[0] = dim_size(c, r->rows);
    out->shape[1] = dim_size(c, r->cols);
    if (c->rope.interleaved && r->rope == ROPE_Q) out->rope_rows = (td_rope_rows){c->nope_dim + c->rope_dim, c->rope_dim};
    if (c->rope.interleaved && r->rope == ROPE_KV_A) out->rope_rows = (td_rope_rows){c->kv_lora + c->rope_dim, c->rope_dim};
    return true;
}

void td_role_extent(const td_model_config *c, td_role role, uint32_t *n_layers, uint32_t *n_experts) {
    *n_layers = RULES[role].where == IN_MODEL ? 1 : c->n_layers + c->n_mtp_layers;
    *n_experts = RULES[role].where == IN_EXPERT ? c->n_experts : 1;
}
