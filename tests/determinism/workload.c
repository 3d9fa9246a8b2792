#include "workload.h"

#include "core/math/rng.h"
#include "tests/td_test.h"

#define FIRST_ID 4 /* below are the special tokens of the models here */
#define OTHERS 12

/* Streams of the generator. */
enum { DRAW_SHAPE, DRAW_STAGGER, DRAW_OTHERS, DRAW_PROMPTS };

static uint32_t draw(const workload *w, uint64_t stream, uint64_t n, uint32_t below) {
    return (uint32_t)(td_rng_u64(w->seed, stream, n) % below);
}

static uint32_t token_of(const workload *w, uint32_t prompt, uint32_t at) {
    return FIRST_ID + draw(w, DRAW_PROMPTS + prompt, at, w->vocab - FIRST_ID);
}

/*
 * Requests come in fours. 0-3 are one prompt with seeds s .. s + 3, as n = 4 makes them. 4-7 share a prefix that ends on a
 * page's border, and 8-11 one that ends inside a page. 12-15 are short prompts with answers of more than two pages. Of the
 * others every second has a length at the border of a page.
 */
static uint32_t prompt_of(const workload *w, uint32_t i, uint32_t *ids) {
    static const uint32_t borders[] = {1, 2, 127, 128, 129, 255, 256, 257};
    uint32_t              four = i / 4 * 4, shared = 0, n;
    if (four == 0) {
        n = shared = 3 + draw(w, DRAW_SHAPE, 0, 200);
    } else if (four <= 8) {
        shared = four == 4 ? 128 : 130 + draw(w, DRAW_SHAPE, four, 60);
        n = shared + draw(w, DRAW_SHAPE, i, 80);
    } else if (four == 12) {
        n = 1 + draw(w, DRAW_SHAPE, i, 30);
    } else if (i % 2) {
        n = borders[draw(w, DRAW_SHAPE, i, sizeof borders / sizeof *borders)];
    } else {
        n = 1 + draw(w, DRAW_SHAPE, i, i == 16 ? WORKLOAD_PROMPT_MAX : 150);
    }
    for (uint32_t k = 0; k < n; k++) ids[k] = token_of(w, k < shared ? four : i, k);
    return n;
}

bool workload_is_first(uint32_t i) {
    return i % 4 == 0 || i >= 12;
}

static uint32_t max_tokens_of(const workload *w, uint32_t i) {
    return i / 4 == 3 ? WORKLOAD_TOKENS_MAX - draw(w, DRAW_SHAPE, 2000 + i, 40) : 1 + draw(w, DRAW_SHAPE, 2000 + i, 30);
}

static void set_sampling(const workload *w, uint32_t i, td_sampling *s) {
    uint32_t kind = i < 4 ? 1 : draw(w, DRAW_SHAPE, 1000 + i, 4);
    s->has_seed = true;
    s->seed = w->seed + i;
    s->temperature = kind == 0 ? 0 : 0.6 + 0.1 * kind;
    if (kind == 2) s->top_p = 0.9;
    if (kind == 2) s->frequency_penalty = 0.4;
    if (kind == 3) s->top_k = 20;
    if (kind == 3) s->min_p = 0.02;
    if (kind == 3) s->repetition_penalty = 1.2;
}

/* Some answers have a form: long parts leave no choice, in bytes that are tokens of the smallest vocabulary here. */
static void set_form(uint32_t i, probe *p) {
    static const char source[] = "(\\{Q7#Z@K%9=[0-9]{1,3}X\\}<Z9%K@#7Q>[a-z ]{2,6};){3,9}!!@@##77QQZZ";
    td_error          err = {0};
    if (td_grammar_compile(TD_GRAMMAR_REGEX, source, sizeof source - 1, &p->grammar, &err) != TD_OK)
        fail_msg("%s", err.text);
    p->params.grammar = p->grammar;
    p->params.max_tokens = 60 + i;
    p->params.ignore_eos = false;
    p->params.logprobs = i % 2; /* the others are told what leaves no choice at once */
}

probe *workload_request(const workload *w, uint32_t i) {
    uint32_t ids[WORKLOAD_PROMPT_MAX], n = prompt_of(w, i, ids);
    probe   *p = probe_new(ids, n, max_tokens_of(w, i));
    set_sampling(w, i, &p->params.sampling);
    p->params.logprobs = true;
    p->params.n_top_logprobs = draw(w, DRAW_SHAPE, 3000 + i, 6);
    p->params.prompt_logprobs = i % 5 == 3;
    p->params.ignore_eos = i / 4 == 3 || i % 4 != 2; /* the others may stop earlier */
    if (i == 5 || i == 6 || i == 21 || i == 30) set_form(i, p);
    if (w->priorities) p->params.priority = (int32_t)draw(w, DRAW_SHAPE, 4000 + i / 4, 5) - 2;
    return p;
}

/* Requests that are no part of the answer; every third is cancelled when it has produced a few tokens. */
static void run_others(const workload *w, td_engine *e, probe **others) {
    workload other = {.seed = w->seed ^ 0x5eedULL, .vocab = w->vocab};
    for (uint32_t i = 0; i < OTHERS; i++) probe_submit(e, others[i] = workload_request(&other, i));
    for (uint32_t i = 0; i < OTHERS; i += 3) {
        probe_wait_tokens(others[i], 1 + draw(w, DRAW_OTHERS, i, 8));
        td_request_cancel(others[i]->request);
    }
}

/* No step comes between the first and the last of them. */
static void submit_at_once(td_engine *e, probe **probes, uint32_t n) {
    td_request_params params[WORKLOAD_REQUESTS] = {0};
    td_request       *requests[WORKLOAD_REQUESTS];
    td_error          err = {0};
    for (uint32_t i = 0; i < n; i++) params[i] = probes[i]->params;
    if (td_engine_submit_all(e, params, n, requests, &err) != TD_OK) fail_msg("refused: %s", err.text);
    for (uint32_t i = 0; i < n; i++) probes[i]->request = requests[i];
}

void workload_run(const workload *w, td_engine *e, run_kind kind, probe **probes, uint32_t n) {
    const bool one_by_one = kind == RUN_ONE_BY_ONE || kind == RUN_STAGGERED;
    probe     *others[OTHERS];
    if (kind == RUN_AGAIN) {
        workload_run(w, e, RUN_TOGETHER, probes, n);
        workload_free(probes, n);
    }
    if (kind == RUN_AMONG_OTHERS) run_others(w, e, others);
    for (uint32_t i = 0; i < n; i++) {
        probes[i] = workload_request(w, i);
        if (kind == RUN_STAGGERED && i > 0)
            probe_wait_tokens(probes[draw(w, DRAW_STAGGER, i, i)], 1 + draw(w, DRAW_STAGGER, 1000 + i, 10));
        if (one_by_one) probe_submit(e, probes[i]);
        if (kind == RUN_ONE_BY_ONE) probe_wait(probes[i]);
    }
    if (!one_by_one) submit_at_once(e, probes, n);
    for (uint32_t i = 0; i < n; i++) probe_wait(probes[i]);
    if (kind != RUN_AMONG_OTHERS) return;
    for (uint32_t i = 0; i < OTHERS; i++) probe_wait(others[i]);
    workload_free(others, OTHERS);
}

void workload_free(probe **probes, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) probe_free(probes[i]);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static bool same_logprobs(const td_position_logprobs *a, const td_position_logprobs *b) {
    if (a->id != b->id || a->n_top != b->n_top || bits_of(a->logprob) != bits_of(b->logprob)) return false;
    for (uint32_t k = 0; k < a->n_top; k++)
        if (a->top[k].id != b->top[k].id || bits_of(a->top[k].logprob) != bits_of(b->top[k].logprob)) return false;
    return true;
}

static void check_positions(const char *what, const td_position_logprobs *want, size_t n_want,
                            const td_position_logprobs *got, size_t n_got, uint32_t i) {
    for (size_t k = 0; k < n_want && k < n_got; k++)
        if (!same_logprobs(&want[k], &got[k]))
            fail_msg("request %u: %s %zu is %u with log-probability %.9g, not %u with %.9g (or its alternatives differ)", i,
                     what, k, got[k].id, (double)got[k].logprob, want[k].id, (double)want[k].logprob);
    if (n_want != n_got) fail_msg("request %u: %zu %ss, not %zu", i, n_got, what, n_want);
}

void workload_check_same(const probe *want, const probe *got, uint32_t i) {
    if (got->finish == TD_FINISH_ERROR) fail_msg("request %u: %s", i, got->error.text);
    check_positions("prompt token", want->prompt_logprobs, want->n_prompt_logprobs, got->prompt_logprobs,
                    got->n_prompt_logprobs, i);
    check_positions("token", want->logprobs, want->n_logprobs, got->logprobs, got->n_logprobs, i);
    if (want->n_tokens != got->n_tokens || memcmp(want->tokens, got->tokens, want->n_tokens * sizeof *want->tokens))
        fail_msg("request %u: its tokens differ", i);
    if (want->finish != got->finish || want->stop_token != got->stop_token)
        fail_msg("request %u: it ends for another reason", i);
    if (want->text_len != got->text_len || memcmp(want->text, got->text, want->text_len))
        fail_msg("request %u: its text differs", i);
}
