/*
 * The sampler, compared with a plain one in double precision with a full sort and with the exact distribution (chi-square);
 * and its edge cases.
 */
#include <math.h>

#include "core/math/rng.h"
#include "engine/step/sampler.h"
#include "tests/td_test.h"

#define SEED 77001u

static uint64_t g_draws;
static double   draw(void) {
      return td_rng_uniform(SEED, 9, g_draws++);
}
static uint32_t draw_below(uint32_t n) {
    return (uint32_t)(draw() * n);
}

static const td_sampling neutral = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

/* ---- the plain sampler ----------------------------------------------------------------------- */

typedef struct {
    double   x;
    uint32_t id;
} scored;

static int by_score(const void *pa, const void *pb) {
    const scored *a = pa, *b = pb;
    if (a->x != b->x) return a->x > b->x ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

/* Kept tokens with their probabilities in *kept (caller frees), in descending order; returns how many. */
static size_t plain_distribution(const float *logits, uint32_t vocab, const td_sample_args *a, scored **kept) {
    const td_sampling *p = a->sampling;
    scored            *c = malloc(vocab * sizeof *c);
    for (uint32_t v = 0; v < vocab; v++) {
        double   x = logits[v];
        uint32_t in_prompt = 0, in_output = 0;
        for (uint32_t i = 0; i < a->n_prompt; i++) in_prompt += a->prompt[i] == v;
        for (uint32_t i = 0; i < a->n_generated; i++) in_output += a->generated[i] == v;
        if (in_prompt + in_output) x = x > 0 ? x / p->repetition_penalty : x * p->repetition_penalty;
        x -= p->frequency_penalty * in_output + p->presence_penalty * (in_output > 0);
        for (size_t i = 0; i < p->n_bias; i++)
            if (p->bias_ids[i] == v) x += p->bias[i];
        for (uint32_t i = 0; i < a->n_banned; i++)
            if (a->banned[i] == v) x = -INFINITY;
        if (a->allowed && !(a->allowed[v / 32] >> v % 32 & 1)) x = -INFINITY;
        c[v] = (scored){x, v};
    }
    qsort(c, vocab, sizeof *c, by_score);
    double temperature = p->temperature > 0 ? p->temperature : 1, top = c[0].x, sum = 0;
    size_t n = p->temperature == 0 ? 1 : p->top_k && p->top_k < vocab ? p->top_k : vocab;
    for (size_t i = 0; i < n; i++) {
        c[i].x = exp((c[i].x - top) / temperature);
        sum += c[i].x;
    }
    if (p->top_p < 1) {
        double mass = 0;
        size_t m = 0;
        while (m < n && mass < p->top_p * sum) mass += c[m++].x;
        n = m;
    }
    while (n > 1 && c[n - 1].x < p->min_p) n--;
    sum = 0;
    for (size_t i = 0; i < n; i++) sum += c[i].x;
    for (size_t i = 0; i < n; i++) c[i].x /= sum;
    *kept = c;
    return n;
}

/* ---- comparisons ----------------------------------------------------------------------------- */

typedef struct {
    uint32_t    vocab, n_prompt, n_generated, n_banned;
    float      *logits;
    uint32_t    prompt[40], generated[40], banned[4], bias_ids[4];
    bool        has_allowed;
    uint32_t    allowed[40003 / 32 + 1];
    float       bias[4];
    td_sampling sampling;
} trial;

static void make_trial(trial *t, float *logits) {
    static const uint32_t vocabs[] = {1, 2, 17, 300, 1024, 5000, 40003};
    static const double   top_ps[] = {1, 1, 0.95, 0.5, 0.05, 0.9999};
    *t =
        (trial){.vocab = vocabs[draw_below(7)], .n_prompt = draw_below(40), .n_generated = draw_below(40), .logits = logits};
    double spread = draw() < 0.3 ? 0.05 : 1 + 8 * draw();
    for (uint32_t v = 0; v < t->vocab; v++) {
        logits[v] = (float)(spread * (draw() + draw() + draw() - 1.5) * 2);
        if (draw() < 0.2) logits[v] = roundf(logits[v]); /* ties */
    }
    for (uint32_t i = 0; i < t->n_prompt; i++) t->prompt[i] = draw_below(t->vocab);
    for (uint32_t i = 0; i < t->n_generated; i++) t->generated[i] = draw_below(t->vocab < 20 ? t->vocab : 20);
    t->sampling = neutral;
    t->sampling.temperature = draw() < 0.2 ? 0 : 0.1 + 2 * draw();
    t->sampling.top_p = top_ps[draw_below(6)];
    if (draw() < 0.4) t->sampling.top_k = 1 + draw_below(t->vocab + 3);
    if (draw() < 0.3) t->sampling.min_p = draw() * draw();
    if (draw() < 0.3) t->sampling.repetition_penalty = 0.5 + draw();
    if (draw() < 0.3) t->sampling.frequency_penalty = 4 * draw() - 2;
    if (draw() < 0.3) t->sampling.presence_penalty = 4 * draw() - 2;
    if (draw() < 0.3 && t->vocab >= 17) {
        t->sampling.n_bias = 4;
        for (uint32_t i = 0; i < 4; i++) {
            t->bias_ids[i] = 4 * i + draw_below(4);
            t->bias[i] = (float)(20 * draw() - 10);
        }
    }
    if (draw() < 0.3 && t->vocab >= 17) {
        t->n_banned = 4;
        for (uint32_t i = 0; i < 4; i++) t->banned[i] = draw_below(t->vocab);
    }
    t->has_allowed = draw() < 0.3 && t->vocab >= 17;
    for (uint32_t i = 0; t->has_allowed && i <= t->vocab / 32; i++) /* more ids than banned ones in any case */
        t->allowed[i] = (uint32_t)(draw() * 4294967296.0) | (i == 0 ? 0xFFFF : 0);
    t->sampling.bias_ids = t->bias_ids;
    t->sampling.bias = t->bias;
}

static td_sample_args args_of(const trial *t, uint64_t seed) {
    return WITH(td_sample_args, .sampling = &t->sampling, .seed = seed, .prompt = t->prompt, .generated = t->generated,
                .n_prompt = t->n_prompt, .n_generated = t->n_generated, .banned = t->banned, .n_banned = t->n_banned,
                .allowed = t->has_allowed ? t->allowed : NULL);
}

/* The token's slice of the CDF, in ascending id, must hold u. */
static void check_against_plain(td_sampler *s, const trial *t, uint64_t seed) {
    td_sample_args a = args_of(t, seed);
    FREED scored  *kept;
    size_t         n = plain_distribution(t->logits, t->vocab, &a, &kept), at = 0;
    uint32_t       token;
    OK(td_sample(s, t->logits, &a, &token));
    while (at < n && kept[at].id != token) at++;
    if (at == n) fail_msg("token %u is not among the %zu kept of %u", token, n, t->vocab);
    double u = td_rng_uniform(seed, 0, t->n_generated), below = 0;
    for (size_t i = 0; i < n; i++) below += (kept[i].id < token) * kept[i].x;
    if (n > 1 && !(below - 1e-5 <= u && u <= below + kept[at].x + 1e-5))
        fail_msg("token %u covers [%.9f, %.9f], u is %.9f", token, below, below + kept[at].x, u);
}

TEST(agrees_with_a_plain_sampler) {
    print_message("seed %u\n", SEED);
    FREED float *logits = malloc(40003 * sizeof *logits);
    for (int round = 0; round < 500; round++) {
        trial                               t;
        AT_END(td_sampler_close) td_sampler s;
        make_trial(&t, logits);
        OK(td_sampler_open(&s, t.vocab, NULL));
        for (uint64_t seed = 0; seed < 3; seed++) check_against_plain(&s, &t, SEED + seed);
        for (uint32_t v = 0; v < t.vocab; v++) assert_int_equal(s.count[v], 0);
    }
}

/* 60000 draws of a known distribution: sum (observed - expected)^2 / expected stays below its 99.99 % quantile. */
TEST(follows_the_distribution) {
    enum { VOCAB = 12, DRAWS = 60000 };
    const float logits[VOCAB] = {0.5f, -1, 2, 0, 1.5f, -0.5f, 3, -2, 1, 0.25f, 2.5f, -3};
    td_sampling cases[3] = {neutral, neutral, neutral};
    cases[1].top_k = 6, cases[1].temperature = 1.7;
    cases[2].top_p = 0.9, cases[2].min_p = 0.02, cases[2].temperature = 0.8;
    AT_END(td_sampler_close) td_sampler s;
    OK(td_sampler_open(&s, VOCAB, NULL));
    for (int c = 0; c < 3; c++) {
        td_sample_args a = {.sampling = &cases[c], .seed = SEED + (uint64_t)c};
        scored        *kept;
        size_t         n = plain_distribution(logits, VOCAB, &a, &kept);
        uint32_t       seen[VOCAB] = {0};
        for (uint32_t i = 0; i < DRAWS; i++) {
            uint32_t token;
            a.n_generated = 0;
            a.seed = SEED * 1000003ull + (uint64_t)c * DRAWS + i;
            OK(td_sample(&s, logits, &a, &token));
            seen[token]++;
        }
        double   chi2 = 0;
        uint32_t total = 0;
        for (size_t i = 0; i < n; i++) {
            double expected = kept[i].x * DRAWS, d = seen[kept[i].id] - expected;
            chi2 += d * d / expected;
            total += seen[kept[i].id];
        }
        free(kept);
        print_message("case %d: chi-square %.2f with %zu degrees of freedom\n", c, chi2, n - 1);
        assert_int_equal(total, DRAWS);
        assert_true(chi2 < 37.4); /* 99.99 % quantile for 11 degrees of freedom; fewer have a smaller one */
    }
}

TEST(greedy_ties_go_to_the_lowest_id) {
    float logits[2000];
    for (int v = 0; v < 2000; v++) logits[v] = v % 7 == 5 ? 3.5f : 1;
    td_sampling                         greedy = neutral;
    td_sample_args                      a = {.sampling = &greedy};
    AT_END(td_sampler_close) td_sampler s;
    uint32_t                            token;
    greedy.temperature = 0;
    OK(td_sampler_open(&s, 2000, NULL));
    OK(td_sample(&s, logits, &a, &token));
    assert_int_equal(token, 5);
    greedy.temperature = 1;
    greedy.top_k = 1; /* the same rule */
    OK(td_sample(&s, logits, &a, &token));
    assert_int_equal(token, 5);
}

TEST(hopeless_logits_are_refused) {
    float                               logits[40] = {0};
    uint32_t                            all[40], token;
    td_sample_args                      a = {.sampling = &neutral, .banned = all, .n_banned = 40};
    AT_END(td_sampler_close) td_sampler s;
    for (uint32_t v = 0; v < 40; v++) all[v] = v;
    OK(td_sampler_open(&s, 40, NULL));
    assert_int_equal(td_sample(&s, logits, &a, &token), TD_EINVAL);
    a.n_banned = 39;
    OK(td_sample(&s, logits, &a, &token));
    assert_int_equal(token, 39);
    for (int at = 0; at < 40; at += 39) {
        logits[at] = NAN;
        assert_int_equal(td_sample(&s, logits, &a, &token), TD_EDEVICE);
        logits[at] = INFINITY;
        assert_int_equal(td_sample(&s, logits, &a, &token), TD_EDEVICE);
        logits[at] = 0;
    }
}

/* Where td_sample_takes_best says so, what is behind the best logits may as well be -inf. */
TEST(best_logits_are_enough) {
    enum { VOCAB = 3000, BEST = 256 };
    AT_END(td_sampler_close) td_sampler s;
    td_error                            err = {0};
    float                               logits[VOCAB], best[VOCAB];
    scored                              order[VOCAB];
    OK(td_sampler_open(&s, VOCAB, &err));
    for (int round = 0; round < 300; round++) {
        td_sampling    p = WITH(td_sampling, .temperature = round % 5 ? 0.3 + draw() : 0,
                                .top_k = round % 7 ? 1 + draw_below(BEST) : BEST, .top_p = round % 3 ? 1 : 0.2 + 0.8 * draw(),
                                .min_p = round % 4 ? 0 : 0.1 * draw(), .repetition_penalty = 1);
        td_sample_args a = {.sampling = &p, .seed = (uint64_t)round};
        uint32_t       of_all, of_best;
        for (uint32_t v = 0; v < VOCAB; v++) {
            logits[v] = (float)(12 * draw() - 6);
            if (round % 2) logits[v] = roundf(logits[v] * 4) / 4; /* ties, also at the end of the best */
            order[v] = (scored){logits[v], v};
            best[v] = -INFINITY;
        }
        qsort(order, VOCAB, sizeof *order, by_score);
        for (uint32_t i = 0; i < BEST; i++) best[order[i].id] = logits[order[i].id];
        assert_true(td_sample_takes_best(&a, BEST));
        OK(td_sample(&s, logits, &a, &of_all));
        OK(td_sample(&s, best, &a, &of_best));
        assert_int_equal(of_all, of_best);
    }
    td_sampling    p = {.temperature = 1, .top_k = BEST + 1, .top_p = 1, .repetition_penalty = 1};
    td_sample_args a = {.sampling = &p};
    assert_false(td_sample_takes_best(&a, BEST)); /* more than there are */
    p.top_k = 0;
    assert_false(td_sample_takes_best(&a, BEST)); /* all */
    p.top_k = 5, p.frequency_penalty = 0.5;
    a.generated = (const uint32_t[]){3}, a.n_generated = 1;
    assert_false(td_sample_takes_best(&a, BEST)); /* a penalty changes which are the best */
}

TEST(logprobs_match_double_precision) {
    static const uint32_t vocabs[] = {1, 5, 21, 1024, 30011};
    FREED float          *logits = malloc(30011 * sizeof *logits);
    for (int round = 0; round < 60; round++) {
        uint32_t      vocab = vocabs[round % 5], id = draw_below(vocab), n_top = draw_below(TD_LOGPROBS_MAX + 1);
        FREED scored *order = malloc(vocab * sizeof *order);
        double        sum = 0;
        for (uint32_t v = 0; v < vocab; v++) {
            logits[v] = (float)(20 * draw() - 30);
            if (v % 3 == 0) logits[v] = roundf(logits[v]);
            order[v] = (scored){logits[v], v};
            sum += exp(logits[v]);
        }
        qsort(order, vocab, sizeof *order, by_score);
        td_position_logprobs out;
        double               log_sum = td_log_sum_of(logits, vocab);
        assert_true(fabs(log_sum - log(sum)) < 2e-6);
        td_logprobs(logits, vocab, log_sum, id, n_top, &out);
        assert_int_equal(out.id, id);
        assert_true(fabs(out.logprob - (logits[id] - log(sum))) < 2e-6);
        assert_int_equal(out.n_top, n_top < vocab ? n_top : vocab);
        for (uint32_t i = 0; i < out.n_top; i++) {
            assert_int_equal(out.top[i].id, order[i].id);
            assert_true(fabs(out.top[i].logprob - (order[i].x - log(sum))) < 2e-6);
        }
        td_position_logprobs of_best; /* of the best logits and the one alone */
        for (uint32_t i = n_top; i < vocab; i++)
            if (order[i].id != id) logits[order[i].id] = -INFINITY;
        td_logprobs(logits, vocab, log_sum, id, n_top, &of_best);
        assert_int_equal(of_best.n_top, out.n_top);
        for (uint32_t i = 0; i < out.n_top; i++) {
            assert_int_equal(of_best.top[i].id, out.top[i].id);
            assert_true(of_best.top[i].logprob == out.top[i].logprob);
        }
        assert_true(of_best.logprob == out.logprob);
    }
}
