/* DeepSeek-V2 (arXiv 2405.04434), DeepSeek-V3 (arXiv 2412.19437) and Kimi-K2: multi-head latent attention. */
#include <math.h>
#include <string.h>

#include "model/arch/families.h"
#include "model/arch/weight_table.h"

/* ---- configuration --------------------------------------------------------------------------- */

/* Configuration_deepseek.py of the published checkpoints and transformers' classes. */
static void read_either(td_config_reader *r, td_model_config *c, bool v3) {
    static const td_config_defaults V2 = {32000, 4096, 11008, 32, 32, 0, 2048}, V3 = {129280, 7168, 18432, 61, 128, 0, 4096};
    td_config_common(r, c, v3 ? &V3 : &V2);
    c->q_lora = td_config_has(r, "q_lora_rank") ? td_config_u32(r, "q_lora_rank", 0, 1, TD_CONFIG_LORA_MAX)
                                                : 1536; /* null: q is not compressed */
    c->kv_lora = td_config_u32(r, "kv_lora_rank", 512, 1, TD_CONFIG_LORA_MAX);
    c->nope_dim = td_config_u32(r, "qk_nope_head_dim", 128, 1, TD_CONFIG_HEAD_DIM_MAX);
    c->rope_dim = td_config_u32(r, "qk_rope_head_dim", 64, 2, TD_CONFIG_HEAD_DIM_MAX);
    c->v_dim = td_config_u32(r, "v_head_dim", 128, 1, TD_CONFIG_HEAD_DIM_MAX);
    c->attn_bias = td_config_bool(r, "attention_bias", false);
    td_config_mtp_layers(r, c);

    c->moe_inter = td_config_u32(r, "moe_intermediate_size", v3 ? 2048 : 1407, 1, TD_CONFIG_DIM_MAX);
    c->n_experts = td_config_u32_alias(r, "n_routed_experts", "num_experts", v3 ? 256 : 64, 1, TD_EXPERTS_MAX);
    c->top_k = td_config_u32(r, "num_experts_per_tok", v3 ? 8 : 0, 1, TD_TOP_K_MAX);
    if (c->top_k == 0) td_config_refuse(r, TD_EFORMAT, "num_experts_per_tok is missing");
    uint32_t n_shared = td_config_has(r, "n_shared_experts") ? td_config_u32(r, "n_shared_experts", 0, 0, 64) : v3 ? 1 : 2;
    c->shared_inter = n_shared * c->moe_inter;
    c->norm_topk = td_config_bool(r, "norm_topk_prob", v3);
    c->routed_scale = td_config_number(r, "routed_scaling_factor", v3 ? 2.5 : 1.0, 0, 1e6);

    const char *score = td_config_text(r, "scoring_func", v3 ? "sigmoid" : "softmax");
    const char *method = td_config_text(r, "topk_method", v3 ? "noaux_tc" : "greedy");
    c->route_score = v3 ? TD_ROUTE_SIGMOID : TD_ROUTE_SOFTMAX;
    c->route_bias = v3;
    if (strcmp(score, v3 ? "sigmoid" : "softmax"))
        td_config_refuse(r, TD_ENOTSUP, "scoring_func is '%.40s', and %s has %s only", score, c->arch_name,
                         v3 ? "sigmoid" : "softmax");
    bool grouped = v3 ? !strcmp(method, "noaux_tc") : !strcmp(method, "group_limited_greedy");
    if (!grouped && (v3 || strcmp(method, "greedy")))
        td_config_refuse(r, TD_ENOTSUP, "topk_method is '%.40s', and %s has %s only", method, c->arch_name,
                         v3 ? "noaux_tc" : "greedy and group_limited_greedy");
    c->n_group = grouped ? td_config_u32(r, "n_group", v3 ? 8 : 1, 1, TD_EXPERTS_MAX) : 1;
    c->topk_group = grouped ? td_config_u32(r, "topk_group", v3 ? 4 : 1, 1, TD_EXPERTS_MAX) : 1;
    c->route_groups = c->n_group == 1 ? TD_ROUTE_GREEDY : v3 ? TD_ROUTE_GROUP_TOP2 : TD_ROUTE_GROUP_MAX;
    if (c->n_group == 1) c->topk_group = 1;
    /* V2's gate either normalises or scales; V3's does both (MoEGate of the two modeling_deepseek.py). */
    if (!v3) {
        c->norm_topk = c->norm_topk && c->top_k > 1;
        if (c->norm_topk) c->routed_scale = 1;
    }
    td_config_check_experts(r, c);

    uint32_t first = td_config_u32(r, "first_k_dense_replace", v3 ? 3 : 0, 0, TD_LAYERS_MAX);
    uint32_t every = td_config_u32(r, "moe_layer_freq", 1, 1, TD_LAYERS_MAX);
    for (uint32_t i = 0; i < TD_LAYERS_MAX && i < c->n_layers + c->n_mtp_layers; i++)
        c->is_moe[i] = i >= first && i % every == 0;

    td_config_rope(r, c, c->rope_dim);
    c->rope.interleaved = td_config_bool(r, "rope_interleave", true);
    c->softmax_scale = td_rope_softmax_factor(&c->rope) / sqrt((double)c->nope_dim + c->rope_dim);
}

static void read_v2(td_config_reader *r, td_model_config *c) {
    read_either(r, c, false);
}

static void read_v3(td_config_reader *r, td_model_config *c) {
    read_either(r, c, true);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* clang-format off */
static const td_weight_rule WEIGHTS[TD_ROLE_COUNT] = {
    TD_STREAM_WEIGHTS,
    TD_MLA_WEIGHTS,
    TD_DENSE_WEIGHTS,
    TD_ROUTER_WEIGHT,
    TD_ROUTER_BIAS,
    TD_SHARED_WEIGHTS("mlp.shared_experts"),
    TD_EXPERT_WEIGHTS,
    TD_MTP_WEIGHTS,
};
/* clang-format on */

/* ---- layers ---------------------------------------------------------------------------------- */

static td_layer_caches caches(const td_model_config *c, uint32_t layer) {
    (void)layer;
    return (td_layer_caches){{{.kind = TD_KV_LATENT, .heads = 1, .values = c->kv_lora, .split = TD_SPLIT_WHOLE},
                              {.kind = TD_KV_ROPE, .heads = 1, .values = c->rope_dim, .split = TD_SPLIT_WHOLE}},
                             2};
}

static const td_layer_op DENSE_LAYER[] = {
    {TD_LAYER_NORM, TD_ROLE_INPUT_NORM},    /* h = norm(x) */
    {.kind = TD_LAYER_MLA},                 /* a = attention(h) */
    {TD_LAYER_ADD_NORM, TD_ROLE_POST_NORM}, /* x += a, h = norm(x) */
    {.kind = TD_LAYER_MLP},                 /* m = mlp(h) */
    {.kind = TD_LAYER_ADD},                 /* x += m */
    {.kind = TD_LAYER_END},
};
static const td_layer_op MOE_LAYER[] = {
    {TD_LAYER_NORM, TD_ROLE_INPUT_NORM},    /* h = norm(x) */
    {.kind = TD_LAYER_MLA},                 /* a = attention(h) */
    {TD_LAYER_ADD_NORM, TD_ROLE_POST_NORM}, /* x += a, h = norm(x) */
    {.kind = TD_LAYER_ROUTE},               /* e, w = router(h) */
    {.kind = TD_LAYER_SHARED},              /* m = shared expert(h) */
    {.kind = TD_LAYER_ADD_EXPERTS},         /* x += m + sum of w * experts e(h) */
    {.kind = TD_LAYER_END},
};

static const td_layer_op *layer_of(const td_model_config *c, uint32_t layer) {
    return c->is_moe[layer] ? MOE_LAYER : DENSE_LAYER;
}

const td_arch TD_ARCH_DEEPSEEK_V2 = {
    .name = "DeepseekV2ForCausalLM", .read_config = read_v2, .weights = WEIGHTS, .caches = caches, .layer = layer_of};
const td_arch TD_ARCH_DEEPSEEK_V3 = {
    .name = "DeepseekV3ForCausalLM", .read_config = read_v3, .weights = WEIGHTS, .caches = caches, .layer = layer_of};
