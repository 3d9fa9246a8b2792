/*
 * config.json and generation_config.json -> td_model_config.
 *
 * Every value is checked against a range before it is used in arithmetic; the ranges are wide for real models and narrow
 * enough that products of any three sizes fit 64 bits. What this engine cannot compute is refused with the key's name.
 */
#include "model/model_config.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/error.h"
#include "model/json_file.h"
#include "npu/npu.h"

#define CONFIG_BYTES_MAX ((size_t)16 << 20)
#define DIM_MAX (1u << 20) /* hidden and intermediate sizes */
#define HEADS_MAX 1024u
#define HEAD_DIM_MAX 1024u
#define LORA_MAX (1u << 16)
#define VOCAB_MAX (1u << 24)
#define POSITION_MAX (1u << 26)

/* A reader whose first error sticks, so that the fields can be read one after the other; after an error every get gives its
 * default. */
typedef struct {
    const json_t *object;
    const char   *prefix; /* "" or "rope_scaling.": goes before the key in sentences */
    td_error     *err;
    td_status     status;
} reader;

static void refuse(reader *r, td_status status, const char *fmt, ...) TD_PRINTF(3, 4);
static void refuse(reader *r, td_status status, const char *fmt, ...) {
    if (r->status != TD_OK) return;
    char    text[TD_ERROR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->status = td_fail(r->err, status, "%s", text);
}

/* NULL when absent or null, or after an error. */
static const json_t *get(reader *r, const char *key) {
    const json_t *v = r->status == TD_OK ? json_object_get(r->object, key) : NULL;
    return json_is_null(v) ? NULL : v;
}

static bool has_key(const reader *r, const char *key) {
    return json_object_get(r->object, key) != NULL;
}

static uint32_t get_u32(reader *r, const char *key, uint32_t absent, uint32_t min, uint32_t max) {
    const json_t *v = get(r, key);
    if (!v) return absent;
    if (!json_is_integer(v)) {
        refuse(r, TD_EFORMAT, "%s%s is not an integer", r->prefix, key);
        return absent;
    }
    json_int_t n = json_integer_value(v);
    if (n < (json_int_t)min || n > (json_int_t)max) {
        refuse(r, TD_EFORMAT, "%s%s is %lld, expected %u to %u", r->prefix, key, (long long)n, min, max);
        return absent;
    }
    return (uint32_t)n;
}

static double get_number(reader *r, const char *key, double absent, double min, double max) {
    const json_t *v = get(r, key);
    if (!v) return absent;
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= min && x <= max)) {
        refuse(r, TD_EFORMAT, "%s%s is not a number between %g and %g", r->prefix, key, min, max);
        return absent;
    }
    return x;
}

static bool get_bool(reader *r, const char *key, bool absent) {
    const json_t *v = get(r, key);
    if (!v) return absent;
    if (!json_is_boolean(v)) refuse(r, TD_EFORMAT, "%s%s is not true or false", r->prefix, key);
    return json_is_true(v);
}

/* Borrowed from the JSON. */
static const char *get_text(reader *r, const char *key, const char *absent) {
    const json_t *v = get(r, key);
    if (!v) return absent;
    if (!json_is_string(v)) {
        refuse(r, TD_EFORMAT, "%s%s is not a string", r->prefix, key);
        return absent;
    }
    return json_string_value(v);
}

static uint32_t get_u32_alias(reader *r, const char *key, const char *alias, uint32_t absent, uint32_t min, uint32_t max) {
    return get_u32(r, get(r, key) ? key : alias, absent, min, max);
}

static void refuse_when_true(reader *r, const char *key, const char *what) {
    if (get_bool(r, key, false)) refuse(r, TD_ENOTSUP, "%s is true, and %s is not supported", key, what);
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* `rope_scaling` of the published configs, or `rope_parameters` as transformers 5 writes it, which also holds rope_theta. */
static void read_rope(reader *root, td_model_config *c, uint32_t dim) {
    td_rope_config *rope = &c->rope;
    rope->dim = dim;
    rope->kind = TD_ROPE_PLAIN;
    rope->factor = 1;
    rope->truncate = true;
    rope->theta = get_number(root, "rope_theta", 10000.0, 1.0001, 1e12);
    if (dim % 2 || dim > TD_ROPE_DIM_MAX)
        refuse(root, TD_EFORMAT, "the rotary dimension %u is odd or above %u", dim, TD_ROPE_DIM_MAX);
    if (get_number(root, "partial_rotary_factor", 1, 0, 1) != 1)
        refuse(root, TD_ENOTSUP, "partial_rotary_factor is not 1, and rotating a part of the head is not supported");

    bool          new_style = get(root, "rope_parameters") != NULL && !get(root, "rope_scaling");
    const char   *key = new_style ? "rope_parameters" : "rope_scaling";
    const json_t *object = get(root, key);
    if (!object) return;
    if (!json_is_object(object)) {
        refuse(root, TD_EFORMAT, "%s is not an object", key);
        return;
    }
    reader      r = {object, new_style ? "rope_parameters." : "rope_scaling.", root->err, root->status};
    const char *type = get_text(&r, "rope_type", get_text(&r, "type", "default"));
    rope->theta = get_number(&r, "rope_theta", rope->theta, 1.0001, 1e12);
    if (get_number(&r, "partial_rotary_factor", 1, 0, 1) != 1)
        refuse(&r, TD_ENOTSUP, "%spartial_rotary_factor is not 1, and rotating a part of the head is not supported",
               r.prefix);
    if (!strcmp(type, "linear")) {
        rope->factor = get_number(&r, "factor", 1, 1, 1e6);
    } else if (!strcmp(type, "yarn") || !strcmp(type, "deepseek_yarn")) {
        rope->kind = TD_ROPE_YARN;
        rope->original_max_position = get_u32(&r, "original_max_position_embeddings", c->max_position, 1, POSITION_MAX);
        double implied = (double)c->max_position / (rope->original_max_position ? rope->original_max_position : 1);
        rope->factor = get_number(&r, "factor", implied < 1 ? 1 : implied, 1, 1e6);
        rope->beta_fast = get_number(&r, "beta_fast", 32, 1e-3, 1e6);
        rope->beta_slow = get_number(&r, "beta_slow", 1, 1e-3, 1e6);
        rope->mscale = get_number(&r, "mscale", 0, 0, 100);
        rope->mscale_all_dim = get_number(&r, "mscale_all_dim", 0, 0, 100);
        rope->attention_factor = get_number(&r, "attention_factor", 0, 1e-3, 1e3);
        /* It extends that length by the factor; model cards say to add rope_scaling and leave max_position_embeddings. */
        double reach = fmin(rope->factor * rope->original_max_position, POSITION_MAX);
        if (reach > c->max_position) c->max_position = (uint32_t)reach;
        rope->truncate = get_bool(&r, "truncate", true);
    } else if (strcmp(type, "default")) {
        refuse(
            &r, TD_ENOTSUP, "%s is '%.40s', and only default, linear and yarn are supported",
            get(&r, "rope_type") ? new_style ? "rope_parameters.rope_type" : "rope_scaling.rope_type" : "rope_scaling.type",
            type);
    }
    root->status = r.status;
}

/* ---- architectures --------------------------------------------------------------------------- */

typedef struct {
    uint32_t vocab, hidden, inter, layers, heads, kv_heads, max_position;
} common_defaults;

static void read_common(reader *r, td_model_config *c, const common_defaults *d) {
    c->vocab = get_u32(r, "vocab_size", d->vocab, 1, VOCAB_MAX);
    c->hidden = get_u32(r, "hidden_size", d->hidden, 1, DIM_MAX);
    c->inter = get_u32(r, "intermediate_size", d->inter, 1, DIM_MAX);
    c->n_layers = get_u32(r, "num_hidden_layers", d->layers, 1, TD_LAYERS_MAX);
    c->heads = get_u32(r, "num_attention_heads", d->heads, 1, HEADS_MAX);
    c->kv_heads = get_u32(r, "num_key_value_heads", d->kv_heads ? d->kv_heads : c->heads, 1, HEADS_MAX);
    c->max_position = get_u32(r, "max_position_embeddings", d->max_position, 1, POSITION_MAX);
    c->eps = (float)get_number(r, "rms_norm_eps", 1e-6, 0, 1);
    c->tie_embeddings = get_bool(r, "tie_word_embeddings", false);
    const char *act = get_text(r, "hidden_act", "silu");
    if (strcmp(act, "silu") && strcmp(act, "swish"))
        refuse(r, TD_ENOTSUP, "hidden_act is '%.40s', and only silu is supported", act);
    refuse_when_true(r, "mlp_bias", "a bias in the feed-forward");
}

static void check_experts(reader *r, const td_model_config *c) {
    if (c->top_k > c->n_experts)
        refuse(r, TD_EFORMAT, "num_experts_per_tok is %u, more than the %u experts", c->top_k, c->n_experts);
    if (c->n_group == 1 || r->status != TD_OK) return;
    if (c->n_experts % c->n_group)
        refuse(r, TD_EFORMAT, "n_group is %u, which does not divide the %u experts", c->n_group, c->n_experts);
    else if (c->topk_group > c->n_group)
        refuse(r, TD_EFORMAT, "topk_group is %u, more than n_group %u", c->topk_group, c->n_group);
    else if (c->top_k > c->n_experts / c->n_group * c->topk_group)
        refuse(r, TD_EFORMAT, "num_experts_per_tok is %u, more than the %u experts of topk_group %u", c->top_k,
               c->n_experts / c->n_group * c->topk_group, c->topk_group);
    else if (c->route_groups == TD_ROUTE_GROUP_TOP2 && c->n_experts == c->n_group)
        refuse(r, TD_EFORMAT, "n_group is %u, and a group's score is the sum of its two best experts, but it has one",
               c->n_group);
}

/* DeepSeek-V2, V3 and Kimi-K2: configuration_deepseek.py of the published checkpoints and transformers' classes. */
static void read_deepseek(reader *r, td_model_config *c) {
    static const common_defaults V2 = {32000, 4096, 11008, 32, 32, 0, 2048}, V3 = {129280, 7168, 18432, 61, 128, 0, 4096};
    bool                         v3 = c->arch == TD_ARCH_DEEPSEEK_V3;
    read_common(r, c, v3 ? &V3 : &V2);
    c->attn = TD_ATTN_MLA;
    c->q_lora = has_key(r, "q_lora_rank") ? get_u32(r, "q_lora_rank", 0, 1, LORA_MAX) : 1536; /* null: q is not compressed */
    c->kv_lora = get_u32(r, "kv_lora_rank", 512, 1, LORA_MAX);
    c->nope_dim = get_u32(r, "qk_nope_head_dim", 128, 1, HEAD_DIM_MAX);
    c->rope_dim = get_u32(r, "qk_rope_head_dim", 64, 2, HEAD_DIM_MAX);
    c->v_dim = get_u32(r, "v_head_dim", 128, 1, HEAD_DIM_MAX);
    c->attn_bias = get_bool(r, "attention_bias", false);
    c->n_mtp_layers = get_u32(r, "num_nextn_predict_layers", 0, 0, TD_LAYERS_MAX);
    if (c->n_layers + c->n_mtp_layers > TD_LAYERS_MAX)
        refuse(r, TD_EFORMAT, "num_hidden_layers and num_nextn_predict_layers are more than %u together", TD_LAYERS_MAX);

    c->moe_inter = get_u32(r, "moe_intermediate_size", v3 ? 2048 : 1407, 1, DIM_MAX);
    c->n_experts = get_u32_alias(r, "n_routed_experts", "num_experts", v3 ? 256 : 64, 1, TD_EXPERTS_MAX);
    c->top_k = get_u32(r, "num_experts_per_tok", v3 ? 8 : 0, 1, TD_TOP_K_MAX);
    if (c->top_k == 0) refuse(r, TD_EFORMAT, "num_experts_per_tok is missing");
    uint32_t n_shared = has_key(r, "n_shared_experts") ? get_u32(r, "n_shared_experts", 0, 0, 64) : v3 ? 1 : 2;
    c->shared_inter = n_shared * c->moe_inter;
    c->norm_topk = get_bool(r, "norm_topk_prob", v3);
    c->routed_scale = get_number(r, "routed_scaling_factor", v3 ? 2.5 : 1.0, 0, 1e6);

    const char *score = get_text(r, "scoring_func", v3 ? "sigmoid" : "softmax");
    const char *method = get_text(r, "topk_method", v3 ? "noaux_tc" : "greedy");
    c->route_score = v3 ? TD_ROUTE_SIGMOID : TD_ROUTE_SOFTMAX;
    c->route_bias = v3;
    if (strcmp(score, v3 ? "sigmoid" : "softmax"))
        refuse(r, TD_ENOTSUP, "scoring_func is '%.40s', and %s has %s only", score, c->arch_name,
               v3 ? "sigmoid" : "softmax");
    bool grouped = v3 ? !strcmp(method, "noaux_tc") : !strcmp(method, "group_limited_greedy");
    if (!grouped && (v3 || strcmp(method, "greedy")))
        refuse(r, TD_ENOTSUP, "topk_method is '%.40s', and %s has %s only", method, c->arch_name,
               v3 ? "noaux_tc" : "greedy and group_limited_greedy");
    c->n_group = grouped ? get_u32(r, "n_group", v3 ? 8 : 1, 1, TD_EXPERTS_MAX) : 1;
    c->topk_group = grouped ? get_u32(r, "topk_group", v3 ? 4 : 1, 1, TD_EXPERTS_MAX) : 1;
    c->route_groups = c->n_group == 1 ? TD_ROUTE_GREEDY : v3 ? TD_ROUTE_GROUP_TOP2 : TD_ROUTE_GROUP_MAX;
    if (c->n_group == 1) c->topk_group = 1;
    /* V2's gate either normalises or scales; V3's does both (MoEGate of the two modeling_deepseek.py). */
    if (!v3) {
        c->norm_topk = c->norm_topk && c->top_k > 1;
        if (c->norm_topk) c->routed_scale = 1;
    }
    check_experts(r, c);

    uint32_t first = get_u32(r, "first_k_dense_replace", v3 ? 3 : 0, 0, TD_LAYERS_MAX);
    uint32_t every = get_u32(r, "moe_layer_freq", 1, 1, TD_LAYERS_MAX);
    for (uint32_t i = 0; i < TD_LAYERS_MAX && i < c->n_layers + c->n_mtp_layers; i++)
        c->is_moe[i] = i >= first && i % every == 0;

    read_rope(r, c, c->rope_dim);
    c->rope.interleaved = get_bool(r, "rope_interleave", true);
    c->softmax_scale = td_rope_softmax_factor(&c->rope) / sqrt((double)c->nope_dim + c->rope_dim);
}

static void read_mlp_only_layers(reader *r, td_model_config *c) {
    const json_t *list = get(r, "mlp_only_layers");
    if (!list) return;
    if (!json_is_array(list)) {
        refuse(r, TD_EFORMAT, "mlp_only_layers is not a list");
        return;
    }
    size_t  i;
    json_t *v;
    json_array_foreach(list, i, v) {
        json_int_t layer = json_integer_value(v);
        if (!json_is_integer(v) || layer < 0 || layer >= (json_int_t)c->n_layers) {
            refuse(r, TD_EFORMAT, "mlp_only_layers has an entry that is not a layer of 0 to %u", c->n_layers - 1);
            return;
        }
        c->is_moe[layer] = 0;
    }
}

static void refuse_sliding_window(reader *r) {
    refuse_when_true(r, "use_sliding_window", "a sliding attention window");
    const json_t *types = get(r, "layer_types");
    size_t        i;
    json_t       *v;
    json_array_foreach(types, i, v) {
        if (!json_is_string(v) || strcmp(json_string_value(v), "full_attention"))
            refuse(r, TD_ENOTSUP, "layer_types has a layer that is not full_attention, and only that is supported");
    }
}

/* Qwen2-MoE and Qwen3-MoE: transformers' Qwen2MoeConfig and Qwen3MoeConfig. */
static void read_qwen(reader *r, td_model_config *c) {
    static const common_defaults Q2 = {151936, 2048, 5632, 24, 16, 16, 32768}, Q3 = {151936, 2048, 6144, 24, 32, 4, 32768};
    bool                         q3 = c->arch == TD_ARCH_QWEN3_MOE;
    read_common(r, c, q3 ? &Q3 : &Q2);
    c->attn = TD_ATTN_GQA;
    if (c->heads % c->kv_heads)
        refuse(r, TD_EFORMAT, "num_key_value_heads is %u, which does not divide the %u heads", c->kv_heads, c->heads);
    if (!get(r, "head_dim") && c->hidden % c->heads)
        refuse(r, TD_EFORMAT, "num_attention_heads is %u, which does not divide hidden_size %u", c->heads, c->hidden);
    if (!get(r, "head_dim") && c->hidden / c->heads > HEAD_DIM_MAX)
        refuse(r, TD_EFORMAT, "hidden_size / num_attention_heads is %u, at most %u is supported", c->hidden / c->heads,
               HEAD_DIM_MAX);
    c->head_dim = get_u32(r, "head_dim", c->hidden / c->heads, 2, HEAD_DIM_MAX);
    c->qk_norm = q3;
    c->qkv_bias = !q3 && get_bool(r, "qkv_bias", true);
    if (q3) refuse_when_true(r, "attention_bias", "a bias in this architecture's attention");
    refuse_sliding_window(r);

    c->moe_inter = get_u32(r, "moe_intermediate_size", q3 ? 768 : 1408, 1, DIM_MAX);
    c->n_experts = get_u32_alias(r, "num_experts", "num_local_experts", q3 ? 128 : 60, 1, TD_EXPERTS_MAX);
    c->top_k = get_u32(r, "num_experts_per_tok", q3 ? 8 : 4, 1, TD_TOP_K_MAX);
    c->shared_inter = q3 ? 0 : get_u32(r, "shared_expert_intermediate_size", 5632, 1, DIM_MAX);
    c->shared_gate = !q3;
    c->norm_topk = get_bool(r, "norm_topk_prob", false);
    c->routed_scale = 1;
    c->n_group = c->topk_group = 1;
    check_experts(r, c);

    uint32_t step = get_u32(r, "decoder_sparse_step", 1, 1, TD_LAYERS_MAX);
    for (uint32_t i = 0; i < c->n_layers; i++) c->is_moe[i] = (i + 1) % step == 0;
    read_mlp_only_layers(r, c);

    read_rope(r, c, c->head_dim);
    c->softmax_scale = 1 / sqrt((double)c->head_dim);
}

typedef struct {
    const char *name;
    td_arch     arch;
    void (*read)(reader *r, td_model_config *c);
} architecture;

static const architecture ARCHITECTURES[] = {
    {"DeepseekV2ForCausalLM", TD_ARCH_DEEPSEEK_V2, read_deepseek},
    {"DeepseekV3ForCausalLM", TD_ARCH_DEEPSEEK_V3, read_deepseek}, /* also Kimi-K2 */
    {"Qwen2MoeForCausalLM", TD_ARCH_QWEN2_MOE, read_qwen},
    {"Qwen3MoeForCausalLM", TD_ARCH_QWEN3_MOE, read_qwen},
};

static const architecture *find_architecture(reader *r, td_model_config *c) {
    const json_t *list = get(r, "architectures");
    const char   *name = json_string_value(json_array_get(list, 0));
    if (!name) {
        refuse(r, TD_EFORMAT, "architectures is missing or not a list of names");
        return NULL;
    }
    snprintf(c->arch_name, sizeof c->arch_name, "%s", name);
    snprintf(c->model_type, sizeof c->model_type, "%s", get_text(r, "model_type", ""));
    for (size_t i = 0; i < sizeof ARCHITECTURES / sizeof *ARCHITECTURES; i++)
        if (!strcmp(name, ARCHITECTURES[i].name)) return &ARCHITECTURES[i];
    refuse(r, TD_ENOTSUP,
           "architectures has '%.60s', and only DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, Qwen2MoeForCausalLM and "
           "Qwen3MoeForCausalLM "
           "are supported",
           name);
    return NULL;
}

/* ---- weights, tokens, sampling --------------------------------------------------------------- */

static void read_quantization(reader *r, td_model_config *c) {
    const json_t *q = get(r, get(r, "quantization_config") ? "quantization_config" : "compression_config");
    if (q) r->status = td_quant_config_parse(q, &c->quant, r->err);
}

static void add_eos(reader *r, td_model_config *c, const json_t *v) {
    json_int_t id = json_integer_value(v);
    if (!json_is_integer(v) || id < 0 || id >= (json_int_t)c->vocab) {
        refuse(r, TD_EFORMAT, "eos_token_id is not a token of 0 to %u", c->vocab - 1);
        return;
    }
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (c->eos_ids[i] == (uint32_t)id) return;
    if (c->n_eos == sizeof c->eos_ids / sizeof *c->eos_ids)
        refuse(r, TD_EFORMAT, "eos_token_id has more than %u tokens", c->n_eos);
    else
        c->eos_ids[c->n_eos++] = (uint32_t)id;
}

static void read_token_ids(reader *r, td_model_config *c) {
    c->bos_id = get_u32(r, "bos_token_id", c->bos_id, 0, c->vocab - 1);
    const json_t *eos = get(r, "eos_token_id");
    if (json_is_array(eos)) {
        size_t  i;
        json_t *v;
        json_array_foreach(eos, i, v) add_eos(r, c, v);
    } else if (eos) {
        add_eos(r, c, eos);
    }
}

static td_status parse_config(const json_t *root, td_model_config *c, td_error *err) {
    reader              r = {root, "", err, TD_OK};
    const architecture *a = find_architecture(&r, c);
    if (!a) return r.status;
    c->arch = a->arch;
    a->read(&r, c);
    read_quantization(&r, c);
    read_token_ids(&r, c);
    return r.status;
}

static td_status parse_generation(const json_t *root, td_model_config *c, td_error *err) {
    reader r = {root, "", err, TD_OK};
    read_token_ids(&r, c);
    c->temperature = get_number(&r, "temperature", NAN, 0, 1e6);
    c->top_p = get_number(&r, "top_p", NAN, 0, 1);
    c->repetition_penalty = get_number(&r, "repetition_penalty", NAN, 1e-6, 1e6);
    c->top_k_sampling = get_u32(&r, "top_k", 0, 0, INT32_MAX);
    return r.status;
}

static td_status merge_override(json_t *root, const char *override_json, td_error *err) {
    json_t *more;
    if (td_json_parse(override_json, strlen(override_json), &more, err) != TD_OK)
        return td_fail_within(err, "the config override");
    int failed = json_object_update_recursive(root, more);
    json_decref(more);
    return failed ? td_fail(err, TD_ENOMEM, "no memory to merge the config override") : TD_OK;
}

td_status td_model_config_parse(const char *config, size_t config_len, const char *generation, size_t generation_len,
                                const char *override_json, td_model_config *out, td_error *err) {
    json_t *root = NULL, *gen = NULL;
    memset(out, 0, sizeof *out);
    out->bos_id = UINT32_MAX;
    out->temperature = out->top_p = out->repetition_penalty = NAN;
    td_status s = td_json_parse(config, config_len, &root, err);
    if (s == TD_OK && override_json) s = merge_override(root, override_json, err);
    if (s == TD_OK) s = parse_config(root, out, err);
    if (s != TD_OK) td_fail_within(err, "config.json");
    if (s == TD_OK && generation) {
        s = td_json_parse(generation, generation_len, &gen, err);
        if (s == TD_OK) s = parse_generation(gen, out, err);
        if (s != TD_OK) td_fail_within(err, "generation_config.json");
    }
    json_decref(root);
    json_decref(gen);
    return s;
}

td_status td_model_config_read(const char *path, const char *override_json, td_model_config *out, td_error *err) {
    struct stat st;
    char        folder[4096], file[4096 + 32];
    char       *config = NULL, *generation = NULL;
    size_t      config_len = 0, generation_len = 0;
    if (stat(path, &st) != 0) return td_fail(err, errno == ENOENT ? TD_ENOTFOUND : TD_EIO, "%s: %s", path, strerror(errno));
    if (strlen(path) >= sizeof folder)
        return td_fail(err, TD_EINVAL, "the model path is longer than %zu bytes", sizeof folder - 1);
    snprintf(folder, sizeof folder, "%s", path);
    if (S_ISDIR(st.st_mode)) {
        snprintf(file, sizeof file, "%s/config.json", folder);
    } else {
        snprintf(file, sizeof file, "%s", path);
        char *slash = strrchr(folder, '/');
        if (slash)
            *slash = 0;
        else
            strcpy(folder, ".");
    }
    TD_TRY(td_file_read(file, CONFIG_BYTES_MAX, &config, &config_len, err));
    snprintf(file, sizeof file, "%s/generation_config.json", folder);
    td_status s = td_file_read(file, CONFIG_BYTES_MAX, &generation, &generation_len, err);
    if (s == TD_ENOTFOUND) s = TD_OK;
    if (s == TD_OK) {
        s = td_model_config_parse(config, config_len, generation, generation_len, override_json, out, err);
        if (s != TD_OK) td_fail_within(err, "%s", path);
        if (s == TD_OK && out->quant.method == TD_QUANT_NONE && !out->quant.refusal[0] &&
            td_modelslim_description(folder, file, sizeof file))
            out->quant = td_quant_config_modelslim();
    }
    free(config);
    free(generation);
    return s;
}

uint32_t td_moe_layers_in(const td_model_config *c, td_layer_range r) {
    uint32_t n = 0;
    for (uint32_t i = r.first; i < r.end; i++) n += c->is_moe[i];
    return n;
}

uint32_t td_model_config_moe_layers(const td_model_config *c) {
    return td_moe_layers_in(c, td_all_layers(c));
}
