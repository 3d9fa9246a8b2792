#include "eval/expert_errors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "kernels/rows/convert.h"

#define KEPT_BYTES ((size_t)128 << 20)

td_status td_expert_errors_open(td_expert_errors *e, const td_model_config *c, uint32_t rows,
                                const td_rotated_stream *rotated, td_error *err) {
    size_t row_bytes = (size_t)c->n_layers * (c->hidden * sizeof(float) + c->top_k * sizeof(uint16_t)),
           fit = KEPT_BYTES / row_bytes;
    uint32_t max_rows = fit < 1 ? 1 : fit < rows ? (uint32_t)fit : rows;
    size_t   kept = (size_t)c->n_layers * max_rows, some = (size_t)max_rows * c->hidden,
           all = (size_t)c->n_layers * c->n_experts;
    *e = (td_expert_errors){.n_layers = c->n_layers,
                            .n_experts = c->n_experts,
                            .hidden = c->hidden,
                            .top_k = c->top_k,
                            .max_rows = max_rows,
                            .rotated = rotated};
    e->x = malloc(kept * c->hidden * sizeof *e->x);
    e->ids = malloc(kept * c->top_k * sizeof *e->ids);
    e->has_experts = calloc(c->n_layers, sizeof *e->has_experts);
    e->signal = calloc(all, sizeof *e->signal);
    e->noise = calloc(all, sizeof *e->noise);
    e->tokens = calloc(all, sizeof *e->tokens);
    e->in = aligned_alloc(64, (some * sizeof(float) + 63) / 64 * 64);
    e->out = aligned_alloc(64, (some * sizeof(float) + 63) / 64 * 64);
    e->gathered = malloc(some * sizeof *e->gathered);
    e->outputs[0] = malloc(some * sizeof(float));
    e->outputs[1] = malloc(some * sizeof(float));
    e->one_id = malloc(max_rows * sizeof *e->one_id);
    e->ones = malloc(max_rows * sizeof *e->ones);
    if (e->x && e->ids && e->has_experts && e->signal && e->noise && e->tokens && e->in && e->out && e->gathered &&
        e->outputs[0] && e->outputs[1] && e->one_id && e->ones) {
        for (uint32_t i = 0; i < max_rows; i++) e->ones[i] = 1;
        return TD_OK;
    }
    td_expert_errors_close(e);
    return td_fail(err, TD_ENOMEM, "out of memory to compare the experts");
}

void td_expert_errors_close(td_expert_errors *e) {
    free(e->x);
    free(e->ids);
    free(e->has_experts);
    free(e->signal);
    free(e->noise);
    free(e->tokens);
    free(e->in);
    free(e->out);
    free(e->gathered);
    free(e->outputs[0]);
    free(e->outputs[1]);
    free(e->one_id);
    free(e->ones);
    *e = (td_expert_errors){0};
}

void td_expert_errors_keep(td_expert_errors *e, const td_layer_output *o) {
    e->n_rows = o->n_tok < e->max_rows ? o->n_tok : e->max_rows;
    e->has_experts[o->layer] = o->expert_x != NULL;
    if (!o->expert_x) return;
    size_t at = (size_t)o->layer * e->max_rows;
    td_to_f32(o->dtype, o->expert_x, (size_t)e->n_rows * e->hidden, e->x + at * e->hidden);
    memcpy(e->ids + at * e->top_k, o->expert_ids, (size_t)e->n_rows * e->top_k * sizeof *e->ids);
}

/* The rows that went to an expert, put together. @return how many. */
static uint32_t gather(td_expert_errors *e, uint32_t layer, uint32_t expert) {
    uint32_t n = 0;
    for (uint32_t r = 0; r < e->n_rows; r++) {
        const uint16_t *ids = e->ids + ((size_t)layer * e->max_rows + r) * e->top_k;
        bool            chosen = false;
        for (uint32_t j = 0; j < e->top_k; j++) chosen |= ids[j] == expert;
        if (!chosen) continue;
        memcpy(e->gathered + (size_t)n * e->hidden, e->x + ((size_t)layer * e->max_rows + r) * e->hidden,
               e->hidden * sizeof(float));
        e->one_id[n++] = (uint16_t)expert;
    }
    return n;
}

static void run_expert(td_expert_errors *e, const td_scored_model *m, uint32_t moe_layer, uint32_t n, float *out) {
    td_from_f32(m->act_dtype, e->gathered, (size_t)n * e->hidden, e->in);
    td_ffn_args a = {
        .n_tok = n, .top_k = 1, .x = e->in, .ids = e->one_id, .weights = e->ones, .n_immediate = 1, .y = e->out};
    td_experts_ffn(td_model_get_experts(m->model), moe_layer, &a);
    td_to_f32(m->act_dtype, e->out, (size_t)n * e->hidden, out);
}

void td_expert_errors_compare(td_expert_errors *e, const td_scored_model *reference, const td_scored_model *own) {
    for (uint32_t layer = 0, moe_layer = 0; layer < e->n_layers; layer++) {
        if (!e->has_experts[layer]) continue;
        for (uint32_t x = 0; x < e->n_experts; x++) {
            uint32_t n = gather(e, layer, x);
            if (!n) continue;
            size_t at = (size_t)layer * e->n_experts + x;
            run_expert(e, reference, moe_layer, n, e->outputs[0]);
            if (e->rotated->rotation.k) {
                td_rotated_stream_rows(e->rotated, e->outputs[0], n);
                td_rotated_stream_inputs(e->rotated, layer, e->gathered, n);
            }
            run_expert(e, own, moe_layer, n, e->outputs[1]);
            for (size_t i = 0; i < (size_t)n * e->hidden; i++) {
                double ref = e->outputs[0][i], d = e->outputs[1][i] - ref;
                e->signal[at] += ref * ref;
                e->noise[at] += d * d;
            }
            e->tokens[at] += n;
        }
        moe_layer++;
    }
}

static int worst_first(const void *a, const void *b) {
    const td_expert_snr *x = a, *y = b;
    if (x->db != y->db) return x->db < y->db ? -1 : 1;
    return x->layer != y->layer ? (x->layer > y->layer) - (x->layer < y->layer)
                                : (x->expert > y->expert) - (x->expert < y->expert);
}

td_status td_expert_errors_result(const td_expert_errors *e, td_expert_snr **out, size_t *n, td_error *err) {
    size_t all = (size_t)e->n_layers * e->n_experts;
    *n = 0;
    *out = NULL;
    for (size_t i = 0; i < all; i++) *n += e->tokens[i] > 0;
    if (!*n) return TD_OK;
    if (!(*out = malloc(*n * sizeof **out))) return td_fail(err, TD_ENOMEM, "out of memory to list the experts");
    for (size_t i = 0, at = 0; i < all; i++)
        if (e->tokens[i])
            (*out)[at++] = (td_expert_snr){.layer = (uint32_t)(i / e->n_experts),
                                           .expert = (uint32_t)(i % e->n_experts),
                                           .tokens = e->tokens[i],
                                           .db = e->noise[i] > 0 ? 10 * log10(e->signal[i] / e->noise[i]) : INFINITY};
    qsort(*out, *n, sizeof **out, worst_first);
    return TD_OK;
}
