/* Qwen2-MoE and Qwen3-MoE (arXiv 2505.09388): grouped-query attention with biases or norms per head. And the language model
 * of Qwen3-VL-MoE (arXiv 2511.21631), which is a Qwen3-MoE. */
#include <math.h>

#include "model/arch/families.h"
#include "model/arch/weight_table.h"
#include "model/layer_verbs.h"

/* ---- configuration --------------------------------------------------------------------------- */

/* What a file that lacks a key means. */
typedef struct {
    td_config_defaults sizes;
    uint32_t           moe_inter, n_experts, top_k;
} defaults;

/* transformers' Qwen2MoeConfig, Qwen3MoeConfig and Qwen3VLMoeTextConfig. @param q3 not Qwen2-MoE. */
static void read_any(td_config_reader *r, td_model_config *c, const defaults *d, bool q3) {
    td_config_common(r, c, &d->sizes);
    td_config_gqa(r, c, 0);
    c->qk_norm = q3;
    c->qkv_bias = !q3 && td_config_bool(r, "qkv_bias", true);
    if (q3) td_config_refuse_true(r, "attention_bias", "a bias in this architecture's attention");
    td_config_refuse_sliding_window(r);

    c->moe_inter = td_config_u32(r, "moe_intermediate_size", d->moe_inter, 1, TD_CONFIG_DIM_MAX);
    c->n_experts = td_config_u32_alias(r, "num_experts", "num_local_experts", d->n_experts, 1, TD_EXPERTS_MAX);
    c->top_k = td_config_u32(r, "num_experts_per_tok", d->top_k, 1, TD_TOP_K_MAX);
    c->shared_inter = q3 ? 0 : td_config_u32(r, "shared_expert_intermediate_size", 5632, 1, TD_CONFIG_DIM_MAX);
    c->shared_gate = !q3;
    td_config_only_text(r, c, "scoring_func", "softmax");
    td_config_only_text(r, c, "topk_method", "greedy");
    c->norm_topk = td_config_bool(r, "norm_topk_prob", false);
    c->routed_scale = 1;
    c->n_group = c->topk_group = 1;
    td_config_check_experts(r, c);

    td_config_sparse_layers(r, c);

    td_config_rope(r, c, c->head_dim, 0);
    c->softmax_scale = 1 / sqrt((double)c->head_dim);
}

static void read_qwen2(td_config_reader *r, td_model_config *c) {
    static const defaults D = {{151936, 2048, 5632, 24, 16, 16, 32768}, 1408, 60, 4};
    read_any(r, c, &D, false);
}

static void read_qwen3(td_config_reader *r, td_model_config *c) {
    static const defaults D = {{151936, 2048, 6144, 24, 32, 4, 32768}, 768, 128, 8};
    read_any(r, c, &D, true);
}

/* Rope turns a part of the pairs by rows and columns of images; of text all positions are equal, and it is plain. Routers
 * weigh as those of a Qwen3-MoE with norm_topk_prob, a key that is not read. Whether embeddings are tied says the file's top
 * alone. */
static void read_vl(td_config_reader *r, td_model_config *c) {
    static const defaults D = {{151936, 2048, 5632, 24, 16, 16, 128000}, 1408, 60, 4};
    static const uint32_t SECTION[] = {24, 20, 20};
    c->rope.theta = 500000;
    read_any(r, c, &D, true);
    td_config_rope_axes(r, c, SECTION);
    c->norm_topk = true;
    c->tie_embeddings = false;
}

/* ---- weights --------------------------------------------------------------------------------- */

#define COMMON_WEIGHTS TD_STREAM_WEIGHTS, TD_GQA_WEIGHTS, TD_HEAD_NORM_WEIGHTS, TD_DENSE_WEIGHTS, TD_ROUTER_WEIGHT

static const td_weight_rule WEIGHTS[TD_ROLE_COUNT] = {
    COMMON_WEIGHTS,
    TD_SHARED_WEIGHTS("mlp.shared_expert"),
    TD_MATRIX(SHARED_OUT_GATE, MOE, "model.layers.#.mlp.shared_expert_gate.weight", ONE, HIDDEN, .keep = TD_KEEP_F32,
              .rotation = TD_READS(POST_NORM), .when = td_when_shared_gate),
    TD_EXPERT_WEIGHTS,
};

/* An expert's matrix of a tensor of all experts, which quantised checkpoints have apart. As published a part is [in, out];
 * transformers 5 writes [out, in]. */
#define EXPERT(role, one, all, rows, columns, ...)                                        \
    TD_MATRIX(role, EXPERT, "model.layers.#.mlp.experts.#." one ".weight", rows, columns, \
              .within = "model.layers.#.mlp.experts." all, __VA_ARGS__)

static const td_weight_rule WEIGHTS_VL[TD_ROLE_COUNT] = {
    COMMON_WEIGHTS,
    EXPERT(EXPERT_GATE, "gate_proj", "gate_up_proj", MOE_INTER, HIDDEN, .stack = TD_STACK_SHAPED_FIRST,
           .split = TD_SPLIT_ROWS, .rotation = TD_READS(POST_NORM)),
    EXPERT(EXPERT_UP, "up_proj", "gate_up_proj", MOE_INTER, HIDDEN, .stack = TD_STACK_SHAPED_SECOND, .split = TD_SPLIT_ROWS,
           .rotation = TD_READS(POST_NORM)),
    EXPERT(EXPERT_DOWN, "down_proj", "down_proj", HIDDEN, MOE_INTER, .stack = TD_STACK_SHAPED, .split = TD_SPLIT_COLUMNS,
           .rotation = TD_WRITES),
};

/* ---- layers ---------------------------------------------------------------------------------- */

/* Qwen2-MoE has the biases, the shared expert and its gate, the others the norms. */
static void layer(td_layer *l) {
    const td_model_config *c = l->c;
    /* h = norm(x) */
    norm(l, .gamma = W(INPUT_NORM));
    /* a = attention(h) */
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
    route(l, .w = W(ROUTER), .score = c->route_score, .n_group = 1, .topk_group = 1, .normalise = c->norm_topk, .scale = 1);
    /* m = sigmoid(gate . h) * shared expert(h), meanwhile */
    if (c->shared_inter)
        shared(l, .gate = W(SHARED_GATE), .up = W(SHARED_UP), .down = W(SHARED_DOWN), .out_gate = W(SHARED_OUT_GATE));
    /* x += m + the sum of w * experts e(h) */
    add_experts(l, .gate = l->gates, .up = l->ups, .down = l->downs);
}

const td_arch TD_ARCH_QWEN2_MOE = {
    .name = "Qwen2MoeForCausalLM", .read_config = read_qwen2, .weights = WEIGHTS, .caches = td_gqa_caches, .layer = layer};
const td_arch TD_ARCH_QWEN3_MOE = {
    .name = "Qwen3MoeForCausalLM", .read_config = read_qwen3, .weights = WEIGHTS, .caches = td_gqa_caches, .layer = layer};
const td_arch TD_ARCH_QWEN3_VL_MOE = {.name = "Qwen3VLMoeForConditionalGeneration",
                                      .body = "model.language_model.",
                                      .read_config = read_vl,
                                      .read_vision = td_qwen3_vl_read_vision,
                                      .encoder = td_qwen3_vl_encoder,
                                      .encoder_prefix = "model.visual.",
                                      .weights = WEIGHTS_VL,
                                      .caches = td_gqa_caches,
                                      .layer = layer};
