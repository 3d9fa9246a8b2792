/* GLM-4.5, 4.6, 4.7 and Air: grouped-query attention that rotates a part of each head, and DeepSeek-V3's router. */
#include <math.h>

#include "model/arch/families.h"
#include "model/arch/weight_table.h"
#include "model/layer_verbs.h"

/* ---- configuration --------------------------------------------------------------------------- */

/* transformers' Glm4MoeConfig. */
static void read_config(td_config_reader *r, td_model_config *c) {
    static const td_config_defaults D = {151552, 4096, 10944, 46, 96, 8, 131072};
    td_config_common(r, c, &D);
    c->eps = (float)td_config_number(r, "rms_norm_eps", 1e-5, 0, 1);
    td_config_gqa(r, c, 0);
    c->qkv_bias = td_config_bool(r, "attention_bias", false);
    c->qk_norm = td_config_bool(r, "use_qk_norm", false);
    td_config_mtp_layers(r, c, "num_nextn_predict_layers", 0);
    td_config_refuse_sliding_window(r);

    c->moe_inter = td_config_u32(r, "moe_intermediate_size", 1408, 1, TD_CONFIG_DIM_MAX);
    c->n_experts = td_config_u32_alias(r, "n_routed_experts", "num_local_experts", 128, 1, TD_EXPERTS_MAX);
    c->top_k = td_config_u32(r, "num_experts_per_tok", 8, 1, TD_TOP_K_MAX);
    c->shared_inter = td_config_u32(r, "n_shared_experts", 1, 0, 64) * c->moe_inter;
    c->norm_topk = td_config_bool(r, "norm_topk_prob", true);
    c->routed_scale = td_config_number(r, "routed_scaling_factor", 1, 0, 1e6);
    td_config_sigmoid_router(r, c);
    td_config_router_groups(r, c, 1, 1);
    td_config_check_experts(r, c);

    uint32_t first = td_config_u32(r, "first_k_dense_replace", 1, 0, TD_LAYERS_MAX);
    for (uint32_t i = 0; i < c->n_layers + c->n_mtp_layers; i++) c->is_moe[i] = i >= first;

    td_config_rope(r, c, c->head_dim, 0.5);
    c->softmax_scale = 1 / sqrt((double)c->head_dim);
}

/* ---- weights --------------------------------------------------------------------------------- */

static const td_weight_rule WEIGHTS[TD_ROLE_COUNT] = {
    TD_STREAM_WEIGHTS,
    TD_GQA_WEIGHTS,
    TD_HEAD_NORM_WEIGHTS,
    TD_DENSE_WEIGHTS,
    TD_ROUTER_WEIGHT,
    TD_ROUTER_BIAS,
    TD_SHARED_WEIGHTS("mlp.shared_experts"),
    TD_EXPERT_WEIGHTS,
    TD_MTP_WEIGHTS,
};

/* ---- layers ---------------------------------------------------------------------------------- */

/* The MTP layer too, behind a projection (model/program.c). */
static void layer(td_layer *l) {
    const td_model_config *c = l->c;
    /* h = norm(x) */
    norm(l, .gamma = W(INPUT_NORM));
    /* a = attention(h), which rotates a part of each head */
    gqa(l, .q = W(Q), .k = W(K), .v = W(V), .o = W(O), .q_bias = W(Q_BIAS), .k_bias = W(K_BIAS), .v_bias = W(V_BIAS),
        .q_norm = W(Q_NORM), .k_norm = W(K_NORM));
    /* x += a; h = norm(x) */
    add_norm(l, .gamma = W(POST_NORM));
    if (!l->is_moe) {
        /* x += mlp(h) */
        mlp(l, .gate = W(DENSE_GATE), .up = W(DENSE_UP), .down = W(DENSE_DOWN));
        add(l);
        return;
    }
    /* e, w = the experts that the router chooses for h, and their weights; they begin */
    route(l, .w = W(ROUTER), .bias = W(ROUTER_BIAS), .score = c->route_score, .group = c->route_group, .n_group = c->n_group,
          .topk_group = c->topk_group, .normalise = c->norm_topk, .scale = (float)c->routed_scale);
    /* m = shared expert(h), meanwhile */
    if (c->shared_inter) shared(l, .gate = W(SHARED_GATE), .up = W(SHARED_UP), .down = W(SHARED_DOWN));
    /* x += m + the sum of w * experts e(h) */
    add_experts(l, .gate = l->gates, .up = l->ups, .down = l->downs);
}

const td_arch TD_ARCH_GLM4_MOE = {
    .name = "Glm4MoeForCausalLM", .read_config = read_config, .weights = WEIGHTS, .caches = td_gqa_caches, .layer = layer};
