#include "model/arch/config_reader.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "npu/block_weights.h"
#include "npu/npu.h"

void td_config_refuse(td_config_reader *r, td_status status, const char *fmt, ...) {
    if (r->status != TD_OK) return;
    char    text[TD_ERROR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->status = td_fail(r->err, status, "%s", text);
}

const json_t *td_config_get(td_config_reader *r, const char *key) {
    const json_t *v = r->status == TD_OK ? json_object_get(r->object, key) : NULL;
    return json_is_null(v) ? NULL : v;
}

bool td_config_has(const td_config_reader *r, const char *key) {
    return json_object_get(r->object, key) != NULL;
}

uint32_t td_config_u32(td_config_reader *r, const char *key, uint32_t absent, uint32_t min, uint32_t max) {
    const json_t *v = td_config_get(r, key);
    if (!v) return absent;
    if (!json_is_integer(v)) {
        td_config_refuse(r, TD_EFORMAT, "%s%s is not an integer", r->prefix, key);
        return absent;
    }
    json_int_t n = json_integer_value(v);
    if (n < (json_int_t)min || n > (json_int_t)max) {
        td_config_refuse(r, TD_EFORMAT, "%s%s is %lld, expected %u to %u", r->prefix, key, (long long)n, min, max);
        return absent;
    }
    return (uint32_t)n;
}

double td_config_number(td_config_reader *r, const char *key, double absent, double min, double max) {
    const json_t *v = td_config_get(r, key);
    if (!v) return absent;
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= min && x <= max)) {
        td_config_refuse(r, TD_EFORMAT, "%s%s is not a number between %g and %g", r->prefix, key, min, max);
        return absent;
    }
    return x;
}

bool td_config_bool(td_config_reader *r, const char *key, bool absent) {
    const json_t *v = td_config_get(r, key);
    if (!v) return absent;
    if (!json_is_boolean(v)) td_config_refuse(r, TD_EFORMAT, "%s%s is not true or false", r->prefix, key);
    return json_is_true(v);
}

const char *td_config_text(td_config_reader *r, const char *key, const char *absent) {
    const json_t *v = td_config_get(r, key);
    if (!v) return absent;
    if (!json_is_string(v)) {
        td_config_refuse(r, TD_EFORMAT, "%s%s is not a string", r->prefix, key);
        return absent;
    }
    return json_string_value(v);
}

uint32_t td_config_u32_alias(td_config_reader *r, const char *key, const char *alias, uint32_t absent, uint32_t min,
                             uint32_t max) {
    return td_config_u32(r, td_config_get(r, key) ? key : alias, absent, min, max);
}

void td_config_refuse_true(td_config_reader *r, const char *key, const char *what) {
    if (td_config_bool(r, key, false))
        td_config_refuse(r, TD_ENOTSUP, "%s%s is true, and %s is not supported", r->prefix, key, what);
}

void td_config_refuse_false(td_config_reader *r, const char *key, const char *what) {
    if (!td_config_bool(r, key, true))
        td_config_refuse(r, TD_ENOTSUP, "%s%s is false, and %s is not supported", r->prefix, key, what);
}

void td_config_only_text(td_config_reader *r, const td_model_config *c, const char *key, const char *only) {
    const char *text = td_config_text(r, key, only);
    if (strcmp(text, only))
        td_config_refuse(r, TD_ENOTSUP, "%s%s is '%.40s', and %s has %s only", r->prefix, key, text, c->arch_name, only);
}

/* ---- what several families have ---------------------------------------------------------------- */

void td_config_sizes(td_config_reader *r, td_model_config *c, const td_config_defaults *d) {
    c->vocab = td_config_u32(r, "vocab_size", d->vocab, 1, TD_CONFIG_VOCAB_MAX);
    c->hidden = td_config_u32(r, "hidden_size", d->hidden, 1, TD_CONFIG_DIM_MAX);
    c->inter = td_config_u32(r, "intermediate_size", d->inter, 1, TD_CONFIG_DIM_MAX);
    c->n_layers = td_config_u32(r, "num_hidden_layers", d->layers, 1, TD_LAYERS_MAX);
    c->heads = td_config_u32(r, "num_attention_heads", d->heads, 1, TD_CONFIG_HEADS_MAX);
    c->kv_heads = td_config_u32(r, "num_key_value_heads", d->kv_heads ? d->kv_heads : c->heads, 1, TD_CONFIG_HEADS_MAX);
    c->max_position = td_config_u32(r, "max_position_embeddings", d->max_position, 1, TD_CONFIG_POSITION_MAX);
    c->eps = (float)td_config_number(r, "rms_norm_eps", 1e-6, 0, 1);
    c->tie_embeddings = td_config_bool(r, "tie_word_embeddings", false);
    const char *act = td_config_text(r, "hidden_act", "silu");
    if (strcmp(act, "silu") && strcmp(act, "swish"))
        td_config_refuse(r, TD_ENOTSUP, "%shidden_act is '%.40s', and only silu is supported", r->prefix, act);
    td_config_refuse_true(r, "mlp_bias", "a bias in the feed-forward");
}

void td_config_common(td_config_reader *r, td_model_config *c, const td_config_defaults *d) {
    td_config_sizes(r, c, d);
    uint32_t chosen = td_config_u32(r, "index_topk", 0, 0, UINT32_MAX); /* DeepSeek-V3.2, GLM-5 */
    if (chosen)
        td_config_refuse(r, TD_ENOTSUP, "%sindex_topk is %u, and attention over chosen tokens is not supported", r->prefix,
                         chosen);
}

void td_config_mla(td_config_reader *r, td_model_config *c, const td_config_mla_defaults *d) {
    c->q_lora = td_config_has(r, "q_lora_rank") ? td_config_u32(r, "q_lora_rank", 0, 1, TD_CONFIG_LORA_MAX) : d->q_lora;
    c->kv_lora = td_config_u32(r, "kv_lora_rank", d->kv_lora, 1, TD_CONFIG_LORA_MAX);
    c->nope_dim = td_config_u32(r, "qk_nope_head_dim", d->nope, 1, TD_CONFIG_HEAD_DIM_MAX);
    c->rope_dim = td_config_u32(r, "qk_rope_head_dim", d->rope, d->rope ? 2 : 0, TD_CONFIG_HEAD_DIM_MAX);
    c->v_dim = td_config_u32(r, "v_head_dim", d->v, 1, TD_CONFIG_HEAD_DIM_MAX);
    c->attn_bias = td_config_bool(r, "attention_bias", false);
}

void td_config_sigmoid_router(td_config_reader *r, td_model_config *c) {
    c->route_score = TD_SCORE_SIGMOID;
    c->route_bias = true;
    td_config_only_text(r, c, "scoring_func", "sigmoid");
    td_config_only_text(r, c, "topk_method", "noaux_tc");
}

void td_config_router_groups(td_config_reader *r, td_model_config *c, uint32_t n_group, uint32_t topk_group) {
    c->n_group = td_config_u32(r, "n_group", n_group, 1, TD_EXPERTS_MAX);
    c->topk_group = c->n_group > 1 ? td_config_u32(r, "topk_group", topk_group, 1, TD_EXPERTS_MAX) : 1;
    c->route_group = c->n_group > 1 ? TD_GROUP_TOP2_SUM : TD_GROUP_NONE;
}

void td_config_check_experts(td_config_reader *r, const td_model_config *c) {
    if (c->top_k > c->n_experts)
        td_config_refuse(r, TD_EFORMAT, "num_experts_per_tok is %u, more than the %u experts", c->top_k, c->n_experts);
    if (c->n_group == 1 || r->status != TD_OK) return;
    if (c->n_experts % c->n_group)
        td_config_refuse(r, TD_EFORMAT, "n_group is %u, which does not divide the %u experts", c->n_group, c->n_experts);
    else if (c->topk_group > c->n_group)
        td_config_refuse(r, TD_EFORMAT, "topk_group is %u, more than n_group %u", c->topk_group, c->n_group);
    else if (c->top_k > c->n_experts / c->n_group * c->topk_group)
        td_config_refuse(r, TD_EFORMAT, "num_experts_per_tok is %u, more than the %u experts of topk_group %u", c->top_k,
                         c->n_experts / c->n_group * c->topk_group, c->topk_group);
    else if (c->route_group == TD_GROUP_TOP2_SUM && c->n_experts == c->n_group)
        td_config_refuse(r, TD_EFORMAT,
                         "n_group is %u, and a group's score is the sum of its two best experts, but it has one",
                         c->n_group);
}

const char *const td_config_full_attention[] = {"full_attention", NULL};

bool td_config_delta_layers(td_config_reader *r, td_model_config *c, const char *const *attention) {
    const json_t *types = td_config_get(r, "layer_types"), *v;
    size_t        i;
    if (!types) return false;
    if (!json_is_array(types) || json_array_size(types) != c->n_layers) {
        td_config_refuse(r, TD_EFORMAT, "%slayer_types is not a list of %u layers", r->prefix, c->n_layers);
        return true;
    }
    json_array_foreach(types, i, v) {
        const char *type = json_is_string(v) ? json_string_value(v) : "no text";
        c->is_delta[i] = !strcmp(type, "linear_attention");
        size_t name = 0;
        while (attention[name] && strcmp(type, attention[name])) name++;
        if (!c->is_delta[i] && !attention[name])
            td_config_refuse(r, TD_ENOTSUP, "%slayer_types[%zu] is '%.40s', and only linear_attention and %s are supported",
                             r->prefix, i, type, attention[0]);
    }
    return true;
}

/* A list of words, or in a text their first letters. */
static void read_indexed(td_config_reader *r, td_model_config *c, const char *key) {
    const json_t *list = td_config_get(r, key);
    const char   *text = json_string_value(list);
    const size_t  n = text ? strlen(text) : json_array_size(list);
    if (n != c->n_layers) {
        td_config_refuse(r, TD_EFORMAT, "%s%s has %zu layers, and num_hidden_layers is %u", r->prefix, key, n, c->n_layers);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const char *word = text                                      ? text[i] == 'F'   ? "full"
                                                                       : text[i] == 'S' ? "shared"
                                                                                        : "another letter"
                           : json_is_string(json_array_get(list, i)) ? json_string_value(json_array_get(list, i))
                                                                     : "no text";
        if (strcmp(word, "full") && strcmp(word, "shared"))
            td_config_refuse(r, TD_ENOTSUP, "%s%s[%u] is '%.40s', and only full and shared%s are known", r->prefix, key, i,
                             word, text ? ", F and S," : "");
        c->sparse.indexed[i] = !strcmp(word, "full");
    }
}

void td_config_indexed_layers(td_config_reader *r, td_model_config *c) {
    memset(c->sparse.indexed, 1, c->n_layers + c->n_mtp_layers);
    if (td_config_get(r, "indexer_types")) {
        read_indexed(r, c, "indexer_types");
    } else if (td_config_get(r, "index_topk_pattern")) {
        read_indexed(r, c, "index_topk_pattern");
    } else {
        const uint32_t every = td_config_u32(r, "index_topk_freq", 1, 1, TD_LAYERS_MAX),
                       offset = td_config_u32(r, "index_skip_topk_offset", 2, 0, TD_LAYERS_MAX);
        for (uint32_t i = 0; i < c->n_layers; i++) c->sparse.indexed[i] = i + 1 <= offset || (i + 1 - offset) % every == 0;
    }
}

void td_config_streams(td_config_reader *r, td_model_config *c) {
    c->sparse.streams = td_config_u32(r, "hc_mult", 4, 2, TD_STREAMS_MAX);
    c->sparse.mix_rounds = td_config_u32(r, "hc_sinkhorn_iters", 20, 1, 1000);
    c->sparse.mix_eps = (float)td_config_number(r, "hc_eps", 1e-6, 0, 1);
}

void td_config_refuse_sliding_window(td_config_reader *r) {
    td_config_refuse_true(r, "use_sliding_window", "a sliding attention window");
    const json_t *types = td_config_get(r, "layer_types");
    size_t        i;
    json_t       *v;
    json_array_foreach(types, i, v) {
        const char *type = json_is_string(v) ? json_string_value(v) : "no text";
        if (strcmp(type, "full_attention"))
            td_config_refuse(r, TD_ENOTSUP, "%slayer_types[%zu] is '%.40s', and only full_attention is supported", r->prefix,
                             i, type);
    }
}

void td_config_gqa(td_config_reader *r, td_model_config *c, uint32_t head_dim) {
    bool given = head_dim || td_config_get(r, "head_dim");
    if (c->heads % c->kv_heads)
        td_config_refuse(r, TD_EFORMAT, "num_key_value_heads is %u, which does not divide the %u heads", c->kv_heads,
                         c->heads);
    if (!given && c->hidden % c->heads)
        td_config_refuse(r, TD_EFORMAT, "num_attention_heads is %u, which does not divide hidden_size %u", c->heads,
                         c->hidden);
    if (!given && c->hidden / c->heads > TD_CONFIG_HEAD_DIM_MAX)
        td_config_refuse(r, TD_EFORMAT, "hidden_size / num_attention_heads is %u, at most %u is supported",
                         c->hidden / c->heads, TD_CONFIG_HEAD_DIM_MAX);
    c->head_dim = td_config_u32(r, "head_dim", head_dim ? head_dim : c->hidden / c->heads, 2, TD_CONFIG_HEAD_DIM_MAX);
}

void td_config_mtp_layers(td_config_reader *r, td_model_config *c, const char *key, uint32_t absent) {
    c->n_mtp_layers = td_config_u32(r, key, absent, 0, TD_LAYERS_MAX);
    if (c->n_layers + c->n_mtp_layers <= TD_LAYERS_MAX) return;
    c->n_mtp_layers = 0; /* what goes on reading stays within the arrays */
    td_config_refuse(r, TD_EFORMAT, "%snum_hidden_layers and %s are more than %u together", r->prefix, key, TD_LAYERS_MAX);
}

void td_config_dense_layers(td_config_reader *r, td_model_config *c, uint32_t absent) {
    const json_t *types = td_config_get(r, "mlp_layer_types"), *v;
    uint32_t      first = td_config_u32(r, "first_k_dense_replace", absent, 0, TD_LAYERS_MAX);
    for (uint32_t i = 0; i < c->n_layers + c->n_mtp_layers; i++) c->is_moe[i] = i >= first;
    if (!types) return;
    if (json_array_size(types) != c->n_layers)
        td_config_refuse(r, TD_EFORMAT, "mlp_layer_types has %zu layers, and num_hidden_layers is %u",
                         json_array_size(types), c->n_layers);
    size_t i;
    json_array_foreach(types, i, v) {
        const char *type = json_is_string(v) ? json_string_value(v) : "no text";
        if (r->status != TD_OK) return;
        if (strcmp(type, "dense") && strcmp(type, "sparse"))
            td_config_refuse(r, TD_ENOTSUP, "mlp_layer_types[%zu] is '%.40s', and only dense and sparse are known", i, type);
        else
            c->is_moe[i] = !strcmp(type, "sparse");
    }
}

static void read_mlp_only_layers(td_config_reader *r, td_model_config *c) {
    const json_t *list = td_config_get(r, "mlp_only_layers");
    if (!list) return;
    if (!json_is_array(list)) {
        td_config_refuse(r, TD_EFORMAT, "mlp_only_layers is not a list");
        return;
    }
    size_t  i;
    json_t *v;
    json_array_foreach(list, i, v) {
        json_int_t layer = json_integer_value(v);
        if (!json_is_integer(v) || layer < 0 || layer >= (json_int_t)c->n_layers) {
            td_config_refuse(r, TD_EFORMAT, "mlp_only_layers has an entry that is not a layer of 0 to %u", c->n_layers - 1);
            return;
        }
        c->is_moe[layer] = 0;
    }
}

void td_config_sparse_layers(td_config_reader *r, td_model_config *c) {
    uint32_t step = td_config_u32(r, "decoder_sparse_step", 1, 1, TD_LAYERS_MAX);
    for (uint32_t i = 0; i < c->n_layers; i++) c->is_moe[i] = (i + 1) % step == 0;
    read_mlp_only_layers(r, c);
}

/* Rotate as many values of a head as transformers does: int(dim * part). */
static void rotate_part(td_config_reader *r, td_rope_config *rope, uint32_t dim, double part, bool takes_part) {
    if (!takes_part && part != 1)
        td_config_refuse(r, TD_ENOTSUP, "%spartial_rotary_factor is not 1, and rotating a part of the head is not supported",
                         r->prefix);
    rope->dim = (uint32_t)(part * dim);
    if (rope->dim == 0)
        td_config_refuse(r, TD_EFORMAT, "%spartial_rotary_factor is %g, which rotates none of a head's %u values", r->prefix,
                         part, dim);
    if (rope->dim % 2 || rope->dim > TD_ROPE_DIM_MAX)
        td_config_refuse(r, TD_EFORMAT, "the rotary dimension %u is odd or above %u", rope->dim, TD_ROPE_DIM_MAX);
}

void td_config_rope(td_config_reader *root, td_model_config *c, uint32_t dim, double part) {
    td_rope_config *rope = &c->rope;
    bool            takes_part = part > 0;
    rope->kind = TD_ROPE_PLAIN;
    rope->factor = 1;
    rope->truncate = true;
    rope->theta = td_config_number(root, "rope_theta", rope->theta > 0 ? rope->theta : 10000.0, 1.0001, 1e12);
    part = td_config_number(root, "partial_rotary_factor", takes_part ? part : 1, 0, 1);
    rotate_part(root, rope, dim, part, takes_part);

    /* With both, rope_scaling has been added to a file of transformers 5, which keeps theta and the part. */
    static const char *const KEYS[] = {"rope_parameters", "rope_scaling"};
    char                     prefix[64] = "";
    td_config_reader         r = {NULL, prefix, root->err, root->status};
    for (size_t i = 0; i < 2; i++) {
        const json_t *object = td_config_get(root, KEYS[i]);
        if (!object) continue;
        if (!json_is_object(object)) {
            td_config_refuse(root, TD_EFORMAT, "%s%s is not an object", root->prefix, KEYS[i]);
            return;
        }
        r.object = object;
        snprintf(prefix, sizeof prefix, "%s%s.", root->prefix, KEYS[i]);
        rope->theta = td_config_number(&r, "rope_theta", rope->theta, 1.0001, 1e12);
        part = td_config_number(&r, "partial_rotary_factor", part, 0, 1);
        rotate_part(&r, rope, dim, part, takes_part);
    }
    if (!r.object) return;
    const char *type = td_config_text(&r, "rope_type", td_config_text(&r, "type", "default"));
    if (!strcmp(type, "linear")) {
        rope->factor = td_config_number(&r, "factor", 1, 1, 1e6);
    } else if (!strcmp(type, "yarn") || !strcmp(type, "deepseek_yarn")) {
        rope->kind = TD_ROPE_YARN;
        rope->original_max_position =
            td_config_u32(&r, "original_max_position_embeddings", c->max_position, 1, TD_CONFIG_POSITION_MAX);
        double implied = (double)c->max_position / (rope->original_max_position ? rope->original_max_position : 1);
        rope->factor = td_config_number(&r, "factor", implied < 1 ? 1 : implied, 1, 1e6);
        rope->beta_fast = td_config_number(&r, "beta_fast", 32, 1e-3, 1e6);
        rope->beta_slow = td_config_number(&r, "beta_slow", 1, 1e-3, 1e6);
        rope->mscale = td_config_number(&r, "mscale", 0, 0, 100);
        rope->mscale_all_dim = td_config_number(&r, "mscale_all_dim", 0, 0, 100);
        rope->attention_factor = td_config_number(&r, "attention_factor", 0, 1e-3, 1e3);
        /* YaRN extends that length by the factor. Model cards say to add rope_scaling and to leave
         * max_position_embeddings. */
        double reach = fmin(rope->factor * rope->original_max_position, TD_CONFIG_POSITION_MAX);
        if (reach > c->max_position) c->max_position = (uint32_t)reach;
        rope->truncate = td_config_bool(&r, "truncate", true);
    } else if (strcmp(type, "default")) {
        td_config_refuse(&r, TD_ENOTSUP, "%s%s is '%.40s', and only default, linear and yarn are supported", r.prefix,
                         td_config_get(&r, "rope_type") ? "rope_type" : "type", type);
    }
    root->status = r.status;
}

void td_config_rope_axes(td_config_reader *root, td_model_config *c, const uint32_t section[3]) {
    const json_t    *object = td_config_get(root, td_config_get(root, "rope_scaling") ? "rope_scaling" : "rope_parameters");
    const json_t    *list = json_object_get(object, "mrope_section");
    td_config_reader r = {object, root->prefix, root->err, root->status};
    json_int_t       n[3] = {section[0], section[1], section[2]};
    for (size_t i = 0; list && i < 3; i++) {
        const json_t *v = json_array_get(list, i);
        n[i] = json_is_integer(v) ? json_integer_value(v) : -1;
    }
    const json_int_t half = c->rope.dim / 2;
    if ((list && json_array_size(list) != 3) || n[0] < 0 || n[1] < 0 || n[2] < 0 || n[0] > half || n[1] > half ||
        n[2] > half || n[0] + n[1] + n[2] != half)
        td_config_refuse(root, TD_EFORMAT, "%smrope_section has to be three numbers that sum to %u, half of what rope turns",
                         root->prefix, c->rope.dim / 2);
    if (list && !td_config_bool(&r, "mrope_interleaved", false))
        td_config_refuse(root, TD_ENOTSUP, "%smrope_interleaved is not true, and %s has interleaved sections only",
                         root->prefix, c->arch_name);
    c->rope.axes = (td_rope_axes){.rows = (uint32_t)n[1], .columns = (uint32_t)n[2]};
}
