/*
 * Drafting over the fake model, whose MTP layer is nearly right: which drafts are verified and accepted, that a rejected
 * draft leaves no trace, and that the layer may fail. (The whole of test_engine and test_engine_grammar runs with drafts,
 * too.)
 */
#include <math.h>

#include "core/math/rng.h"
#include "engine/step/sampler.h"
#include "fake_model.h"
#include "probe_check.h"
#include "tests/td_test.h"

#define SEED 31337u
#define PAGE 128

static _Atomic uint64_t g_draws;
static uint32_t         draw(uint32_t n) {
            return (uint32_t)(td_rng_u64(SEED, 3, g_draws++) % n);
}

static td_engine_options options(uint64_t kv_tokens, uint32_t max_running) {
    td_engine_options o = engine_options(kv_tokens, 512, max_running);
    if (getenv("TD_TEST_RECURRENT")) {
        fake_recurrent(true);
        o.state_snapshots_gib = 8 * (double)FAKE_STATE_BYTES / (1 << 30);
    }
    o.speculative_algorithm = "NEXTN";
    o.speculative_always = true;
    return o;
}

static probe *random_prompt(uint32_t n_prompt, uint32_t max_tokens) {
    uint32_t ids[FAKE_CONTEXT];
    for (uint32_t i = 0; i < n_prompt; i++) ids[i] = draw(FAKE_VOCAB);
    probe *p = probe_new(ids, n_prompt, max_tokens);
    p->params.ignore_eos = true;
    return p;
}

/* ---- how often a draft is the token ------------------------------------------------------------ */

#define TOP_K 20

/* The distribution that a request of the test samples from: TOP_K tokens in ascending order. */
typedef struct {
    uint32_t id[TOP_K];
    double   p[TOP_K];
} distribution;

static int by_id(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static distribution distribution_of(const float *logits) {
    distribution d;
    double       sum = 0;
    bool         taken[FAKE_VOCAB] = {0};
    for (uint32_t k = 0; k < TOP_K; k++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t v = 0; v < FAKE_VOCAB; v++)
            if (!taken[v] && (best == UINT32_MAX || logits[v] > logits[best])) best = v;
        taken[best] = true;
        d.id[k] = best;
        sum += exp(logits[best]);
    }
    qsort(d.id, TOP_K, sizeof *d.id, by_id);
    for (uint32_t k = 0; k < TOP_K; k++) d.p[k] = exp(logits[d.id[k]]) / sum;
    return d;
}

/* Two probabilities that draws from two distributions give the same token. `most` is that of the best of all ways of drawing
 * from both: sum min(p, q). `same_number` is that of inverse CDFs in ascending order of the token, both given the same
 * random number: the share of the numbers at which both are in the same token. */
static void overlap(const distribution *a, const distribution *b, double *most, double *same_number) {
    double end_a = a->p[0], end_b = b->p[0], at = 0;
    *most = *same_number = 0;
    for (uint32_t i = 0; i < TOP_K; i++)
        for (uint32_t j = 0; j < TOP_K; j++)
            if (a->id[i] == b->id[j]) *most += fmin(a->p[i], b->p[j]);
    for (uint32_t i = 0, j = 0; i < TOP_K && j < TOP_K;) {
        double end = fmin(end_a, end_b);
        if (a->id[i] == b->id[j]) *same_number += end - at;
        at = end;
        if (end_a <= end_b)
            end_a += ++i < TOP_K ? a->p[i] : 0;
        else
            end_b += ++j < TOP_K ? b->p[j] : 0;
    }
}

typedef struct {
    uint64_t verified, accepted;
    double   most, expected, variance;
} acceptance;

/* Checks the drafts of a request that ran to its end. One draft is verified with each token but the first and the last, and
 * an accepted draft is such a token itself. */
static void follow_drafts(const probe *p, td_sampler *s, acceptance *a) {
    uint32_t n_prompt = (uint32_t)p->params.n_prompt, ids[FAKE_CONTEXT], token;
    float    model[FAKE_VOCAB], layer[FAKE_VOCAB];
    memcpy(ids, p->prompt, n_prompt * sizeof *ids);
    memcpy(ids + n_prompt, p->tokens, p->n_tokens * sizeof *ids);
    for (uint32_t n = 1; n + 1 < p->params.max_tokens; n++) {
        td_sample_args args = WITH(td_sample_args, .sampling = &p->params.sampling, .seed = p->params.sampling.seed,
                                   .prompt = ids, .n_prompt = n_prompt, .generated = ids + n_prompt, .n_generated = n);
        fake_logits(ids, n_prompt + n, n_prompt, model);
        fake_layer_logits(ids, n_prompt + n, n_prompt, layer);
        OK(td_sample(s, layer, &args, &token));
        distribution of_model = distribution_of(model), of_layer = distribution_of(layer);
        double       most, same_number;
        overlap(&of_model, &of_layer, &most, &same_number);
        a->verified++;
        a->most += most;
        a->expected += same_number;
        a->variance += same_number * (1 - same_number);
        if (token != ids[n_prompt + n]) continue;
        a->accepted++;
        n++;
    }
}

/* Of many seeds: the tokens are those of the plain loop, and drafts are accepted as often as the two distributions say. */
TEST(sampled_drafts) {
    enum { REQUESTS = 48, AT_ONCE = 8, TOKENS = 40 };
    static const float                  NOISE[] = {0.001f, 0.02f, 0.3f};
    AT_END(td_sampler_close) td_sampler sampler;
    OK(td_sampler_open(&sampler, FAKE_VOCAB, NULL));
    for (size_t k = 0; k < sizeof NOISE / sizeof *NOISE; k++) {
        fake_layer_noise(NOISE[k]);
        td_engine_options             o = options(4096, AT_ONCE);
        AT_END(end_engine) td_engine *e = engine_open(&o);
        acceptance                    a = {0};
        for (uint32_t first = 0; first < REQUESTS; first += AT_ONCE) {
            probe *p[AT_ONCE];
            for (uint32_t i = 0; i < AT_ONCE; i++) {
                p[i] = random_prompt(5, TOKENS);
                p[i]->params.sampling.temperature = 1;
                p[i]->params.sampling.top_k = TOP_K;
                p[i]->params.sampling.has_seed = true;
                p[i]->params.sampling.seed = SEED + 1000 * k + first + i;
                probe_submit(e, p[i]);
            }
            for (uint32_t i = 0; i < AT_ONCE; i++) {
                probe_wait(p[i]);
                follow_drafts(p[i], &sampler, &a);
                probe_finish(e, p[i]);
            }
        }
        td_engine_stats s = idle_stats(e);
        double          n = (double)a.verified;
        print_message("    noise %.3f: %.3f of %.0f drafts accepted, %.3f expected, the distributions have %.3f in common\n",
                      NOISE[k], (double)s.drafts_accepted / n, n, a.expected / n, a.most / n);
        assert_int_equal(s.drafts_verified, a.verified);
        assert_int_equal(s.drafts_accepted, a.accepted);
        assert_true(a.expected <= a.most * (1 + 1e-9));
        assert_true(fabs((double)s.drafts_accepted - a.expected) < 4 * sqrt(a.variance));
        assert_int_equal(s.drafted_tokens, s.drafted_seqs + s.drafts_accepted);
    }
    fake_layer_noise(0);
}

/* A draft is verified only where a token may follow it. */
TEST(short_answers) {
    td_engine_options o = options(2048, 4);
    for (uint32_t tokens = 1; tokens <= 4; tokens++) {
        AT_END(end_engine) td_engine *e = engine_open(&o);
        for (int i = 0; i < 6; i++) {
            probe *p = random_prompt(30, tokens);
            probe_submit(e, p);
            probe_finish(e, p);
        }
        td_engine_stats s = idle_stats(e);
        assert_int_equal(s.drafts_verified > 0, tokens > 2);
        assert_true(s.drafts_verified <= 6u * (tokens > 2 ? tokens - 2 : 0));
    }
}

/* ---- pages ------------------------------------------------------------------------------------- */

#define TOLD_MAX 4096

/* Every sequence of tokens of which the prefix cache said that it has the pages. */
typedef struct {
    uint32_t tokens[64][FAKE_CONTEXT], n_tokens[64]; /* by page, what it and those before it hold */
    uint32_t told[TOLD_MAX][FAKE_CONTEXT], n_told_tokens[TOLD_MAX], n_told;
} cache_diary;

static td_status diary_open(void *user, uint32_t n_pages, uint32_t page_tokens, td_error *err) {
    (void)user, (void)err;
    return n_pages <= 64 && page_tokens == PAGE ? TD_OK : TD_EINVAL;
}

static void diary_stored(void *user, uint32_t page, uint32_t parent, const uint32_t *tokens) {
    cache_diary *d = user;
    uint32_t     before = parent == UINT32_MAX ? 0 : d->n_tokens[parent];
    if (before) memcpy(d->tokens[page], d->tokens[parent], before * sizeof **d->tokens);
    memcpy(d->tokens[page] + before, tokens, PAGE * sizeof *tokens);
    d->n_tokens[page] = before + PAGE;
    if (d->n_told == TOLD_MAX) return;
    memcpy(d->told[d->n_told], d->tokens[page], d->n_tokens[page] * sizeof **d->told);
    d->n_told_tokens[d->n_told++] = d->n_tokens[page];
}

static void diary_removed(void *user, uint32_t page) {
    (void)user, (void)page;
}
static void diary_cleared(void *user) {
    (void)user;
}

static bool begins_with(const probe *p, const uint32_t *tokens, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (i >= p->params.n_prompt + p->n_tokens) return false;
        if (tokens[i] != (i < p->params.n_prompt ? p->prompt[i] : p->tokens[i - p->params.n_prompt])) return false;
    }
    return true;
}

/* Who is told of cached pages (KV events) never hears of a token that was only drafted. Pages are few, so that requests are
 * retracted in the middle of drafting, and answers are cached, as GQA's are. */
TEST(the_cache_has_no_rejected_draft) {
    enum { REQUESTS = 24 };
    static cache_diary      diary;
    const td_cache_listener listener = {diary_open, diary_stored, diary_removed, diary_cleared, &diary, false};
    fake_one_form(true);
    td_engine_options o = options(12 * PAGE, 6);
    o.cache_listener = &listener;
    td_engine *e = engine_open(&o);
    probe     *p[REQUESTS];
    for (uint32_t i = 0; i < REQUESTS; i++) {
        p[i] = random_prompt(1 + draw(2 * PAGE), PAGE + draw(2 * PAGE));
        if (i % 2) p[i]->params.sampling.temperature = 0.2;
        p[i]->params.sampling.has_seed = true;
        p[i]->params.sampling.seed = i;
        probe_submit(e, p[i]);
    }
    for (uint32_t i = 0; i < REQUESTS; i++) probe_wait(p[i]);
    td_engine_stats s = idle_stats(e);
    assert_true(s.retractions > 0 && s.drafts_accepted > 0 && s.drafts_accepted < s.drafts_verified);
    assert_true(diary.n_told > REQUESTS && diary.n_told < TOLD_MAX);
    for (uint32_t k = 0; k < diary.n_told; k++) {
        bool found = false;
        for (uint32_t i = 0; i < REQUESTS && !found; i++) found = begins_with(p[i], diary.told[k], diary.n_told_tokens[k]);
        if (!found) fail_msg("%u cached tokens are those of no request", diary.n_told_tokens[k]);
    }
    for (uint32_t i = 0; i < REQUESTS; i++) probe_finish(e, p[i]);
    close_engine(e);
    fake_one_form(false);
}

/* ---- failures ---------------------------------------------------------------------------------- */

/* The layer or its head fails, once or often: the requests go on, and the next ones are drafted for again. */
TEST(a_layer_that_fails_drafts_nothing) {
    for (int failures = 1; failures <= 64; failures *= 4) {
        td_engine_options             o = options(4096, 4);
        AT_END(end_engine) td_engine *e = engine_open(&o);
        probe                        *p[4];
        for (int first = 0; first < 2; first++) { /* the first pass of all fails, and one amid drafted steps */
            for (int i = 0; i < 4; i++) {
                p[i] = random_prompt(40 + 30 * (uint32_t)i, 60);
                if (!first) probe_submit(e, p[i]);
            }
            fake_fail_layers(first ? failures : 0);
            for (int i = 0; i < 4 && first; i++) probe_submit(e, p[i]);
            probe_wait_tokens(p[0], 10);
            fake_fail_layers(first ? 0 : failures);
            for (int i = 0; i < 4; i++) probe_finish(e, p[i]);
        }
        fake_fail_layers(0);
        td_engine_stats before = idle_stats(e);
        assert_int_equal(before.requests_failed, 0);
        p[0] = random_prompt(40, 60);
        probe_submit(e, p[0]);
        probe_finish(e, p[0]);
        td_engine_stats after = idle_stats(e);
        assert_int_equal(after.requests_failed, 0);
        assert_true(after.drafts_accepted > before.drafts_accepted);
    }
}

/* A drafted step fails, or the head that the drafts' logits come from: what comes out is the same. */
TEST(a_drafted_step_that_fails_is_run_again) {
    td_engine_options             o = options(4096, 40); /* so many that the drafts' logits are computed apart */
    AT_END(end_engine) td_engine *e = engine_open(&o);
    for (int heads = 0; heads < 2; heads++) {
        probe *p[40];
        for (int i = 0; i < 40; i++) {
            p[i] = random_prompt(5, 30);
            probe_submit(e, p[i]);
        }
        for (size_t n = 4; n < 30; n += 5) {
            probe_wait_tokens(p[39], n);
            if (heads)
                fake_fail_heads(1);
            else
                fake_fail_forwards(1);
        }
        for (int i = 0; i < 40; i++) probe_finish(e, p[i]);
        fake_fail_heads(0);
        fake_fail_forwards(0);
    }
    td_engine_stats s = idle_stats(e);
    assert_int_equal(s.requests_failed, 0);
    assert_true(s.drafts_accepted > 0);
}

/* ---- what is refused --------------------------------------------------------------------------- */

static void check_open_fails(const td_engine_options *o, td_status status, const char *word) {
    td_engine *e;
    td_error   err = {0};
    assert_int_equal(td_engine_open(o, &e, &err), status);
    assert_non_null(strstr(err.text, word));
}

TEST(refusals) {
    td_engine_options   o = options(2048, 4);
    const td_page_store store = {.open = NULL}; /* it is refused before anybody calls it */
    o.page_store = &store;
    check_open_fails(&o, TD_ENOTSUP, "kv-store");
    o = options(2048, 4);
    o.speculative_algorithm = "EAGLE";
    check_open_fails(&o, TD_ENOTSUP, "EAGLE");
    o.speculative_algorithm = NULL;
    check_open_fails(&o, TD_EINVAL, "speculative-always");
    o = options(2048, 4);
    fake_has_no_layer(true);
    check_open_fails(&o, TD_ENOTSUP, "multi-token-prediction");
    fake_has_no_layer(false);
}
