/* What all parts of a run ask of it. */
#include "quantize/quantizer.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "model/experts_load.h"

void td_quantizer_progress(td_quantizer *q, uint64_t bytes, const char *what) {
    td_quantizer_meter *m = q->meter;
    pthread_mutex_lock(&m->lock);
    m->done_bytes += bytes;
    if (q->o->progress) q->o->progress(q->o->user, m->done_bytes, m->total_bytes, what);
    pthread_mutex_unlock(&m->lock);
}

static const char *const METHODS[] = {[TD_ROUND_NEAREST] = "nearest", [TD_ROUND_CLIP] = "clip", [TD_ROUND_GPTQ] = "gptq"};

const char *td_quantizer_method(const td_quantizer *q) {
    return METHODS[q->method];
}

bool td_quantizer_method_find(const char *name, td_round_method *out) {
    for (size_t i = 0; i < sizeof METHODS / sizeof *METHODS; i++) {
        if (strcmp(name, METHODS[i]) != 0) continue;
        *out = (td_round_method)i;
        return true;
    }
    return false;
}

td_status td_output_path(const td_quantizer *q, char path[PATH_MAX], const char *name) {
    if ((size_t)snprintf(path, PATH_MAX, "%s/%s", q->o->output_path, name) < PATH_MAX) return TD_OK;
    return td_fail(q->err, TD_EINVAL, "the output path is too long");
}

td_status td_source_path(const td_quantizer *q, char path[PATH_MAX], const char *name) {
    if ((size_t)snprintf(path, PATH_MAX, "%s/%s", q->o->model_path, name) < PATH_MAX) return TD_OK;
    return td_fail(q->err, TD_EINVAL, "the model path is too long");
}

uint64_t td_expert_source_bytes(const td_quantizer *q, uint32_t layer) {
    const bool     dummy = td_checkpoint_is_dummy(q->source);
    td_tensor_spec spec;
    uint64_t       bytes = 0;
    for (uint32_t i = 0; i < q->config.n_experts; i++)
        for (td_role role = TD_ROLE_EXPERT_GATE; role <= TD_ROLE_EXPERT_DOWN; role++) {
            if (!td_tensor_spec_get(&q->config, role, layer, i, &spec)) continue;
            uint64_t bf16_bytes = spec.shape[0] * spec.shape[1] * sizeof(td_bf16);
            bytes += dummy ? bf16_bytes : td_checkpoint_stored_bytes(q->source, &q->config, &spec);
        }
    return bytes;
}

td_experts_config td_expert_file_shape(const td_quantizer *q, uint32_t layer, char path[PATH_MAX]) {
    const td_model_config *c = &q->config;
    uint32_t               index = td_moe_layers_in(c, (td_layer_range){0, layer});
    td_expert_file_path(path, PATH_MAX, q->o->output_path, index);
    return (td_experts_config){.n_layers = 1,
                               .first_layer = index,
                               .n_experts = c->n_experts,
                               .hidden = c->hidden,
                               .inter = c->moe_inter,
                               .top_k = c->top_k,
                               .format = q->experts->format,
                               .groups = q->experts->groups,
                               .glu = c->expert_glu,
                               .bias = c->expert_bias,
                               .act_dtype = TD_DT_BF16,
                               .max_tok = 1};
}
