/* Any text as config.json, generation_config.json and override (separated by zero bytes): refused, or a configuration whose
   numbers keep what the engine builds on. */
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/arch/config_file.h"
#include "model/arch/tensor_rules.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const td_model_config *c) {
    double inv_freq[TD_ROPE_DIM_MAX / 2], scale;
    assert(c->hidden && c->n_layers && c->n_layers + c->n_mtp_layers <= TD_LAYERS_MAX && c->heads && c->kv_heads &&
           c->vocab && c->max_position);
    assert(c->top_k >= 1 && c->top_k <= TD_TOP_K_MAX && c->top_k <= c->n_experts && c->n_experts <= TD_EXPERTS_MAX);
    assert(c->n_group >= 1 && c->n_experts % c->n_group == 0 && c->topk_group <= c->n_group);
    assert(c->top_k <= c->n_experts / c->n_group * c->topk_group);
    assert(isfinite(c->softmax_scale) && c->softmax_scale > 0 && isfinite(c->routed_scale));
    assert(c->rope.dim % 2 == 0 && c->rope.dim <= TD_ROPE_DIM_MAX);
    td_rope_frequencies(&c->rope, c->max_position, inv_freq, &scale);
    for (uint32_t i = 0; i < c->rope.dim / 2; i++) assert(isfinite(inv_freq[i]) && inv_freq[i] >= 0);
    assert(isfinite(scale) && scale > 0);
    assert((uint64_t)c->rope.axes.rows + c->rope.axes.columns <= c->rope.dim / 2);
    const td_vision_config *v = &c->vision;
    assert(!v->depth || (v->heads && v->hidden % v->heads == 0 && v->hidden / v->heads % 4 == 0 && v->patch && v->side));
    assert(v->n_taps <= TD_VISION_TAPS_MAX && v->n_taps <= c->n_layers);
    for (uint32_t i = 0; i < v->n_taps; i++) assert(v->taps[i] < v->depth);
    for (uint32_t i = 0; i < c->n_eos; i++) assert(c->eos_ids[i] < c->vocab);
    const td_quant_config *q = &c->quant;
    assert(q->n_schemes <= TD_QUANT_SCHEMES_MAX && memchr(q->refusal, 0, sizeof q->refusal));
    for (uint32_t i = 0; i < q->n_schemes && !q->refusal[0]; i++) {
        const td_quant_scheme *s = &q->scheme[i];
        assert((s->bits == 4 || s->bits == 8) && s->group <= 1u << 20 && (!s->block_rows || s->group));
        assert(!s->is_float ||
               (s->symmetric && (s->bits == 4 ? s->group == 16 || s->group == 32 : !s->group == !s->block_rows)));
    }
    for (td_role role = 0; role < TD_ROLE_COUNT; role++) {
        td_tensor_spec spec;
        if (td_tensor_spec_get(c, role, c->n_layers - 1, c->n_experts - 1, &spec))
            assert(strlen(spec.name) < sizeof spec.name && spec.shape[0] > 0 && (spec.rank == 1 || spec.shape[1] > 0));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    size_t          config_len = strlen(text);
    char           *generation = config_len < size ? text + config_len + 1 : NULL;
    size_t          generation_len = generation ? strlen(generation) : 0;
    char           *more = generation && generation + generation_len < text + size ? generation + generation_len + 1 : NULL;
    td_model_config c;
    td_error        err = {0};
    td_status       s = td_model_config_parse(text, config_len, generation, generation_len, more, &c, &err);
    if (s == TD_OK)
        check(&c);
    else
        assert(err.text[0] && err.status == s);
    free(text);
    return 0;
}
