/*
 * The gate, which decides when drafting pays, with given costs. A simulated server asks it before each step, as the engine
 * does. The cost of a step and its tokens are a function of its drafts.
 */
#include <math.h>

#include "core/math/rng.h"
#include "engine/step/draft_gate.h"
#include "tests/td_test.h"

typedef struct {
    double plain_s, verified_s, layer_s; /* a step, what drafts add to it, the layer behind it */
    double accepted;                     /* share of drafts */
} costs;

typedef struct {
    uint64_t steps, drafted, tokens;
    double   seconds;
} outcome;

static outcome serve(td_draft_gate *g, uint32_t n_seq, costs c, uint32_t steps, uint64_t seed) {
    outcome o = {0};
    for (uint32_t i = 0; i < steps; i++) {
        bool          drafts = td_draft_gate_drafts(g, n_seq), on = td_draft_gate_is_on(g, n_seq);
        td_draft_step s = {.n_seq = n_seq, .n_drafts = drafts ? n_seq : 0, .n_tokens = n_seq};
        for (uint32_t k = 0; k < s.n_drafts; k++) s.n_tokens += td_rng_uniform(seed, i, k) < c.accepted;
        s.step_s = c.plain_s + (drafts ? c.verified_s : 0);
        s.layer_s = on ? c.layer_s : 0;
        td_draft_gate_observe(g, &s);
        o.steps++;
        o.drafted += drafts;
        o.tokens += s.n_tokens;
        o.seconds += s.step_s + s.layer_s;
    }
    return o;
}

static double speed(outcome o, uint32_t n_seq, costs c) {
    return (double)o.tokens / o.seconds / (n_seq / c.plain_s);
}

TEST(stays_on_where_it_pays) {
    td_draft_gate g;
    costs         c = {.plain_s = 0.100, .verified_s = 0.030, .layer_s = 0.005, .accepted = 0.7};
    td_draft_gate_open(&g, false);
    outcome o = serve(&g, 1, c, 2000, 1);
    print_message("    gain %.2f, speed %.2f of undrafted\n", td_draft_gate_gain(&g, 1), speed(o, 1, c));
    assert_true(td_draft_gate_is_on(&g, 1));
    assert_true(fabs(td_draft_gate_gain(&g, 1) - 1.7 / 1.35) < 0.25);
    assert_true(speed(o, 1, c) > 1.15);
    assert_true(o.drafted > o.steps * 9 / 10 && o.drafted < o.steps);
    assert_true(fabs(td_draft_gate_threshold(&g, 1) - 0.3) < 1e-9); /* 30 % more time needs 30 % of a token more */
}

TEST(goes_off_where_it_loses) {
    td_draft_gate g;
    costs         c = {.plain_s = 0.100, .verified_s = 0.080, .layer_s = 0.010, .accepted = 0.3};
    td_draft_gate_open(&g, false);
    outcome o = serve(&g, 4, c, 20000, 2);
    print_message("    %lu of %lu steps drafted, speed %.3f of undrafted\n", (unsigned long)o.drafted,
                  (unsigned long)o.steps, speed(o, 4, c));
    assert_false(td_draft_gate_drafts(&g, 4));
    assert_true(o.drafted >= 2 * TD_DRAFT_TRIAL_LEAST); /* it was tried again */
    assert_true(speed(o, 4, c) > 0.98);
    assert_true(td_draft_gate_is_on(&g, 1)); /* of another number of sequences it knows nothing */
}

/* A short run: where drafts are never taken and a drafted step costs nearly two, four are enough to see it. */
TEST(soon_sees_what_is_hopeless) {
    td_draft_gate g;
    costs         c = {.plain_s = 0.100, .verified_s = 0.090, .layer_s = 0.010, .accepted = 0};
    td_draft_gate_open(&g, false);
    outcome o = serve(&g, 1, c, 600, 8);
    print_message("    %lu of %lu steps drafted, speed %.3f of undrafted\n", (unsigned long)o.drafted,
                  (unsigned long)o.steps, speed(o, 1, c));
    assert_true(o.drafted <= 4 * TD_DRAFT_TRIAL_LEAST);
    assert_true(speed(o, 1, c) > 0.98);
    assert_false(td_draft_gate_is_on_up_to(&g, 1));
    assert_true(td_draft_gate_is_on_up_to(&g, 2)); /* of two it is not known */
}

/* What holds up single steps, plain or drafted, turns nothing on or off. */
TEST(slow_steps_decide_nothing) {
    costs good = {.plain_s = 0.100, .verified_s = 0.010, .layer_s = 0.005, .accepted = 0.7}, slow = good;
    costs bad = {.plain_s = 0.100, .verified_s = 0.060, .layer_s = 0.010, .accepted = 0.1}, slow_bad = bad;
    slow.plain_s = slow_bad.plain_s = 3;
    td_draft_gate g;
    td_draft_gate_open(&g, false);
    serve(&g, 1, slow_bad, 1, 9); /* the very first, which is a plain one */
    serve(&g, 1, bad, 40, 10);
    assert_false(td_draft_gate_is_on(&g, 1));
    td_draft_gate_open(&g, false);
    for (uint32_t i = 0; i < 10; i++) { /* and drafted ones */
        serve(&g, 1, good, 49, 11 + i);
        serve(&g, 1, slow, 1, 30 + i);
        assert_true(td_draft_gate_is_on(&g, 1));
    }
}

TEST(comes_back_when_it_pays_again) {
    td_draft_gate g;
    costs         bad = {.plain_s = 0.1, .verified_s = 0.09, .layer_s = 0.01, .accepted = 0.1}, good = bad;
    good.accepted = 0.95;
    good.verified_s = 0.02;
    td_draft_gate_open(&g, false);
    serve(&g, 2, bad, 100, 3);
    assert_false(td_draft_gate_is_on(&g, 3)); /* the same class */
    serve(&g, 3, good, TD_DRAFT_WAIT_MIN + 100, 4);
    assert_true(td_draft_gate_is_on(&g, 2));
    serve(&g, 2, bad, 200, 5); /* and goes again */
    assert_false(td_draft_gate_is_on(&g, 2));
}

/* The layer is paid for by who drafts nothing, too: a threshold that nothing reaches turns it off. */
TEST(goes_off_when_nothing_is_sure) {
    td_draft_gate g;
    td_draft_gate_open(&g, false);
    for (uint32_t i = 0; i < 100; i++)
        td_draft_gate_observe(&g, &(td_draft_step){.n_seq = 1, .n_tokens = 1, .step_s = 0.1, .layer_s = 0.01});
    assert_false(td_draft_gate_is_on(&g, 1));
}

/* Steps whose requests cannot draft say nothing of drafting. */
TEST(waits_for_somebody_to_draft_for) {
    td_draft_gate g;
    td_draft_gate_open(&g, false);
    for (uint32_t i = 0; i < 1000; i++)
        td_draft_gate_observe(&g, &(td_draft_step){.n_seq = 5000, .n_tokens = 5000, .step_s = 0.1});
    assert_true(td_draft_gate_is_on(&g, 5000));
    assert_true(td_draft_gate_gain(&g, 5000) == 1);
}

TEST(same_numbers_same_decisions) {
    td_draft_gate a, b;
    costs         c = {.plain_s = 0.1, .verified_s = 0.05, .layer_s = 0.01, .accepted = 0.58};
    td_draft_gate_open(&a, false);
    td_draft_gate_open(&b, false);
    outcome x = serve(&a, 7, c, 5000, 6), y = serve(&b, 7, c, 5000, 6);
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(x.tokens, y.tokens);
}

TEST(always_means_always) {
    td_draft_gate g;
    costs         bad = {.plain_s = 0.1, .verified_s = 0.09, .layer_s = 0.01, .accepted = 0.1};
    td_draft_gate_open(&g, true);
    assert_int_equal(serve(&g, 1, bad, 500, 7).drafted, 500);
    assert_true(td_draft_gate_is_on(&g, 1) && td_draft_gate_threshold(&g, 1) == 0);
}
