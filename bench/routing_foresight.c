#include "bench/routing_foresight.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "residency/residency_policy.h"

#define MEMORY 35 /* tokens: a use so far ahead weighs 1 / e. It is the policy's: TD_RESIDENCY_HALF_LIFE / ln 2 */

/* Tokens ahead for which uses are computed, and for how many each stands. */
static const struct {
    double ahead, stands_for;
} LATER[] = {{1, 1}, {2, 1}, {3.5, 2}, {6.5, 4}, {12.5, 8}, {24.5, 16}, {48.5, 32}, {96.5, 64}};
#define N_LATER (sizeof LATER / sizeof *LATER)

/* Of uses so far ahead: what they weigh, and what is left of a topic and of a noise. */
typedef struct {
    double weight, u, z;
} later;

/* Of an expert: mean and variance of its rank's part of the logit, and of its topic's; their covariance. */
typedef struct {
    double rank, rank_var, topic, topic_var, covar;
} belief;

typedef struct {
    const td_routing_kind *kind;
    bool                   told;
    td_routing_layer      *layer;
    later                  later[N_LATER];
    double                 threshold; /* of a logit that is chosen, on average */
    belief                *beliefs;   /* [n_experts] */
    double                *uses;      /* [n_experts] that are expected */
    bool                  *resident;  /* [n_experts] */
    bool                  *chosen;    /* [n_experts] by the present token */
    uint32_t               n_used;
    double                 left; /* uploads that may begin */
    uint64_t               hits, uploads;
} player;

static double below(double x) {
    return 0.5 * erfc(-x * M_SQRT1_2);
}

/* ---- what is known ------------------------------------------------------------------------------- */

/* Before the first token: ranks in any order, topics of unit variance. */
static void begin_beliefs(const player *p) {
    const td_routing_kind *k = p->kind;
    double                 mean = 0, square = 0;
    for (uint32_t e = 0; e < k->n_experts; e++) {
        const double rank = -k->s * log(e + 1.0);
        mean += rank / k->n_experts;
        square += rank * rank / k->n_experts;
    }
    for (uint32_t e = 0; e < k->n_experts; e++)
        p->beliefs[e] = (belief){.rank = mean, .rank_var = square - mean * mean, .topic_var = k->sigma * k->sigma};
}

/* The topic has moved on by a token. */
static void drift(belief *b, const td_routing_kind *k) {
    const double keep = exp(-1 / k->tau);
    b->topic *= keep;
    b->topic_var = keep * keep * b->topic_var + k->sigma * k->sigma * (1 - keep * keep);
    b->covar *= keep;
}

/* The expert was chosen, or was not: its logit was above the threshold, or below. */
static void learn(belief *b, const td_routing_kind *k, double threshold, bool chosen) {
    const double side = chosen ? 1 : -1, sd = sqrt(b->rank_var + b->topic_var + 2 * b->covar + k->nu * k->nu);
    const double x = side * (b->rank + b->topic - threshold) / sd;
    const double ratio = exp(-x * x / 2) / sqrt(2 * M_PI) / fmax(below(x), 1e-9);
    const double step = side * ratio / sd, shrink = ratio * (ratio + x) / (sd * sd);
    const double rank_gain = b->rank_var + b->covar, topic_gain = b->topic_var + b->covar;
    b->rank += rank_gain * step;
    b->topic += topic_gain * step;
    b->rank_var -= rank_gain * rank_gain * shrink;
    b->topic_var -= topic_gain * topic_gain * shrink;
    b->covar -= rank_gain * topic_gain * shrink;
}

static double expected_uses(const player *p, uint32_t e) {
    const td_routing_kind *k = p->kind;
    double                 sum = 0;
    for (size_t i = 0; i < N_LATER; i++) {
        const double u = p->later[i].u, z = p->later[i].z;
        double       mean, var = k->sigma * k->sigma * (1 - u * u) + k->nu * k->nu;
        if (p->told) {
            mean = p->layer->bias[e] + u * k->sigma * p->layer->u[e] + z * k->nu * p->layer->z[e];
            var -= k->nu * k->nu * z * z;
        } else {
            const belief *b = &p->beliefs[e];
            mean = b->rank + u * b->topic;
            var += b->rank_var + u * u * b->topic_var + 2 * u * b->covar;
        }
        sum += p->later[i].weight * below((mean - p->threshold) / sqrt(var));
    }
    return sum;
}

/* ---- a layer --------------------------------------------------------------------------------------- */

static bool swap_once(player *p, uint32_t n_slots) {
    uint32_t in = UINT32_MAX, out = UINT32_MAX;
    for (uint32_t e = 0; e < p->kind->n_experts; e++) {
        if (!p->resident[e] && (in == UINT32_MAX || p->uses[e] > p->uses[in])) in = e;
        if (p->resident[e] && !p->chosen[e] && (out == UINT32_MAX || p->uses[e] < p->uses[out])) out = e;
    }
    if (in == UINT32_MAX) return false;
    if (p->n_used < n_slots) {
        p->n_used++;
    } else {
        if (out == UINT32_MAX || p->uses[in] - p->uses[out] < TD_RESIDENCY_UPLOAD_COST) return false;
        p->resident[out] = false;
    }
    p->resident[in] = true;
    p->uploads++;
    return true;
}

static void see_token(player *p, const uint16_t *ids) {
    const td_routing_kind *k = p->kind;
    memset(p->chosen, 0, k->n_experts * sizeof *p->chosen);
    for (uint32_t i = 0; i < k->top_k; i++) {
        p->hits += p->resident[ids[i]];
        p->chosen[ids[i]] = true;
    }
    for (uint32_t e = 0; e < k->n_experts; e++) {
        if (!p->told) {
            drift(&p->beliefs[e], k);
            learn(&p->beliefs[e], k, p->threshold, p->chosen[e]);
        }
        p->uses[e] = expected_uses(p, e);
    }
}

/* The mean of the last logit that is chosen. */
static double threshold_of(td_routing_layer *layer, uint64_t n_tok, uint16_t *ids) {
    double sum = 0;
    td_routing_layer_begin(layer);
    for (uint64_t t = 0; t < n_tok; t++) sum += td_routing_layer_next(layer, ids);
    return sum / (double)n_tok;
}

static void replay_layer(player *p, uint64_t n_tok, uint32_t n_slots, double budget, uint16_t *ids) {
    p->threshold = threshold_of(p->layer, n_tok, ids);
    memset(p->resident, 0, p->kind->n_experts * sizeof *p->resident);
    p->n_used = 0;
    p->left = n_slots;
    begin_beliefs(p);
    td_routing_layer_begin(p->layer);
    for (uint64_t t = 0; t < n_tok; t++) {
        td_routing_layer_next(p->layer, ids);
        see_token(p, ids);
        for (p->left += budget; p->left >= 1 && swap_once(p, n_slots);) p->left--;
    }
}

td_status td_replay_foresight(const td_routing_kind *kind, uint64_t seed, const td_routing_trace *t, uint32_t n_slots,
                              double budget, bool told, td_replayed *out, td_error *err) {
    const size_t     n = kind->n_experts;
    td_routing_layer layer = {0};
    player           p = {.kind = kind,
                          .told = told,
                          .layer = &layer,
                          .beliefs = calloc(n, sizeof *p.beliefs),
                          .uses = calloc(n, sizeof *p.uses),
                          .resident = calloc(n, sizeof *p.resident),
                          .chosen = calloc(n, sizeof *p.chosen)};
    uint16_t        *ids = calloc(kind->top_k, sizeof *ids);
    td_status        st = p.beliefs && p.uses && p.resident && p.chosen && ids
                              ? TD_OK
                              : td_fail(err, TD_ENOMEM, "out of memory to replay a routing trace");
    for (size_t i = 0; i < N_LATER; i++)
        p.later[i] = (later){.weight = LATER[i].stands_for * exp(-LATER[i].ahead / MEMORY),
                             .u = exp(-LATER[i].ahead / kind->tau),
                             .z = pow(kind->rho, LATER[i].ahead)};
    for (uint32_t l = 0; l < t->n_layers && st == TD_OK; l++) {
        st = td_routing_layer_open(kind, seed, l, &layer, err);
        if (st == TD_OK) replay_layer(&p, t->n_tok, n_slots, budget, ids);
        td_routing_layer_close(&layer);
    }
    free(p.beliefs);
    free(p.uses);
    free(p.resident);
    free(p.chosen);
    free(ids);
    const double rows = (double)t->n_tok * t->n_layers;
    *out = (td_replayed){.hits = (double)p.hits / (rows * kind->top_k), .uploads = (double)p.uploads / rows};
    return st;
}
