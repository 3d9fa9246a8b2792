/*
 * The demo model through the public interface: greedy tokens, text and prompt scores against the outputs that came with it
 * (tests/data/golden/README.md), and the promise that a request's tokens do not depend on company, chunks, pages,
 * retractions or threads.
 */
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/log.h"
#include "core/rng.h"
#include "probe_events.h"

#define GOLDEN TD_SOURCE_DIR "/tests/data/golden/tale/"
#define PROMPTS 3
#define VOCAB 4096
#define NEAR_TIE 0.05 /* between the two best logits: either token is right, and what follows it differs */
#define SEED 4711u

static json_t *g_manifest;

static td_engine_options options(const char *quantization) {
    td_engine_options o;
    td_engine_options_init(&o);
    o.model_path = TD_SOURCE_DIR "/models/tale-v3-14m";
    o.quantization = quantization;
    o.max_total_tokens = 8192;
    o.chunked_prefill_size = 512;
    o.decode_log_interval = 0;
    return o;
}

static td_engine *open_engine(const td_engine_options *o) {
    td_engine *e;
    td_error   err = {0};
    if (td_engine_open(o, &e, &err) != TD_OK) fail_msg("%s", err.text);
    return e;
}

static uint32_t ids_of(const json_t *list, uint32_t *ids) {
    for (size_t i = 0; i < json_array_size(list); i++) ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)json_array_size(list);
}

static void greedy_tokens_and_text(void **state) {
    (void)state;
    td_engine_options o = options("none");
    td_engine        *e = open_engine(&o);
    probe            *probes[PROMPTS];
    uint32_t          ids[512];
    for (size_t i = 0; i < PROMPTS; i++) { /* all at once */
        const json_t *prompt = json_array_get(json_object_get(g_manifest, "prompts"), i);
        probes[i] = probe_new(ids, ids_of(json_object_get(prompt, "ids"), ids),
                              (uint32_t)json_array_size(json_object_get(prompt, "greedy")));
        probes[i]->params.ignore_eos = true;
        probe_submit(e, probes[i]);
    }
    for (size_t i = 0; i < PROMPTS; i++) {
        const json_t *prompt = json_array_get(json_object_get(g_manifest, "prompts"), i),
                     *gaps = json_object_get(prompt, "greedy_gaps");
        const char *text = json_string_value(json_object_get(prompt, "greedy_text"));
        uint32_t    n = ids_of(json_object_get(prompt, "greedy"), ids), at = 0;
        probe_wait(probes[i]);
        assert_int_equal(probes[i]->n_tokens, n);
        while (at < n && probes[i]->tokens[at] == ids[at]) at++;
        print_message("prompt %zu: %u of %u tokens as expected\n", i, at, n);
        if (at < n)
            assert_true(json_real_value(json_array_get(gaps, at)) < NEAR_TIE);
        else
            assert_true(probes[i]->text_len == strlen(text) && !memcmp(probes[i]->text, text, probes[i]->text_len));
        probe_free(probes[i]);
    }
    td_engine_close(e, 0);
}

/* The reference is float32, and so is the arithmetic of quantization none: only the order of sums differs. */
static void prompt_scores(void **state) {
    (void)state;
    td_engine_options o = options("none");
    td_engine        *e = open_engine(&o);
    for (size_t i = 0; i < PROMPTS; i++) {
        const json_t *prompt = json_array_get(json_object_get(g_manifest, "prompts"), i);
        uint32_t      ids[512], n = ids_of(json_object_get(prompt, "ids"), ids);
        char          path[512];
        float        *logits = malloc((size_t)n * VOCAB * sizeof *logits);
        snprintf(path, sizeof path, GOLDEN "p%zu_logits.f32", i);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        assert_int_equal(fread(logits, VOCAB * sizeof *logits, n, f), n);
        fclose(f);

        probe *p = probe_new(ids, n, 0);
        p->params.prompt_logprobs = true;
        p->params.n_top_logprobs = 3;
        probe_submit(e, p);
        probe_wait(p);
        assert_int_equal(p->n_prompt_logprobs, n);
        double worst = 0;
        for (uint32_t t = 1; t < n; t++) {
            const float *row = logits + (size_t)(t - 1) * VOCAB;
            double       sum = 0;
            for (uint32_t v = 0; v < VOCAB; v++) sum += exp(row[v]);
            double d = fabs(p->prompt_logprobs[t].logprob - (row[ids[t]] - log(sum)));
            worst = d > worst ? d : worst;
        }
        print_message("prompt %zu: worst difference of a log-probability %.2e\n", i, worst);
        assert_true(worst < 1e-3);
        probe_free(p);
        free(logits);
    }
    td_engine_close(e, 0);
}

/* ---- invariance ------------------------------------------------------------------------------ */

#define REQUESTS 10

static probe *make_request(uint32_t i) {
    uint32_t ids[400], n = 1 + (uint32_t)(td_rng_u64(SEED, 1, i) % (i < 3 ? 300 : 110));
    for (uint32_t k = 0; k < n; k++) ids[k] = 4 + (uint32_t)(td_rng_u64(SEED, 100 + i, k) % (VOCAB - 4));
    probe *p = probe_new(ids, n, 60 + 10 * i);
    p->params.ignore_eos = true;
    p->params.sampling.temperature = i % 2 ? 0.8 : 0;
    p->params.sampling.has_seed = true;
    p->params.sampling.seed = i;
    p->params.logprobs = true;
    return p;
}

static void run_all(const td_engine_options *o, probe **probes, bool together) {
    td_engine *e = open_engine(o);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        probes[i] = make_request(i);
        probe_submit(e, probes[i]);
        if (!together) probe_wait(probes[i]);
    }
    for (uint32_t i = 0; i < REQUESTS; i++) probe_wait(probes[i]);
    td_engine_stats s;
    td_engine_get_stats(e, &s);
    print_message("  %lu prefill and %lu decode steps, %lu retractions\n", s.steps_prefill, s.steps_decode, s.retractions);
    td_engine_close(e, 0);
}

static void check_same(probe **a, probe **b) {
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(a[i]->n_tokens, b[i]->n_tokens);
        assert_memory_equal(a[i]->tokens, b[i]->tokens, a[i]->n_tokens * sizeof *a[i]->tokens);
        for (size_t k = 0; k < a[i]->n_tokens; k++) assert_true(a[i]->logprobs[k].logprob == b[i]->logprobs[k].logprob);
    }
}

static void free_all(probe **p) {
    for (uint32_t i = 0; i < REQUESTS; i++) probe_free(p[i]);
}

static void check_invariance(const char *quantization, bool defer) {
    print_message("seed %u, quantization %s%s\n", SEED, quantization, defer ? ", deferred experts" : "");
    td_engine_options o = options(quantization);
    probe            *alone[REQUESTS], *other[REQUESTS];
    o.enable_defer = defer;
    o.max_deferred_experts_per_token = defer ? 2 : 0;
    run_all(&o, alone, false);

    run_all(&o, other, true); /* company */
    check_same(alone, other);
    free_all(other);

    td_engine_options tight = o; /* small chunks, too few pages */
    tight.chunked_prefill_size = 37;
    tight.max_total_tokens = 4 * 128;
    run_all(&tight, other, true);
    check_same(alone, other);
    free_all(other);

    td_engine_options threads = o; /* two tiers with threads of their own, two subpools */
    threads.npu_threads = 1;
    threads.cpuinfer = 2;
    threads.subpool_count = 2;
    run_all(&threads, other, true);
    check_same(alone, other);
    free_all(other);
    free_all(alone);
}

static void invariance_w8a8_int4(void **state) {
    (void)state;
    check_invariance("w8a8_int8", false);
}

static void invariance_deferred(void **state) {
    (void)state;
    check_invariance("w8a8_int8", true);
}

static void invariance_reference(void **state) {
    (void)state;
    check_invariance("none", false);
}

/* (token, expert) pairs of one prompt that were deferred, and the last token of its answer. */
static uint64_t deferred_pairs(const char *override_json, uint32_t d, uint32_t *last) {
    td_engine_options o = options("none");
    o.model_override_json = override_json;
    o.enable_defer = true;
    o.max_deferred_experts_per_token = d;
    td_engine     *e = open_engine(&o);
    const uint32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    probe         *p = probe_new(ids, 8, 2);
    p->params.ignore_eos = true;
    probe_submit(e, p);
    probe_wait(p);
    assert_int_equal(p->n_tokens, 2);
    *last = p->tokens[1];
    td_engine_stats st;
    do { /* between the two tokens one request ran: none is left once the last step is counted */
        sched_yield();
        td_engine_get_stats(e, &st);
    } while (st.running > 0);
    probe_free(p);
    td_engine_close(e, 1);
    return st.experts_deferred;
}

/* The default is one expert per token and MoE layer but the last; a model with one expert per token has none to defer. */
static void deferral_default(void **state) {
    (void)state;
    uint32_t token[4];
    uint64_t one = deferred_pairs(NULL, 1, &token[0]);
    assert_true(one > 0);
    assert_int_equal(deferred_pairs(NULL, 0, &token[1]), one);
    assert_int_equal(token[1], token[0]);
    assert_int_equal(deferred_pairs("{\"num_experts_per_tok\": 1}", 0, &token[2]), 0);
    assert_int_equal(deferred_pairs("{\"num_experts_per_tok\": 1}", 3, &token[3]), 0);
    assert_int_equal(token[3], token[2]);
}

static int load_manifest(void **state) {
    (void)state;
    td_log_set_level(TD_LOG_WARNING);
    g_manifest = json_load_file(GOLDEN "manifest.json", 0, NULL);
    return g_manifest ? 0 : -1;
}

static int free_manifest(void **state) {
    (void)state;
    json_decref(g_manifest);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_tokens_and_text), cmocka_unit_test(prompt_scores),
        cmocka_unit_test(invariance_w8a8_int4),   cmocka_unit_test(invariance_deferred),
        cmocka_unit_test(invariance_reference),   cmocka_unit_test(deferral_default),
    };
    return cmocka_run_group_tests(tests, load_manifest, free_manifest);
}
