/* Kimi-Linear (arXiv 2510.26692): layers of Kimi delta attention, a DeltaNet with decays of each key channel, and every fourth
 * with DeepSeek-V3's latent attention, in which nothing is rotated. Experts are those of DeepSeek-V3. */
#include <math.h>

#include "model/arch/families.h"
#include "model/arch/weight_table.h"
#include "model/layer_verbs.h"
#include "npu/block_weights.h"

/* ---- configuration --------------------------------------------------------------------------- */

/* A list of layers, which count from 1. @param kind what is_delta becomes in each. @param named of the lists so far */
static void read_layers(td_config_reader *r, td_model_config *c, const char *key, uint8_t kind, uint8_t *named) {
    const json_t *list = td_config_get(r, key), *v;
    size_t        i;
    if (!json_is_array(list)) td_config_refuse(r, TD_EFORMAT, "%s%s is no list of layers", r->prefix, key);
    json_array_foreach(list, i, v) {
        const json_int_t layer = json_integer_value(v);
        if (layer < 1 || layer > c->n_layers || named[layer - 1]) {
            td_config_refuse(r, TD_EFORMAT, "%s%s[%zu] is no layer of 1 to %u that is named once", r->prefix, key, i,
                             c->n_layers);
            return;
        }
        c->is_delta[layer - 1] = kind;
        named[layer - 1] = 1;
    }
}

/* Which layers are KDA, and its sizes: from linear_attn_config, as published, or as transformers 5 writes them. */
static void read_delta(td_config_reader *root, td_model_config *c) {
    td_config_reader r = *root;
    const json_t    *published = td_config_get(root, "linear_attn_config");
    uint8_t          named[TD_LAYERS_MAX] = {0};
    const bool       types = td_config_delta_layers(root, c, td_config_full_attention);
    if (published && !json_is_object(published)) td_config_refuse(root, TD_EFORMAT, "linear_attn_config is not an object");
    if (published) {
        r.object = published;
        r.prefix = "linear_attn_config.";
    }
    r.status = root->status;
    if (!published && !types) td_config_refuse(&r, TD_EFORMAT, "linear_attn_config and layer_types are missing");
    if (published && !types) {
        read_layers(&r, c, "kda_layers", 1, named);
        read_layers(&r, c, "full_attn_layers", 0, named);
        for (uint32_t i = 0; i < c->n_layers; i++)
            if (!named[i])
                td_config_refuse(&r, TD_EFORMAT, "layer %u is neither in %skda_layers nor in %sfull_attn_layers", i + 1,
                                 r.prefix, r.prefix);
    }
    const uint32_t heads = td_config_u32(&r, published ? "num_heads" : "linear_num_heads", 32, 1, TD_CONFIG_HEADS_MAX),
                   dim = td_config_u32(&r, published ? "head_dim" : "linear_head_dim", 128, 1, TD_CONFIG_HEAD_DIM_MAX),
                   conv = td_config_u32(&r, published ? "short_conv_kernel_size" : "linear_conv_kernel_dim", 4, 2,
                                        TD_CONV_WIDTH_MAX);
    c->delta = (td_delta_config){
        .form = TD_DELTA_KIMI, .k_heads = heads, .v_heads = heads, .k_dim = dim, .v_dim = dim, .conv = conv, .low = dim};
    root->status = r.status;
}

static void read_experts(td_config_reader *r, td_model_config *c) {
    c->moe_inter = td_config_u32(r, "moe_intermediate_size", 1024, 1, TD_CONFIG_DIM_MAX);
    c->n_experts = td_config_u32_alias(r, "num_experts", "num_local_experts", 256, 1, TD_EXPERTS_MAX);
    c->top_k = td_config_u32_alias(r, "num_experts_per_token", "num_experts_per_tok", 8, 1, TD_TOP_K_MAX);
    c->shared_inter = td_config_u32_alias(r, "num_shared_experts", "n_shared_experts", 1, 0, 64) * c->moe_inter;
    c->norm_topk = td_config_bool(r, "moe_renormalize", td_config_bool(r, "norm_topk_prob", true));
    c->routed_scale = td_config_number(r, "routed_scaling_factor", 2.446, 0, 1e6);
    td_config_only_text(r, c, "moe_router_activation_func", "sigmoid");
    td_config_sigmoid_router(r, c);
    td_config_router_groups(r, c, td_config_u32(r, "num_expert_group", 1, 1, TD_EXPERTS_MAX), 1);
    td_config_check_experts(r, c);
    td_config_u32(r, "moe_layer_freq", 1, 1, 1);
    td_config_dense_layers(r, c, 1);
}

static void read_config(td_config_reader *r, td_model_config *c) {
    static const td_config_defaults D = {163840, 2304, 9216, 27, 32, 32, 1048576};
    td_config_common(r, c, &D);
    c->eps = (float)td_config_number(r, "rms_norm_eps", 1e-5, 0, 1);
    c->max_position = td_config_u32(r, "model_max_length", c->max_position, 1, TD_CONFIG_POSITION_MAX);
    td_config_mla(r, c, &(td_config_mla_defaults){.kv_lora = 512, .nope = 128, .rope = 64, .v = 128});
    if (!td_config_bool(r, "mla_use_nope", true))
        td_config_refuse(r, TD_ENOTSUP, "mla_use_nope is false, and %s has attention without rope only", c->arch_name);
    td_config_rope(r, c, c->rope_dim, 0); /* rope_theta is in the file, and is not used */
    if (c->rope.kind != TD_ROPE_PLAIN || c->rope.factor != 1)
        td_config_refuse(r, TD_ENOTSUP, "rope_scaling is given, and %s has no rope", c->arch_name);
    c->rope = (td_rope_config){0};
    if (td_config_u32(r, "num_nextn_predict_layers", 0, 0, TD_LAYERS_MAX))
        td_config_refuse(r, TD_ENOTSUP, "num_nextn_predict_layers is not 0, and %s has no such layers", c->arch_name);
    read_delta(r, c);
    read_experts(r, c);
    c->softmax_scale = 1 / sqrt((double)c->nope_dim + c->rope_dim);
}

/* ---- weights --------------------------------------------------------------------------------- */

#define IN_MOE "model.layers.#.block_sparse_moe."

/* Cards share KDA by heads. */
static const td_weight_rule WEIGHTS[TD_ROLE_COUNT] = {
    TD_STREAM_WEIGHTS,
    TD_KDA_WEIGHTS,
    TD_MLA_WEIGHTS,
    TD_DENSE_WEIGHTS,
    TD_MATRIX(ROUTER, MOE, IN_MOE "gate.weight", EXPERTS, HIDDEN, .keep = TD_KEEP_F32, .rotation = TD_READS(POST_NORM)),
    TD_VECTOR(ROUTER_BIAS, MOE, IN_MOE "gate.e_score_correction_bias", EXPERTS),
    TD_SHARED_WEIGHTS("block_sparse_moe.shared_experts"),
    TD_MATRIX(EXPERT_GATE, EXPERT, IN_MOE "experts.#.w1.weight", MOE_INTER, HIDDEN, .split = TD_SPLIT_ROWS,
              .rotation = TD_READS(POST_NORM)),
    TD_MATRIX(EXPERT_UP, EXPERT, IN_MOE "experts.#.w3.weight", MOE_INTER, HIDDEN, .split = TD_SPLIT_ROWS,
              .rotation = TD_READS(POST_NORM)),
    TD_MATRIX(EXPERT_DOWN, EXPERT, IN_MOE "experts.#.w2.weight", HIDDEN, MOE_INTER, .split = TD_SPLIT_COLUMNS,
              .rotation = TD_WRITES),
};

/* ---- layers ---------------------------------------------------------------------------------- */

static td_layer_caches caches(const td_model_config *c, uint32_t layer) {
    return c->is_delta[layer] ? td_delta_caches(c) : td_mla_caches(c, layer);
}

/* The norm inside of the attention has this eps, whatever rms_norm_eps says. */
#define LATENT_EPS 1e-6f

static void layer(td_layer *l) {
    const td_model_config *c = l->c;
    /* h = norm(x) */
    norm(l, .gamma = W(INPUT_NORM));
    if (c->is_delta[l->index])
        /* a = KDA(h): each channel of a state is decayed, then it is corrected and read as a DeltaNet's; normed and gated */
        delta(l, .qkv = W(DELTA_QKV), .k = W(DELTA_K), .v = W(DELTA_V), .conv = W(DELTA_CONV), .conv_k = W(DELTA_CONV_K),
              .conv_v = W(DELTA_CONV_V), .a_low = W(DELTA_A_LOW), .a = W(DELTA_A), .z_low = W(DELTA_Z_LOW), .z = W(DELTA_Z),
              .b = W(DELTA_B), .a_log = W(DELTA_A_LOG), .dt_bias = W(DELTA_DT_BIAS), .norm = W(DELTA_NORM), .o = W(DELTA_O));
    else
        /* a = attention(h): the latent of k and v is compressed, and normed in between; positions do not count */
        mla(l, .q_a = W(Q_A), .q_a_bias = W(Q_A_BIAS), .q_a_norm = W(Q_A_NORM), .q_b = W(Q_B), .q = W(MLA_Q),
            .kv_a = W(KV_A), .kv_a_bias = W(KV_A_BIAS), .kv_a_norm = W(KV_A_NORM), .kv_b = W(KV_B), .o = W(MLA_O),
            .o_bias = W(MLA_O_BIAS), .eps = LATENT_EPS);
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

const td_arch TD_ARCH_KIMI_LINEAR = {
    .name = "KimiLinearForCausalLM", .read_config = read_config, .weights = WEIGHTS, .caches = caches, .layer = layer};
