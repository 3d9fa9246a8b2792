#include "bench/routing_generator.h"

#include <math.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/math/rng.h"

/* Two independent numbers from a Gaussian of unit variance (Box and Muller, 1958). */
static void gaussians(uint64_t seed, uint64_t stream, uint64_t counter, double *a, double *b) {
    uint32_t bits[4];
    td_philox(seed, stream, counter, bits);
    double radius = sqrt(-2 * log(((double)bits[0] + 1) * 0x1p-32)), angle = 2 * M_PI * bits[1] * 0x1p-32;
    *a = radius * cos(angle);
    *b = radius * sin(angle);
}

/* A random order of the experts (Fisher and Yates), as biases. */
static void order_experts(const td_routing_layer *y) {
    uint32_t n = y->kind->n_experts;
    for (uint32_t e = 0; e < n; e++) y->bias[e] = -y->kind->s * log(e + 1.0);
    for (uint32_t e = n - 1; e > 0; e--) {
        uint32_t other = (uint32_t)(td_rng_u64(y->seed, 2ULL * y->layer, e) % (e + 1));
        double   moved = y->bias[e];
        y->bias[e] = y->bias[other];
        y->bias[other] = moved;
    }
}

double td_routing_layer_next(td_routing_layer *y, uint16_t *ids) {
    const td_routing_kind *k = y->kind;
    const uint64_t         token = y->token++;
    double                 last = 0;
    double                 keep_u = token ? exp(-1 / k->tau) : 0, keep_z = token ? k->rho : 0;
    double                 fresh_u = sqrt(1 - keep_u * keep_u), fresh_z = sqrt(1 - keep_z * keep_z);
    for (uint32_t e = 0; e < k->n_experts; e++) {
        double a, b;
        gaussians(y->seed, 2ULL * y->layer + 1, token * k->n_experts + e, &a, &b);
        y->u[e] = keep_u * y->u[e] + fresh_u * a;
        y->z[e] = keep_z * y->z[e] + fresh_z * b;
        y->logit[e] = y->bias[e] + k->sigma * y->u[e] + k->nu * y->z[e];
    }
    for (uint32_t i = 0; i < k->top_k; i++) {
        uint32_t best = 0;
        for (uint32_t e = 1; e < k->n_experts; e++)
            if (y->logit[e] > y->logit[best]) best = e;
        ids[i] = (uint16_t)best;
        last = y->logit[best];
        y->logit[best] = -INFINITY;
    }
    return last;
}

td_status td_routing_layer_open(const td_routing_kind *kind, uint64_t seed, uint32_t layer, td_routing_layer *out,
                                td_error *err) {
    const size_t n = kind->n_experts;
    double      *state = calloc(4 * n, sizeof *state);
    *out = (td_routing_layer){0};
    if (!state) return td_fail(err, TD_ENOMEM, "out of memory for a routing trace");
    *out = (td_routing_layer){.kind = kind,
                              .seed = seed,
                              .layer = layer,
                              .bias = state,
                              .u = state + n,
                              .z = state + 2 * n,
                              .logit = state + 3 * n};
    order_experts(out);
    return TD_OK;
}

void td_routing_layer_close(td_routing_layer *y) {
    free(y->bias);
    *y = (td_routing_layer){0};
}

void td_routing_layer_begin(td_routing_layer *y) {
    y->token = 0;
}

td_status td_routing_generate(const td_routing_kind *kind, uint32_t n_layers, uint32_t n_tok, uint64_t seed,
                              td_routing_trace *out, td_error *err) {
    uint16_t *ids = calloc((size_t)n_tok * n_layers * kind->top_k, sizeof *ids);
    td_status st = ids ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for a routing trace");
    for (uint32_t l = 0; l < n_layers && st == TD_OK; l++) {
        td_routing_layer y;
        st = td_routing_layer_open(kind, seed, l, &y, err);
        for (uint64_t t = 0; t < n_tok && st == TD_OK; t++)
            td_routing_layer_next(&y, ids + (t * n_layers + l) * kind->top_k);
        td_routing_layer_close(&y);
    }
    if (st != TD_OK) {
        free(ids);
        return st;
    }
    *out = (td_routing_trace){
        .n_layers = n_layers, .n_experts = kind->n_experts, .top_k = kind->top_k, .n_tok = n_tok, .ids = ids, .memory = ids};
    return TD_OK;
}
