/* The policy that moves experts: rules that hold for every swap, over random steps; counts, compared with a plain loop; and
 * misuse. */
#include <math.h>

#include "core/math/rng.h"
#include "residency/residency_policy.h"
#include "tests/td_test.h"

AT_END_OF(end_policy, td_residency_policy, td_residency_policy_close)

#define SEED 20261127
#define LAYERS 3
#define EXPERTS 24
#define TOP_K 4
#define SLOTS 6
#define STEPS 600
#define TOKENS_MAX 48
#define SWAPS_MAX 16
#define NONE TD_RESIDENCY_NO_EXPERT

static const td_residency_config CONFIG = {
    .n_layers = LAYERS, .n_experts = EXPERTS, .top_k = TOP_K, .n_slots = SLOTS, .upload_cost = TD_RESIDENCY_UPLOAD_COST};

static uint64_t n_draws;

static uint32_t draw(uint32_t n) {
    return (uint32_t)(td_rng_u64(SEED, 1, n_draws++) % n);
}

/* Rows that choose TOP_K different experts each, low ones more often; which are low moves with `shift`. */
static void draw_rows(uint16_t *ids, uint32_t n_tok, uint32_t shift) {
    for (uint32_t t = 0; t < n_tok; t++) {
        uint32_t seen = 0;
        for (uint32_t k = 0; k < TOP_K;) {
            uint32_t e = (draw(1 + draw(EXPERTS)) + shift) % EXPERTS;
            if (seen & 1U << e) continue;
            seen |= 1U << e;
            ids[t * TOP_K + k++] = (uint16_t)e;
        }
    }
}

/* What a test knows of a policy, kept by plain loops. */
typedef struct {
    td_residency_policy *policy;
    double               uses[LAYERS][EXPERTS];
    td_expert_state      state[LAYERS][EXPERTS];
    bool                 chosen[LAYERS][EXPERTS];
    bool                 held[LAYERS];
    bool                 pays; /* whether its swaps must */
    uint32_t             n_swaps;
} watched;

static void count(watched *w, uint32_t layer, const uint16_t *ids, uint32_t n_tok, bool prompt) {
    td_residency_policy_count(w->policy, layer, n_tok, ids, prompt);
    for (uint32_t t = 0; t < n_tok; t++) {
        bool counts = !prompt || t + TD_RESIDENCY_PROMPT_ROWS >= n_tok;
        for (uint32_t e = 0; e < EXPERTS; e++) w->uses[layer][e] *= counts ? exp2(-1.0 / TD_RESIDENCY_HALF_LIFE) : 1;
        for (uint32_t k = 0; k < TOP_K; k++) {
            w->uses[layer][ids[t * TOP_K + k]] += counts;
            w->chosen[layer][ids[t * TOP_K + k]] = true;
        }
    }
}

static uint32_t slots_taken(const watched *w, uint32_t layer) {
    uint32_t n = 0;
    for (uint32_t e = 0; e < EXPERTS; e++) n += w->state[layer][e] != TD_EXPERT_ABSENT;
    return n;
}

/* A swap that was proposed, against all rules. */
static void take(watched *w, const td_residency_swap *s) {
    assert_in_range(s->layer, 0, LAYERS - 1);
    assert_false(w->held[s->layer]);
    assert_in_range(s->in, 0, EXPERTS - 1);
    td_expert_state *state = w->state[s->layer];
    const double    *uses = w->uses[s->layer];
    assert_int_equal(state[s->in], TD_EXPERT_ABSENT);
    if (s->out == NONE) {
        assert_true(slots_taken(w, s->layer) < SLOTS);
        if (w->pays) assert_true(uses[s->in] > 0);
    } else {
        assert_in_range(s->out, 0, EXPERTS - 1);
        assert_int_equal(state[s->out], TD_EXPERT_RESIDENT);
        assert_false(w->chosen[s->layer][s->out]);
        if (w->pays) assert_true(uses[s->in] - uses[s->out] > TD_RESIDENCY_UPLOAD_COST - 1e-3);
        state[s->out] = TD_EXPERT_ABSENT;
    }
    state[s->in] = TD_EXPERT_LOADING;
    assert_true(slots_taken(w, s->layer) <= SLOTS);
    w->n_swaps++;
}

static void end_upload(watched *w, uint32_t layer, uint16_t e, bool failed) {
    td_residency_policy_end_upload(w->policy, layer, e, failed);
    w->state[layer][e] = failed ? TD_EXPERT_ABSENT : TD_EXPERT_RESIDENT;
    if (failed) w->uses[layer][e] = 0;
}

static void compare(const watched *w) {
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint16_t e = 0; e < EXPERTS; e++) {
            assert_int_equal(td_residency_policy_state(w->policy, l, e), w->state[l][e]);
            assert_true(fabs(td_residency_policy_uses(w->policy, l, e) - w->uses[l][e]) < 1e-4 * (1 + w->uses[l][e]));
        }
}

/* Steps with decoded rows, now and then a prompt; some swaps before a step's layers, some between them; uploads that end
 * later, some of them failed. */
static void run(watched *w, uint32_t n_steps) {
    static uint16_t ids[TOKENS_MAX * TOP_K];
    for (uint32_t step = 0; step < n_steps; step++) {
        td_residency_swap s;
        td_residency_policy_begin_step(w->policy);
        memset(w->chosen, 0, sizeof w->chosen);
        for (uint32_t l = 0; l < LAYERS; l++) td_residency_policy_hold(w->policy, l, w->held[l] = draw(6) == 0);
        for (uint32_t i = draw(3); i > 0 && td_residency_policy_next(w->policy, &s); i--) take(w, &s);
        for (uint32_t l = 0; l < LAYERS; l++) {
            uint32_t n = 1 + draw(3);
            draw_rows(ids, n, step / 100);
            count(w, l, ids, n, false);
            if (draw(8) == 0) {
                n = 1 + draw(TOKENS_MAX);
                draw_rows(ids, n, step / 100 + 5);
                count(w, l, ids, n, true);
            }
            for (uint32_t i = draw(3); i > 0 && td_residency_policy_next(w->policy, &s); i--) take(w, &s);
        }
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint16_t e = 0; e < EXPERTS; e++)
                if (w->state[l][e] == TD_EXPERT_LOADING && draw(2)) end_upload(w, l, e, draw(8) == 0);
        compare(w);
    }
}

TEST(every_swap_keeps_the_rules) {
    watched w = {.pays = true};
    OK(td_residency_policy_open(&CONFIG, &w.policy, NULL));
    print_message("seed %d\n", SEED);
    run(&w, STEPS * 8); /* beyond a scaling of the counts */
    assert_in_range(w.n_swaps, LAYERS * SLOTS, STEPS * 8 * LAYERS);
    td_residency_policy_close(w.policy);
}

TEST(chaos_keeps_the_rules_that_are_about_memory) {
    watched w = {0};
    OK(td_residency_policy_open_chaos(&CONFIG, SEED, &w.policy, NULL));
    run(&w, STEPS);
    assert_true(w.n_swaps > STEPS);
    td_residency_policy_close(w.policy);
}

/* The swaps of a seed's first steps, as one number. */
static uint64_t swaps_of(uint64_t seed) {
    AT_END(end_policy) td_residency_policy *p;
    td_residency_swap                       s;
    uint64_t                                all = 0;
    uint16_t                                ids[TOP_K] = {0, 1, 2, 3};
    OK(td_residency_policy_open_chaos(&CONFIG, seed, &p, NULL));
    for (uint32_t step = 0; step < 50; step++) {
        td_residency_policy_begin_step(p);
        for (uint32_t l = 0; l < LAYERS; l++) td_residency_policy_count(p, l, 1, ids, false);
        uint32_t n = 0;
        for (; td_residency_policy_next(p, &s); n++) {
            all = all * 1099511628211u + (s.layer << 16 | s.in) * 65537ull + s.out;
            td_residency_policy_end_upload(p, s.layer, s.in, false);
        }
        assert_in_range(n, 0, 100); /* it comes to rest */
        all = all * 31 + n;
    }
    return all;
}

TEST(chaos_is_reproduced_by_its_seed) {
    assert_true(swaps_of(1) == swaps_of(1));
    assert_true(swaps_of(1) != swaps_of(2));
}

TEST(it_keeps_what_is_used_and_lets_go_what_is_not) {
    td_residency_config                     c = {.n_layers = 1, .n_experts = 8, .top_k = 2, .n_slots = 2, .upload_cost = 1};
    td_residency_swap                       s;
    AT_END(end_policy) td_residency_policy *p;
    uint16_t                                first[] = {0, 1}, mixed[] = {0, 5}, later[] = {4, 5};
    OK(td_residency_policy_open(&c, &p, NULL));
    assert_false(td_residency_policy_next(p, &s)); /* nothing was used */
    for (int i = 0; i < 20; i++) td_residency_policy_count(p, 0, 1, first, false);
    for (uint16_t e = 0; e < 2; e++) {
        assert_true(td_residency_policy_next(p, &s));
        assert_int_equal(s.in, e);
        assert_int_equal(s.out, NONE);
        td_residency_policy_end_upload(p, 0, e, false);
    }
    assert_false(td_residency_policy_next(p, &s));
    td_residency_policy_begin_step(p);
    td_residency_policy_count(p, 0, 1, mixed, false);
    assert_false(td_residency_policy_next(p, &s)); /* one use does not pay for the upload */
    int n = 0;
    do {
        td_residency_policy_begin_step(p);
        td_residency_policy_count(p, 0, 1, later, false);
        n++;
    } while (!td_residency_policy_next(p, &s));
    assert_in_range(n, 8, 20); /* about as often as the others were, which have faded meanwhile */
    assert_int_equal(s.in, 5);
    assert_int_equal(s.out, 1);
}

/* Who goes later is neither resident nor absent meanwhile, so nobody asks for it twice. */
TEST(an_expert_that_goes_later_is_leaving_until_it_is_told) {
    td_residency_config c = {.n_layers = 1, .n_experts = 6, .top_k = 1, .n_slots = 2, .upload_cost = 1, .goes_later = true};
    AT_END(end_policy) td_residency_policy *p;
    td_residency_swap                       s, next;
    uint16_t                                ids[] = {3, 4};
    OK(td_residency_policy_open(&c, &p, NULL));
    for (uint16_t e = 0; e < 2; e++) td_residency_policy_place(p, 0, e);
    assert_false(td_residency_policy_next(p, &s)); /* no slot is empty, and nothing was used */
    for (int i = 0; i < 4; i++) td_residency_policy_count(p, 0, 2, ids, false);
    assert_true(td_residency_policy_next(p, &s));
    assert_int_equal(td_residency_policy_state(p, 0, s.in), TD_EXPERT_LOADING);
    assert_int_equal(td_residency_policy_state(p, 0, s.out), TD_EXPERT_LEAVING);
    assert_true(td_residency_policy_next(p, &next));
    assert_true(next.in != s.in && next.out != s.out && next.in != s.out);
    assert_false(td_residency_policy_next(p, &(td_residency_swap){0}));
    td_residency_policy_end_leave(p, &s, false);
    assert_int_equal(td_residency_policy_state(p, 0, s.out), TD_EXPERT_ABSENT);
    td_residency_policy_end_upload(p, 0, s.in, false);
    td_residency_policy_end_leave(p, &next, true);
    assert_int_equal(td_residency_policy_state(p, 0, next.out), TD_EXPERT_STAYS);
    assert_int_equal(td_residency_policy_state(p, 0, next.in), TD_EXPERT_ABSENT);
    for (int i = 0; i < 100; i++) {
        uint16_t other = 5;
        td_residency_policy_begin_step(p);
        td_residency_policy_count(p, 0, 1, &other, false);
    }
    td_residency_policy_begin_step(p);
    assert_true(td_residency_policy_next(p, &s)); /* the other slot's */
    assert_true(s.in == 5 && s.out != next.out);
    assert_false(td_residency_policy_next(p, &s));
}

TEST(a_prompt_does_not_outweigh_what_decodes) {
    td_residency_config                     c = {.n_layers = 1, .n_experts = 8, .top_k = 1, .n_slots = 1, .upload_cost = 1};
    AT_END(end_policy) td_residency_policy *p;
    static uint16_t                         prompt[4096];
    uint16_t                                decoded = 1;
    for (size_t i = 0; i < 4096; i++) prompt[i] = 2;
    OK(td_residency_policy_open(&c, &p, NULL));
    for (int i = 0; i < 500; i++) td_residency_policy_count(p, 0, 1, &decoded, false);
    td_residency_policy_count(p, 0, 4096, prompt, true);
    float decoding = td_residency_policy_uses(p, 0, 1), prompts = td_residency_policy_uses(p, 0, 2);
    assert_true(fabsf(decoding - prompts) < 0.02F * decoding); /* the last half-life of two */
}

TEST(a_prompt_that_chose_all_changes_what_is_resident_in_the_next_step) {
    td_residency_config                     c = {.n_layers = 1, .n_experts = 8, .top_k = 1, .n_slots = 1, .upload_cost = 1};
    AT_END(end_policy) td_residency_policy *p;
    td_residency_swap                       s;
    uint16_t                                decoded = 1, prompt[] = {0, 1, 2, 3, 4, 5, 6, 7, 2, 2, 2, 2};
    OK(td_residency_policy_open(&c, &p, NULL));
    td_residency_policy_count(p, 0, 1, &decoded, false);
    assert_true(td_residency_policy_next(p, &s));
    td_residency_policy_end_upload(p, 0, s.in, false);
    td_residency_policy_begin_step(p);
    td_residency_policy_count(p, 0, sizeof prompt / sizeof *prompt, prompt, true);
    assert_false(td_residency_policy_next(p, &s));
    td_residency_policy_begin_step(p);
    assert_true(td_residency_policy_next(p, &s));
    assert_int_equal(s.in, 2);
    assert_int_equal(s.out, 1);
}

typedef struct {
    const char         *name, *says;
    td_residency_config c;
} refusal;

static const refusal REFUSED[] = {
    {"no layer", "0 layers", {0, 8, 2, 4, 1, false}},
    {"no expert", "of 0 experts", {1, 0, 2, 4, 1, false}},
    {"an id that says that there is none", "of 65535 experts", {1, 65535, 2, 4, 1, false}},
    {"no experts a token", "choose 0 of 8", {1, 8, 0, 4, 1, false}},
    {"more a token than there are", "choose 9 of 8", {1, 8, 9, 8, 1, false}},
    {"fewer slots than a token needs", "2 to 8 are possible", {1, 8, 2, 1, 1, false}},
    {"more slots than experts", "2 to 8 are possible", {1, 8, 2, 9, 1, false}},
    {"an upload that gives uses", "cost -1 uses", {1, 8, 2, 4, -1, false}},
    {"an upload that costs no number", "cannot cost", {1, 8, 2, 4, NAN, false}},
};

static void is_refused(void **state) {
    const refusal       *r = *state;
    td_residency_policy *p;
    td_error             err = {0};
    assert_int_equal(td_residency_policy_open(&r->c, &p, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, r->says));
    assert_int_equal(td_residency_policy_open_chaos(&r->c, 1, &p, &err), TD_EINVAL);
}
TEST_ROWS(is_refused, REFUSED)
