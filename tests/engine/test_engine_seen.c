/*
 * What the engine reports about itself, over the fake model: progress of prompts, how requests ended, and the work of the
 * tiers beside their bounds.
 */
#include <stdatomic.h>
#include <unistd.h>

#include "core/math/rng.h"
#include "fake_model.h"
#include "probe_check.h"
#include "tests/td_test.h"

#define SEED 1701u

static td_engine *open_engine(void) {
    td_engine_options o = engine_options(2048, 64, 4);
    return engine_open(&o);
}

static probe *new_probe(uint32_t n_prompt, uint32_t max_tokens) {
    static uint64_t draws;
    uint32_t        ids[FAKE_CONTEXT];
    for (uint32_t i = 0; i < n_prompt; i++) ids[i] = (uint32_t)(td_rng_u64(SEED, 3, draws++) % FAKE_VOCAB);
    probe *p = probe_new(ids, n_prompt, max_tokens);
    p->params.ignore_eos = true;
    return p;
}

TEST(progress_is_published) {
    AT_END(end_engine) td_engine *e = open_engine();
    probe                        *p = new_probe(300, 20), *second = new_probe(10, 20);
    td_engine_stats               s;
    fake_hold(true);
    probe_submit(e, p);
    do td_engine_get_stats(e, &s);
    while (s.running == 0);
    assert_int_equal(s.prefill_requests, 1);
    assert_int_equal(s.prefill_tokens_done, 0);
    assert_int_equal(s.prefill_tokens_left, 300);
    fake_delay(5000);
    fake_hold(false);
    for (uint64_t done = 0;
         done < 300 - 300 % 64;) { /* one chunk after the other; none is missed on a machine that keeps up */
        td_engine_get_stats(e, &s);
        if (s.prefill_requests == 0) break;
        assert_true(s.prefill_tokens_done >= done && s.prefill_tokens_done % 64 == 0);
        done = s.prefill_tokens_done;
        usleep(500);
    }
    fake_delay(0);
    probe_submit(e, second);
    probe_finish(e, p);
    probe_finish(e, second);
    s = idle_stats(e);
    assert_int_equal(s.prefill_requests, 0);
    assert_int_equal(s.prefill_tokens_left, 0);
    assert_int_equal(s.requests_stopped + s.requests_length, 2);
    uint64_t ended = 0;
    for (uint32_t i = 0; i <= s.e2e.n; i++) ended += s.e2e.count[i];
    assert_int_equal(ended, 2);
}

/* The fake's experts read FAKE_STEP_BYTES in FAKE_STEP_NS a step; the bounds are this machine's. */
TEST(work_is_told_against_the_bounds) {
    td_engine_options o = engine_options(2048, 64, 4);
    td_engine_info    info;
    td_engine_stats   s;
    o.measure_bounds = true;
    o.decode_log_interval = 4;
    AT_END(end_engine) td_engine *e = engine_open(&o);
    td_engine_get_info(e, &info);
    assert_true(info.expert_bounds.read_bytes_per_s > 1e8 && info.expert_bounds.int8_ops_per_s > 1e8 &&
                info.expert_bounds.f32_ops_per_s > 1e8);
    assert_memory_equal(&info.expert_bounds, &info.device_bounds, sizeof info.device_bounds);
    probe *p = new_probe(10, 500);
    fake_delay(1000);
    probe_submit(e, p);
    probe_wait_tokens(p, 20);
    td_engine_get_stats(e, &s);
    fake_delay(0);
    double bytes_per_s = FAKE_STEP_BYTES / (1e-9 * FAKE_STEP_NS),
           by_reads = bytes_per_s / info.expert_bounds.read_bytes_per_s;
    double by_int8 = FAKE_TOKEN_OPS / (1e-9 * FAKE_STEP_NS) / info.expert_bounds.int8_ops_per_s; /* a token a step by now */
    assert_float_equal(s.expert_rate.bytes_per_s, bytes_per_s, 1e-6 * bytes_per_s);
    assert_float_equal(s.expert_rate.bound_fraction, by_reads > by_int8 ? by_reads : by_int8, 1e-6);
    assert_true(s.device_rate.bytes_per_s == 0 && s.device_rate.bound_fraction == 0);
    probe_finish(e, p);
    s = idle_stats(e);
    uint64_t steps = s.steps_prefill + s.steps_decode;
    assert_int_equal(s.experts.bytes, steps * FAKE_STEP_BYTES);
    assert_int_equal(s.experts.int8_ops, (10 + steps - 1) * FAKE_TOKEN_OPS);
    assert_int_equal(s.experts.busy_ns, steps * FAKE_STEP_NS);
}

typedef struct {
    td_engine     *e;
    td_engine_step step;
    atomic_bool    ended;
} delivery;

static void look_at_step(void *user, const td_event *event) {
    delivery *d = user;
    td_engine_get_step(d->e, &d->step);
    if (event->finish != TD_FINISH_NONE) atomic_store(&d->ended, true);
}

TEST(a_stuck_step_is_named) {
    AT_END(end_engine) td_engine *e = open_engine();
    probe                        *p = new_probe(100, 5), *second = new_probe(10, 5);
    td_engine_step                s, later;
    td_engine_get_step(e, &s);
    assert_int_equal(s.tokens, 0);
    fake_hold(true);
    probe_submit(e, p);
    do td_engine_get_step(e, &s);
    while (s.phase != TD_STEP_FORWARD);
    assert_int_equal(s.number, 1);
    assert_int_equal(s.tokens, 64); /* the first chunk */
    assert_int_equal(s.sequences, 1);
    assert_string_equal(s.where, "gqa of layer 2 on the device");
    usleep(20000);
    td_engine_get_step(e, &later);
    assert_int_equal(later.number, 1);
    assert_true(later.seconds >= s.seconds + 0.02);
    td_engine_stats during;
    do td_engine_get_stats(e, &during);
    while (during.experts.bytes == 0); /* the phase is told before the model begins */
    assert_int_equal(during.steps_prefill, 0);
    assert_int_equal(during.experts.bytes, FAKE_STEP_BYTES); /* what the tiers have done is told amid a step */
    fake_hold(false);
    probe_finish(e, p);

    delivery d = {.e = e};
    second->params.on_event = look_at_step;
    second->params.user = &d;
    OK(td_engine_submit(e, &second->params, &second->request, NULL));
    while (!atomic_load(&d.ended)) usleep(1000);
    assert_int_equal(d.step.phase, TD_STEP_DELIVERING);
    assert_int_equal(d.step.tokens, 1);
    td_engine_stats stats = idle_stats(e);
    do td_engine_get_step(e, &s);
    while (s.phase != TD_STEP_NONE);
    assert_int_equal(d.step.number, stats.steps_prefill + stats.steps_decode); /* every step has one number */
    probe_free(second);
}
