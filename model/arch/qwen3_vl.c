/* The vision encoder of Qwen3-VL (arXiv 2511.21631): a transformer over patches, whose rows become tokens, four by four, and
 * whose inner layers give features to the language model's first ones (DeepStack, arXiv 2406.04334). */
#include <stdio.h>
#include <string.h>

#include "model/arch/families.h"
#include "model/arch/vision_encoder.h"

/* ---- configuration --------------------------------------------------------------------------- */

#define THETA 10000.0
#define PATCH_MAX 64

static void only(td_config_reader *r, const char *key, uint32_t value) {
    const uint32_t n = td_config_u32(r, key, value, 0, TD_CONFIG_DIM_MAX);
    if (n != value) td_config_refuse(r, TD_ENOTSUP, "%s%s is %u, and only %u is supported", r->prefix, key, n, value);
}

static void read_taps(td_config_reader *r, td_model_config *c) {
    td_vision_config     *v = &c->vision;
    const json_t         *list = td_config_get(r, "deepstack_visual_indexes"), *tap;
    static const uint32_t PUBLISHED[] = {8, 16, 24};
    size_t                i;
    v->n_taps = list ? (uint32_t)json_array_size(list) : 3;
    if (!list) memcpy(v->taps, PUBLISHED, sizeof PUBLISHED);
    if (v->n_taps > TD_VISION_TAPS_MAX || v->n_taps > c->n_layers || (list && !json_is_array(list))) {
        td_config_refuse(r, TD_ENOTSUP, "%sdeepstack_visual_indexes is not a list of at most %u layers", r->prefix,
                         c->n_layers < TD_VISION_TAPS_MAX ? c->n_layers : TD_VISION_TAPS_MAX);
        v->n_taps = 0;
        return;
    }
    json_array_foreach(list, i, tap) v->taps[i] =
        json_is_integer(tap) && json_integer_value(tap) >= 0 && json_integer_value(tap) < (json_int_t)v->depth
            ? (uint32_t)json_integer_value(tap)
            : v->depth;
    for (i = 0; i < v->n_taps; i++)
        if (v->taps[i] >= v->depth || (i && v->taps[i] <= v->taps[i - 1]))
            td_config_refuse(r, TD_EFORMAT, "%sdeepstack_visual_indexes are not layers of 0 to %u in their order", r->prefix,
                             v->depth - 1);
}

static void check_rope(td_config_reader *r, const td_model_config *c) {
    const json_t    *object = td_config_get(r, "rope_parameters");
    td_config_reader rope = {object, r->prefix, r->err, r->status};
    if (!object) return;
    td_config_only_text(&rope, c, "rope_type", "axial");
    if (td_config_number(&rope, "rope_theta", THETA, 0, 1e12) != THETA)
        td_config_refuse(&rope, TD_ENOTSUP, "%srope_parameters.rope_theta is not %g", r->prefix, THETA);
    r->status = rope.status;
}

/* transformers' Qwen3VLMoeVisionConfig. */
void td_qwen3_vl_read_vision(td_config_reader *r, td_model_config *c) {
    td_vision_config *v = &c->vision;
    v->depth = td_config_u32(r, "depth", 27, 1, TD_LAYERS_MAX);
    v->hidden = td_config_u32(r, "hidden_size", 1152, 4, TD_CONFIG_DIM_MAX);
    v->heads = td_config_u32(r, "num_heads", 16, 1, TD_CONFIG_HEADS_MAX);
    v->inter = td_config_u32(r, "intermediate_size", 4304, 1, TD_CONFIG_DIM_MAX);
    v->patch = td_config_u32(r, "patch_size", 16, 1, PATCH_MAX);
    td_config_only_text(r, c, "hidden_act", "gelu_pytorch_tanh");
    only(r, "in_channels", 3);
    only(r, "temporal_patch_size", TD_VISION_FRAMES);
    only(r, "spatial_merge_size", TD_VISION_MERGE);
    only(r, "out_hidden_size", c->hidden);
    if (v->hidden % v->heads || v->hidden / v->heads % 4 || v->hidden / v->heads > TD_CONFIG_HEAD_DIM_MAX)
        td_config_refuse(r, TD_EFORMAT, "%snum_heads is %u, which does not divide hidden_size %u into multiples of 4",
                         r->prefix, v->heads, v->hidden);
    const uint32_t positions = td_config_u32(r, "num_position_embeddings", 2304, 1, TD_CONFIG_VOCAB_MAX);
    while ((uint64_t)(v->side + 1) * (v->side + 1) <= positions) v->side++;
    if (v->side * v->side != positions)
        td_config_refuse(r, TD_EFORMAT, "%snum_position_embeddings is %u, which is no square", r->prefix, positions);
    read_taps(r, c);
    check_rope(r, c);
}

/* ---- encoder --------------------------------------------------------------------------------- */

#define linear td_vision_linear
#define norm td_vision_norm
#define attend td_vision_attend
#define add td_vision_add

/* Four patches become a token. @param width of what the norm goes over: a patch, or all four */
static void merge(td_vision_pass *p, const char *name, uint32_t number, td_vision_rows normed, uint32_t width, uint32_t four,
                  uint32_t feature, uint32_t out) {
    char norm_name[64], up[64], down[64];
    snprintf(norm_name, sizeof norm_name, "%s.norm", name);
    snprintf(up, sizeof up, "%s.linear_fc1", name);
    snprintf(down, sizeof down, "%s.linear_fc2", name);
    /* h = norm(x) */
    norm(p, normed, norm_name, number, TD_VISION_NONE, width);
    /* u = gelu(W h + b) of four patches side by side */
    linear(p, TD_VISION_TOKENS, up, number, TD_VISION_H, TD_VISION_U, four, four, TD_ACTIVATE_GELU_ERF);
    /* a token's row */
    linear(p, TD_VISION_TOKENS, down, number, TD_VISION_U, TD_VISION_FEATURES + feature, out, four, TD_ACTIVATE_NONE);
}

void td_qwen3_vl_encoder(td_vision_pass *p, const td_vision_config *c, uint32_t out) {
    const uint32_t   width = c->hidden, four = TD_VISION_MERGE * TD_VISION_MERGE * width;
    td_vision_buffer before = TD_VISION_POSITIONS; /* what the next norm adds to x */
    /* x = W pixels + b, the pixels of a patch */
    linear(p, TD_VISION_PATCHES, "patch_embed.proj", 0, TD_VISION_PIXELS, TD_VISION_X, width, td_vision_patch_values(c),
           TD_ACTIVATE_NONE);
    for (uint32_t layer = 0, tap = 0; layer < c->depth; layer++) {
        /* x += what came before; h = norm(x) */
        norm(p, TD_VISION_PATCHES, "blocks.#.norm1", layer, before, width);
        /* a = attention(h) */
        attend(p, "blocks.#.attn", layer);
        /* x += a; h = norm(x) */
        norm(p, TD_VISION_PATCHES, "blocks.#.norm2", layer, TD_VISION_A, width);
        /* a = mlp(h) */
        linear(p, TD_VISION_PATCHES, "blocks.#.mlp.linear_fc1", layer, TD_VISION_H, TD_VISION_U, c->inter, width,
               TD_ACTIVATE_GELU_TANH);
        linear(p, TD_VISION_PATCHES, "blocks.#.mlp.linear_fc2", layer, TD_VISION_U, TD_VISION_A, width, c->inter,
               TD_ACTIVATE_NONE);
        before = TD_VISION_A;
        const bool taps = tap < c->n_taps && c->taps[tap] == layer;
        if (!taps && layer + 1 < c->depth) continue;
        /* x += a */
        add(p, TD_VISION_A);
        before = TD_VISION_NONE;
        /* a feature of x, for the language model's layer of that number */
        if (taps) merge(p, "deepstack_merger_list.#", tap, TD_VISION_TOKENS, four, four, 1 + tap, out);
        tap += taps;
    }
    /* rows in the place of the tokens' embeddings */
    merge(p, "merger", 0, TD_VISION_PATCHES, width, four, 0, out);
}
