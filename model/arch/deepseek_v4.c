/*
 * DeepSeek-V4: hyper-connections (arXiv 2512.24880), and attention over a window and compressed rows. Every ratio-4 layer
 * chooses among its compressed rows by an indexer, a ratio-128 layer attends to all. The experts of the first layers are
 * those of a token's entry in a table.
 */
#include <math.h>
#include <string.h>

#include "core/log/log.h"
#include "model/arch/families.h"
#include "model/arch/weight_table.h"
#include "model/layer_verbs.h"
#include "npu/block_weights.h"

/* ---- configuration --------------------------------------------------------------------------- */

/* The prediction module. A checkpoint with DSpark has another one under the same names, of three layers that draft
 * together. */
static void read_mtp(td_config_reader *r, td_model_config *c) {
    td_config_mtp_layers(r, c, "num_nextn_predict_layers", 1);
    if (!td_config_u32(r, "dspark_block_size", 0, 0, UINT32_MAX)) return;
    td_warn("the model's draft module is DSpark (%sdspark_block_size), which is not supported: it is not read", r->prefix);
    c->n_mtp_layers = 0;
}

/* Behind the layers' entries the list may have those of the prediction layers, which have a window alone. */
static void check_mtp_ratios(td_config_reader *r, const td_model_config *c, const json_t *list) {
    const size_t end = json_array_size(list);
    if (end != c->n_layers + c->n_mtp_layers) return;
    for (uint32_t layer = c->n_layers; layer < end; layer++)
        if (json_integer_value(json_array_get(list, layer)))
            td_config_refuse(r, TD_ENOTSUP, "%scompress_ratios[%u] is not 0, and a prediction layer has a window alone",
                             r->prefix, layer);
}

/* Tokens of a compressed row of each layer. */
static void read_ratios(td_config_reader *r, td_model_config *c) {
    const json_t *list = td_config_get(r, "compress_ratios");
    if (!json_is_array(list) || json_array_size(list) < c->n_layers) {
        td_config_refuse(r, TD_EFORMAT, "%scompress_ratios is not a list of at least %u layers", r->prefix, c->n_layers);
        return;
    }
    check_mtp_ratios(r, c, list);
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        const json_t    *v = json_array_get(list, layer);
        const json_int_t ratio = json_integer_value(v);
        if (!json_is_integer(v) || (ratio != 0 && ratio != TD_OVERLAP_RATIO && ratio != TD_KV_PAGE))
            td_config_refuse(r, TD_ENOTSUP, "%scompress_ratios[%u] is %lld, and only 0, %d and %d are supported", r->prefix,
                             layer, (long long)ratio, TD_OVERLAP_RATIO, TD_KV_PAGE);
        else
            c->sparse.ratio[layer] = (uint8_t)ratio;
        c->sparse.indexed[layer] = c->sparse.ratio[layer] == TD_OVERLAP_RATIO;
    }
}

static void read_attention(td_config_reader *r, td_model_config *c) {
    c->head_dim = td_config_u32(r, "head_dim", 512, 2, TD_CONFIG_HEAD_DIM_MAX);
    c->q_lora = td_config_u32(r, "q_lora_rank", 1024, 1, TD_CONFIG_LORA_MAX);
    c->window = td_config_u32(r, "sliding_window", 128, 1, TD_CONFIG_POSITION_MAX);
    c->sparse.o_groups = td_config_u32(r, "o_groups", 8, 1, TD_CONFIG_HEADS_MAX);
    c->sparse.o_lora = td_config_u32(r, "o_lora_rank", 1024, 1, TD_CONFIG_LORA_MAX);
    c->sparse.index_heads = td_config_u32(r, "index_n_heads", 64, 1, TD_CONFIG_HEADS_MAX);
    c->sparse.index_dim = td_config_u32(r, "index_head_dim", 128, 2, TD_CONFIG_HEAD_DIM_MAX);
    c->sparse.index_top = td_config_u32(r, "index_topk", 512, 1, TD_CONFIG_POSITION_MAX);
    td_config_refuse_true(r, "attention_bias", "a bias in this architecture's attention");
    if (c->kv_heads != 1)
        td_config_refuse(r, TD_ENOTSUP, "%snum_key_value_heads is %u, and %s has one", r->prefix, c->kv_heads, c->arch_name);
    if (c->heads % c->sparse.o_groups)
        td_config_refuse(r, TD_EFORMAT, "%so_groups is %u, which does not divide the %u heads", r->prefix,
                         c->sparse.o_groups, c->heads);
    if (c->sparse.o_lora % TD_SPARSE_O_LORA)
        td_config_refuse(r, TD_ENOTSUP, "%so_lora_rank is %u, and only multiples of %d are supported", r->prefix,
                         c->sparse.o_lora, TD_SPARSE_O_LORA);
    read_ratios(r, c);
}

/* rope_theta as it is for layers with a window alone; the others have compress_rope_theta with rope_scaling, which does not
 * scale cosines and sines here. */
static void read_rope(td_config_reader *r, td_model_config *c) {
    const json_t *nested = json_object_get(td_config_get(r, "rope_parameters"), "compress");
    if (nested)
        td_config_refuse(r, TD_ENOTSUP,
                         "%srope_parameters.compress is there, and only rope_scaling of the published files is read",
                         r->prefix);
    c->rope_dim = td_config_u32(r, "qk_rope_head_dim", 64, 2, TD_CONFIG_HEAD_DIM_MAX);
    if (c->rope_dim > c->head_dim || c->rope_dim > c->sparse.index_dim)
        td_config_refuse(r, TD_EFORMAT, "%sqk_rope_head_dim is %u, more than a head's %u values, or an index head's %u",
                         r->prefix, c->rope_dim, c->head_dim, c->sparse.index_dim);
    td_config_rope(r, c, c->rope_dim, 0);
    c->rope_far = c->rope;
    c->rope_far.theta = td_config_number(r, "compress_rope_theta", 160000, 1.0001, 1e12);
    c->rope_far.attention_factor = 1;
    c->rope_far.mscale = c->rope_far.mscale_all_dim = 0;
    c->rope = (td_rope_config){.kind = TD_ROPE_PLAIN, .theta = c->rope.theta, .dim = c->rope_dim, .factor = 1};
}

static void read_experts(td_config_reader *r, td_model_config *c) {
    c->moe_inter = td_config_u32(r, "moe_intermediate_size", 2048, 1, TD_CONFIG_DIM_MAX);
    c->n_experts = td_config_u32(r, "n_routed_experts", 256, 1, TD_EXPERTS_MAX);
    c->top_k = td_config_u32(r, "num_experts_per_tok", 6, 1, TD_TOP_K_MAX);
    c->shared_inter = c->moe_inter * td_config_u32(r, "n_shared_experts", 1, 1, 64);
    c->norm_topk = td_config_bool(r, "norm_topk_prob", true);
    c->routed_scale = td_config_number(r, "routed_scaling_factor", 1.5, 0, 1e6);
    td_config_only_text(r, c, "scoring_func", "sqrtsoftplus");
    td_config_only_text(r, c, "topk_method", "noaux_tc");
    c->route_score = TD_SCORE_SQRT_SOFTPLUS;
    c->n_group = c->topk_group = 1;
    td_config_check_experts(r, c);
    c->expert_glu = (td_glu){.limit = (float)td_config_number(r, "swiglu_limit", 10, 1e-3, 1e6)};
    memset(c->is_moe, 1, c->n_layers + c->n_mtp_layers);
    memset(c->sparse.by_token, 1, td_config_u32(r, "num_hash_layers", 3, 0, c->n_layers));
}

/* config.json as it is published. */
static void read_config(td_config_reader *r, td_model_config *c) {
    static const td_config_defaults D = {129280, 4096, 2048, 43, 64, 1, 1048576};
    td_config_sizes(r, c, &D);
    read_mtp(r, c);
    td_config_streams(r, c);
    read_attention(r, c);
    read_experts(r, c);
    read_rope(r, c);
}

/* ---- weights --------------------------------------------------------------------------------- */

#define COMPRESSOR(role, scope, name, width, dim)                                                 \
    TD_MATRIX(role##_KV, scope, name ".wkv.weight", width, HIDDEN, .keep = TD_KEEP_BF16),         \
        TD_MATRIX(role##_GATE, scope, name ".wgate.weight", width, HIDDEN, .keep = TD_KEEP_BF16), \
        TD_MATRIX(role##_APE, scope, name ".ape", RATIO, width, .keep = TD_KEEP_F32),             \
        TD_NORM(role##_NORM, scope, name ".norm.weight", dim)

static const td_weight_rule WEIGHTS[TD_ROLE_COUNT] = {
    TD_MATRIX(EMBED, MODEL, "embed.weight", VOCAB, HIDDEN, .place = TD_PLACE_ENDS, .keep = TD_KEEP_BF16),
    TD_MATRIX(LM_HEAD, MODEL, "head.weight", VOCAB, HIDDEN, .place = TD_PLACE_WHOLE_MODEL),
    TD_NORM(FINAL_NORM, MODEL, "norm.weight", HIDDEN, .place = TD_PLACE_ENDS),
    TD_MIX_WEIGHTS(MIX_HEAD, MODEL, "hc_head", STREAMS, ONE),
    TD_NORM(INPUT_NORM, LAYER, "layers.#.attn_norm.weight", HIDDEN),
    TD_NORM(POST_NORM, LAYER, "layers.#.ffn_norm.weight", HIDDEN),
    TD_MIX_WEIGHTS(MIX_ATTENTION, LAYER, "layers.#.hc_attn", MIX, THREE),
    TD_MIX_WEIGHTS(MIX_EXPERTS, LAYER, "layers.#.hc_ffn", MIX, THREE),

    TD_MATRIX(Q_A, LAYER, "layers.#.attn.wq_a.weight", Q_LORA, HIDDEN),
    TD_NORM(Q_A_NORM, LAYER, "layers.#.attn.q_norm.weight", Q_LORA),
    TD_MATRIX(Q_B, LAYER, "layers.#.attn.wq_b.weight", GQA_Q, Q_LORA),
    TD_MATRIX(KV_A, LAYER, "layers.#.attn.wkv.weight", HEAD, HIDDEN),
    TD_NORM(KV_A_NORM, LAYER, "layers.#.attn.kv_norm.weight", HEAD),
    TD_VECTOR(SINKS, LAYER, "layers.#.attn.attn_sink", HEADS),
    TD_MATRIX(O_A, LAYER, "layers.#.attn.wo_a.weight", O_LOW, O_GROUP, .keep = TD_KEEP_LINEAR_BF16),
    TD_MATRIX(O, LAYER, "layers.#.attn.wo_b.weight", HIDDEN, O_LOW),
    COMPRESSOR(COMPRESS, COMPRESSED, "layers.#.attn.compressor", COMPRESSED, HEAD),
    TD_MATRIX(INDEX_Q, INDEXED, "layers.#.attn.indexer.wq_b.weight", INDEX_Q, Q_LORA, .keep = TD_KEEP_LINEAR_BF16),
    TD_MATRIX(INDEX_WEIGHTS, INDEXED, "layers.#.attn.indexer.weights_proj.weight", INDEX_HEADS, HIDDEN,
              .keep = TD_KEEP_BF16),
    COMPRESSOR(INDEX, INDEXED, "layers.#.attn.indexer.compressor", INDEX_COMPRESSED, INDEX_DIM),

    TD_MATRIX(ROUTER, MOE, "layers.#.ffn.gate.weight", EXPERTS, HIDDEN, .keep = TD_KEEP_F32),
    TD_VECTOR(ROUTER_BIAS, SCORED, "layers.#.ffn.gate.bias", EXPERTS),
    TD_MATRIX(TOKEN_EXPERTS, BY_TOKEN, "layers.#.ffn.gate.tid2eid", VOCAB, TOP_K, .keep = TD_KEEP_F32, .is_experts = true,
              .filling = TD_FILLING_EXPERTS),
    TD_MATRIX(SHARED_GATE, MOE, "layers.#.ffn.shared_experts.w1.weight", SHARED_INTER, HIDDEN),
    TD_MATRIX(SHARED_UP, MOE, "layers.#.ffn.shared_experts.w3.weight", SHARED_INTER, HIDDEN),
    TD_MATRIX(SHARED_DOWN, MOE, "layers.#.ffn.shared_experts.w2.weight", HIDDEN, SHARED_INTER),
    TD_MATRIX(EXPERT_GATE, EXPERT, "layers.#.ffn.experts.#.w1.weight", MOE_INTER, HIDDEN),
    TD_MATRIX(EXPERT_UP, EXPERT, "layers.#.ffn.experts.#.w3.weight", MOE_INTER, HIDDEN),
    TD_MATRIX(EXPERT_DOWN, EXPERT, "layers.#.ffn.experts.#.w2.weight", HIDDEN, MOE_INTER),

    TD_NORM(MTP_ENORM, MTP, "layers.#.enorm.weight", HIDDEN),
    TD_NORM(MTP_HNORM, MTP, "layers.#.hnorm.weight", HIDDEN),
    TD_MATRIX(MTP_E_PROJ, MTP, "layers.#.e_proj.weight", HIDDEN, HIDDEN),
    TD_MATRIX(MTP_H_PROJ, MTP, "layers.#.h_proj.weight", HIDDEN, HIDDEN),
    TD_MIX_WEIGHTS(MTP_MIX_HEAD, MTP, "layers.#.hc_head", STREAMS, ONE),
    TD_NORM(MTP_NORM, MTP, "layers.#.norm.weight", HIDDEN),
    TD_MATRIX(MTP_EMBED, MTP, "layers.#.emb.tok_emb.weight", VOCAB, HIDDEN, .place = TD_PLACE_SHARED, .keep = TD_KEEP_BF16,
              .fallback = TD_OR(EMBED)),
    TD_MATRIX(MTP_HEAD, MTP, "layers.#.head.weight", VOCAB, HIDDEN, .place = TD_PLACE_SHARED, .fallback = TD_OR(LM_HEAD)),
};

/* ---- layers ---------------------------------------------------------------------------------- */

/* Rows of the window; of a layer with compressed rows also the state of the tokens that are not in one yet, the open block
 * of these, the compressed rows and the indexer's keys. */
static td_layer_caches caches(const td_model_config *c, uint32_t layer) {
    td_sparse_desc s = {0};
    td_sparse_sizes_of(c, layer, &s);
    const td_layer_cache
        window = {.per = TD_PER_WINDOW, .kind = TD_KV_ROW, .heads = 1, .values = s.dim, .window = s.window},
        state = {.per = TD_PER_STATE, .kind = TD_KV_STATE, .heads = 1, .values = (uint32_t)td_sparse_state_values(&s)},
        open = {.per = TD_PER_OPEN, .kind = TD_KV_STATE, .heads = 1, .values = (uint32_t)td_sparse_open_values(&s)},
        compressed = {.kind = TD_KV_ROW, .heads = 1, .values = s.dim, .tokens = s.ratio},
        keys = {.kind = TD_KV_INDEX, .heads = 1, .values = s.index_dim, .tokens = s.ratio};
    return (td_layer_caches){{window, state, open, compressed, keys}, !s.ratio ? 1 : s.index_heads ? 5 : 4};
}

/* The MTP layer too, which has a window alone, behind two projections (model/program.c). */
static void layer(td_layer *l) {
    const td_model_config *c = l->c;
    /* h = norm(a mixture of the streams) */
    mix(l, .fn = W(MIX_ATTENTION), .base = W(MIX_ATTENTION_BASE), .scale = W(MIX_ATTENTION_SCALE), .gamma = W(INPUT_NORM));
    /* a = attention(h) over the window, and over compressed rows: all, or those that the indexer chooses */
    sparse(l, .q_a = W(Q_A), .q_norm = W(Q_A_NORM), .q_b = W(Q_B), .kv = W(KV_A), .kv_norm = W(KV_A_NORM), .sinks = W(SINKS),
           .o_a = W(O_A), .o_b = W(O), .rows = {W(COMPRESS_KV), W(COMPRESS_GATE), W(COMPRESS_APE), W(COMPRESS_NORM)},
           .index_q = W(INDEX_Q), .index_weights = W(INDEX_WEIGHTS),
           .index = {W(INDEX_KV), W(INDEX_GATE), W(INDEX_APE), W(INDEX_NORM)});
    /* the streams take a; h = norm(a mixture of them) */
    spread_mix(l, .fn = W(MIX_EXPERTS), .base = W(MIX_EXPERTS_BASE), .scale = W(MIX_EXPERTS_SCALE), .gamma = W(POST_NORM));
    /* e, w = the experts that the router chooses for h, or the token's own, and their weights; they begin */
    route(l, .w = W(ROUTER), .bias = W(ROUTER_BIAS), .by_token = W(TOKEN_EXPERTS), .score = c->route_score, .n_group = 1,
          .topk_group = 1, .normalise = c->norm_topk, .scale = (float)c->routed_scale);
    /* m = shared expert(h), meanwhile */
    shared(l, .gate = W(SHARED_GATE), .up = W(SHARED_UP), .down = W(SHARED_DOWN), .glu = c->expert_glu);
    /* the streams take m + the sum of w * experts e(h) */
    add_experts(l, .gate = l->gates, .up = l->ups, .down = l->downs);
}

const td_arch TD_ARCH_DEEPSEEK_V4 = {.name = "DeepseekV4ForCausalLM",
                                     .mtp = "mtp.",
                                     .mtp_layer = "",
                                     .read_config = read_config,
                                     .weights = WEIGHTS,
                                     .caches = caches,
                                     .layer = layer};
