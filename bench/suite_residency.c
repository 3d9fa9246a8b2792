/*
 * What moving experts could reach: routing traces replayed by the policy, beside two simpler ones, the best possible, and in
 * generated traces what can be foreseen. A replay is arithmetic over ids, so its rows have shares of hits where others have
 * times.
 */
#include <inttypes.h>
#include <stdio.h>

#include "bench/bench.h"
#include "bench/routing_foresight.h"
#include "bench/routing_replay.h"
#include "core/error.h"

#define LAYERS 4 /* of what is generated */
#define TOKENS 2000
#define SEED 1
#define BUDGET 0.5 /* uploads a layer and token */

typedef struct {
    td_replayed policy, lru, hot, belady; /* hot: static */
    td_replayed ids, told;                /* what can be foreseen; only of a generated trace */
} results;

static td_status replay(const td_routing_trace *t, const td_routing_kind *kind, uint32_t n_slots, results *r,
                        td_error *err) {
    *r = (results){0};
    if (kind) {
        TD_TRY(td_replay_foresight(kind, SEED, t, n_slots, BUDGET, false, &r->ids, err));
        TD_TRY(td_replay_foresight(kind, SEED, t, n_slots, BUDGET, true, &r->told, err));
    }
    TD_TRY(td_replay_policy(t, n_slots, BUDGET, &r->policy, err));
    TD_TRY(td_replay_lru(t, n_slots, &r->lru, err));
    TD_TRY(td_replay_static(t, n_slots, &r->hot, err));
    return td_replay_belady(t, n_slots, &r->belady, err);
}

static void print_json(const char *shape, const td_routing_trace *t, uint32_t n_slots, const results *r) {
    printf("{\"bench\":\"residency\",\"shape\":\"%s\",\"tokens\":%" PRIu64
           ",\"layers\":%u,\"experts\":%u,\"top_k\":%u,\"slots\":%u,\"policy_hits\":%.4f,\"lru_hits\":%.4f,\"static_hits\":%"
           ".4f,"
           "\"belady_hits\":%.4f,\"belady_share\":%.4f,\"policy_uploads\":%.4f,\"lru_uploads\":%.4f,\"belady_uploads\":%.4f,"
           "\"ids_hits\":%.4f,\"told_hits\":%.4f,\"commit\":\"%s\"}\n",
           shape, t->n_tok, t->n_layers, t->n_experts, t->top_k, n_slots, r->policy.hits, r->lru.hits, r->hot.hits,
           r->belady.hits, r->policy.hits / r->belady.hits, r->policy.uploads, r->lru.uploads, r->belady.uploads,
           r->ids.hits, r->told.hits, td_bench_commit);
}

static void print_table(const td_bench *b, const char *shape, const td_routing_trace *t, uint32_t n_slots,
                        const results *r) {
    if (b->n_rows == 0)
        printf(
            "commit %s; hits in %%, and uploads a layer and token\n%-24s %8s %7s %9s %8s %8s %8s %8s %10s %9s %8s %8s%s\n",
            td_bench_commit, "shape", "tokens", "layers", "resident", "policy", "LRU", "static", "Belady", "of Belady",
            "uploads", "of LRU", "Belady", r->told.hits > 0 ? " from ids     told" : "");
    printf("%-24s %8" PRIu64 " %7u %8.1f%% %8.1f %8.1f %8.1f %8.1f %10.3f %9.2f %8.2f %8.2f", shape, t->n_tok, t->n_layers,
           100.0 * n_slots / t->n_experts, 100 * r->policy.hits, 100 * r->lru.hits, 100 * r->hot.hits, 100 * r->belady.hits,
           r->policy.hits / r->belady.hits, r->policy.uploads, r->lru.uploads, r->belady.uploads);
    if (r->told.hits > 0) printf(" %8.1f %8.1f", 100 * r->ids.hits, 100 * r->told.hits);
    putchar('\n');
}

/* An eighth, a quarter and half of the experts; at least as many as a token chooses. @param kind NULL: not generated */
static td_status replay_shares(td_bench *b, const char *shape, const td_routing_trace *t, const td_routing_kind *kind,
                               td_error *err) {
    for (uint32_t part = 8, before = 0; part >= 2; part /= 2) {
        uint32_t n_slots = t->n_experts / part < t->top_k ? t->top_k : t->n_experts / part;
        results  r;
        if (n_slots == before) continue;
        before = n_slots;
        TD_TRY(replay(t, kind, n_slots, &r, err));
        if (b->o->json)
            print_json(shape, t, n_slots, &r);
        else
            print_table(b, shape, t, n_slots, &r);
        fflush(stdout);
        b->n_rows++;
    }
    return TD_OK;
}

static td_status replay_generated(td_bench *b, const td_routing_kind *kind, td_error *err) {
    td_routing_trace t;
    if (!td_bench_wanted(b, kind->name)) return TD_OK;
    TD_TRY(td_routing_generate(kind, LAYERS, TOKENS, SEED, &t, err));
    td_status st = replay_shares(b, kind->name, &t, kind, err);
    td_routing_trace_close(&t);
    return st;
}

td_status td_bench_residency(td_bench *b, td_error *err) {
    if (!b->o->routing_path) {
        TD_TRY(replay_generated(b, &TD_ROUTING_LOCAL, err));
        return replay_generated(b, &TD_ROUTING_FLAT, err);
    }
    td_routing_trace t;
    char             shape[TD_BENCH_SHAPE_BYTES];
    TD_TRY(td_routing_trace_read(b->o->routing_path, &t, err));
    snprintf(shape, sizeof shape, "%u experts, %u a token", t.n_experts, t.top_k);
    td_status st = replay_shares(b, shape, &t, NULL, err);
    td_routing_trace_close(&t);
    return st;
}
