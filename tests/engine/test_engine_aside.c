/*
 * A step that is computed piece by piece, over the fake model. Streams go on between its pieces, and every answer is the
 * plain loop's. What befalls it while others run ends no request but its own.
 */
#include <unistd.h>

#include "core/math/rng.h"
#include "fake_model.h"
#include "probe_check.h"
#include "tests/td_test.h"

#define CHUNK 64
#define STREAMS 3
#define LONG 500 /* tokens: more than a step beside others holds */
#define ENDLESS (1u << 30)

static uint32_t g_draws;

static probe *random_prompt(uint32_t n_prompt, uint32_t max_tokens) {
    uint32_t ids[FAKE_CONTEXT];
    for (uint32_t i = 0; i < n_prompt; i++) ids[i] = (uint32_t)(td_rng_u64(77, 1, g_draws++) % FAKE_VOCAB);
    probe *p = probe_new(ids, n_prompt, max_tokens);
    p->params.ignore_eos = true;
    return p;
}

typedef struct {
    td_engine *e;
    probe     *streams[STREAMS], *long_one;
    uint32_t   pieces, between; /* that had run before the long prompt came */
} fixture;

/* Streams that run, and a long prompt that comes then. Forwards are held, or the streams might end before a test has made its
 * other preparations. @param n_pieces of a pass */
static fixture open_fixture(uint32_t n_pieces, uint64_t kv_tokens, uint32_t max_tokens) {
    fixture f;
    fake_pieces(n_pieces);
    td_engine_options o = engine_options(kv_tokens, CHUNK, STREAMS + 2);
    o.max_step_ms = 1;
    f.e = engine_open(&o);
    fake_delay(5000); /* streams must not end before all of them have begun */
    for (int i = 0; i < STREAMS; i++) {
        f.streams[i] = random_prompt(10, max_tokens);
        probe_submit(f.e, f.streams[i]);
    }
    for (int i = 0; i < STREAMS; i++) probe_wait_tokens(f.streams[i], 1);
    fake_hold(true);
    fake_delay(200);
    f.pieces = fake_pieces_run();
    f.between = fake_passes_between();
    f.long_one = random_prompt(LONG, 20);
    probe_submit(f.e, f.long_one);
    return f;
}

/* Go on, until n pieces have run. */
static void wait_for_pieces(const fixture *f, uint32_t n) {
    fake_hold(false);
    while (fake_pieces_run() < f->pieces + n) usleep(100);
}

static void close_fixture(fixture *f) {
    fake_delay(0);
    for (int i = 0; i < STREAMS; i++) probe_finish(f->e, f->streams[i]);
    close_engine(f->e);
    fake_pieces(0);
}

TEST(streams_run_between_pieces) {
    AT_END(close_fixture) fixture f = open_fixture(5, 4096, 400);
    probe                        *late = random_prompt(20, 5);
    wait_for_pieces(&f, 2);
    probe_submit(f.e, late);
    probe_finish(f.e, late);
    probe_finish(f.e, f.long_one);
    assert_true(fake_pieces_run() - f.pieces >= 5 * (LONG / CHUNK));
    assert_true(fake_passes_between() - f.between >= 4 * (LONG / CHUNK));
}

/* A piece lasts until a request comes, which is computed then; the piece behind it is not left for another. */
TEST(piece_ends_for_a_request_that_comes) {
    fake_pieces_wait(true);
    AT_END(close_fixture) fixture f = open_fixture(ENDLESS, 4096, 200);
    for (uint32_t i = 0; i < 3; i++) {
        probe *late = random_prompt(20, 1);
        wait_for_pieces(&f, 2 * i + 1);
        probe_submit(f.e, late);
        probe_finish(f.e, late);
    }
    fake_pieces_wait(false);
    td_request_cancel(f.long_one->request);
    probe_finish(f.e, f.long_one);
}

/* Two long prompts: the second one's turn comes when the first one's is computed. */
TEST(long_prompts_follow_each_other) {
    AT_END(close_fixture) fixture f = open_fixture(3, 4096, 400);
    probe                        *second = random_prompt(LONG, 5);
    probe_submit(f.e, second);
    fake_hold(false);
    probe_finish(f.e, f.long_one);
    probe_finish(f.e, second);
}

/* The streams come to their end then, with their pages to themselves. */
TEST(cancelled_between_pieces) {
    AT_END(close_fixture) fixture f = open_fixture(ENDLESS, 4096, 200);
    wait_for_pieces(&f, 2);
    td_request_cancel(f.long_one->request);
    probe_wait(f.long_one);
    assert_int_equal(f.long_one->finish, TD_FINISH_ABORT);
    assert_int_equal(f.long_one->n_tokens, 0);
    probe_finish(f.e, f.long_one);
}

/* The long prompt came last, so its pages are the first to be taken back. */
TEST(retracted_between_pieces) {
    AT_END(close_fixture) fixture f = open_fixture(40, 10 * 128, 400);
    fake_hold(false);
    for (int i = 0; i < STREAMS; i++) probe_wait(f.streams[i]);
    td_engine_stats s;
    td_engine_get_stats(f.e, &s);
    assert_true(s.retractions > 0);
    probe_finish(f.e, f.long_one);
}

TEST(failed_piece_begins_again) {
    AT_END(close_fixture) fixture f = open_fixture(4, 4096, 400);
    wait_for_pieces(&f, 2);
    fake_fail_pieces(1);
    probe_finish(f.e, f.long_one);
}

TEST(pieces_that_fail_twice_end_their_request_only) {
    AT_END(close_fixture) fixture f = open_fixture(ENDLESS, 4096, 200);
    wait_for_pieces(&f, 2);
    fake_fail_pieces(2);
    probe_wait(f.long_one);
    assert_int_equal(f.long_one->finish, TD_FINISH_ERROR);
    assert_non_null(strstr(f.long_one->error.text, "failed twice"));
    assert_int_equal(f.long_one->error.status, TD_EDEVICE);
    probe_free(f.long_one);
}

/* A step that fails between two pieces is the streams' affair. */
TEST(failure_between_pieces) {
    AT_END(close_fixture) fixture f = open_fixture(20, 4096, 400);
    wait_for_pieces(&f, 2);
    fake_fail_forwards(1);
    probe_finish(f.e, f.long_one);
}

TEST(closing_between_pieces) {
    fixture f = open_fixture(ENDLESS, 4096, 400);
    fake_delay(20000); /* streams must not end before it is closed */
    wait_for_pieces(&f, 2);
    td_engine_close(f.e, 0);
    fake_delay(0);
    assert_int_equal(f.long_one->finish, TD_FINISH_ABORT);
    for (int i = 0; i < STREAMS; i++) {
        assert_int_equal(f.streams[i]->finish, TD_FINISH_ABORT);
        probe_free(f.streams[i]);
    }
    probe_free(f.long_one);
    assert_null(fake_complaint());
    fake_pieces(0);
}
