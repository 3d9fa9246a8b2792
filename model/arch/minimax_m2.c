/* MiniMax-M2, M2.1, M2.5: grouped-query attention with norms of whole rows of q and k; every layer has experts, chosen by
 * DeepSeek-V3's router without groups, and no shared one. */
#include <math.h>
#include <string.h>

#include "model/arch/families.h"
#include "model/arch/weight_table.h"
#include "model/layer_verbs.h"

/* ---- configuration --------------------------------------------------------------------------- */

static void refuse_number_but(td_config_reader *r, const td_model_config *c, const char *key, double only) {
    double x = td_config_number(r, key, only, -1e9, 1e9);
    if (x != only) td_config_refuse(r, TD_ENOTSUP, "%s is %g, and %s has %g only", key, x, c->arch_name, only);
}

/* Refuse options of the published config.json that no published model uses. */
static void refuse_options(td_config_reader *r, const td_model_config *c) {
    static const char *const ONES[] = {"layernorm_full_attention_alpha",
                                       "layernorm_full_attention_beta",
                                       "layernorm_mlp_alpha",
                                       "layernorm_mlp_beta",
                                       "routed_scaling_factor",
                                       "num_expert_group",
                                       "topk_group"};
    for (size_t i = 0; i < sizeof ONES / sizeof *ONES; i++) refuse_number_but(r, c, ONES[i], 1);
    refuse_number_but(r, c, "shared_intermediate_size", 0);
    const char *norm = td_config_text(r, "qk_norm_type", "per_layer");
    if (strcmp(norm, "per_layer"))
        td_config_refuse(r, TD_ENOTSUP, "qk_norm_type is '%.40s', and only per_layer, over a whole row, is supported", norm);
    if (!td_config_bool(r, "use_qk_norm", true))
        td_config_refuse(r, TD_ENOTSUP, "use_qk_norm is false, and %s without norms of q and k is not supported",
                         c->arch_name);
    static const char *const WINDOWS[] = {"sliding_window", "attn_window_size"};
    for (size_t i = 0; i < 2; i++)
        if (td_config_get(r, WINDOWS[i]))
            td_config_refuse(r, TD_ENOTSUP, "%s is set, and a sliding attention window is not supported", WINDOWS[i]);
    td_config_refuse_sliding_window(r);
    size_t        i;
    const json_t *v;
    json_array_foreach(td_config_get(r, "attn_type_list"), i, v) {
        if (!json_is_integer(v) || json_integer_value(v) != 1)
            td_config_refuse(r, TD_ENOTSUP, "attn_type_list[%zu] is not 1, and only softmax attention is supported", i);
    }
}

/* The published configuration_minimax_m2.py and transformers' MiniMaxM2Config. The multi-token-prediction modules
 * (num_mtp_modules) are not in the published checkpoints. */
static void read_config(td_config_reader *r, td_model_config *c) {
    static const td_config_defaults D = {200064, 3072, 1536, 62, 48, 8, 196608};
    td_config_common(r, c, &D);
    td_config_gqa(r, c, 128);
    c->qk_norm = c->qk_norm_rows = true;
    refuse_options(r, c);

    c->moe_inter = c->inter;
    c->n_experts = td_config_u32_alias(r, "num_local_experts", "num_experts", 256, 1, TD_EXPERTS_MAX);
    c->top_k = td_config_u32(r, "num_experts_per_tok", 8, 1, TD_TOP_K_MAX);
    c->norm_topk = true;
    c->routed_scale = 1;
    td_config_sigmoid_router(r, c);
    c->route_bias = td_config_bool(r, "use_routing_bias", true);
    c->n_group = c->topk_group = 1;
    c->route_group = TD_GROUP_NONE;
    td_config_check_experts(r, c);
    for (uint32_t i = 0; i < c->n_layers; i++) c->is_moe[i] = true;

    uint32_t rotary = td_config_u32(r, "rotary_dim", c->head_dim, 1, TD_CONFIG_HEAD_DIM_MAX);
    if (rotary > c->head_dim)
        td_config_refuse(r, TD_EFORMAT, "rotary_dim is %u, more than head_dim %u", rotary, c->head_dim);
    c->rope.theta = 5e6;
    td_config_rope(r, c, c->head_dim, (double)rotary / c->head_dim);
    c->softmax_scale = 1 / sqrt((double)c->head_dim);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Norms of a row are not cut with its heads: several cards are refused (model/shard.c). */
static const td_weight_rule WEIGHTS[TD_ROLE_COUNT] = {
    TD_STREAM_WEIGHTS,
    TD_GQA_WEIGHTS,
    TD_NORM(Q_NORM, LAYER, "model.layers.#.self_attn.q_norm.weight", GQA_Q),
    TD_NORM(K_NORM, LAYER, "model.layers.#.self_attn.k_norm.weight", GQA_KV),
    TD_MATRIX(ROUTER, MOE, "model.layers.#.block_sparse_moe.gate.weight", EXPERTS, HIDDEN, .keep = TD_KEEP_F32,
              .rotation = TD_READS(POST_NORM)),
    TD_VECTOR(ROUTER_BIAS, MOE, "model.layers.#.block_sparse_moe.e_score_correction_bias", EXPERTS,
              .when = td_when_route_bias),
    TD_MATRIX(EXPERT_GATE, EXPERT, "model.layers.#.block_sparse_moe.experts.#.w1.weight", MOE_INTER, HIDDEN,
              .split = TD_SPLIT_ROWS, .rotation = TD_READS(POST_NORM)),
    TD_MATRIX(EXPERT_UP, EXPERT, "model.layers.#.block_sparse_moe.experts.#.w3.weight", MOE_INTER, HIDDEN,
              .split = TD_SPLIT_ROWS, .rotation = TD_READS(POST_NORM)),
    TD_MATRIX(EXPERT_DOWN, EXPERT, "model.layers.#.block_sparse_moe.experts.#.w2.weight", HIDDEN, MOE_INTER,
              .split = TD_SPLIT_COLUMNS, .rotation = TD_WRITES),
};

/* ---- layers ---------------------------------------------------------------------------------- */

static void layer(td_layer *l) {
    /* h = norm(x) */
    norm(l, .gamma = W(INPUT_NORM));
    /* a = attention(h), with norms over whole rows of q and k */
    gqa(l, .q = W(Q), .k = W(K), .v = W(V), .o = W(O), .q_norm = W(Q_NORM), .k_norm = W(K_NORM), .norm_rows = true);
    /* x += a; h = norm(x) */
    add_norm(l, .gamma = W(POST_NORM));
    /* e, w = the experts that the router chooses for h, and their weights; they begin */
    route(l, .w = W(ROUTER), .bias = W(ROUTER_BIAS), .score = l->c->route_score, .n_group = 1, .topk_group = 1,
          .normalise = true, .scale = 1);
    /* x += the sum of w * experts e(h) */
    add_experts(l, .gate = l->gates, .up = l->ups, .down = l->downs);
}

const td_arch TD_ARCH_MINIMAX_M2 = {
    .name = "MiniMaxM2ForCausalLM", .read_config = read_config, .weights = WEIGHTS, .caches = td_gqa_caches, .layer = layer};
