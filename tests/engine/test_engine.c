/*
 * The engine over the fake model, through the public interface. Every stream equals what a plain loop gives for its request
 * alone, whatever other requests, chunks and retractions it met. No page is lost, and a failure ends only the requests that
 * it belongs to.
 */
#include <math.h>
#include <unistd.h>

#include "core/math/rng.h"
#include "fake_model.h"
#include "probe_check.h"
#include "tests/td_test.h"

#define SEED 5150u

static _Atomic uint64_t g_draws;
static uint32_t         draw(uint32_t n) {
            return (uint32_t)(td_rng_u64(SEED, 3, g_draws++) % n);
}

static td_engine_options options(uint64_t kv_tokens, uint32_t chunk, uint32_t max_running) {
    td_engine_options o = engine_options(kv_tokens, chunk, max_running);
    if (getenv("TD_TEST_DRAFTS")) {
        o.speculative_algorithm = "NEXTN";
        o.speculative_always = true;
    }
    if (getenv("TD_TEST_PIECES")) {
        fake_pieces(3);
        o.max_step_ms = 1;
    }
    if (getenv("TD_TEST_WINDOWS")) fake_windows(true);
    if (getenv("TD_TEST_RECURRENT")) {
        fake_recurrent(true);
        o.state_snapshots_gib = 4 * (double)FAKE_STATE_BYTES / (1 << 30); /* four snapshots: fewer than prompts want */
    }
    return o;
}

static td_engine *open_engine(uint64_t kv_tokens, uint32_t chunk, uint32_t max_running) {
    td_engine_options o = options(kv_tokens, chunk, max_running);
    return engine_open(&o);
}

static probe *random_prompt(uint32_t n_prompt, uint32_t max_tokens) {
    uint32_t ids[FAKE_CONTEXT];
    for (uint32_t i = 0; i < n_prompt; i++) ids[i] = draw(FAKE_VOCAB);
    return probe_new(ids, n_prompt, max_tokens);
}

/* ---- one at a time --------------------------------------------------------------------------- */

TEST(chunks_do_not_matter) {
    static const uint32_t chunks[] = {1, 7, 128, 1000};
    for (size_t c = 0; c < 4; c++) {
        AT_END(end_engine) td_engine *e = open_engine(2048, chunks[c], 4);
        for (uint32_t n = 1; n < 600; n = n * 3 + 1) {
            probe *p = random_prompt(n, 40);
            probe_submit(e, p);
            probe_finish(e, p);
        }
    }
}

TEST(lengths_are_clipped) {
    td_engine *e = open_engine(256, 64, 4); /* KV smaller than the context of 700 */
    probe     *p = random_prompt(200, 1000);
    p->params.ignore_eos = true;
    probe_submit(e, p);
    probe_wait(p);
    assert_int_equal(p->finish, TD_FINISH_LENGTH);
    assert_int_equal(p->n_tokens, 56);
    probe_finish(e, p);
    p = random_prompt(255, 1);
    probe_submit(e, p);
    probe_finish(e, p);
    close_engine(e);

    e = open_engine(2048, 64, 4);
    p = random_prompt(690, 1000);
    p->params.ignore_eos = true;
    probe_submit(e, p);
    probe_wait(p);
    assert_int_equal(p->n_tokens, 10);
    probe_finish(e, p);
    close_engine(e);
}

TEST(stops) {
    AT_END(end_engine) td_engine *e = open_engine(2048, 64, 4);
    /* A first run tells what comes; then stop in the middle of it, in every way. */
    probe *p = random_prompt(20, 30);
    p->params.ignore_eos = true;
    probe_submit(e, p);
    probe_wait(p);
    assert_int_equal(p->n_tokens, 30);
    uint32_t id = p->tokens[12], prompt[20];
    char     middle[5] = {0};
    size_t   at = p->text_len / 2;
    while (((unsigned char)p->text[at] & 0x80) || ((unsigned char)p->text[at + 1] & 0x80) ||
           ((unsigned char)p->text[at + 2] & 0x80))
        at++;
    memcpy(middle, p->text + at, 3);
    memcpy(prompt, p->prompt, sizeof prompt);
    probe_finish(e, p);

    const char *const strings[] = {"never to be seen", middle};
    for (int c = 0; c < 8; c++) {
        p = probe_new(prompt, 20, 30);
        p->params.ignore_eos = true;
        p->params.include_stop = c & 1;
        if (c < 4) {
            p->params.stop = strings;
            p->params.n_stop = 2;
        } else {
            p->params.stop_ids = &id;
            p->params.n_stop_ids = 1;
        }
        if (c & 2) p->params.min_tokens = 29;
        probe_submit(e, p);
        probe_wait(p);
        if (!(c & 2)) assert_int_equal(p->finish, TD_FINISH_STOP);
        if (!(c & 2) && c >= 4) assert_int_equal(p->stop_token, id);
        probe_finish(e, p);
    }
}

TEST(prompt_scores) {
    AT_END(end_engine) td_engine *e = open_engine(2048, 50, 3); /* more rows than max_out */
    for (uint32_t n = 1; n < 700; n = n * 2 + 7) {
        probe *p = random_prompt(n, n % 3);
        p->params.prompt_logprobs = true;
        p->params.n_top_logprobs = n % 21;
        probe_submit(e, p);
        probe_finish(e, p);
    }
}

/* ---- many at a time -------------------------------------------------------------------------- */

#define THREADS 3
#define PER_THREAD 40

typedef struct {
    td_engine *e;
    probe     *probes[PER_THREAD];
    uint32_t   pause_us[PER_THREAD];
    bool       cancel[PER_THREAD];
} client;

/* A prompt that begins as one of a few texts does. */
static probe *related_prompt(uint32_t n_prompt, uint32_t max_tokens) {
    uint32_t ids[FAKE_CONTEXT], text = draw(2), own = n_prompt - draw(n_prompt / 4 + 1);
    for (uint32_t i = 0; i < n_prompt; i++)
        ids[i] = i < own ? (uint32_t)(td_rng_u64(SEED, 10 + text, i) % FAKE_VOCAB) : draw(FAKE_VOCAB);
    return probe_new(ids, n_prompt, max_tokens);
}

static const char *const g_stop[] = {"e t", "qu", "the", "\xc3\xa9"};

static probe *random_request(const uint32_t lengths[4], const uint32_t outputs[4]) {
    uint32_t           n_prompt = 1 + draw(lengths[draw(4)]), max_tokens = 1 + draw(outputs[draw(4)]);
    probe             *p = draw(3) == 0 ? random_prompt(n_prompt, max_tokens) : related_prompt(n_prompt, max_tokens);
    td_request_params *q = &p->params;
    if (draw(2)) {
        q->sampling.temperature = 0.2 + 0.1 * draw(20);
        q->sampling.has_seed = true;
        q->sampling.seed = draw(1u << 31);
        if (draw(3) == 0) q->sampling.top_k = 1 + draw(50);
        if (draw(3) == 0) q->sampling.top_p = 0.5 + 0.02 * draw(25);
        if (draw(3) == 0) q->sampling.min_p = 0.01 * draw(20);
    }
    if (draw(4) == 0) q->sampling.repetition_penalty = 1.2, q->sampling.frequency_penalty = 0.5;
    if (draw(3)) q->ignore_eos = true;
    if (draw(4) == 0)
        q->min_tokens = 1 + draw(q->max_tokens);
    else if (draw(4) == 0)
        q->stop = g_stop, q->n_stop = 4, q->include_stop = draw(2);
    if (draw(5) == 0) q->logprobs = true, q->n_top_logprobs = draw(6);
    if (draw(8) == 0) q->prompt_logprobs = true;
    if (draw(20) == 0) q->max_tokens = q->min_tokens = 0, q->prompt_logprobs = true;
    q->skip_special_tokens = draw(2);
    q->priority = (int32_t)draw(2);
    return p;
}

static void *run_client(void *arg) {
    client *c = arg;
    for (int i = 0; i < PER_THREAD; i++) {
        td_error err = {0};
        while (td_engine_submit(c->e, &c->probes[i]->params, &c->probes[i]->request, &err) == TD_EBUSY) usleep(500);
        usleep(c->pause_us[i]);
        if (c->cancel[i]) td_request_cancel(c->probes[i]->request);
    }
    return NULL;
}

static td_engine_stats run_company(td_engine_options o, const uint32_t lengths[4], const uint32_t outputs[4]) {
    print_message("seed %u\n", SEED);
    o.max_queued_requests = 40;
    AT_END(end_engine) td_engine *e;
    OK(td_engine_open(&o, &e, NULL));
    client    clients[THREADS];
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++) {
        clients[t].e = e;
        for (int i = 0; i < PER_THREAD; i++) {
            clients[t].probes[i] = random_request(lengths, outputs);
            clients[t].pause_us[i] = draw(8) ? 0 : draw(3000);
            clients[t].cancel[i] = draw(6) == 0;
        }
    }
    for (int t = 0; t < THREADS; t++) assert_int_equal(pthread_create(&threads[t], NULL, run_client, &clients[t]), 0);
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    uint64_t aborted = 0;
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < PER_THREAD; i++) {
            probe *p = clients[t].probes[i];
            probe_wait(p);
            if (p->finish == TD_FINISH_ABORT) {
                assert_true(clients[t].cancel[i]);
                aborted++;
            }
            probe_finish(e, p);
        }
    td_engine_stats s = idle_stats(e);
    print_message(
        "%lu requests, %lu aborted, %lu retractions, %lu + %lu steps, %lu of %lu prompt tokens cached, %lu pages evicted\n",
        s.requests_total, s.requests_aborted, s.retractions, s.steps_prefill, s.steps_decode, s.cached_tokens,
        s.prompt_tokens, s.cache_evictions);
    assert_int_equal(s.requests_total, THREADS * PER_THREAD);
    assert_int_equal(s.requests_aborted, aborted);
    assert_int_equal(s.requests_failed, 0);
    return s;
}

TEST(random_company) {
    static const uint32_t lengths[] = {5, 200, 350, 450}, outputs[] = {2, 30, 120, 250};
    td_engine_stats       s = run_company(options(7 * 128, 48, 10), lengths, outputs);
    assert_true(s.cached_tokens > 0 && s.cache_evictions > 0);
}

TEST(random_company_short_of_pages) {
    static const uint32_t lengths[] = {3, 50, 100, 120}, outputs[] = {150, 200, 300, 400};
    assert_true(run_company(options(5 * 128, 48, 10), lengths, outputs).retractions > 0);
}

/* Pages of generated tokens are shared too. */
TEST(random_company_of_one_form) {
    static const uint32_t lengths[] = {5, 200, 300, 400}, outputs[] = {2, 100, 200, 300};
    fake_one_form(true);
    td_engine_stats s = run_company(options(10 * 128, 48, 10), lengths, outputs);
    fake_one_form(false);
    assert_true(s.cached_tokens > 0);
}

TEST(random_company_by_turns) {
    static const uint32_t lengths[] = {5, 40, 200, 450}, outputs[] = {2, 30, 120, 250};
    td_engine_options     o = options(12 * 128, 48, 10);
    o.disable_mixed_chunk = true;
    o.disable_radix_cache = true;
    td_engine_stats s = run_company(o, lengths, outputs);
    assert_int_equal(s.cached_tokens, 0);
    assert_int_equal(s.kv_tokens_cached, 0);
}

/* A window of 200 tokens beside other layers. */
static td_engine_stats company_with_windows(uint64_t pages, uint32_t max_running, const uint32_t lengths[4],
                                            const uint32_t outputs[4]) {
    fake_windows(true);
    fake_one_form(true);
    td_engine_stats s = run_company(options(pages * 128, 48, max_running), lengths, outputs);
    fake_one_form(false);
    fake_windows(getenv("TD_TEST_WINDOWS") != NULL);
    return s;
}

TEST(random_company_of_windows) {
    static const uint32_t lengths[] = {5, 200, 350, 450}, outputs[] = {2, 30, 120, 250};
    td_engine_stats       s = company_with_windows(40, 2, lengths, outputs);
    assert_int_equal(s.window_tokens, (2 * 4 + 1 + 40 / 8) * 128); /* fewer than half */
    assert_true(s.cached_tokens > 0 && s.window_tokens_cached > 0);
}

TEST(random_company_of_windows_short_of_pages) {
    static const uint32_t lengths[] = {3, 50, 100, 120}, outputs[] = {150, 200, 300, 400};
    td_engine_stats       s = company_with_windows(5, 10, lengths, outputs);
    assert_int_equal(s.window_tokens, 5 * 128); /* never more than pages */
    assert_true(s.retractions > 0);
}

/* Submit a request to an idle engine whose forwards are held: it runs when this returns. */
static void submit_running(td_engine *e, probe *p) {
    td_engine_stats s = {.queued = 1};
    probe_submit(e, p);
    while (s.queued) {
        usleep(1000);
        td_engine_get_stats(e, &s);
    }
}

/* ---- prefix cache ---------------------------------------------------------------------------- */

/* A second request whose prompt is that of the first, the answer, and something new. */
static probe *next_turn(const probe *p, uint32_t n_new) {
    uint32_t ids[FAKE_CONTEXT], n = 0;
    for (size_t i = 0; i < p->params.n_prompt; i++) ids[n++] = p->prompt[i];
    for (size_t i = 0; i < p->n_tokens; i++) ids[n++] = p->tokens[i];
    for (uint32_t i = 0; i < n_new; i++) ids[n++] = draw(FAKE_VOCAB);
    return probe_new(ids, n, 20);
}

/* Run a request to its end. @return the prompt tokens that the cache spared. */
static uint32_t cached_tokens_of(td_engine *e, probe *p) {
    p->params.ignore_eos = true;
    probe_submit(e, p);
    probe_wait(p);
    return p->last.cached_tokens;
}

TEST(turns_of_a_chat) {
    for (int one_form = 0; one_form < 2; one_form++) {
        fake_one_form(one_form);
        AT_END(end_engine) td_engine *e = open_engine(4096, 64, 4);
        probe                        *first = random_prompt(200, 100); /* 300 tokens: one page of the prompt, two of all */
        assert_int_equal(cached_tokens_of(e, first), 0);
        probe *second = next_turn(first, 10);
        assert_int_equal(cached_tokens_of(e, second), one_form ? 256 : 128);
        probe *again = probe_new(second->prompt, second->params.n_prompt, 20);
        assert_int_equal(cached_tokens_of(e, again), 256);
        td_engine_flush_cache(e);
        probe *flushed = probe_new(second->prompt, second->params.n_prompt, 20);
        assert_int_equal(cached_tokens_of(e, flushed), 0);
        probe *scored = probe_new(second->prompt, second->params.n_prompt, 20);
        scored->params.prompt_logprobs = true; /* every row of the prompt has to be computed */
        assert_int_equal(cached_tokens_of(e, scored), 0);
        assert_int_equal(idle_stats(e).cached_tokens, (one_form ? 256 : 128) + 256);
        probe *all[] = {first, second, again, flushed, scored};
        for (int i = 0; i < 5; i++) probe_finish(e, all[i]);
    }
    fake_one_form(false);
}

/* Prompts of 400 tokens that have 300 in common. The second one finds pages but no state where it goes its own way, and
 * leaves one there for the third. */
TEST(states_at_branches) {
    fake_recurrent(true);
    td_engine *e = open_engine(4096, 512, 4);
    probe     *p[3];
    for (int i = 0; i < 3; i++) {
        p[i] = i ? probe_new(p[0]->prompt, 400, 5) : random_prompt(400, 5);
        for (uint32_t k = 300; i && k < 400; k++) p[i]->prompt[k] = draw(FAKE_VOCAB);
        assert_int_equal(cached_tokens_of(e, p[i]), i == 2 ? 256 : 0);
    }
    td_engine_stats s = idle_stats(e);
    assert_int_equal(s.state_snapshots, 4); /* behind 256 tokens, and at the end of each prompt */
    td_engine_flush_cache(e);
    probe *again = probe_new(p[0]->prompt, 400, 5);
    assert_int_equal(cached_tokens_of(e, again), 0);
    assert_int_equal(idle_stats(e).state_snapshots, 1);
    for (int i = 0; i < 3; i++) probe_finish(e, p[i]);
    probe_finish(e, again);
    close_engine(e);
    fake_recurrent(getenv("TD_TEST_RECURRENT") != NULL);
}

/* Requests with a common beginning that arrive together: the first computes it, and leaves its state for the others. */
TEST(states_for_those_that_wait) {
    fake_recurrent(true);
    td_engine *e = open_engine(4096, 512, 8);
    probe     *first = random_prompt(10, 1), *p[4];
    fake_hold(true);
    submit_running(e, first);
    for (int i = 0; i < 4; i++) {
        p[i] = i ? probe_new(p[0]->prompt, 400, 10) : random_prompt(400, 10);
        for (uint32_t k = 300; i && k < 400; k++) p[i]->prompt[k] = draw(FAKE_VOCAB);
        p[i]->params.ignore_eos = true;
        probe_submit(e, p[i]);
    }
    fake_hold(false);
    probe_finish(e, first);
    for (int i = 0; i < 4; i++) probe_finish(e, p[i]);
    assert_int_equal(idle_stats(e).cached_tokens, 3 * 256);
    close_engine(e);
    fake_recurrent(getenv("TD_TEST_RECURRENT") != NULL);
}

/* The longer an answer, the more borders it passes; only the newest state of it is kept. */
TEST(states_of_a_long_answer) {
    fake_recurrent(true);
    fake_one_form(true);
    td_engine *e = open_engine(4096, 64, 1);
    probe     *p = random_prompt(200, 450);
    cached_tokens_of(e, p);
    assert_int_equal(idle_stats(e).state_snapshots, 2); /* behind 128 and 640 tokens */
    probe *next = next_turn(p, 10);
    assert_int_equal(cached_tokens_of(e, next), 640);
    probe_finish(e, p);
    probe_finish(e, next);
    close_engine(e);
    fake_one_form(false);
    fake_recurrent(getenv("TD_TEST_RECURRENT") != NULL);
}

TEST(whole_pages_leave_one_token_to_compute) {
    AT_END(end_engine) td_engine *e = open_engine(2048, 64, 4);
    probe                        *first = random_prompt(256, 5), *again = probe_new(first->prompt, 256, 5);
    assert_int_equal(cached_tokens_of(e, first), 0);
    assert_int_equal(cached_tokens_of(e, again), 128);
    probe_finish(e, first);
    probe_finish(e, again);
}

/* Choices of one prompt, submitted together: the first computes it, the others wait for its pages. */
TEST(common_prompt_is_computed_once) {
    AT_END(end_engine) td_engine *e = open_engine(4096, 64, 8);
    probe                        *first = random_prompt(10, 1), *p[6];
    fake_hold(true);
    submit_running(e, first);
    for (int i = 0; i < 6; i++) {
        p[i] = i ? probe_new(p[0]->prompt, 400, 10) : random_prompt(400, 10);
        p[i]->params.ignore_eos = true;
        probe_submit(e, p[i]);
    }
    fake_hold(false);
    probe_wait(first);
    for (int i = 0; i < 6; i++) probe_wait(p[i]);
    td_engine_stats s = idle_stats(e);
    assert_int_equal(s.cached_tokens, 5 * 384);
    assert_int_equal(s.kv_tokens_cached, 384);
    probe_finish(e, first);
    for (int i = 0; i < 6; i++) probe_finish(e, p[i]);
}

/* Flushing in the middle of requests that share pages takes nothing from them. */
TEST(flush_while_running) {
    AT_END(end_engine) td_engine *e = open_engine(4096, 32, 8);
    for (int round = 0; round < 20; round++) {
        probe *p[6];
        for (int i = 0; i < 6; i++) {
            p[i] = related_prompt(150 + draw(200), 60);
            p[i]->params.ignore_eos = true;
            probe_submit(e, p[i]);
            if (draw(3) == 0) usleep(draw(2000));
            td_engine_flush_cache(e);
        }
        for (int i = 0; i < 6; i++) probe_finish(e, p[i]);
    }
}

TEST(retraction_is_invisible) {
    td_engine *e =
        open_engine(4 * 128, 200, 4); /* four requests of 90 + 100 tokens: two pages each in the end, four pages there are */
    probe *first = random_prompt(10, 1), *p[4];
    fake_hold(true);
    submit_running(e, first); /* while it is held the four gather, so that they are admitted together */
    for (int i = 0; i < 4; i++) {
        p[i] = random_prompt(90, 100);
        p[i]->params.ignore_eos = true;
        probe_submit(e, p[i]);
    }
    fake_hold(false);
    probe_finish(e, first);
    for (int i = 0; i < 4; i++) probe_finish(e, p[i]);
    assert_true(idle_stats(e).retractions > 0);
    assert_int_equal(idle_stats(e).retracted, 0);
    close_engine(e);
}

TEST(priority_goes_first) {
    AT_END(end_engine) td_engine *e = open_engine(2048, 64, 1);
    probe                        *p[4];
    fake_hold(true);
    for (int i = 0; i < 4; i++) {
        p[i] = random_prompt(10, 60);
        p[i]->params.ignore_eos = true;
        p[i]->params.priority = i == 3;
        i == 0 ? submit_running(e, p[i]) : probe_submit(e, p[i]);
    }
    fake_hold(false);
    for (int i = 0; i < 4; i++) probe_wait(p[i]);
    assert_true(p[0]->end_number < p[3]->end_number);
    assert_true(p[3]->end_number < p[1]->end_number);
    assert_true(p[1]->end_number < p[2]->end_number);
    for (int i = 0; i < 4; i++) probe_finish(e, p[i]);
}

/* ---- trouble --------------------------------------------------------------------------------- */

/* Spoil one field of a good request; returns the word that the refusal must name, or NULL after the last case. */
static const char *spoil(int c, td_request_params *p) {
    static const uint32_t    outside = FAKE_VOCAB;
    static const float       bias = NAN;
    static const char *const empty[] = {""};
    switch (c) {
        case 0: return p->n_prompt = 0, "prompt";
        case 1: return p->prompt = &outside, p->n_prompt = 1, "prompt";
        case 2: return p->n_prompt = 640, "KV capacity of 640";
        case 3: return p->n_prompt = 701, "context length of 700";
        case 4: return p->max_tokens = 0, "max_tokens";
        case 5: return p->min_tokens = 11, "min_tokens";
        case 6: return p->sampling.temperature = -0.1, "temperature";
        case 7: return p->sampling.temperature = NAN, "temperature";
        case 8: return p->sampling.top_p = 0, "top_p";
        case 9: return p->sampling.top_p = 1.1, "top_p";
        case 10: return p->sampling.min_p = -1, "min_p";
        case 11: return p->sampling.frequency_penalty = 3, "frequency_penalty";
        case 12: return p->sampling.presence_penalty = -3, "presence_penalty";
        case 13: return p->sampling.repetition_penalty = 0, "repetition_penalty";
        case 14: return p->sampling.bias_ids = &outside, p->sampling.bias = &bias, p->sampling.n_bias = 1, "logit_bias";
        case 15: return p->sampling.bias_ids = p->prompt, p->sampling.bias = &bias, p->sampling.n_bias = 1, "logit_bias";
        case 16: return p->stop = empty, p->n_stop = 1, "stop";
        case 17: return p->stop_ids = &outside, p->n_stop_ids = 1, "stop_token_ids";
        case 18: return p->n_top_logprobs = 21, "top_logprobs";
        case 19: return p->on_event = NULL, "on_event";
        default: return NULL;
    }
}

TEST(bad_requests_are_refused) {
    AT_END(end_engine) td_engine *e = open_engine(640, 64, 4);
    const char                   *word;
    for (int c = 0;; c++) {
        probe      *p = random_prompt(700, 10);
        td_request *r;
        td_error    err = {0};
        p->params.n_prompt = 5;
        word = spoil(c, &p->params);
        if (word) {
            assert_int_equal(td_engine_submit(e, &p->params, &r, &err), TD_EINVAL);
            assert_null(r);
            if (!strstr(err.text, word)) fail_msg("case %d: \"%s\" does not name %s", c, err.text, word);
        }
        probe_free(p);
        if (!word) break;
    }
}

TEST(full_queue_is_busy) {
    td_engine_options             o = options(2048, 64, 2);
    AT_END(end_engine) td_engine *e;
    td_request                   *r;
    probe                        *p[5];
    td_error                      err = {0};
    o.max_queued_requests = 3;
    OK(td_engine_open(&o, &e, NULL));
    fake_hold(true);
    for (int i = 0; i < 5; i++) p[i] = random_prompt(10, 20);
    submit_running(e, p[0]);
    for (int i = 1; i < 4; i++) probe_submit(e, p[i]);
    assert_int_equal(td_engine_submit(e, &p[4]->params, &r, &err), TD_EBUSY); /* one runs, three wait */
    assert_non_null(strstr(err.text, "queue is full"));
    td_engine_stats s;
    td_engine_get_stats(e, &s);
    assert_int_equal(s.queued, 3);
    assert_int_equal(s.queued_tokens, 3 * 10);
    fake_hold(false);
    for (int i = 0; i < 4; i++) probe_finish(e, p[i]);
    idle_stats(e);
    probe_submit(e, p[4]);
    probe_finish(e, p[4]);
}

/* Requests that are submitted together are queued together or not at all, and take no room in the second case. */
TEST(all_are_queued_or_none) {
    td_engine_options             o = options(2048, 64, 2);
    AT_END(end_engine) td_engine *e;
    td_request                   *handles[3];
    td_request_params             params[3];
    probe                        *p[7];
    td_error                      err = {0};
    o.max_queued_requests = 3;
    OK(td_engine_open(&o, &e, NULL));
    fake_hold(true);
    for (int i = 0; i < 7; i++) p[i] = random_prompt(10, 20);
    submit_running(e, p[0]);
    probe_submit(e, p[1]);
    for (int i = 0; i < 3; i++) params[i] = p[4 + i]->params;
    assert_int_equal(td_engine_submit_all(e, params, 3, handles, &err), TD_EBUSY); /* one waits */
    for (int i = 0; i < 3; i++) assert_null(handles[i]);
    probe_submit(e, p[2]);
    probe_submit(e, p[3]);
    fake_hold(false);
    for (int i = 0; i < 4; i++) probe_finish(e, p[i]);
    idle_stats(e);

    params[2].n_prompt = 0; /* the last one is bad: the others are not queued either */
    assert_int_equal(td_engine_submit_all(e, params, 3, handles, &err), TD_EINVAL);
    for (int i = 0; i < 3; i++) assert_null(handles[i]);
    params[2].n_prompt = 10;
    OK(td_engine_submit_all(e, params, 3, handles, &err));
    for (int i = 0; i < 3; i++) {
        p[4 + i]->request = handles[i];
        probe_finish(e, p[4 + i]);
    }
    assert_int_equal(idle_stats(e).requests_total, 7);
}

TEST(failed_step_is_run_again) {
    AT_END(end_engine) td_engine *e = open_engine(2048, 64, 4);
    for (int c = 0; c < 4; c++) {
        probe *p[3];
        for (int i = 0; i < 3; i++) {
            p[i] = random_prompt(40 + draw(100), 30);
            p[i]->params.ignore_eos = true;
            p[i]->params.prompt_logprobs = i == 0;
            probe_submit(e, p[i]);
        }
        probe_wait_tokens(p[0], 5 + draw(10));
        if (c & 1)
            fake_fail_heads(1);
        else
            fake_fail_forwards(1);
        for (int i = 0; i < 3; i++) probe_finish(e, p[i]);
    }
    assert_int_equal(idle_stats(e).requests_failed, 0);
}

/* Those that run and those that wait are told so at once, and whoever comes later; no step is tried again. */
TEST(a_lost_card_ends_all_requests) {
    td_engine  *e = open_engine(2048, 64, 2);
    probe      *p[4];
    td_request *r = NULL;
    td_error    err = {0};
    fake_hold(true);
    for (int i = 0; i < 4; i++) { /* two run at a time */
        p[i] = random_prompt(40, 500);
        p[i]->params.ignore_eos = true;
        probe_submit(e, p[i]);
    }
    td_engine_stats s;
    do td_engine_get_stats(e, &s);
    while (!s.running); /* a step is under way */
    assert_false(td_engine_is_lost(e, &err));
    fake_fail_forwards(1); /* a second one would succeed */
    fake_lose(true);
    fake_hold(false);
    for (int i = 0; i < 4; i++) {
        probe_wait(p[i]);
        assert_int_equal(p[i]->finish, TD_FINISH_ERROR);
        assert_int_equal(p[i]->error.status, TD_ELOST);
        assert_string_equal(p[i]->error.text, "card 7 is lost");
        assert_int_equal(p[i]->n_tokens, 0);
    }
    assert_true(td_engine_is_lost(e, &err));
    assert_string_equal(err.text, "card 7 is lost");
    assert_int_equal(td_engine_submit(e, &p[0]->params, &r, &err), TD_ELOST);
    assert_null(r);
    assert_int_equal(idle_stats(e).requests_failed, 4);
    for (int i = 0; i < 4; i++) probe_free(p[i]);
    close_engine(e);
    fake_lose(false);
}

TEST(step_that_fails_twice_ends_its_requests_only) {
    AT_END(end_engine) td_engine *e = open_engine(2048, 64, 2);
    probe                        *p[3];
    fake_hold(true);
    for (int i = 0; i < 3; i++) { /* the third waits: two run at a time */
        p[i] = random_prompt(40, 500);
        p[i]->params.ignore_eos = true;
        probe_submit(e, p[i]);
    }
    fake_fail_forwards(2);
    fake_hold(false);
    for (int i = 0; i < 3; i++) probe_wait(p[i]);
    uint32_t failed = 0;
    for (int i = 0; i < 3; i++) {
        if (p[i]->finish != TD_FINISH_ERROR) continue;
        failed++;
        assert_int_equal(p[i]->error.status, TD_EDEVICE);
        assert_non_null(strstr(p[i]->error.text, "failed twice"));
    }
    assert_in_range(failed, 1, 2);
    assert_int_equal(idle_stats(e).requests_failed, failed);
    for (int i = 0; i < 3; i++)
        if (p[i]->finish == TD_FINISH_ERROR)
            probe_free(p[i]);
        else
            probe_finish(e, p[i]);
    p[0] = random_prompt(40, 30); /* and the engine goes on */
    probe_submit(e, p[0]);
    probe_finish(e, p[0]);
}

TEST(output_that_is_no_number_is_an_error) {
    AT_END(end_engine) td_engine *e = open_engine(2048, 64, 2);
    probe                        *p = random_prompt(10, 10);
    fake_give_nan(true);
    probe_submit(e, p);
    probe_wait(p);
    fake_give_nan(false);
    assert_int_equal(p->finish, TD_FINISH_ERROR);
    assert_non_null(strstr(p->error.text, "not a number"));
    probe_free(p);
}

TEST(cancel) {
    AT_END(end_engine) td_engine *e = open_engine(2048, 64, 1);
    probe                        *running = random_prompt(10, 600), *waiting = random_prompt(10, 10);
    running->params.ignore_eos = true;
    fake_delay(1000);
    probe_submit(e, running);
    probe_submit(e, waiting);
    probe_wait_tokens(running, 3);
    fake_hold(true); /* a busy machine must not let it end by itself */
    td_request_cancel(waiting->request);
    td_request_cancel(running->request);
    fake_hold(false);
    probe_wait(waiting);
    assert_int_equal(waiting->finish, TD_FINISH_ABORT);
    assert_int_equal(waiting->n_tokens, 0);
    probe_wait(running);
    assert_int_equal(running->finish, TD_FINISH_ABORT);
    fake_delay(0);
    td_request_cancel(running->request); /* once more, after the end */
    probe_finish(e, running);
    probe_finish(e, waiting);
    assert_int_equal(idle_stats(e).requests_aborted, 2);
}

TEST(closing) {
    for (int grace = 0; grace < 2; grace++) {
        td_engine *e = open_engine(2048, 64, 1);
        probe     *p[3];
        fake_delay(1000);
        for (int i = 0; i < 3; i++) {
            p[i] = random_prompt(20, 500);
            p[i]->params.ignore_eos = true;
            probe_submit(e, p[i]);
        }
        probe_wait_tokens(p[0], 1);
        fake_delay(grace ? 0 : 2000);
        td_engine_close(e, grace ? 60 : 0);
        fake_delay(0);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(p[i]->n_finish, 1);
            if (grace) assert_int_equal(p[i]->n_tokens, 500);
            if (!grace && i == 2) assert_int_equal(p[i]->finish, TD_FINISH_ABORT);
            td_request_cancel(p[i]->request); /* the engine is gone */
            probe_free(p[i]);
        }
    }
}

TEST(seeds_are_drawn_per_request) {
    AT_END(end_engine) td_engine *e = open_engine(2048, 64, 4);
    probe                        *a = random_prompt(10, 30), *b = probe_new(a->prompt, 10, 30);
    a->params.sampling.temperature = b->params.sampling.temperature = 2;
    a->params.ignore_eos = b->params.ignore_eos = true;
    probe_submit(e, a);
    probe_submit(e, b);
    probe_wait(a);
    probe_wait(b);
    assert_memory_not_equal(a->tokens, b->tokens, 30 * sizeof *a->tokens);
    probe_free(a);
    probe_free(b);
}

/* ---- opening --------------------------------------------------------------------------------- */

static void check_open_fails(const td_engine_options *o, td_status status, const char *word) {
    td_engine *e;
    td_error   err = {0};
    assert_int_equal(td_engine_open(o, &e, &err), status);
    assert_null(e);
    if (!strstr(err.text, word)) fail_msg("\"%s\" does not say \"%s\"", err.text, word);
}

TEST(bad_options_are_refused) {
    const td_engine_options good = options(2048, 64, 4);
    td_engine_options       o;
    o = good, o.device = "abacus", check_open_fails(&o, TD_EINVAL, "device \"abacus\"");
    o = good, o.quantization = "fp8", check_open_fails(&o, TD_ENOTSUP, "quantization fp8");
    o = good, o.expert_quantization = "int3", check_open_fails(&o, TD_ENOTSUP, "expert-quantization int3");
    o = good, o.kv_cache_dtype = "fp8_e4m3", check_open_fails(&o, TD_ENOTSUP, "kv-cache-dtype fp8_e4m3");
    o = good, o.kv_cache_dtype = "f32", check_open_fails(&o, TD_ENOTSUP, "kv-cache-dtype f32");
    o = good, o.kv_cache_dtype = "int8", o.quantization = "none",
    check_open_fails(&o, TD_ENOTSUP, "kv-cache-dtype int8 is not supported with quantization none, whose cache is f32");
    o = good, o.load_format = "gguf", check_open_fails(&o, TD_ENOTSUP, "load-format gguf");
    o = good, o.page_size = 64, check_open_fails(&o, TD_ENOTSUP, "page-size 64");
    o = good, o.mem_fraction_static = 0, check_open_fails(&o, TD_EINVAL, "mem-fraction-static");
    o = good, o.mem_fraction_static = NAN, check_open_fails(&o, TD_EINVAL, "mem-fraction-static");
    o = good, o.chunked_prefill_size = 0, o.max_prefill_tokens = 0, check_open_fails(&o, TD_EINVAL, "chunked-prefill-size");
    o = good, o.max_running_requests = 5000, check_open_fails(&o, TD_EINVAL, "max-running-requests");
    o = good, o.max_deferred_experts_per_token = 2, check_open_fails(&o, TD_EINVAL, "enable-defer");
    o = good, o.tensor_parallel_size = 65, check_open_fails(&o, TD_EINVAL, "tensor-parallel-size 65");
    o = good, o.model_path = NULL, check_open_fails(&o, TD_EINVAL, "model-path");
    o = good, o.max_total_tokens = (uint64_t)1 << 40, check_open_fails(&o, TD_ENOMEM, "the largest is");
    o = good, o.chat_template = "/nowhere/at/all", check_open_fails(&o, TD_ENOTFOUND, "/nowhere/at/all");
    o = good, o.tokenizer_path = "/nowhere/at/all", check_open_fails(&o, TD_ENOTFOUND, "/nowhere/at/all");

    AT_END(end_engine) td_engine *e;
    o = good, o.quantization = "none", o.kv_cache_dtype = "f32", o.attention_backend = "flashinfer", o.max_total_tokens = 0;
    o.load_format = "dummy", o.tokenizer_path = "/nowhere/at/all", o.npu_threads = 1, o.cpuinfer = 1,
    o.tensor_parallel_size = 0;
    OK(td_engine_open(&o, &e, NULL));
    td_engine_info info;
    td_engine_get_info(e, &info);
    assert_string_equal(info.quantization, "none");
    assert_string_equal(info.expert_quantization, "none");
    assert_int_equal(info.max_total_tokens, 4 * 128 * (FAKE_CONTEXT / 128 + 1)); /* no more than is useful */
    assert_null(td_engine_tokenizer(e));
    probe *p = random_prompt(10, 10); /* ids in, ids out */
    p->params.ignore_eos = true;
    probe_submit(e, p);
    probe_wait(p);
    assert_int_equal(p->n_tokens, 10);
    assert_int_equal(p->text_len, 0);
    probe_free(p);
}
