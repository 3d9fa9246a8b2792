/* The replay of routing traces, compared with results computed by hand where that is possible; the locality of generated
 * traces; and hit rates that the policy must reach. */
#include "bench/routing_foresight.h"
#include "tests/td_test.h"

#define CLOSE(a, b) assert_true((a) - (b) < 1e-9 && (b) - (a) < 1e-9)

TEST(a_short_trace_as_by_hand) {
    static const uint16_t  ids[] = {0, 1, 0, 2, 0, 1, 3, 0};
    const td_routing_trace t = {.n_layers = 1, .n_experts = 4, .top_k = 1, .n_tok = 8, .ids = ids};
    td_replayed            r;
    OK(td_replay_lru(&t, 2, &r, NULL));
    CLOSE(r.hits, 2 / 8.0); /* 0 twice; then 1 pushes out 2, 3 pushes out 0 */
    CLOSE(r.uploads, 6 / 8.0);
    OK(td_replay_static(&t, 2, &r, NULL));
    CLOSE(r.hits, 6 / 8.0);
    CLOSE(r.uploads, 2 / 8.0);
    OK(td_replay_belady(&t, 2, &r, NULL));
    CLOSE(r.hits, 4 / 8.0); /* all but first uses: 2 and 3 do not come */
    CLOSE(r.uploads, 2 / 8.0);
}

/* Experts of a token that another, `apart` tokens later, chooses too. */
static double overlap(const td_routing_trace *t, uint32_t apart) {
    uint64_t both = 0;
    for (uint64_t i = 0; i + apart < t->n_tok; i++)
        for (uint32_t l = 0; l < t->n_layers; l++)
            for (uint32_t a = 0; a < t->top_k; a++)
                for (uint32_t b = 0; b < t->top_k; b++)
                    both += td_routing_ids(t, i, l)[a] == td_routing_ids(t, i + apart, l)[b];
    return (double)both / (double)((t->n_tok - apart) * t->n_layers * t->top_k);
}

TEST(the_generator_has_the_locality_of_real_traces) {
    static const double                             OVERLAP[][2] = {{1, .38}, {2, .30}, {8, .25}, {32, .22}};
    AT_END(td_routing_trace_close) td_routing_trace t, again;
    OK(td_routing_generate(&TD_ROUTING_LOCAL, 4, 2000, 1, &t, NULL));
    for (size_t i = 0; i < sizeof OVERLAP / sizeof *OVERLAP; i++) {
        double found = overlap(&t, (uint32_t)OVERLAP[i][0]);
        print_message("overlap %g tokens apart: %.3f, of real traces %.2f\n", OVERLAP[i][0], found, OVERLAP[i][1]);
        assert_true(found > OVERLAP[i][1] - 0.03 && found < OVERLAP[i][1] + 0.03);
    }
    OK(td_routing_generate(&TD_ROUTING_LOCAL, 4, 2000, 1, &again, NULL));
    assert_memory_equal(t.ids, again.ids, 2000 * 4 * 6 * sizeof *t.ids);
}

/* The targets, on traces of other seeds than `tandem bench residency` shows. */
TEST(the_policy_comes_near_the_best_possible) {
    static const double TARGET[][2] = {{8, .75}, {4, .85}}; /* experts by slots, share of Belady's hits */
    for (uint64_t seed = 11; seed < 13; seed++) {
        AT_END(td_routing_trace_close) td_routing_trace t;
        OK(td_routing_generate(&TD_ROUTING_LOCAL, 3, 2000, seed, &t, NULL));
        for (size_t i = 0; i < 2; i++) {
            td_replayed policy, belady, lru;
            uint32_t    n_slots = t.n_experts / (uint32_t)TARGET[i][0];
            OK(td_replay_policy(&t, n_slots, 0.5, &policy, NULL));
            OK(td_replay_belady(&t, n_slots, &belady, NULL));
            OK(td_replay_lru(&t, n_slots, &lru, NULL));
            print_message("seed %d, %u slots: policy %.3f, LRU %.3f, best %.3f; uploads %.2f, LRU %.2f\n", (int)seed,
                          n_slots, policy.hits, lru.hits, belady.hits, policy.uploads, lru.uploads);
            assert_true(policy.hits <= belady.hits && lru.hits <= belady.hits);
            assert_true(policy.hits >= TARGET[i][1] * belady.hits);
            assert_true(policy.uploads <= 0.5);
        }
    }
}

/* Where routing is flat the policy has what can be known from ids, and who knows all that is now has less than the target. */
TEST(what_can_be_foreseen_of_a_flat_trace) {
    AT_END(td_routing_trace_close) td_routing_trace t;
    td_replayed                                     policy, ids, told, belady;
    OK(td_routing_generate(&TD_ROUTING_FLAT, 1, 1000, 21, &t, NULL));
    OK(td_replay_policy(&t, 64, 0.5, &policy, NULL));
    OK(td_replay_foresight(&TD_ROUTING_FLAT, 21, &t, 64, 0.5, false, &ids, NULL));
    OK(td_replay_foresight(&TD_ROUTING_FLAT, 21, &t, 64, 0.5, true, &told, NULL));
    OK(td_replay_belady(&t, 64, &belady, NULL));
    print_message("policy %.3f, from ids %.3f, told %.3f, best %.3f\n", policy.hits, ids.hits, told.hits, belady.hits);
    assert_true(policy.hits > ids.hits - 0.02 && policy.hits < told.hits - 0.05);
    assert_true(told.hits < 0.75 * belady.hits);
    assert_true(ids.uploads <= 0.5 + 64 / 1000.0 && told.uploads <= 0.5 + 64 / 1000.0);
}

TEST(the_budget_is_kept) {
    AT_END(td_routing_trace_close) td_routing_trace t;
    td_replayed                                     r;
    OK(td_routing_generate(&TD_ROUTING_FLAT, 1, 500, 1, &t, NULL));
    OK(td_replay_policy(&t, 64, 0.25, &r, NULL));
    assert_true(r.uploads > 0.2 && r.uploads <= 0.25 + 64 / 500.0);
}
