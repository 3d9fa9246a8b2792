/* GLM-4.7-Flash: DeepSeek-V3's latent attention, with heads of other sizes, and its router. */
#include <math.h>

#include "model/arch/families.h"
#include "model/arch/weight_table.h"

/* ---- configuration --------------------------------------------------------------------------- */

/* transformers' Glm4MoeLiteConfig. The multi-token-prediction layer behind the last one (num_nextn_predict_layers) is not
 * read: nothing drafts with it. */
static void read_config(td_config_reader *r, td_model_config *c) {
    static const td_config_defaults D = {154880, 2048, 10240, 47, 20, 0, 202752};
    td_config_common(r, c, &D);
    c->eps = (float)td_config_number(r, "rms_norm_eps", 1e-5, 0, 1);
    td_config_mla(r, c, &(td_config_mla_defaults){.q_lora = 768, .kv_lora = 512, .nope = 192, .rope = 64, .v = 256});
    td_config_refuse_sliding_window(r);

    c->moe_inter = td_config_u32(r, "moe_intermediate_size", 1536, 1, TD_CONFIG_DIM_MAX);
    c->n_experts = td_config_u32_alias(r, "n_routed_experts", "num_local_experts", 64, 1, TD_EXPERTS_MAX);
    c->top_k = td_config_u32(r, "num_experts_per_tok", 4, 1, TD_TOP_K_MAX);
    c->shared_inter = td_config_u32(r, "n_shared_experts", 1, 0, 64) * c->moe_inter;
    c->norm_topk = td_config_bool(r, "norm_topk_prob", true);
    c->routed_scale = td_config_number(r, "routed_scaling_factor", 1.8, 0, 1e6);
    td_config_sigmoid_router(r, c);
    td_config_router_groups(r, c, 1, 1);
    td_config_check_experts(r, c);
    td_config_dense_layers(r, c, 1);

    td_config_rope(r, c, c->rope_dim, 0);
    c->rope.interleaved = td_config_bool(r, "rope_interleave", true);
    c->softmax_scale = td_rope_softmax_factor(&c->rope) / sqrt((double)c->nope_dim + c->rope_dim);
}

/* ---- weights --------------------------------------------------------------------------------- */

static const td_weight_rule WEIGHTS[TD_ROLE_COUNT] = {
    TD_STREAM_WEIGHTS, TD_MLA_WEIGHTS, TD_DENSE_WEIGHTS,
    TD_ROUTER_WEIGHT,  TD_ROUTER_BIAS, TD_SHARED_WEIGHTS("mlp.shared_experts"),
    TD_EXPERT_WEIGHTS,
};

/* ---- layers: DeepSeek-V3's (deepseek.c) ------------------------------------------------------- */

const td_arch TD_ARCH_GLM4_MOE_LITE = {.name = "Glm4MoeLiteForCausalLM",
                                       .read_config = read_config,
                                       .weights = WEIGHTS,
                                       .caches = td_mla_caches,
                                       .layer = td_deepseek_layer};
