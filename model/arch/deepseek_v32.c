/*
 * DeepSeek-V3.2 (arXiv 2512.02556) and GLM-5, 5.1 and 5.2: DeepSeek-V3's layer, in which a token attends to the keys that an
 * indexer chooses (DeepSeek Sparse Attention). Of GLM-5.2 a layer without an indexer has the choice of the last one before
 * it that has one.
 */
#include <math.h>
#include <string.h>

#include "model/arch/families.h"
#include "model/arch/weight_table.h"

/* ---- configuration --------------------------------------------------------------------------- */

/* What the two families' classes have where config.json has no such key. */
typedef struct {
    td_config_defaults     sizes;
    td_config_mla_defaults mla;
    double                 eps;
    uint32_t               n_group, topk_group, index_heads;
    bool                   index_pairs; /* the indexer's rope turns pairs, not halves */
} family;

static void read_attention(td_config_reader *r, td_model_config *c, const family *f) {
    td_sparse_config *x = &c->sparse;
    td_config_mla(r, c, &f->mla);
    x->index_heads = td_config_u32(r, "index_n_heads", f->index_heads, 1, TD_CONFIG_HEADS_MAX);
    x->index_dim = td_config_u32(r, "index_head_dim", 128, 2, TD_CONFIG_HEAD_DIM_MAX);
    x->index_top = td_config_u32(r, "index_topk", 2048, 1, TD_CONFIG_POSITION_MAX);
    x->index_pairs = td_config_bool(r, "indexer_rope_interleave", f->index_pairs);
    if (!c->q_lora)
        td_config_refuse(r, TD_ENOTSUP, "q_lora_rank is null, and the indexer of %s reads the compressed q", c->arch_name);
    if (c->rope_dim > x->index_dim)
        td_config_refuse(r, TD_EFORMAT, "qk_rope_head_dim is %u, more than an index head's %u values", c->rope_dim,
                         x->index_dim);
    const json_t *types = td_config_get(r, "layer_types"), *v;
    size_t        i;
    json_array_foreach(types, i, v) {
        const char *type = json_is_string(v) ? json_string_value(v) : "no text";
        if (strcmp(type, "indexed_attention"))
            td_config_refuse(r, TD_ENOTSUP, "layer_types[%zu] is '%.40s', and %s has indexed_attention only", i, type,
                             c->arch_name);
    }
    td_config_rope(r, c, c->rope_dim, 0);
    c->rope.interleaved = td_config_bool(r, "rope_interleave", true);
    c->softmax_scale = td_rope_softmax_factor(&c->rope) / sqrt((double)c->nope_dim + c->rope_dim);
}

static void read_experts(td_config_reader *r, td_model_config *c, const family *f) {
    c->moe_inter = td_config_u32(r, "moe_intermediate_size", 2048, 1, TD_CONFIG_DIM_MAX);
    c->n_experts = td_config_u32_alias(r, "n_routed_experts", "num_local_experts", 256, 1, TD_EXPERTS_MAX);
    c->top_k = td_config_u32(r, "num_experts_per_tok", 8, 1, TD_TOP_K_MAX);
    c->shared_inter = td_config_u32(r, "n_shared_experts", 1, 0, 64) * c->moe_inter;
    c->norm_topk = td_config_bool(r, "norm_topk_prob", true);
    c->routed_scale = td_config_number(r, "routed_scaling_factor", 2.5, 0, 1e6);
    td_config_sigmoid_router(r, c);
    td_config_router_groups(r, c, f->n_group, f->topk_group);
    td_config_check_experts(r, c);
    td_config_u32(r, "moe_layer_freq", 1, 1, 1);
    td_config_dense_layers(r, c, 3);
}

static void read_either(td_config_reader *r, td_model_config *c, const family *f) {
    td_config_sizes(r, c, &f->sizes);
    c->eps = (float)td_config_number(r, "rms_norm_eps", f->eps, 0, 1);
    td_config_mtp_layers(r, c, "num_nextn_predict_layers", 0);
    read_attention(r, c, f);
    read_experts(r, c, f);
}

/* As configuration_deepseek_v32.py of transformers. */
static void read_v32(td_config_reader *r, td_model_config *c) {
    static const family F = {.sizes = {129280, 7168, 18432, 61, 128, 0, 163840},
                             .mla = {.q_lora = 1536, .kv_lora = 512, .nope = 128, .rope = 64, .v = 128},
                             .eps = 1e-6,
                             .n_group = 8,
                             .topk_group = 4,
                             .index_heads = 64};
    read_either(r, c, &F);
    memset(c->sparse.indexed, 1, c->n_layers + c->n_mtp_layers);
}

/* As configuration_glm_moe_dsa.py of transformers. An MTP layer has an indexer of its own. */
static void read_glm(td_config_reader *r, td_model_config *c) {
    static const family F = {.sizes = {154880, 6144, 12288, 78, 64, 0, 202752},
                             .mla = {.q_lora = 2048, .kv_lora = 512, .nope = 192, .rope = 64, .v = 256},
                             .eps = 1e-5,
                             .n_group = 1,
                             .topk_group = 1,
                             .index_heads = 32,
                             .index_pairs = true};
    read_either(r, c, &F);
    td_config_indexed_layers(r, c);
    if (!c->sparse.indexed[0])
        td_config_refuse(r, TD_EFORMAT,
                         "layer 0 has no indexer, and there is no layer before it whose choice it could have");
}

/* ---- weights --------------------------------------------------------------------------------- */

static const td_weight_rule WEIGHTS[TD_ROLE_COUNT] = {
    TD_STREAM_WEIGHTS,
    TD_MLA_WEIGHTS,
    TD_INDEXER_WEIGHTS,
    TD_DENSE_WEIGHTS,
    TD_ROUTER_WEIGHT,
    TD_ROUTER_BIAS,
    TD_SHARED_WEIGHTS("mlp.shared_experts"),
    TD_EXPERT_WEIGHTS,
    TD_MTP_WEIGHTS,
};

/* ---- layers: DeepSeek-V3's (deepseek.c) ------------------------------------------------------- */

const td_arch TD_ARCH_DEEPSEEK_V32 = {.name = "DeepseekV32ForCausalLM",
                                      .read_config = read_v32,
                                      .weights = WEIGHTS,
                                      .caches = td_mla_caches,
                                      .layer = td_deepseek_layer};
const td_arch TD_ARCH_GLM_MOE_DSA = {.name = "GlmMoeDsaForCausalLM",
                                     .read_config = read_glm,
                                     .weights = WEIGHTS,
                                     .caches = td_mla_caches,
                                     .layer = td_deepseek_layer};
