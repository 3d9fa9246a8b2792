#include "model/arch/tensor_rules.h"

#include <stdio.h>
#include <string.h>

#include "model/arch/arch.h"

/* Values that the value heads of a key head have. */
static uint32_t values_of_head(const td_delta_config *d) {
    return d->v_heads / d->k_heads * d->v_dim;
}

/* Whether the compressed rows of a layer overlap. */
static bool overlaps(const td_model_config *c, uint32_t layer) {
    return c->sparse.ratio[layer] == TD_OVERLAP_RATIO;
}

static size_t dim_size(const td_model_config *c, uint32_t layer, td_weight_dim d) {
    switch (d) {
        case TD_DIM_NONE: return 0;
        case TD_DIM_ONE: return 1;
        case TD_DIM_HIDDEN: return c->hidden;
        case TD_DIM_TWO_HIDDEN: return 2 * (size_t)c->hidden;
        case TD_DIM_VOCAB: return c->vocab;
        case TD_DIM_Q_LORA: return c->q_lora;
        case TD_DIM_KV_LORA: return c->kv_lora;
        case TD_DIM_MLA_Q: return (size_t)c->heads * (c->nope_dim + c->rope_dim);
        case TD_DIM_KV_A: return (size_t)c->kv_lora + c->rope_dim;
        case TD_DIM_KV_B: return (size_t)c->heads * (c->nope_dim + c->v_dim);
        case TD_DIM_MLA_V: return (size_t)c->heads * c->v_dim;
        case TD_DIM_GQA_Q: return (size_t)c->heads * c->head_dim;
        case TD_DIM_GQA_Q_GATE: return (size_t)c->heads * c->head_dim * 2;
        case TD_DIM_GQA_KV: return (size_t)c->kv_heads * c->head_dim;
        case TD_DIM_HEAD: return c->head_dim;
        case TD_DIM_HEADS: return c->heads;
        case TD_DIM_INTER: return c->inter;
        case TD_DIM_MOE_INTER: return c->moe_inter;
        case TD_DIM_SHARED_INTER: return c->shared_inter;
        case TD_DIM_EXPERTS: return c->n_experts;
        case TD_DIM_DELTA_QKV: return c->delta.k_heads * (2 * (size_t)c->delta.k_dim + values_of_head(&c->delta));
        case TD_DIM_DELTA_QKVZ: return 2 * c->delta.k_heads * ((size_t)c->delta.k_dim + values_of_head(&c->delta));
        case TD_DIM_DELTA_K: return (size_t)c->delta.k_heads * c->delta.k_dim;
        case TD_DIM_DELTA_LOW: return c->delta.low;
        case TD_DIM_DELTA_V: return (size_t)c->delta.v_heads * c->delta.v_dim;
        case TD_DIM_DELTA_DIM: return c->delta.v_dim;
        case TD_DIM_DELTA_HEADS: return c->delta.v_heads;
        case TD_DIM_DELTA_HEADS2: return 2 * (size_t)c->delta.v_heads;
        case TD_DIM_DELTA_CONV: return c->delta.conv;
        case TD_DIM_THREE: return 3;
        case TD_DIM_TOP_K: return c->top_k;
        case TD_DIM_STREAMS: return c->sparse.streams;
        case TD_DIM_MIX: return c->sparse.streams * (2 + (size_t)c->sparse.streams);
        case TD_DIM_WIDTH: return td_model_width(c);
        case TD_DIM_O_LOW: return (size_t)c->sparse.o_groups * c->sparse.o_lora;
        case TD_DIM_O_GROUP: return (size_t)c->heads / c->sparse.o_groups * c->head_dim;
        case TD_DIM_RATIO: return c->sparse.ratio[layer];
        case TD_DIM_COMPRESSED: return (overlaps(c, layer) ? 2 : 1) * (size_t)c->head_dim;
        case TD_DIM_INDEX_Q: return (size_t)c->sparse.index_heads * c->sparse.index_dim;
        case TD_DIM_INDEX_HEADS: return c->sparse.index_heads;
        case TD_DIM_INDEX_DIM: return c->sparse.index_dim;
        case TD_DIM_INDEX_POOL: return c->sparse.index_pool;
        case TD_DIM_INDEX_COMPRESSED: return (overlaps(c, layer) ? 2 : 1) * (size_t)c->sparse.index_dim;
    }
    return 0;
}

static bool in_scope(const td_model_config *c, td_weight_scope scope, uint32_t layer) {
    uint32_t n_all = c->n_layers + c->n_mtp_layers;
    switch (scope) {
        case TD_SCOPE_MODEL: return true;
        case TD_SCOPE_LAYER: return layer < n_all;
        case TD_SCOPE_TRUNK: return layer < c->n_layers;
        case TD_SCOPE_ATTENTION: return layer < n_all && !c->is_delta[layer];
        case TD_SCOPE_DELTA: return layer < n_all && c->is_delta[layer];
        case TD_SCOPE_DENSE: return layer < n_all && !c->is_moe[layer];
        case TD_SCOPE_MOE:
        case TD_SCOPE_EXPERT: return layer < n_all && c->is_moe[layer];
        case TD_SCOPE_COMPRESSED: return layer < n_all && c->sparse.ratio[layer];
        case TD_SCOPE_INDEXED: return layer < n_all && c->sparse.indexed[layer];
        case TD_SCOPE_SCORED: return layer < n_all && c->is_moe[layer] && !c->sparse.by_token[layer];
        case TD_SCOPE_BY_TOKEN: return layer < n_all && c->is_moe[layer] && c->sparse.by_token[layer];
        case TD_SCOPE_MTP: return layer >= c->n_layers && layer < n_all;
    }
    return false;
}

static void write_name(const td_model_config *c, const char *pattern, uint32_t layer, uint32_t expert, char *out,
                       size_t size) {
    static const char MODEL[] = "model.", LAYER[] = "layers.#.";
    const td_arch    *a = c->arch;
    uint32_t          numbers[2] = {layer, expert}, n = 0;
    const char       *of_layer = a->mtp && layer >= c->n_layers ? strstr(pattern, LAYER) : NULL;
    bool              in_body = !of_layer && a->body && !strncmp(pattern, MODEL, sizeof MODEL - 1);
    size_t            at = (size_t)snprintf(out, size, "%s", in_body ? a->body : a->prefix ? a->prefix : "");
    if (in_body) pattern += sizeof MODEL - 1;
    if (of_layer) {
        at += (size_t)snprintf(out + at, size - at, "%s%s%u.", a->mtp, a->mtp_layer, layer - c->n_layers);
        pattern = of_layer + sizeof LAYER - 1;
        n = 1;
    }
    for (; *pattern && at + 1 < size; pattern++)
        if (*pattern == '#')
            at += (size_t)snprintf(out + at, size - at, "%u", numbers[n++ % 2]);
        else
            out[at++] = *pattern;
    out[at < size ? at : size - 1] = 0;
}

/* @param n rows of the weight. */
static td_stack_part stack_part(const td_model_config *c, td_weight_stack stack, uint32_t expert, uint32_t n) {
    td_stack_part p = {.n_experts = c->n_experts, .expert = expert, .step = 1, .rows = n};
    p.by_shape = stack == TD_STACK_SHAPED || stack == TD_STACK_SHAPED_FIRST || stack == TD_STACK_SHAPED_SECOND;
    switch (stack) {
        case TD_STACK_COLUMNS: p.transposed = true; return p;
        case TD_STACK_EVEN:
        case TD_STACK_ODD:
            p.transposed = true;
            p.step = 2;
            p.first = stack == TD_STACK_ODD;
            p.rows = 2 * n;
            return p;
        case TD_STACK_ROWS:
        case TD_STACK_SHAPED: return p;
        case TD_STACK_FIRST:
        case TD_STACK_SHAPED_FIRST: p.rows = 2 * n; return p;
        case TD_STACK_SECOND:
        case TD_STACK_SHAPED_SECOND:
            p.first = n;
            p.rows = 2 * n;
            return p;
        case TD_STACK_NONE: break;
    }
    return (td_stack_part){0};
}

static td_row_order own_order(const td_model_config *c, td_weight_order order) {
    switch (order) {
        case TD_ORDER_SAME: break;
        case TD_ORDER_MLA_Q:
            if (c->rope.interleaved)
                return (td_row_order){.block = c->nope_dim + c->rope_dim, .rope = c->rope_dim, .at = c->nope_dim};
            break;
        case TD_ORDER_KV_A:
            if (c->rope.interleaved)
                return (td_row_order){.block = c->kv_lora + c->rope_dim, .rope = c->rope_dim, .at = c->kv_lora};
            break;
        case TD_ORDER_INDEX:
            if (c->sparse.index_pairs) return (td_row_order){.block = c->sparse.index_dim, .rope = c->rope_dim};
            break;
        case TD_ORDER_DELTA_QKV:
            return (td_row_order){.groups = c->delta.k_heads,
                                  .part = {c->delta.k_dim, c->delta.k_dim, values_of_head(&c->delta)}};
    }
    return (td_row_order){0};
}

static const td_weight_format FORMATS[] = {[TD_KEEP_LINEAR] = TD_WEIGHT_W8A8,
                                           [TD_KEEP_LINEAR_BF16] = TD_WEIGHT_BF16,
                                           [TD_KEEP_BF16] = TD_WEIGHT_BF16,
                                           [TD_KEEP_F32] = TD_WEIGHT_F32};

size_t td_row_order_place(const td_row_order *o, size_t r) {
    if (o->rope) {
        size_t in_block = r % o->block, half = o->rope / 2;
        if (in_block < o->at || in_block >= o->at + o->rope) return r;
        size_t j = in_block - o->at;
        return r - j + (j < half ? 2 * j : 2 * (j - half) + 1);
    }
    size_t   of_group = (size_t)o->part[0] + o->part[1] + o->part[2], group = r / of_group, first = 0;
    uint32_t p = 0;
    for (r %= of_group; r >= o->part[p]; p++) {
        r -= o->part[p];
        first += (size_t)o->groups * o->part[p];
    }
    return first + group * o->part[p] + r;
}

bool td_tensor_spec_get(const td_model_config *c, td_role role, uint32_t layer, uint32_t expert, td_tensor_spec *out) {
    /* A tied model's head is stored as its embedding, and kept a second time as a head. */
    bool                  tied_head = role == TD_ROLE_LM_HEAD && c->tie_embeddings;
    const td_weight_rule *kept = &c->arch->weights[role], *stored = tied_head ? &c->arch->weights[TD_ROLE_EMBED] : kept;
    if (!stored->name || !in_scope(c, stored->scope, layer) || (stored->when && !stored->when(c))) return false;
    if (stored->scope == TD_SCOPE_EXPERT && expert >= c->n_experts) return false;
    *out = (td_tensor_spec){.rank = stored->columns == TD_DIM_NONE ? 1 : 2,
                            .shape = {dim_size(c, layer, stored->rows), dim_size(c, layer, stored->columns)},
                            .format = FORMATS[kept->keep],
                            .linear = kept->keep == TD_KEEP_LINEAR || kept->keep == TD_KEEP_LINEAR_BF16,
                            .place = kept->scope == TD_SCOPE_EXPERT ? TD_PLACE_EXPERTS : kept->place,
                            .split = kept->split,
                            .rotation = kept->rotation,
                            .filling = kept->filling,
                            .plus_one = kept->plus_one,
                            .n_experts = kept->is_experts ? c->n_experts : 0,
                            .fallback = stored->fallback.exists ? stored->fallback.role : TD_ROLE_COUNT};
    write_name(c, stored->name, layer, expert, out->name, sizeof out->name);
    out->order = own_order(c, stored->order);
    out->stack = stack_part(c, stored->stack, expert, (uint32_t)out->shape[0]);
    if (stored->within) write_name(c, stored->within, layer, expert, out->within, sizeof out->within);
    return true;
}

void td_role_extent(const td_model_config *c, td_role role, uint32_t *n_layers, uint32_t *n_experts) {
    *n_layers = td_role_is_of_model(c, role) ? 1 : c->n_layers + c->n_mtp_layers;
    *n_experts = td_role_is_expert(c, role) ? c->n_experts : 1;
}

bool td_role_is_expert(const td_model_config *c, td_role role) {
    return c->arch->weights[role].scope == TD_SCOPE_EXPERT;
}

bool td_role_is_of_model(const td_model_config *c, td_role role) {
    return c->arch->weights[role].name && c->arch->weights[role].scope == TD_SCOPE_MODEL;
}
