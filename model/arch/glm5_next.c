/*
 * GLM-5.3-Flash: Kimi delta attention (arXiv 2510.26692) whose decays have a floor, and every fourth layer latent attention
 * without rope to the keys that an indexer chooses several tokens at a time. Each token has several residual streams
 * (hyper-connections, arXiv 2512.24880), whose mean goes to the head. Experts are those of DeepSeek-V3, with a limited gated unit.
 */
#include <math.h>
#include <stdio.h>

#include "model/arch/families.h"
#include "model/arch/weight_table.h"
#include "model/layer_verbs.h"
#include "npu/block_weights.h"

/* ---- configuration --------------------------------------------------------------------------- */

/* Kimi delta attention: sizes from linear_attn_config, as published, or as transformers 5 writes them. */
static void read_delta(td_config_reader *root, td_model_config *c) {
    td_config_reader r = *root;
    char             prefix[64];
    const json_t    *published = td_config_get(root, "linear_attn_config");
    if (published && !json_is_object(published))
        td_config_refuse(root, TD_EFORMAT, "%slinear_attn_config is not an object", root->prefix);
    if (published) {
        snprintf(prefix, sizeof prefix, "%slinear_attn_config.", root->prefix);
        r.object = published;
        r.prefix = prefix;
    }
    r.status = root->status;
    const uint32_t heads = td_config_u32(&r, published ? "num_heads" : "linear_num_heads", 64, 1, TD_CONFIG_HEADS_MAX),
                   dim = td_config_u32(&r, published ? "head_dim" : "linear_head_dim", 128, 1, TD_CONFIG_HEAD_DIM_MAX),
                   conv = td_config_u32(&r, published ? "short_conv_kernel_size" : "linear_conv_kernel_dim", 4, 2,
                                        TD_CONV_WIDTH_MAX);
    const char  *key = published ? "gate_lower_bound" : "linear_lower_bound";
    const double floor = td_config_number(&r, key, -5, TD_DECAY_LEAST, -1e-3);
    const bool   none =
        td_config_has(&r, key) && !td_config_get(&r, key) && !(published && td_config_bool(&r, "safe_gate", true));
    c->delta = (td_delta_config){.form = TD_DELTA_KIMI,
                                 .k_heads = heads,
                                 .v_heads = heads,
                                 .k_dim = dim,
                                 .v_dim = dim,
                                 .low = dim,
                                 .floor = none ? 0 : (float)floor,
                                 .conv = conv};
    root->status = r.status;
}

/* Which layers have attention, and which of these an indexer of their own. Without one a layer has the choice of the layer
 * before it. An MTP layer has both. */
static void read_layers(td_config_reader *r, td_model_config *c) {
    static const char *const ATTENTION[] = {"indexed_attention", "deepseek_sparse_attention", "full_attention", NULL};
    if (!td_config_delta_layers(r, c, ATTENTION))
        for (uint32_t i = 0; i < c->n_layers; i++) c->is_delta[i] = i % 4 != 3;
    td_config_indexed_layers(r, c);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (!c->is_delta[i] && !c->sparse.indexed[i] && (i == 0 || c->is_delta[i - 1]))
            td_config_refuse(r, TD_EFORMAT, "layer %u has no indexer, and the layer before it no choice that it could have",
                             i);
        if (c->is_delta[i]) c->sparse.indexed[i] = 0;
    }
}

static void read_indexer(td_config_reader *r, td_model_config *c) {
    td_sparse_config *x = &c->sparse;
    x->index_heads = td_config_u32(r, "index_n_heads", 32, 1, TD_CONFIG_HEADS_MAX);
    x->index_dim = td_config_u32(r, "index_head_dim", 128, 1, TD_CONFIG_HEAD_DIM_MAX);
    x->index_top = td_config_u32(r, "index_topk", 2048, 1, TD_CONFIG_POSITION_MAX);
    x->index_pool = td_config_u32(r, "index_kpool", 16, 1, TD_CONFIG_POSITION_MAX);
    if (x->index_pool > TD_INDEX_POOL_MAX || TD_INDEX_POOL_MAX % x->index_pool)
        td_config_refuse(r, TD_ENOTSUP, "%sindex_kpool is %u, and only 1, 2 and %d are supported", r->prefix, x->index_pool,
                         TD_INDEX_POOL_MAX);
    else if (x->index_top % x->index_pool)
        td_config_refuse(r, TD_EFORMAT, "%sindex_topk is %u, no multiple of index_kpool %u", r->prefix, x->index_top,
                         x->index_pool);
    td_config_refuse_false(r, "index_kpool_compress", "an indexer without gates of its tokens");
    td_config_refuse_false(r, "index_kpool_always_select_tail", "attention without the tokens behind the last index key");
}

static void read_attention(td_config_reader *r, td_model_config *c) {
    td_config_mla(r, c, &(td_config_mla_defaults){.q_lora = 1536, .kv_lora = 512, .nope = 256, .v = 256});
    if (c->rope_dim)
        td_config_refuse(r, TD_ENOTSUP, "%sqk_rope_head_dim is %u, and %s has attention without rope only", r->prefix,
                         c->rope_dim, c->arch_name);
    if (!c->q_lora)
        td_config_refuse(r, TD_ENOTSUP, "%sq_lora_rank is null, and the indexer of %s reads the compressed q", r->prefix,
                         c->arch_name);
    td_config_refuse_false(r, "mla_use_nope", "attention with rope");
    c->softmax_scale = 1 / sqrt((double)c->nope_dim);
    read_indexer(r, c);
}

static void read_experts(td_config_reader *r, td_model_config *c) {
    c->moe_inter = td_config_u32(r, "moe_intermediate_size", 2048, 1, TD_CONFIG_DIM_MAX);
    c->n_experts = td_config_u32_alias(r, "n_routed_experts", "num_local_experts", 288, 1, TD_EXPERTS_MAX);
    c->top_k = td_config_u32(r, "num_experts_per_tok", 8, 1, TD_TOP_K_MAX);
    c->shared_inter = td_config_u32(r, "n_shared_experts", 1, 0, 64) * c->moe_inter;
    c->norm_topk = td_config_bool(r, "norm_topk_prob", true);
    c->routed_scale = td_config_number(r, "routed_scaling_factor", 2.5, 0, 1e6);
    c->expert_glu = (td_glu){.limit = (float)td_config_number(r, "swiglu_limit", 10, 1e-3, 1e6)};
    td_config_sigmoid_router(r, c);
    td_config_router_groups(r, c, 1, 1);
    td_config_check_experts(r, c);
    td_config_dense_layers(r, c, 3);
}

/* As configuration_glm5_next.py of transformers. */
static void read_config(td_config_reader *r, td_model_config *c) {
    static const td_config_defaults D = {154880, 4096, 12288, 45, 64, 0, 1048576};
    td_config_sizes(r, c, &D);
    c->eps = (float)td_config_number(r, "rms_norm_eps", 1e-5, 0, 1);
    td_config_mtp_layers(r, c, "num_nextn_predict_layers", 0);
    td_config_refuse_false(r, "mhc", "a plain residual stream");
    td_config_streams(r, c);
    c->sparse.plain_mtp = true;
    read_attention(r, c);
    read_delta(r, c);
    read_layers(r, c);
    read_experts(r, c);
}

/* ---- weights --------------------------------------------------------------------------------- */

#define INDEXER "model.layers.#.self_attn.indexer."

static bool when_pooled(const td_model_config *c) {
    return c->sparse.index_pool > 1;
}

/* Cards share attention of both kinds by heads, and have all of each mixture. */
static const td_weight_rule WEIGHTS[TD_ROLE_COUNT] = {
    TD_STREAM_WEIGHTS,
    TD_MIX_WEIGHTS(MIX_ATTENTION, TRUNK, "model.layers.#.hc_attn", MIX, THREE),
    TD_MIX_WEIGHTS(MIX_EXPERTS, TRUNK, "model.layers.#.hc_ffn", MIX, THREE),
    TD_KDA_WEIGHTS,
    TD_MLA_WEIGHTS,
    TD_INDEXER_WEIGHTS,
    TD_MATRIX(INDEX_GATE, INDEXED, INDEXER "index_kpool_compress_gate", INDEX_DIM, HIDDEN, .keep = TD_KEEP_BF16,
              .when = when_pooled),
    TD_MATRIX(INDEX_APE, INDEXED, INDEXER "index_kpool_compress_ape", INDEX_POOL, INDEX_DIM, .keep = TD_KEEP_F32,
              .when = when_pooled),
    TD_DENSE_WEIGHTS,
    TD_ROUTER_WEIGHT,
    TD_ROUTER_BIAS,
    TD_SHARED_WEIGHTS("mlp.shared_experts"),
    TD_EXPERT_WEIGHTS,
    TD_MTP_WEIGHTS,
};

/* ---- layers ---------------------------------------------------------------------------------- */

static td_layer_caches caches(const td_model_config *c, uint32_t layer) {
    return c->is_delta[layer] ? td_delta_caches(c) : td_mla_caches(c, layer);
}

static void attention(td_layer *l) {
    if (l->c->is_delta[l->index])
        /* a = KDA(h): each channel of a state is decayed, then it is corrected and read as a DeltaNet's; normed and gated */
        delta(l, .qkv = W(DELTA_QKV), .k = W(DELTA_K), .v = W(DELTA_V), .conv = W(DELTA_CONV), .conv_k = W(DELTA_CONV_K),
              .conv_v = W(DELTA_CONV_V), .a_low = W(DELTA_A_LOW), .a = W(DELTA_A), .z_low = W(DELTA_Z_LOW), .z = W(DELTA_Z),
              .b = W(DELTA_B), .a_log = W(DELTA_A_LOG), .dt_bias = W(DELTA_DT_BIAS), .norm = W(DELTA_NORM), .o = W(DELTA_O));
    else
        /* a = attention(h) to the tokens of the index keys that h scores best; k and v come from a latent, positions do not
         * count */
        mla(l, .q_a = W(Q_A), .q_a_bias = W(Q_A_BIAS), .q_a_norm = W(Q_A_NORM), .q_b = W(Q_B), .kv_a = W(KV_A),
            .kv_a_bias = W(KV_A_BIAS), .kv_a_norm = W(KV_A_NORM), .kv_b = W(KV_B), .o = W(MLA_O), .o_bias = W(MLA_O_BIAS),
            .eps = l->c->eps,
            .index = {.q = W(INDEX_Q),
                      .k = W(INDEX_K),
                      .k_norm = W(INDEX_K_NORM),
                      .k_norm_bias = W(INDEX_K_BIAS),
                      .weights = W(INDEX_WEIGHTS),
                      .gate = W(INDEX_GATE),
                      .ape = W(INDEX_APE)});
}

static void experts(td_layer *l) {
    const td_model_config *c = l->c;
    if (!l->is_moe) {
        /* m = mlp(h); the streams take m */
        mlp(l, .gate = W(DENSE_GATE), .up = W(DENSE_UP), .down = W(DENSE_DOWN), .glu = c->expert_glu);
        add(l);
        return;
    }
    /* e, w = the experts that the router chooses for h, and their weights; they begin */
    route(l, .w = W(ROUTER), .bias = W(ROUTER_BIAS), .score = c->route_score, .group = c->route_group, .n_group = c->n_group,
          .topk_group = c->topk_group, .normalise = c->norm_topk, .scale = (float)c->routed_scale);
    /* m = shared expert(h), meanwhile */
    if (c->shared_inter) shared(l, .gate = W(SHARED_GATE), .up = W(SHARED_UP), .down = W(SHARED_DOWN), .glu = c->expert_glu);
    /* the streams take m + the sum of w * experts e(h) */
    add_experts(l, .gate = l->gates, .up = l->ups, .down = l->downs);
}

static void layer(td_layer *l) {
    /* h = norm(a mixture of the streams) */
    mix(l, .fn = W(MIX_ATTENTION), .base = W(MIX_ATTENTION_BASE), .scale = W(MIX_ATTENTION_SCALE), .gamma = W(INPUT_NORM));
    attention(l);
    /* the streams take a; h = norm(a mixture of them) */
    spread_mix(l, .fn = W(MIX_EXPERTS), .base = W(MIX_EXPERTS_BASE), .scale = W(MIX_EXPERTS_SCALE), .gamma = W(POST_NORM));
    experts(l);
}

/* Behind a projection (model/program.c), with one residual stream x. */
static void mtp_layer(td_layer *l) {
    /* h = norm(x) */
    norm(l, .gamma = W(INPUT_NORM));
    attention(l);
    /* x += a; h = norm(x) */
    add_norm(l, .gamma = W(POST_NORM));
    experts(l);
}

static void any_layer(td_layer *l) {
    (l->index < l->c->n_layers ? layer : mtp_layer)(l);
}

const td_arch TD_ARCH_GLM5_NEXT = {.name = "Glm5NextForConditionalGeneration",
                                   .body = "model.language_model.",
                                   .read_config = read_config,
                                   .weights = WEIGHTS,
                                   .caches = caches,
                                   .layer = any_layer};
