/*
 * gpt-oss 20b and 120b (arXiv 2508.10925): grouped-query attention with sinks, in which every second layer slides over the
 * last tokens. Routed experts alone, with biases and a limited gated unit, and the softmax of the chosen logits as weights.
 */
#include <math.h>
#include <string.h>

#include "model/arch/families.h"
#include "model/arch/weight_table.h"
#include "model/layer_verbs.h"

/* ---- configuration --------------------------------------------------------------------------- */

/* Which layers slide. @param types NULL: the even ones. */
static void read_layer_types(td_config_reader *r, td_model_config *c, const json_t *types) {
    size_t  i;
    json_t *v;
    for (uint32_t layer = 0; layer < c->n_layers; layer++) c->slides[layer] = !types && layer % 2 == 0;
    if (types && (!json_is_array(types) || json_array_size(types) != c->n_layers)) {
        td_config_refuse(r, TD_EFORMAT, "layer_types is not a list of %u layers", c->n_layers);
        return;
    }
    json_array_foreach(types, i, v) {
        const char *type = json_is_string(v) ? json_string_value(v) : "";
        c->slides[i] = !strcmp(type, "sliding_attention");
        if (!c->slides[i] && strcmp(type, "full_attention"))
            td_config_refuse(r, TD_ENOTSUP,
                             "layer_types has '%.40s' for layer %zu, and only sliding_attention and full_attention are "
                             "supported",
                             type, i);
    }
}

/* The first release called num_experts_per_tok experts_per_token; later ones write both. */
static void read_experts(td_config_reader *r, td_model_config *c) {
    c->moe_inter = c->inter;
    c->n_experts = td_config_u32_alias(r, "num_local_experts", "num_experts", 128, 1, TD_EXPERTS_MAX);
    c->top_k = td_config_u32_alias(r, "num_experts_per_tok", "experts_per_token", 4, 1, TD_TOP_K_MAX);
    uint32_t again = td_config_u32(r, "experts_per_token", c->top_k, 1, TD_TOP_K_MAX);
    if (again != c->top_k)
        td_config_refuse(r, TD_EFORMAT, "num_experts_per_tok is %u and experts_per_token is %u", c->top_k, again);
    td_config_only_text(r, c, "scoring_func", "softmax");
    td_config_only_text(r, c, "topk_method", "greedy");
    c->route_score = TD_SCORE_SOFTMAX_CHOSEN;
    c->routed_scale = 1;
    c->n_group = c->topk_group = 1;
    td_config_check_experts(r, c);
    c->expert_bias = true;
    c->expert_glu = (td_glu){.alpha = (float)td_config_number(r, "swiglu_alpha", 1.702, 1e-3, 1e3),
                             .limit = (float)td_config_number(r, "swiglu_limit", 7, 1e-3, 1e6),
                             .up_add = 1};
    memset(c->is_moe, 1, c->n_layers);
}

/* Refuse a file without these keys: transformers' class then applies YaRN from 4096 positions on, which the file does not
 * say. */
static void need_rope(td_config_reader *r) {
    const json_t *parameters = td_config_get(r, "rope_parameters");
    if (!td_config_has(r, "rope_scaling") && !parameters)
        td_config_refuse(r, TD_EFORMAT, "neither rope_scaling nor rope_parameters is there");
    if (!td_config_get(r, "rope_theta") && !json_object_get(parameters, "rope_theta"))
        td_config_refuse(r, TD_EFORMAT, "rope_theta is missing");
}

/* transformers' GptOssConfig. */
static void read_config(td_config_reader *r, td_model_config *c) {
    static const td_config_defaults D = {201088, 2880, 2880, 36, 64, 8, 131072};
    td_config_common(r, c, &D);
    c->eps = (float)td_config_number(r, "rms_norm_eps", 1e-5, 0, 1);
    td_config_gqa(r, c, 64);
    c->qkv_bias = td_config_bool(r, "attention_bias", true);
    c->window = td_config_u32(r, "sliding_window", 128, 1, TD_CONFIG_POSITION_MAX);
    read_layer_types(r, c, td_config_get(r, "layer_types"));
    read_experts(r, c);

    need_rope(r);
    td_config_rope(r, c, c->head_dim, 0);
    c->softmax_scale = 1 / sqrt((double)c->head_dim);
}

/* ---- weights --------------------------------------------------------------------------------- */

static const td_weight_rule WEIGHTS[TD_ROLE_COUNT] = {
    TD_STREAM_WEIGHTS,
    TD_GQA_WEIGHTS,
    TD_VECTOR(O_BIAS, LAYER, "model.layers.#.self_attn.o_proj.bias", HIDDEN, .split = TD_SPLIT_CARD_0, .rotation = TD_STREAM,
              .when = td_when_qkv_bias),
    TD_VECTOR(SINKS, LAYER, "model.layers.#.self_attn.sinks", HEADS, .split = TD_SPLIT_ROWS),
    TD_MATRIX(ROUTER, MOE, "model.layers.#.mlp.router.weight", EXPERTS, HIDDEN, .keep = TD_KEEP_F32,
              .rotation = TD_READS(POST_NORM)),
    TD_VECTOR(LOGIT_BIAS, MOE, "model.layers.#.mlp.router.bias", EXPERTS),
    TD_MATRIX(EXPERT_GATE, EXPERT, "model.layers.#.mlp.experts.gate_up_proj", MOE_INTER, HIDDEN, .stack = TD_STACK_EVEN,
              .split = TD_SPLIT_ROWS, .rotation = TD_READS(POST_NORM)),
    TD_MATRIX(EXPERT_UP, EXPERT, "model.layers.#.mlp.experts.gate_up_proj", MOE_INTER, HIDDEN, .stack = TD_STACK_ODD,
              .split = TD_SPLIT_ROWS, .rotation = TD_READS(POST_NORM)),
    TD_MATRIX(EXPERT_DOWN, EXPERT, "model.layers.#.mlp.experts.down_proj", HIDDEN, MOE_INTER, .stack = TD_STACK_COLUMNS,
              .split = TD_SPLIT_COLUMNS, .rotation = TD_WRITES),
    TD_VECTOR(EXPERT_GATE_BIAS, EXPERT, "model.layers.#.mlp.experts.gate_up_proj_bias", MOE_INTER, .stack = TD_STACK_EVEN,
              .split = TD_SPLIT_ROWS),
    TD_VECTOR(EXPERT_UP_BIAS, EXPERT, "model.layers.#.mlp.experts.gate_up_proj_bias", MOE_INTER, .stack = TD_STACK_ODD,
              .split = TD_SPLIT_ROWS),
    TD_VECTOR(EXPERT_DOWN_BIAS, EXPERT, "model.layers.#.mlp.experts.down_proj_bias", HIDDEN, .stack = TD_STACK_COLUMNS,
              .split = TD_SPLIT_CARD_0, .rotation = TD_STREAM),
};

/* ---- layers ---------------------------------------------------------------------------------- */

/* The last tokens that a layer attends to; 0: all. */
static uint32_t window_of(const td_model_config *c, uint32_t layer) {
    return c->slides[layer] ? c->window : 0;
}

static td_layer_caches caches(const td_model_config *c, uint32_t layer) {
    td_layer_caches list = td_gqa_caches(c, layer);
    for (uint32_t i = 0; i < list.n && c->slides[layer]; i++) {
        list.cache[i].per = TD_PER_WINDOW;
        list.cache[i].window = window_of(c, layer);
    }
    return list;
}

static void layer(td_layer *l) {
    /* h = norm(x) */
    norm(l, .gamma = W(INPUT_NORM));
    /* a = attention(h), with a sink for each head, over the layer's window */
    gqa(l, .q = W(Q), .k = W(K), .v = W(V), .o = W(O), .q_bias = W(Q_BIAS), .k_bias = W(K_BIAS), .v_bias = W(V_BIAS),
        .o_bias = W(O_BIAS), .sinks = W(SINKS), .window = window_of(l->c, l->index));
    /* x += a; h = norm(x) */
    add_norm(l, .gamma = W(POST_NORM));
    /* e, w = the experts of the largest logits of h, and the softmax of these; they begin */
    route(l, .w = W(ROUTER), .logit_bias = W(LOGIT_BIAS), .score = l->c->route_score, .n_group = 1, .topk_group = 1,
          .scale = 1);
    /* x += the sum of w * experts e(h) */
    add_experts(l, .gate = l->gates, .up = l->ups, .down = l->downs);
}

const td_arch TD_ARCH_GPT_OSS = {
    .name = "GptOssForCausalLM", .read_config = read_config, .weights = WEIGHTS, .caches = caches, .layer = layer};
