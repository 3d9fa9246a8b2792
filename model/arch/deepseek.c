/* DeepSeek-V2 (arXiv 2405.04434), DeepSeek-V3 (arXiv 2412.19437), Kimi-K2, and the language model of Kimi-K2.5: multi-head
 * latent attention. */
#include <math.h>
#include <string.h>

#include "model/arch/families.h"
#include "model/arch/weight_table.h"
#include "model/layer_verbs.h"

/* ---- configuration --------------------------------------------------------------------------- */

/* V2's router: softmax, and a group's score is that of its best expert. */
static void read_softmax_router(td_config_reader *r, td_model_config *c) {
    const char *method = td_config_text(r, "topk_method", "greedy");
    bool        grouped = !strcmp(method, "group_limited_greedy");
    td_config_only_text(r, c, "scoring_func", "softmax");
    if (!grouped && strcmp(method, "greedy"))
        td_config_refuse(r, TD_ENOTSUP, "topk_method is '%.40s', and %s has greedy and group_limited_greedy only", method,
                         c->arch_name);
    c->route_score = TD_SCORE_SOFTMAX;
    c->n_group = grouped ? td_config_u32(r, "n_group", 1, 1, TD_EXPERTS_MAX) : 1;
    c->topk_group = c->n_group > 1 ? td_config_u32(r, "topk_group", 1, 1, TD_EXPERTS_MAX) : 1;
    c->route_group = c->n_group > 1 ? TD_GROUP_MAX : TD_GROUP_NONE;
}

/* As configuration_deepseek.py of the published checkpoints and transformers' classes. */
static void read_either(td_config_reader *r, td_model_config *c, bool v3) {
    static const td_config_defaults V2 = {32000, 4096, 11008, 32, 32, 0, 2048}, V3 = {129280, 7168, 18432, 61, 128, 0, 4096};
    td_config_common(r, c, v3 ? &V3 : &V2);
    td_config_mla(r, c, &(td_config_mla_defaults){.q_lora = 1536, .kv_lora = 512, .nope = 128, .rope = 64, .v = 128});
    td_config_mtp_layers(r, c, "num_nextn_predict_layers", 0);
    td_config_refuse_sliding_window(r);

    c->moe_inter = td_config_u32(r, "moe_intermediate_size", v3 ? 2048 : 1407, 1, TD_CONFIG_DIM_MAX);
    c->n_experts = td_config_u32_alias(r, "n_routed_experts", "num_experts", v3 ? 256 : 64, 1, TD_EXPERTS_MAX);
    c->top_k = td_config_u32(r, "num_experts_per_tok", v3 ? 8 : 0, 1, TD_TOP_K_MAX);
    if (c->top_k == 0) td_config_refuse(r, TD_EFORMAT, "num_experts_per_tok is missing");
    uint32_t n_shared = td_config_has(r, "n_shared_experts") ? td_config_u32(r, "n_shared_experts", 0, 0, 64) : v3 ? 1 : 2;
    c->shared_inter = n_shared * c->moe_inter;
    c->norm_topk = td_config_bool(r, "norm_topk_prob", v3);
    c->routed_scale = td_config_number(r, "routed_scaling_factor", v3 ? 2.5 : 1.0, 0, 1e6);

    if (v3) {
        td_config_sigmoid_router(r, c);
        td_config_router_groups(r, c, 8, 4);
    } else {
        read_softmax_router(r, c);
    }
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

    td_config_rope(r, c, c->rope_dim, 0);
    c->rope.interleaved = td_config_bool(r, "rope_interleave", true);
    c->softmax_scale = td_rope_softmax_factor(&c->rope) / sqrt((double)c->nope_dim + c->rope_dim);
}

static void read_v2(td_config_reader *r, td_model_config *c) {
    read_either(r, c, false);
}

static void read_v3(td_config_reader *r, td_model_config *c) {
    read_either(r, c, true);
}

/* The language model of Kimi-K2.5 and 2.6 is a DeepSeek-V3. */
static void read_kimi_k25(td_config_reader *r, td_model_config *c) {
    const char *type = td_config_text(r, "model_type", "deepseek_v3");
    if (strcmp(type, "kimi_k2") && strcmp(type, "deepseek_v3"))
        td_config_refuse(r, TD_ENOTSUP, "%smodel_type is '%.40s', and %s has kimi_k2 and deepseek_v3 only", r->prefix, type,
                         c->arch_name);
    read_either(r, c, true);
}

/* ---- weights --------------------------------------------------------------------------------- */

static const td_weight_rule WEIGHTS[TD_ROLE_COUNT] = {
    TD_STREAM_WEIGHTS, TD_MLA_WEIGHTS, TD_DENSE_WEIGHTS,
    TD_ROUTER_WEIGHT,  TD_ROUTER_BIAS, TD_SHARED_WEIGHTS("mlp.shared_experts"),
    TD_EXPERT_WEIGHTS, TD_MTP_WEIGHTS,
};

/* ---- layers ---------------------------------------------------------------------------------- */

/* The norms inside of the attention have this eps, whatever rms_norm_eps says (modeling_deepseek.py). */
#define LATENT_EPS 1e-6f

/* DeepSeek-V2, section 2.1 (attention) and 2.2 (experts); DeepSeek-V3, section 2.1, adds the router's bias, and DeepSeek-V3.2
 * the indexer (deepseek_v32.c). An MTP layer of V3 (section 2.2) is one of these behind a projection (model/program.c). */
void td_deepseek_layer(td_layer *l) {
    const td_model_config *c = l->c;
    /* h = norm(x) */
    norm(l, .gamma = W(INPUT_NORM));
    /* a = attention(h): q and the latent of k and v are compressed, and normed in between; an indexer chooses the keys */
    mla(l, .q_a = W(Q_A), .q_a_bias = W(Q_A_BIAS), .q_a_norm = W(Q_A_NORM), .q_b = W(Q_B), .q = W(MLA_Q), .kv_a = W(KV_A),
        .kv_a_bias = W(KV_A_BIAS), .kv_a_norm = W(KV_A_NORM), .kv_b = W(KV_B), .o = W(MLA_O), .o_bias = W(MLA_O_BIAS),
        .eps = LATENT_EPS,
        .index = {.q = W(INDEX_Q),
                  .k = W(INDEX_K),
                  .weights = W(INDEX_WEIGHTS),
                  .k_norm = W(INDEX_K_NORM),
                  .k_norm_bias = W(INDEX_K_BIAS)});
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

const td_arch TD_ARCH_DEEPSEEK_V2 = {.name = "DeepseekV2ForCausalLM",
                                     .read_config = read_v2,
                                     .weights = WEIGHTS,
                                     .caches = td_mla_caches,
                                     .layer = td_deepseek_layer};
const td_arch TD_ARCH_DEEPSEEK_V3 = {.name = "DeepseekV3ForCausalLM",
                                     .read_config = read_v3,
                                     .weights = WEIGHTS,
                                     .caches = td_mla_caches,
                                     .layer = td_deepseek_layer};

/* The names of the published config.json, and of transformers' class. */
#define KIMI_K25(architecture)                                                                               \
    {                                                                                                        \
        .name = architecture, .prefix = "language_model.", .read_config = read_kimi_k25, .weights = WEIGHTS, \
        .caches = td_mla_caches, .layer = td_deepseek_layer                                                  \
    }
const td_arch TD_ARCH_KIMI_K25 = KIMI_K25("KimiK25ForConditionalGeneration");
const td_arch TD_ARCH_KIMI_K25_OF_TRANSFORMERS = KIMI_K25("Kimi_K25ForConditionalGeneration");
