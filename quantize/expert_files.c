/* The routed experts: rounded, packed as the kernels read them, a file per MoE layer. */
#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"
#include "model/experts_load.h"
#include "quantize/quantizer.h"

uint64_t td_expert_source_bytes(const td_quantizer *q, uint32_t layer) {
    td_tensor_spec spec;
    uint64_t       bytes = 0;
    for (uint32_t i = 0; i < q->config.n_experts; i++)
        for (td_role role = TD_ROLE_EXPERT_GATE; role <= TD_ROLE_EXPERT_DOWN; role++)
            if (td_tensor_spec_get(&q->config, role, layer, i, &spec))
                bytes += td_checkpoint_is_dummy(q->source) ? spec.shape[0] * spec.shape[1] * sizeof(td_bf16)
                                                           : td_checkpoint_find(q->source, spec.name)->bytes;
    return bytes;
}

/* One MoE layer through a store of its own. The store maps memory for every layer, but only what is loaded takes any: one packed layer. */
static td_status pack_layer(td_quantizer *q, const td_experts_config *shape, uint32_t layer, uint32_t index, td_expert_weights *e) {
    char        path[PATH_MAX], what[32];
    td_scratch  scratch = {0};
    td_experts *store = NULL;
    td_status   s = TD_OK;
    td_expert_file_path(path, sizeof path, q->o->output_path, index);
    snprintf(what, sizeof what, "experts of layer %u", layer);
    if (td_experts_check_file(shape, index, path, q->hash, NULL) != TD_OK) {
        bool dummy = td_checkpoint_is_dummy(q->source);
        if (!dummy) s = td_checkpoint_get_experts(q->source, &q->config, layer, &scratch, e, q->err);
        if (s == TD_OK) s = td_experts_create(shape, q->pool, &store, q->err);
        if (s == TD_OK) s = dummy ? td_experts_fill_layer(store, index, index, q->err) : td_experts_load_layer(store, index, e, q->err);
        if (s != TD_OK && store) td_fail_within(q->err, "%s, %s", q->o->model_path, what);
        if (s == TD_OK) s = td_experts_save_file(store, index, path, q->hash, q->err);
        td_experts_destroy(store);
        td_scratch_reset(&scratch);
    }
    if (s == TD_OK) td_quantizer_progress(q, td_expert_source_bytes(q, layer), what);
    return s;
}

/* Number of a layer with experts among those that have them. */
static uint32_t moe_index(const td_model_config *c, uint32_t layer) {
    uint32_t index = 0;
    for (uint32_t i = 0; i < layer; i++) index += c->is_moe[i];
    return index;
}

td_status td_expert_file_write(td_quantizer *q, uint32_t layer) {
    const td_model_config *c = &q->config;
    if (!c->is_moe[layer]) return TD_OK;
    td_experts_config  shape = {.n_layers = td_model_config_moe_layers(c), .n_experts = c->n_experts, .hidden = c->hidden, .inter = c->moe_inter,
                                .top_k = c->top_k, .format = q->experts->format, .groups = q->experts->groups, .act_dtype = TD_DT_BF16, .max_tok = 1};
    td_expert_weights *e = calloc(c->n_experts, sizeof *e);
    td_status          s = e ? pack_layer(q, &shape, layer, moe_index(c, layer), e) : td_fail(q->err, TD_ENOMEM, "out of memory");
    free(e);
    return s;
}
