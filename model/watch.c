#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "model/model_state.h"

/* What the router of one MoE layer chose in one half of the last forward; for tests. The halves of a layer share its
 * arrays. */
struct kept_routing {
    td_model         *model;
    const td_program *program; /* the program that the layer is in */
    uint32_t          parity, half;
    uint16_t         *ids;     /* [max_tok, top_k] */
    float            *weights; /* [max_tok, top_k] */
};

/* A layer that layer_tap sees. */
struct tapped_layer {
    td_model *model;
    uint32_t  layer, moe_layer; /* moe_layer: of its experts, or UINT32_MAX */
};

/* In stream order, after a submit: copy what the router chose. */
static void keep_call(void *arg) {
    kept_routing  *k = arg;
    td_model      *m = k->model;
    td_bridge_pass pass = td_program_pass(k->program, m->cards->bucket);
    const td_step *step = pass.steps[k->half];
    size_t at = (size_t)step->first_row * m->config.top_k, pairs = (size_t)step->host.counts->n_tok * m->config.top_k;
    td_bridge_get_choice(m->bridge, k->parity, step->first_row, step->host.counts->n_tok, k->ids + at, k->weights + at);
    for (size_t i = at; i < at + pairs; i++) k->ids[i] = td_id_number(k->ids[i]);
}

static td_status allocate_kept(td_model *m, td_error *err) {
    size_t pairs = (size_t)m->spec.max_tok * m->config.top_k;
    m->kept = calloc((size_t)m->spec.experts.n_layers * TD_HALVES, sizeof *m->kept);
    m->kept_args = calloc((size_t)m->spec.experts.n_layers * TD_HALVES, sizeof *m->kept_args);
    bool ok = m->kept && m->kept_args;
    for (uint32_t i = 0; ok && i < m->spec.experts.n_layers; i++) {
        /* The MTP layer is a pass of its own: it starts at parity 0. */
        bool         mtp = m->config.n_mtp_layers && i == m->spec.experts.n_layers - 1;
        kept_routing k = {.model = m,
                          .program = &m->cards->program[mtp && m->part.whole ? TD_PASS_MTP : TD_PASS_FORWARD],
                          .parity = mtp ? 0 : i % TD_BRIDGE_PARITIES,
                          .ids = malloc(pairs * sizeof(uint16_t)),
                          .weights = malloc(pairs * sizeof(float))};
        for (; k.half < TD_HALVES; k.half++) {
            m->kept[i * TD_HALVES + k.half] = k;
            m->kept_args[i * TD_HALVES + k.half] = &m->kept[i * TD_HALVES + k.half];
        }
        ok = k.ids && k.weights;
    }
    return ok ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory to keep the routing");
}

/* In stream order, after a layer: show its output. */
static void tap_call(void *arg) {
    const tapped_layer *t = arg;
    td_model           *m = t->model;
    td_layer_output     out = {.layer = t->layer,
                               .n_tok = m->cards->bucket->whole.host.counts->n_tok,
                               .dtype = td_model_act_dtype(&m->spec),
                               .x = m->cards->x};
    if (t->moe_layer != UINT32_MAX) {
        td_bridge_buffers io, before;
        td_bridge_get_host_buffers(m->bridge, t->moe_layer % TD_BRIDGE_PARITIES, &io);
        td_bridge_get_host_buffers(m->bridge, (t->moe_layer + 1) % TD_BRIDGE_PARITIES, &before);
        out.routed = io.y;
        out.expert_x = io.x;
        td_bridge_get_choice(m->bridge, t->moe_layer % TD_BRIDGE_PARITIES, 0, out.n_tok, m->tapped_ids, m->tapped_weights);
        out.expert_ids = m->tapped_ids;
        out.expert_weights = m->tapped_weights;
        out.deferred = t->moe_layer > 0 && m->spec.experts.max_deferred ? before.y_deferred : NULL;
    }
    m->probe.layer_tap(m->probe.user, &out);
}

static td_status allocate_tapped(td_model *m, td_error *err) {
    m->tapped = calloc(td_model_all_layers(m), sizeof *m->tapped);
    m->tapped_args = calloc(td_model_all_layers(m), sizeof *m->tapped_args);
    m->tapped_ids = calloc((size_t)m->spec.max_tok * m->config.top_k + 1, sizeof *m->tapped_ids);
    m->tapped_weights = calloc((size_t)m->spec.max_tok * m->config.top_k + 1, sizeof *m->tapped_weights);
    if (!m->tapped || !m->tapped_args || !m->tapped_ids || !m->tapped_weights)
        return td_fail(err, TD_ENOMEM, "out of memory to watch the layers");
    for (uint32_t i = m->part.layers.first, n_moe = 0; i < m->part.layers.end; i++) {
        m->tapped[i] = (tapped_layer){
            .model = m, .layer = i, .moe_layer = m->spec.experts.n_layers && m->config.is_moe[i] ? n_moe++ : UINT32_MAX};
        m->tapped_args[i] = &m->tapped[i];
    }
    return TD_OK;
}

td_status td_watch_open(td_model *m, td_program_spec *spec, td_error *err) {
    if (m->probe.keep_routing && m->spec.experts.n_layers) {
        TD_TRY(allocate_kept(m, err));
        spec->routed = keep_call;
        spec->routed_args = m->kept_args;
    }
    if (m->probe.layer_tap) {
        TD_TRY(allocate_tapped(m, err));
        spec->layer_done = tap_call;
        spec->layer_done_args = m->tapped_args;
        spec->shown_x = m->cards->x;
    }
    return TD_OK;
}

void td_watch_close(td_model *m) {
    for (uint32_t i = 0; m->kept && i < m->spec.experts.n_layers; i++) {
        free(m->kept[i * TD_HALVES].ids);
        free(m->kept[i * TD_HALVES].weights);
    }
    free(m->kept);
    free(m->kept_args);
    free(m->tapped);
    free(m->tapped_args);
    free(m->tapped_ids);
    free(m->tapped_weights);
}

void td_model_get_routing(const td_model *m, uint32_t layer, const uint16_t **ids, const float **weights) {
    assert(m->kept && layer < m->spec.experts.n_layers);
    *ids = m->kept[layer * TD_HALVES].ids;
    *weights = m->kept[layer * TD_HALVES].weights;
}
