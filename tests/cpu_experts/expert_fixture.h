/* Random experts, tokens and routes, and pools of any shape, for the tests of the CPU tier. */
#ifndef TD_TESTS_CPU_EXPERTS_EXPERT_FIXTURE_H
#define TD_TESTS_CPU_EXPERTS_EXPERT_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>

#include "core/math/rng.h"
#include "cpu_experts/cpu_experts.h"

typedef struct {
    uint32_t           n_experts, hidden, inter;
    float             *values; /* all matrices */
    float             *biases; /* of all matrices, or NULL */
    td_glu             glu;
    td_expert_weights *experts; /* f32 views */
} fixture_weights;

/** Groups for tests of a format: such that test shapes have several, the last of them short. */
static inline td_expert_groups fixture_groups(td_expert_format format) {
    static const td_expert_groups GROUPS[TD_EXPERT_FORMATS] = {
        [TD_EXPERT_INT4G] = {.size = 32, .scale_dtype = TD_DT_BF16},
        [TD_EXPERT_FP4G] = {.size = 16, .scale_dtype = TD_DT_F8_E4M3}};
    return GROUPS[format];
}

static inline float fixture_normalish(uint64_t seed, uint64_t stream, uint64_t i) { /* sum of four uniforms: variance 1/3 */
    uint32_t r[4];
    td_philox(seed, stream, i, r);
    return (float)(((double)r[0] + r[1] + r[2] + r[3]) / 4294967296.0 - 2.0);
}

static inline fixture_weights fixture_weights_new(uint64_t seed, uint32_t n_experts, uint32_t hidden, uint32_t inter) {
    size_t          matrix = (size_t)hidden * inter;
    fixture_weights w = {.n_experts = n_experts, .hidden = hidden, .inter = inter};
    w.values = malloc(3 * n_experts * matrix * sizeof(float));
    w.experts = calloc(n_experts, sizeof *w.experts);
    for (size_t i = 0; i < 3 * n_experts * matrix; i++) w.values[i] = fixture_normalish(seed, 1, i) * 0.25f;
    for (size_t e = 0; e < n_experts; e++) {
        float *v = w.values + 3 * e * matrix;
        w.experts[e] = (td_expert_weights){
            .gate = {.dtype = TD_DT_F32, .rank = 2, .shape = {inter, hidden}, .data = v},
            .up = {.dtype = TD_DT_F32, .rank = 2, .shape = {inter, hidden}, .data = v + matrix},
            .down = {.dtype = TD_DT_F32, .rank = 2, .shape = {hidden, inter}, .data = v + 2 * matrix},
        };
    }
    return w;
}

/** Biases for all of them, and a unit whose limit some values reach. */
static inline void fixture_weights_gate(fixture_weights *w, uint64_t seed) {
    size_t of_expert = 2 * (size_t)w->inter + w->hidden;
    w->glu = (td_glu){.alpha = 1.702f, .limit = 0.75f, .up_add = 1};
    w->biases = malloc(w->n_experts * of_expert * sizeof(float));
    for (size_t i = 0; i < w->n_experts * of_expert; i++) w->biases[i] = fixture_normalish(seed, 5, i);
    for (size_t e = 0; e < w->n_experts; e++) {
        float *b = w->biases + e * of_expert;
        w->experts[e].gate_bias = (td_tensor_view){.dtype = TD_DT_F32, .rank = 1, .shape = {w->inter}, .data = b};
        w->experts[e].up_bias = (td_tensor_view){.dtype = TD_DT_F32, .rank = 1, .shape = {w->inter}, .data = b + w->inter};
        w->experts[e].down_bias =
            (td_tensor_view){.dtype = TD_DT_F32, .rank = 1, .shape = {w->hidden}, .data = b + 2 * w->inter};
    }
}

static inline void fixture_weights_free(fixture_weights *w) {
    free(w->values);
    free(w->biases);
    free(w->experts);
}

/** n_workers unpinned workers over n_subpools. */
static inline td_pool *fixture_pool(uint32_t n_workers, uint32_t n_subpools) {
    td_worker_place places[TD_POOL_WORKERS_MAX];
    td_pool        *pool;
    td_error        err = {0};
    for (uint32_t i = 0; i < n_workers; i++)
        places[i] = (td_worker_place){.cpu = TD_CPU_ANY, .subpool = i * n_subpools / n_workers};
    if (td_pool_create(places, n_workers, &pool, &err) != TD_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    return pool;
}

typedef struct {
    uint32_t  n_tok, top_k;
    float    *x;       /* [n_tok, hidden] */
    uint16_t *ids;     /* [n_tok, top_k] distinct */
    float    *weights; /* [n_tok, top_k] descending */
} fixture_tokens;

static inline fixture_tokens fixture_tokens_new(uint64_t seed, uint32_t n_tok, uint32_t top_k, uint32_t n_experts,
                                                uint32_t hidden) {
    fixture_tokens t = {.n_tok = n_tok, .top_k = top_k};
    t.x = malloc((size_t)n_tok * hidden * sizeof(float));
    t.ids = malloc((size_t)n_tok * top_k * sizeof(uint16_t));
    t.weights = malloc((size_t)n_tok * top_k * sizeof(float));
    for (size_t i = 0; i < (size_t)n_tok * hidden; i++) t.x[i] = fixture_normalish(seed, 2, i);
    for (uint32_t i = 0; i < n_tok; i++)
        for (uint32_t j = 0; j < top_k; j++) {
            uint16_t *ids = t.ids + i * top_k;
            for (uint64_t draw = 0;; draw++) { /* skewed: low ids are popular, high ones rare */
                double u = td_rng_uniform(seed, 3 + draw, i * top_k + j);
                ids[j] = (uint16_t)(u * u * n_experts);
                uint32_t k = 0;
                while (ids[k] != ids[j]) k++;
                if (k == j) break;
            }
            t.weights[i * top_k + j] = 0.9f / (float)(j + 1) + 0.05f * (float)td_rng_uniform(seed, 99, i * top_k + j);
        }
    return t;
}

static inline void fixture_tokens_free(fixture_tokens *t) {
    free(t->x);
    free(t->ids);
    free(t->weights);
}

#endif
