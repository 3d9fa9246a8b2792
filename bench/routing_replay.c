#include "bench/routing_replay.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "residency/residency_policy.h"

#define NEVER UINT64_MAX

/* One layer of a trace, while it is replayed. */
typedef struct {
    const td_routing_trace *t;
    uint32_t                layer, n_slots, n_used;
    bool                   *resident; /* [n_experts] */
    uint64_t               *when;     /* [n_experts] LRU: the last token that used it, from 1; Belady: the next */
    uint64_t               *next;     /* [n_tok, top_k] Belady: the next token that uses the same expert */
    uint64_t                hits, uploads;
} layer_replay;

static td_status no_memory(td_error *err) {
    return td_fail(err, TD_ENOMEM, "out of memory to replay a routing trace");
}

static td_replayed shares(const td_routing_trace *t, uint64_t hits, uint64_t uploads) {
    double rows = (double)t->n_tok * t->n_layers;
    return (td_replayed){.hits = (double)hits / (rows * t->top_k), .uploads = (double)uploads / rows};
}

/* ---- the policy ------------------------------------------------------------------------------ */

static uint64_t hits_of(const td_residency_policy *p, const td_routing_trace *t, uint64_t token, uint32_t layer) {
    const uint16_t *ids = td_routing_ids(t, token, layer);
    uint64_t        hits = 0;
    for (uint32_t k = 0; k < t->top_k; k++) hits += td_residency_policy_state(p, layer, ids[k]) == TD_EXPERT_RESIDENT;
    return hits;
}

td_status td_replay_policy(const td_routing_trace *t, uint32_t n_slots, double budget, td_replayed *out, td_error *err) {
    td_residency_policy *p;
    td_residency_config  c = {.n_layers = t->n_layers,
                              .n_experts = t->n_experts,
                              .top_k = t->top_k,
                              .n_slots = n_slots,
                              .upload_cost = TD_RESIDENCY_UPLOAD_COST};
    uint64_t             hits = 0, uploads = 0;
    double               left = (double)n_slots * t->n_layers; /* uploads that may begin */
    TD_TRY(td_residency_policy_open(&c, &p, err));
    for (uint64_t token = 0; token < t->n_tok; token++) {
        td_residency_swap s;
        td_residency_policy_begin_step(p);
        for (uint32_t l = 0; l < t->n_layers; l++) {
            hits += hits_of(p, t, token, l);
            td_residency_policy_count(p, l, 1, td_routing_ids(t, token, l), false);
        }
        for (left += budget * t->n_layers; left >= 1 && td_residency_policy_next(p, &s); left--, uploads++)
            td_residency_policy_end_upload(p, s.layer, s.in, false);
    }
    td_residency_policy_close(p);
    *out = shares(t, hits, uploads);
    return TD_OK;
}

/* ---- what it stands beside ------------------------------------------------------------------- */

/* The resident expert with the smallest, or the largest, `when`. */
static uint32_t extreme(const layer_replay *r, bool largest) {
    uint32_t found = UINT32_MAX;
    for (uint32_t e = 0; e < r->t->n_experts; e++)
        if (r->resident[e] && (found == UINT32_MAX || (largest ? r->when[e] > r->when[found] : r->when[e] < r->when[found])))
            found = e;
    return found;
}

static void upload(layer_replay *r, uint32_t in, uint32_t out) {
    if (out != UINT32_MAX)
        r->resident[out] = false;
    else
        r->n_used++;
    r->resident[in] = true;
    r->uploads++;
}

static void count_hits(layer_replay *r, const uint16_t *ids) {
    for (uint32_t k = 0; k < r->t->top_k; k++) r->hits += r->resident[ids[k]];
}

static void replay_lru(layer_replay *r) {
    for (uint64_t token = 0; token < r->t->n_tok; token++) {
        const uint16_t *ids = td_routing_ids(r->t, token, r->layer);
        count_hits(r, ids);
        for (uint32_t k = 0; k < r->t->top_k; k++) r->when[ids[k]] = token + 1;
        for (uint32_t k = 0; k < r->t->top_k; k++)
            if (!r->resident[ids[k]]) upload(r, ids[k], r->n_used < r->n_slots ? UINT32_MAX : extreme(r, false));
    }
}

static void replay_belady(layer_replay *r) {
    const td_routing_trace *t = r->t;
    for (uint32_t e = 0; e < t->n_experts; e++) r->when[e] = NEVER;
    for (uint64_t token = t->n_tok; token-- > 0;)
        for (uint32_t k = 0; k < t->top_k; k++) {
            uint16_t e = td_routing_ids(t, token, r->layer)[k];
            r->next[token * t->top_k + k] = r->when[e];
            r->when[e] = token;
        }
    for (uint64_t token = 0; token < t->n_tok; token++) {
        const uint16_t *ids = td_routing_ids(t, token, r->layer);
        count_hits(r, ids);
        for (uint32_t k = 0; k < t->top_k; k++) r->when[ids[k]] = r->next[token * t->top_k + k];
        for (uint32_t k = 0; k < t->top_k; k++) {
            if (r->resident[ids[k]] || r->when[ids[k]] == NEVER) continue;
            uint32_t out = r->n_used < r->n_slots ? UINT32_MAX : extreme(r, true);
            if (out == UINT32_MAX || r->when[out] > r->when[ids[k]]) upload(r, ids[k], out);
        }
    }
}

static void replay_static(layer_replay *r) {
    for (uint64_t token = 0; token < r->t->n_tok; token++)
        for (uint32_t k = 0; k < r->t->top_k; k++) r->when[td_routing_ids(r->t, token, r->layer)[k]]++;
    while (r->n_used < r->n_slots) {
        uint32_t best = UINT32_MAX;
        for (uint32_t e = 0; e < r->t->n_experts; e++)
            if (!r->resident[e] && (best == UINT32_MAX || r->when[e] > r->when[best])) best = e;
        upload(r, best, UINT32_MAX);
        r->hits += r->when[best];
    }
}

static td_status replay_layers(const td_routing_trace *t, uint32_t n_slots, void (*replay)(layer_replay *r),
                               td_replayed *out, td_error *err) {
    layer_replay r = {.t = t,
                      .n_slots = n_slots,
                      .resident = calloc(t->n_experts, sizeof *r.resident),
                      .when = calloc(t->n_experts, sizeof *r.when),
                      .next = calloc(t->n_tok, t->top_k * sizeof *r.next)};
    bool         fits = r.resident && r.when && r.next;
    for (; fits && r.layer < t->n_layers; r.layer++) {
        memset(r.resident, 0, t->n_experts * sizeof *r.resident);
        memset(r.when, 0, t->n_experts * sizeof *r.when);
        r.n_used = 0;
        replay(&r);
    }
    free(r.resident);
    free(r.when);
    free(r.next);
    *out = shares(t, r.hits, r.uploads);
    return fits ? TD_OK : no_memory(err);
}

td_status td_replay_lru(const td_routing_trace *t, uint32_t n_slots, td_replayed *out, td_error *err) {
    return replay_layers(t, n_slots, replay_lru, out, err);
}

td_status td_replay_static(const td_routing_trace *t, uint32_t n_slots, td_replayed *out, td_error *err) {
    return replay_layers(t, n_slots, replay_static, out, err);
}

td_status td_replay_belady(const td_routing_trace *t, uint32_t n_slots, td_replayed *out, td_error *err) {
    return replay_layers(t, n_slots, replay_belady, out, err);
}
