#include "model/arch/tensor_rules.h"

#include <stdio.h>

#include "model/arch/arch.h"

static size_t dim_size(const td_model_config *c, td_weight_dim d) {
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
        case TD_DIM_GQA_KV: return (size_t)c->kv_heads * c->head_dim;
        case TD_DIM_HEAD: return c->head_dim;
        case TD_DIM_HEADS: return c->heads;
        case TD_DIM_INTER: return c->inter;
        case TD_DIM_MOE_INTER: return c->moe_inter;
        case TD_DIM_SHARED_INTER: return c->shared_inter;
        case TD_DIM_EXPERTS: return c->n_experts;
    }
    return 0;
}

static bool in_scope(const td_model_config *c, td_weight_scope scope, uint32_t layer) {
    uint32_t n_all = c->n_layers + c->n_mtp_layers;
    switch (scope) {
        case TD_SCOPE_MODEL: return true;
        case TD_SCOPE_LAYER: return layer < n_all;
        case TD_SCOPE_DENSE: return layer < n_all && !c->is_moe[layer];
        case TD_SCOPE_MOE:
        case TD_SCOPE_EXPERT: return layer < n_all && c->is_moe[layer];
        case TD_SCOPE_MTP: return layer >= c->n_layers && layer < n_all;
    }
    return false;
}

static void write_name(const char *prefix, const char *pattern, uint32_t layer, uint32_t expert, char *out, size_t size) {
    uint32_t numbers[2] = {layer, expert}, n = 0;
    size_t   at = (size_t)snprintf(out, size, "%s", prefix ? prefix : "");
    for (; *pattern && at + 1 < size; pattern++)
        if (*pattern == '#')
            at += (size_t)snprintf(out + at, size - at, "%u", numbers[n++ % 2]);
        else
            out[at++] = *pattern;
    out[at < size ? at : size - 1] = 0;
}

static td_stack_part stack_part(const td_model_config *c, td_weight_stack stack, uint32_t expert) {
    switch (stack) {
        case TD_STACK_NONE: break;
        case TD_STACK_ROWS: return (td_stack_part){c->n_experts, expert, 1, 0};
        case TD_STACK_EVEN: return (td_stack_part){c->n_experts, expert, 2, 0};
        case TD_STACK_ODD: return (td_stack_part){c->n_experts, expert, 2, 1};
    }
    return (td_stack_part){0};
}

static const td_weight_format FORMATS[] = {[TD_KEEP_LINEAR] = TD_WEIGHT_W8A8,
                                           [TD_KEEP_LINEAR_BF16] = TD_WEIGHT_BF16,
                                           [TD_KEEP_BF16] = TD_WEIGHT_BF16,
                                           [TD_KEEP_F32] = TD_WEIGHT_F32};

bool td_tensor_spec_get(const td_model_config *c, td_role role, uint32_t layer, uint32_t expert, td_tensor_spec *out) {
    /* A tied model's head is stored as its embedding, and kept a second time as a head. */
    bool                  tied_head = role == TD_ROLE_LM_HEAD && c->tie_embeddings;
    const td_weight_rule *kept = &c->arch->weights[role], *stored = tied_head ? &c->arch->weights[TD_ROLE_EMBED] : kept;
    if (!stored->name || !in_scope(c, stored->scope, layer) || (stored->when && !stored->when(c))) return false;
    if (stored->scope == TD_SCOPE_EXPERT && expert >= c->n_experts) return false;
    *out = (td_tensor_spec){.rank = stored->columns == TD_DIM_NONE ? 1 : 2,
                            .shape = {dim_size(c, stored->rows), dim_size(c, stored->columns)},
                            .format = FORMATS[kept->keep],
                            .linear = kept->keep == TD_KEEP_LINEAR || kept->keep == TD_KEEP_LINEAR_BF16,
                            .place = kept->scope == TD_SCOPE_EXPERT ? TD_PLACE_EXPERTS : kept->place,
                            .split = kept->split,
                            .rotation = kept->rotation,
                            .filling = kept->filling,
                            .stack = stack_part(c, stored->stack, expert),
                            .fallback = stored->fallback.exists ? stored->fallback.role : TD_ROLE_COUNT};
    write_name(c->arch->prefix, stored->name, layer, expert, out->name, sizeof out->name);
    if (c->rope.interleaved && stored->pairs == TD_PAIRS_MLA_Q)
        out->rope_rows = (td_rope_rows){c->nope_dim + c->rope_dim, c->rope_dim};
    if (c->rope.interleaved && stored->pairs == TD_PAIRS_KV_A)
        out->rope_rows = (td_rope_rows){c->kv_lora + c->rope_dim, c->rope_dim};
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
