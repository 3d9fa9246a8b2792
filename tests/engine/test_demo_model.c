/*
 * The demo model through the public interface. Greedy tokens, text and prompt scores are compared with the outputs that came
 * with it (tests/data/golden/README.md). Also the number of deferred experts, and long contexts. tests/determinism/ tests
 * what must not change the outputs. TD_TEST_DEVICE=NAME runs it on that device.
 */
#include <math.h>
#include <sched.h>

#include <jansson.h>

#include "core/log/log.h"
#include "probe_events.h"
#include "tests/td_test.h"

#define GOLDEN TD_SOURCE_DIR "/tests/data/golden/tale/"
#define PROMPTS 3
#define VOCAB 4096
#define NEAR_TIE 0.05 /* between the two best logits: either token is right, and what follows it differs */

static json_t *g_manifest;

static td_engine_options options(const char *quantization) {
    td_engine_options o;
    td_engine_options_init(&o);
    if (getenv("TD_TEST_DEVICE")) o.device = getenv("TD_TEST_DEVICE");
    o.model_path = TD_SOURCE_DIR "/models/tale-v3-14m";
    o.quantization = quantization;
    o.max_total_tokens = 8192;
    o.chunked_prefill_size = 512;
    o.decode_log_interval = 0;
    return o;
}

static uint32_t ids_of(const json_t *list, uint32_t *ids) {
    for (size_t i = 0; i < json_array_size(list); i++) ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)json_array_size(list);
}

TEST(greedy_tokens_and_text) {
    td_engine_options o = options("none");
    td_engine        *e = engine_open(&o);
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
TEST(prompt_scores) {
    td_engine_options o = options("none");
    td_engine        *e = engine_open(&o);
    for (size_t i = 0; i < PROMPTS; i++) {
        const json_t *prompt = json_array_get(json_object_get(g_manifest, "prompts"), i);
        uint32_t      ids[512], n = ids_of(json_object_get(prompt, "ids"), ids);
        char          path[512];
        FREED float  *logits = malloc((size_t)n * VOCAB * sizeof *logits);
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
    }
    td_engine_close(e, 0);
}

/* (token, expert) pairs of one prompt that were deferred, and the last token of its answer. */
static uint64_t deferred_pairs(const char *override_json, uint32_t d, uint32_t *last) {
    td_engine_options o = options("none");
    o.model_override_json = override_json;
    o.enable_defer = true;
    o.max_deferred_experts_per_token = d;
    td_engine     *e = engine_open(&o);
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
TEST(deferral_default) {
    uint32_t token[4];
    uint64_t one = deferred_pairs(NULL, 1, &token[0]);
    assert_true(one > 0);
    assert_int_equal(deferred_pairs(NULL, 0, &token[1]), one);
    assert_int_equal(token[1], token[0]);
    assert_int_equal(deferred_pairs("{\"num_experts_per_tok\": 1}", 0, &token[2]), 0);
    assert_int_equal(deferred_pairs("{\"num_experts_per_tok\": 1}", 3, &token[3]), 0);
    assert_int_equal(token[3], token[2]);
}

/* The refusal says how to go on, and that works. */
TEST(a_longer_context_than_the_model_has) {
    td_engine_options o = options("none");
    td_engine        *e;
    td_engine_info    info;
    td_error          err = {0};
    o.context_length = 5000; /* of 2048 */
    assert_int_equal(td_engine_open(&o, &e, &err), TD_EINVAL);
    print_message("%s\n", err.text);
    char *advice = strstr(err.text, "'{"), *end = advice ? strstr(advice, "}'") : NULL;
    assert_non_null(end);
    end[1] = 0;
    o.model_override_json = advice + 1;
    e = engine_open(&o);
    td_engine_get_info(e, &info);
    assert_int_equal(info.context_length, 5000);
    FREED uint32_t *ids = malloc(4900 * sizeof *ids);
    for (uint32_t i = 0; i < 4900; i++) ids[i] = 4 + i * 37 % (VOCAB - 4);
    probe *p = probe_new(ids, 4900, 5);
    p->params.ignore_eos = true;
    probe_submit(e, p);
    probe_wait(p);
    assert_int_equal(p->n_tokens, 5);
    probe_free(p);
    td_engine_close(e, 1);
}

/* The same of every family. */
TEST(every_familys_context_can_be_stretched) {
    static const struct {
        const char *folder;
        uint32_t    positions;
    } MODELS[] = {{"deepseek_v2_lite", 2560}, {"deepseek_v3_noqlora", 512}, {"kimi_k25", 1280},
                  {"qwen2_moe", 512},         {"qwen3_moe", 512},           {"glm4_moe", 512},
                  {"glm4_moe_lite", 512},     {"minimax_m2", 512},          {"gpt_oss", 512}};
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) {
        td_engine_options o = options("none");
        char              path[512], says[128];
        td_engine        *e;
        td_engine_info    info;
        td_error          err = {0};
        snprintf(path, sizeof path, TD_SOURCE_DIR "/tests/data/golden/%s", MODELS[i].folder);
        o.tokenizer_path = o.model_path; /* these have none */
        o.model_path = path;
        o.context_length = MODELS[i].positions + 300;
        assert_int_equal(td_engine_open(&o, &e, &err), TD_EINVAL);
        snprintf(says, sizeof says, "context-length %u is more than the model's %u positions (max_position_embeddings)",
                 o.context_length, MODELS[i].positions);
        if (!strstr(err.text, says)) fail_msg("%s: %s", MODELS[i].folder, err.text);
        char *advice = strstr(err.text, "'{"), *end = advice ? strstr(advice, "}'") : NULL;
        assert_non_null(end);
        end[1] = 0;
        o.model_override_json = advice + 1;
        e = engine_open(&o);
        td_engine_get_info(e, &info);
        assert_int_equal(info.context_length, o.context_length);
        td_engine_close(e, 1);
    }
}

BEFORE_ALL {
    td_log_set_level(TD_LOG_WARNING);
    g_manifest = json_load_file(GOLDEN "manifest.json", 0, NULL);
    assert_non_null(g_manifest);
}

AFTER_ALL {
    json_decref(g_manifest);
}
