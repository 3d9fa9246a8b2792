/* GLM-4.5, 4.6, 4.7 and Air: grouped-query attention that rotates a part of each head, and DeepSeek-V3's router. */
#include <math.h>

#include "model/arch/families.h"
#include "model/arch/weight_table.h"
#include "npu/npu.h"

/* ---- configuration --------------------------------------------------------------------------- */

/* transformers' Glm4MoeConfig. */
static void read_config(td_config_reader *r, td_model_config *c) {
    static const td_config_defaults D = {151552, 4096, 10944, 46, 96, 8, 131072};
    td_config_common(r, c, &D);
    c->eps = (float)td_config_number(r, "rms_norm_eps", 1e-5, 0, 1);
    td_config_gqa(r, c, 0);
    c->qkv_bias = td_config_bool(r, "attention_bias", false);
    c->qk_norm = td_config_bool(r, "use_qk_norm", false);
    td_config_mtp_layers(r, c);
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
    for (uint32_t i = 0; i < TD_LAYERS_MAX && i < c->n_layers + c->n_mtp_layers; i++) c->is_moe[i] = i >= first;

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

const td_arch TD_ARCH_GLM4_MOE = {.name = "Glm4MoeForCausalLM",
                                  .read_config = read_config,
                                  .weights = WEIGHTS,
                                  .caches = td_gqa_caches,
                                  .layer = td_gqa_layer};
