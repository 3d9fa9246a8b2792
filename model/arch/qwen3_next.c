/* Qwen3-Next, and the language model of Qwen3.5-MoE and 3.6: layers of a gated DeltaNet (arXiv 2412.06464), and every fourth
 * with gated attention (arXiv 2505.06708). */
#include <math.h>
#include <string.h>

#include "model/arch/families.h"
#include "model/arch/weight_table.h"
#include "model/layer_verbs.h"
#include "npu/block_weights.h"

/* ---- configuration --------------------------------------------------------------------------- */

/* Which layers are a DeltaNet: layer_types, or all but every full_attention_interval'th. */
static void read_layers(td_config_reader *r, td_model_config *c) {
    uint32_t interval = td_config_u32(r, "full_attention_interval", 4, 1, TD_LAYERS_MAX);
    if (td_config_delta_layers(r, c, td_config_full_attention)) return;
    for (uint32_t layer = 0; layer < c->n_layers; layer++) c->is_delta[layer] = (layer + 1) % interval != 0;
}

static void read_delta(td_config_reader *r, td_model_config *c) {
    c->delta = (td_delta_config){.k_heads = td_config_u32(r, "linear_num_key_heads", 16, 1, TD_CONFIG_HEADS_MAX),
                                 .v_heads = td_config_u32(r, "linear_num_value_heads", 32, 1, TD_CONFIG_HEADS_MAX),
                                 .k_dim = td_config_u32(r, "linear_key_head_dim", 128, 1, TD_CONFIG_HEAD_DIM_MAX),
                                 .v_dim = td_config_u32(r, "linear_value_head_dim", 128, 1, TD_CONFIG_HEAD_DIM_MAX),
                                 .conv = td_config_u32(r, "linear_conv_kernel_dim", 4, 2, TD_CONV_WIDTH_MAX)};
    if (c->delta.v_heads % c->delta.k_heads)
        td_config_refuse(r, TD_EFORMAT, "%slinear_num_value_heads is %u, which is no multiple of the %u key heads",
                         r->prefix, c->delta.v_heads, c->delta.k_heads);
    td_config_only_text(r, c, "mamba_ssm_dtype", "float32");
}

/* What both have; the rest of transformers' Qwen3NextConfig and Qwen3_5MoeTextConfig follows.
 * @param mtp_key how many multi-token-prediction layers there are; without it one, if the checkpoint has it. */
static void read_either(td_config_reader *r, td_model_config *c, const td_config_defaults *d, const char *mtp_key) {
    td_config_common(r, c, d);
    td_config_mtp_layers(r, c, mtp_key, 1);
    td_config_refuse_true(r, "mtp_use_dedicated_embeddings", "an embedding of the multi-token-prediction layer's own");
    td_config_gqa(r, c, 256);
    c->qk_norm = true;
    td_config_refuse_true(r, "attention_bias", "a bias in this architecture's attention");
    td_config_refuse_true(r, "use_sliding_window", "a sliding attention window");
    if (!td_config_bool(r, "attn_output_gate", true))
        td_config_refuse(r, TD_ENOTSUP, "%sattn_output_gate is false, and %s has gated attention only", r->prefix,
                         c->arch_name);
    read_layers(r, c);
    read_delta(r, c);

    c->moe_inter = td_config_u32(r, "moe_intermediate_size", 512, 1, TD_CONFIG_DIM_MAX);
    c->shared_inter = td_config_u32(r, "shared_expert_intermediate_size", 512, 1, TD_CONFIG_DIM_MAX);
    c->shared_gate = true;
    td_config_only_text(r, c, "scoring_func", "softmax");
    td_config_only_text(r, c, "topk_method", "greedy");
    c->norm_topk = true;
    c->routed_scale = 1;
    c->n_group = c->topk_group = 1;

    td_config_rope(r, c, c->head_dim, 0.25);
    c->softmax_scale = 1 / sqrt((double)c->head_dim);
}

static void read_next(td_config_reader *r, td_model_config *c) {
    static const td_config_defaults D = {151936, 2048, 5632, 48, 16, 2, 32768};
    read_either(r, c, &D, "num_nextn_predict_layers");
    c->n_experts = td_config_u32(r, "num_experts", 512, 1, TD_EXPERTS_MAX);
    c->top_k = td_config_u32(r, "num_experts_per_tok", 10, 1, TD_TOP_K_MAX);
    c->norm_topk = td_config_bool(r, "norm_topk_prob", true);
    td_config_check_experts(r, c);
    td_config_sparse_layers(r, c);
    for (uint32_t i = 0; i < c->n_mtp_layers; i++) c->is_moe[c->n_layers + i] = true;
}

/* Text and images share positions in three sections of the rotated values (mrope_section): of text all three are equal, and
 * this is plain rope. */
static void read_35(td_config_reader *r, td_model_config *c) {
    static const td_config_defaults D = {248320, 2048, 512, 40, 16, 2, 32768};
    read_either(r, c, &D, "mtp_num_hidden_layers");
    c->n_experts = td_config_u32(r, "num_experts", 256, 1, TD_EXPERTS_MAX);
    c->top_k = td_config_u32(r, "num_experts_per_tok", 8, 1, TD_TOP_K_MAX);
    td_config_check_experts(r, c);
    memset(c->is_moe, 1, c->n_layers + c->n_mtp_layers);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* All gains are stored less one, but that of the DeltaNet's own norm. Cards share a DeltaNet by key heads. */
#define COMMON_WEIGHTS                                                                                                      \
    TD_STREAM_WEIGHTS_OF(TD_NORM_PLUS_ONE), TD_GQA_WEIGHTS_OF(GQA_Q_GATE), TD_HEAD_NORM_WEIGHTS_OF(TD_NORM_PLUS_ONE),       \
        TD_MATRIX(DELTA_CONV, DELTA, "model.layers.#.linear_attn.conv1d.weight", DELTA_QKV, DELTA_CONV,                     \
                  .keep = TD_KEEP_F32, .order = TD_ORDER_DELTA_QKV, .split = TD_SPLIT_ROWS),                                \
        TD_VECTOR(DELTA_A_LOG, DELTA, "model.layers.#.linear_attn.A_log", DELTA_HEADS, .split = TD_SPLIT_ROWS),             \
        TD_VECTOR(DELTA_DT_BIAS, DELTA, "model.layers.#.linear_attn.dt_bias", DELTA_HEADS, .split = TD_SPLIT_ROWS),         \
        TD_NORM(DELTA_NORM, DELTA, "model.layers.#.linear_attn.norm.weight", DELTA_DIM),                                    \
        TD_MATRIX(DELTA_O, DELTA, "model.layers.#.linear_attn.out_proj.weight", HIDDEN, DELTA_V, .split = TD_SPLIT_COLUMNS, \
                  .rotation = TD_WRITES),                                                                                   \
        TD_ROUTER_WEIGHT, TD_SHARED_WEIGHTS("mlp.shared_expert"),                                                           \
        TD_MATRIX(SHARED_OUT_GATE, MOE, "model.layers.#.mlp.shared_expert_gate.weight", ONE, HIDDEN, .keep = TD_KEEP_F32,   \
                  .rotation = TD_READS(POST_NORM)),                                                                         \
        TD_MTP_WEIGHTS_OF(TD_NORM_PLUS_ONE, "mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm", "lm_head")

/* One of the projections of a DeltaNet's input. */
#define PROJECTION(role, name, rows, ...)                                                                      \
    TD_MATRIX(role, DELTA, "model.layers.#.linear_attn." name ".weight", rows, HIDDEN, .split = TD_SPLIT_ROWS, \
              .rotation = TD_READS(INPUT_NORM), __VA_ARGS__)

/* Of each key head q, k, v and z are in one tensor, b and a in another. */
static const td_weight_rule WEIGHTS_NEXT[TD_ROLE_COUNT] = {
    COMMON_WEIGHTS,
    PROJECTION(DELTA_QKV, "in_proj_qkvz", DELTA_QKVZ),
    PROJECTION(DELTA_B, "in_proj_ba", DELTA_HEADS2, .keep = TD_KEEP_F32),
    TD_DENSE_WEIGHTS,
    TD_EXPERT_WEIGHTS,
};

/* An expert's matrix of a tensor of all experts, which quantised checkpoints have apart. */
#define EXPERT(role, one, all, rows, columns, ...)                                        \
    TD_MATRIX(role, EXPERT, "model.layers.#.mlp.experts.#." one ".weight", rows, columns, \
              .within = "model.layers.#.mlp.experts." all, __VA_ARGS__)

static const td_weight_rule WEIGHTS_35[TD_ROLE_COUNT] = {
    COMMON_WEIGHTS,
    PROJECTION(DELTA_QKV, "in_proj_qkv", DELTA_QKV, .order = TD_ORDER_DELTA_QKV),
    PROJECTION(DELTA_Z, "in_proj_z", DELTA_V),
    PROJECTION(DELTA_B, "in_proj_b", DELTA_HEADS, .keep = TD_KEEP_F32),
    PROJECTION(DELTA_A, "in_proj_a", DELTA_HEADS, .keep = TD_KEEP_F32),
    EXPERT(EXPERT_GATE, "gate_proj", "gate_up_proj", MOE_INTER, HIDDEN, .stack = TD_STACK_FIRST, .split = TD_SPLIT_ROWS,
           .rotation = TD_READS(POST_NORM)),
    EXPERT(EXPERT_UP, "up_proj", "gate_up_proj", MOE_INTER, HIDDEN, .stack = TD_STACK_SECOND, .split = TD_SPLIT_ROWS,
           .rotation = TD_READS(POST_NORM)),
    EXPERT(EXPERT_DOWN, "down_proj", "down_proj", HIDDEN, MOE_INTER, .stack = TD_STACK_ROWS, .split = TD_SPLIT_COLUMNS,
           .rotation = TD_WRITES),
};

/* ---- layers ---------------------------------------------------------------------------------- */

static td_layer_caches caches(const td_model_config *c, uint32_t layer) {
    return c->is_delta[layer] ? td_delta_caches(c) : td_gqa_caches(c, layer);
}

/* The MTP layer too, which has attention and experts, behind a projection (model/program.c). */
static void layer(td_layer *l) {
    const td_model_config *c = l->c;
    /* h = norm(x) */
    norm(l, .gamma = W(INPUT_NORM));
    if (c->is_delta[l->index])
        /* a = delta(h): a state is decayed, corrected by each key's value, and read by the query; then normed and gated */
        delta(l, .qkv = W(DELTA_QKV), .z = W(DELTA_Z), .b = W(DELTA_B), .a = W(DELTA_A), .conv = W(DELTA_CONV),
              .a_log = W(DELTA_A_LOG), .dt_bias = W(DELTA_DT_BIAS), .norm = W(DELTA_NORM), .o = W(DELTA_O));
    else
        /* a = attention(h), each head times the sigmoid of its gate; a part of each head is rotated */
        gqa(l, .gated = true, .q = W(Q), .k = W(K), .v = W(V), .o = W(O), .q_norm = W(Q_NORM), .k_norm = W(K_NORM));
    /* x += a; h = norm(x) */
    add_norm(l, .gamma = W(POST_NORM));
    if (!l->is_moe) {
        /* x += mlp(h) */
        mlp(l, .gate = W(DENSE_GATE), .up = W(DENSE_UP), .down = W(DENSE_DOWN));
        add(l);
        return;
    }
    /* e, w = the experts that the router chooses for h, and their weights; they begin */
    route(l, .w = W(ROUTER), .score = c->route_score, .n_group = 1, .topk_group = 1, .normalise = c->norm_topk, .scale = 1);
    /* m = sigmoid(gate . h) * shared expert(h), meanwhile */
    shared(l, .gate = W(SHARED_GATE), .up = W(SHARED_UP), .down = W(SHARED_DOWN), .out_gate = W(SHARED_OUT_GATE));
    /* x += m + the sum of w * experts e(h) */
    add_experts(l, .gate = l->gates, .up = l->ups, .down = l->downs);
}

const td_arch TD_ARCH_QWEN3_NEXT = {.name = "Qwen3NextForCausalLM",
                                    .mtp = "mtp.",
                                    .mtp_layer = "layers.",
                                    .read_config = read_next,
                                    .weights = WEIGHTS_NEXT,
                                    .caches = caches,
                                    .layer = layer};
const td_arch TD_ARCH_QWEN3_5_MOE_TEXT = {.name = "Qwen3_5MoeForCausalLM",
                                          .mtp = "mtp.",
                                          .mtp_layer = "layers.",
                                          .read_config = read_35,
                                          .weights = WEIGHTS_35,
                                          .caches = caches,
                                          .layer = layer};
const td_arch TD_ARCH_QWEN3_5_MOE = {.name = "Qwen3_5MoeForConditionalGeneration",
                                     .body = "model.language_model.",
                                     .mtp = "mtp.",
                                     .mtp_layer = "layers.",
                                     .read_config = read_35,
                                     .weights = WEIGHTS_35,
                                     .caches = caches,
                                     .layer = layer};
