#include "residency/residency_policy.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/math/rng.h"

/* After so many half-lives a layer's counts are scaled down, long before they leave the range of a float. */
#define HALF_LIVES_MAX 64
#define CHAOS_TRIES 16

typedef struct {
    float    uses;   /* in units of the layer's first token since counts were scaled */
    uint32_t chosen; /* the last step that chose it; 0: none */
    uint8_t  state;  /* td_expert_state */
} expert;

typedef struct {
    uint32_t n_tok;  /* counted since counts were scaled */
    uint32_t n_used; /* slots */
    bool     held;   /* no swaps */
    /* The layer's best swap, where it is known. */
    bool              known;
    float             gain; /* in uses; 0: none pays */
    td_residency_swap best;
} layer;

struct td_residency_policy {
    td_residency_config c;
    bool (*choose)(td_residency_policy *p, td_residency_swap *out);
    uint32_t step; /* from 1 */
    uint64_t seed, n_draws;
    bool     rests;   /* chaos has no more swaps in this step */
    layer   *layers;  /* [n_layers] */
    expert  *experts; /* [n_layers, n_experts] */
};

static expert *experts_of(const td_residency_policy *p, uint32_t l) {
    return p->experts + (size_t)l * p->c.n_experts;
}

/* ---- counts ---------------------------------------------------------------------------------- */

/* What a use by the layer's token n since the last scaling counts: new uses gain weight instead of old ones losing it. */
static float weight(uint32_t n) {
    return exp2f((float)n / TD_RESIDENCY_HALF_LIFE);
}

/* What a use by the layer's last token counts. */
static float weight_now(const layer *y) {
    return y->n_tok ? weight(y->n_tok - 1) : 1;
}

static void count_token(td_residency_policy *p, uint32_t l, const uint16_t *ids) {
    layer  *y = &p->layers[l];
    expert *x = experts_of(p, l);
    if (y->n_tok == HALF_LIVES_MAX * TD_RESIDENCY_HALF_LIFE) {
        for (uint32_t e = 0; e < p->c.n_experts; e++) x[e].uses = ldexpf(x[e].uses, -HALF_LIVES_MAX);
        y->n_tok = 0;
    }
    float w = weight(y->n_tok++);
    for (uint32_t k = 0; k < p->c.top_k; k++) x[ids[k]].uses += w;
}

void td_residency_policy_begin_step(td_residency_policy *p) {
    p->step++;
    p->rests = false;
    for (uint32_t l = 0; l < p->c.n_layers; l++) p->layers[l].known = false;
}

void td_residency_policy_count(td_residency_policy *p, uint32_t l, uint32_t n_tok, const uint16_t *ids, bool prompt) {
    assert(l < p->c.n_layers);
    uint32_t counted = prompt && n_tok > TD_RESIDENCY_PROMPT_ROWS ? TD_RESIDENCY_PROMPT_ROWS : n_tok;
    size_t   n = (size_t)n_tok * p->c.top_k;
    for (size_t i = 0; i < n; i++) {
        assert(ids[i] < p->c.n_experts);
        experts_of(p, l)[ids[i]].chosen = p->step;
    }
    for (uint32_t t = n_tok - counted; t < n_tok; t++) count_token(p, l, ids + (size_t)t * p->c.top_k);
    p->layers[l].known = false;
}

float td_residency_policy_uses(const td_residency_policy *p, uint32_t l, uint16_t e) {
    return experts_of(p, l)[e].uses / weight_now(&p->layers[l]);
}

/* ---- choosing -------------------------------------------------------------------------------- */

static bool may_go(const td_residency_policy *p, const expert *x) {
    return x->state == TD_EXPERT_RESIDENT && x->chosen != p->step;
}

/* The absent expert with most uses, and the resident one with least that may go; NO_EXPERT: none. */
static td_residency_swap extremes(const td_residency_policy *p, uint32_t l) {
    const expert     *x = experts_of(p, l);
    td_residency_swap s = {.layer = l, .in = TD_RESIDENCY_NO_EXPERT, .out = TD_RESIDENCY_NO_EXPERT};
    float             most = 0, least = INFINITY;
    for (uint32_t e = 0; e < p->c.n_experts; e++) {
        if (x[e].state == TD_EXPERT_ABSENT && x[e].uses > most) {
            most = x[e].uses;
            s.in = (uint16_t)e;
        } else if (x[e].uses < least && may_go(p, &x[e])) {
            least = x[e].uses;
            s.out = (uint16_t)e;
        }
    }
    return s;
}

static void find_best(td_residency_policy *p, uint32_t l) {
    layer            *y = &p->layers[l];
    td_residency_swap s = extremes(p, l);
    bool              empty = y->n_used < p->c.n_slots;
    y->known = true;
    y->gain = 0;
    if (s.in == TD_RESIDENCY_NO_EXPERT || (!empty && s.out == TD_RESIDENCY_NO_EXPERT)) return;
    if (empty) s.out = TD_RESIDENCY_NO_EXPERT;
    float gain = td_residency_policy_uses(p, l, s.in) - (empty ? 0 : td_residency_policy_uses(p, l, s.out));
    if (!empty && gain < p->c.upload_cost) return;
    y->gain = gain;
    y->best = s;
}

static bool choose_best(td_residency_policy *p, td_residency_swap *out) {
    float gain = 0;
    for (uint32_t l = 0; l < p->c.n_layers; l++) {
        layer *y = &p->layers[l];
        if (y->held) continue;
        if (!y->known) find_best(p, l);
        if (y->gain <= gain) continue;
        gain = y->gain;
        *out = y->best;
    }
    return gain > 0;
}

/* In [0, n). */
static uint32_t draw(td_residency_policy *p, uint32_t n) {
    return (uint32_t)(td_rng_u64(p->seed, 0, p->n_draws++) % n);
}

/* The first expert from a random one on that is absent, or that may go. */
static uint16_t random_expert(td_residency_policy *p, uint32_t l, bool absent) {
    const expert *x = experts_of(p, l);
    uint32_t      n = p->c.n_experts, first = draw(p, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t e = (first + i) % n;
        if (absent ? x[e].state == TD_EXPERT_ABSENT : may_go(p, &x[e])) return (uint16_t)e;
    }
    return TD_RESIDENCY_NO_EXPERT;
}

static bool choose_at_random(td_residency_policy *p, td_residency_swap *out) {
    for (int tries = 0; !p->rests && tries < CHAOS_TRIES; tries++) {
        uint32_t l = draw(p, p->c.n_layers);
        bool     empty = p->layers[l].n_used < p->c.n_slots;
        p->rests = draw(p, 4) == 0;
        if (p->layers[l].held) continue;
        *out = (td_residency_swap){.layer = l, .in = random_expert(p, l, true), .out = TD_RESIDENCY_NO_EXPERT};
        if (!empty) out->out = random_expert(p, l, false);
        if (out->in != TD_RESIDENCY_NO_EXPERT && (empty || out->out != TD_RESIDENCY_NO_EXPERT)) return true;
    }
    return false;
}

void td_residency_policy_hold(td_residency_policy *p, uint32_t l, bool held) {
    p->layers[l].held = held;
}

bool td_residency_policy_next(td_residency_policy *p, td_residency_swap *out) {
    if (!p->choose(p, out)) return false;
    expert *x = experts_of(p, out->layer);
    layer  *y = &p->layers[out->layer];
    x[out->in].state = TD_EXPERT_LOADING;
    if (out->out == TD_RESIDENCY_NO_EXPERT)
        y->n_used++;
    else
        x[out->out].state = p->c.goes_later ? TD_EXPERT_LEAVING : TD_EXPERT_ABSENT;
    y->known = false;
    return true;
}

void td_residency_policy_end_upload(td_residency_policy *p, uint32_t l, uint16_t e, bool failed) {
    expert *x = &experts_of(p, l)[e];
    assert(x->state == TD_EXPERT_LOADING);
    x->state = failed ? TD_EXPERT_ABSENT : TD_EXPERT_RESIDENT;
    p->layers[l].known = false;
    if (!failed) return;
    x->uses = 0;
    p->layers[l].n_used--;
}

void td_residency_policy_end_leave(td_residency_policy *p, const td_residency_swap *s, bool stays) {
    expert *x = experts_of(p, s->layer);
    assert(x[s->out].state == TD_EXPERT_LEAVING && x[s->in].state == TD_EXPERT_LOADING);
    x[s->out].state = stays ? TD_EXPERT_STAYS : TD_EXPERT_ABSENT;
    if (stays) x[s->in].state = TD_EXPERT_ABSENT;
    p->layers[s->layer].known = false;
}

void td_residency_policy_place(td_residency_policy *p, uint32_t l, uint16_t e) {
    expert *x = &experts_of(p, l)[e];
    assert(x->state == TD_EXPERT_ABSENT && p->layers[l].n_used < p->c.n_slots);
    x->state = TD_EXPERT_RESIDENT;
    p->layers[l].n_used++;
    p->layers[l].known = false;
}

td_expert_state td_residency_policy_state(const td_residency_policy *p, uint32_t l, uint16_t e) {
    return experts_of(p, l)[e].state;
}

/* ---- opening --------------------------------------------------------------------------------- */

static td_status check_sizes(const td_residency_config *c, td_error *err) {
    if (!c->n_layers || !c->n_experts || c->n_experts >= TD_RESIDENCY_NO_EXPERT)
        return td_fail(err, TD_EINVAL, "%u layers of %u experts: experts cannot move", c->n_layers, c->n_experts);
    if (!c->top_k || c->top_k > c->n_experts)
        return td_fail(err, TD_EINVAL, "a token cannot choose %u of %u experts", c->top_k, c->n_experts);
    if (c->n_slots < c->top_k || c->n_slots > c->n_experts)
        return td_fail(err, TD_EINVAL, "%u resident experts of a layer: a token chooses %u of %u, so %u to %u are possible",
                       c->n_slots, c->top_k, c->n_experts, c->top_k, c->n_experts);
    if (!(c->upload_cost >= 0)) return td_fail(err, TD_EINVAL, "an upload cannot cost %g uses", c->upload_cost);
    return TD_OK;
}

td_status td_residency_policy_open(const td_residency_config *c, td_residency_policy **out, td_error *err) {
    TD_TRY(check_sizes(c, err));
    td_residency_policy *p = calloc(1, sizeof *p);
    if (!p) return td_fail(err, TD_ENOMEM, "out of memory for the residency of experts");
    *p = (td_residency_policy){.c = *c,
                               .choose = choose_best,
                               .step = 1,
                               .layers = calloc(c->n_layers, sizeof *p->layers),
                               .experts = calloc((size_t)c->n_layers * c->n_experts, sizeof *p->experts)};
    if (!p->layers || !p->experts) {
        td_residency_policy_close(p);
        return td_fail(err, TD_ENOMEM, "out of memory for the residency of experts");
    }
    *out = p;
    return TD_OK;
}

td_status td_residency_policy_open_chaos(const td_residency_config *c, uint64_t seed, td_residency_policy **out,
                                         td_error *err) {
    TD_TRY(td_residency_policy_open(c, out, err));
    (*out)->choose = choose_at_random;
    (*out)->seed = seed;
    return TD_OK;
}

void td_residency_policy_close(td_residency_policy *p) {
    if (!p) return;
    free(p->layers);
    free(p->experts);
    free(p);
}
