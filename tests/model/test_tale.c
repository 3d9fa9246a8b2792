/*
 * The demo model against the outputs of the independent float32 forward pass that came with it
 * (models/tale-v3-14m/README.md): logits, routing, greedy tokens, the MTP layer, and deferred experts.
 * tests/cli/test_perplexity.py and test_formats.py have its perplexity.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "golden_files.h"

#define MODEL "models/tale-v3-14m"
#define GOLDEN "tests/data/golden/tale/"
#define PROMPTS 3
#define VOCAB 4096
#define TOP_K 4
#define GREEDY 64
#define NEAR_TIE 0.05 /* of the two best logits: below it either token is right */

static json_t *golden;

static void *prompt_array(size_t index, const char *name, size_t n) {
    char path[256];
    snprintf(path, sizeof path, GOLDEN "p%zu_%s", index, name);
    return read_array(path, n, 4);
}

static void open_reference(model_run *r, uint32_t max_deferred) {
    model_run_open(r,
                   &(model_run_options){
                       .path = MODEL, .experts = TD_EXPERT_BF16, .n_seq = 1, .max_len = 256, .max_deferred = max_deferred});
}

/* The same set of experts, whatever their order. */
static bool same_experts(const uint16_t *got, const int32_t *want) {
    uint32_t a = 0, b = 0;
    for (int i = 0; i < TOP_K; i++) {
        a |= 1u << got[i];
        b |= 1u << want[i];
    }
    return a == b;
}

TEST(logits_and_routing_agree) {
    AT_END(model_run_close) model_run r;
    double                            difference = 0;
    size_t                            compared = 0, routed = 0, same = 0;
    open_reference(&r, 0);
    for (size_t p = 0; p < PROMPTS; p++) {
        uint32_t     ids[256], n = read_prompt(golden, p, ids, 256);
        FREED float *want = prompt_array(p, "logits.f32", (size_t)n * VOCAB), *got = malloc((size_t)n * VOCAB * sizeof *got);
        FREED int32_t *experts = prompt_array(p, "router_ids.i32", 6u * n * TOP_K);
        model_run_forward(&r, &(model_piece){.n = n, .ids = ids}, 1);
        model_run_logits(&r, n, got);
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t v = 0; v < VOCAB; v += 64, compared++) /* every 64th token of the vocabulary */
                difference += fabs(log_prob(got + t * VOCAB, VOCAB, v) - log_prob(want + t * VOCAB, VOCAB, v));
        for (uint32_t layer = 0; layer < 5; layer++) {
            const uint16_t *got_ids;
            const float    *weights;
            td_model_get_routing(r.model, layer, &got_ids, &weights);
            for (uint32_t t = 0; t < n; t++, routed++)
                same += same_experts(got_ids + t * TOP_K, experts + ((size_t)layer * n + t) * TOP_K);
        }
    }
    difference /= (double)compared;
    print_message("    mean |difference of log-probability| %.2e, same experts at %zu of %zu positions\n", difference, same,
                  routed);
    assert_true(difference <= 0.02);
    assert_true(same >= 0.98 * routed);
}

/* The largest |got - want|, and the largest |want|. (Not by fmax: the vectoriser of aarch64's gcc 12 breaks down over it.)
 */
static double largest_difference(const float *got, const float *want, size_t n, double *largest) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double off = fabs((double)got[i] - want[i]), size = fabs((double)want[i]);
        worst = off > worst ? off : worst;
        *largest = size > *largest ? size : *largest;
    }
    return worst;
}

/* From the KV cache, a token at a time; paths may part at a near tie of the reference. */
TEST(greedy_tokens_agree) {
    AT_END(model_run_close) model_run r;
    open_reference(&r, 0);
    for (size_t p = 0; p < PROMPTS; p++) {
        uint32_t     ids[256], n = read_prompt(golden, p, ids, 256), i;
        json_t      *prompt = json_array_get(json_object_get(golden, "prompts"), p);
        FREED float *logits = malloc((size_t)n * VOCAB * sizeof *logits);
        model_run_forward(&r, &(model_piece){.n = n, .ids = ids}, 1);
        model_run_logits(&r, n, logits);
        uint32_t token = arg_max(logits + (size_t)(n - 1) * VOCAB, VOCAB);
        for (i = 0; i < GREEDY; i++) {
            if (token != json_integer_value(json_array_get(json_object_get(prompt, "greedy"), i))) {
                double gap = json_real_value(json_array_get(json_object_get(prompt, "greedy_gaps"), i));
                print_message("    prompt %zu parts at token %u, where the two best are %.3f apart\n", p, i, gap);
                assert_true(gap < NEAR_TIE);
                break;
            }
            model_run_forward(&r, &(model_piece){.first = n + i, .n = 1, .ids = &token, .absorbed = true}, 1);
            model_run_logits(&r, 1, logits);
            token = arg_max(logits, VOCAB);
        }
        print_message("    prompt %zu: %u greedy tokens agree\n", p, i);
    }
}

TEST(mtp_layer_agrees) {
    AT_END(model_run_close) model_run r;
    open_reference(&r, 0);
    for (size_t p = 0; p < PROMPTS; p++) {
        uint32_t     ids[257], n = read_prompt(golden, p, ids, 256), rows[256];
        FREED float *want = prompt_array(p, "mtp_logits.f32", (size_t)n * VOCAB);
        const float *got;
        double       largest = 0;
        ids[n] = (uint32_t)json_integer_value(
            json_array_get(json_object_get(json_array_get(json_object_get(golden, "prompts"), p), "greedy"), 0));
        for (uint32_t i = 0; i < n; i++) rows[i] = i;
        model_run_forward(&r, &(model_piece){.n = n, .ids = ids}, 1);
        OK(td_model_mtp(r.model, ids + 1));
        OK(td_model_mtp_head(r.model, (td_out_rows){.row = rows, .n = n}, &got));
        double worst = largest_difference(got, want, (size_t)n * VOCAB, &largest);
        print_message("    prompt %zu: largest difference %.2e of %.2f\n", p, worst, largest);
        assert_true(worst <= 5e-5 * largest); /* two float32 programs; see test_golden.c */
    }
}

/* Against scripts/golden/make_deferral.py, which follows the definition one expert at a time. */
TEST(deferred_experts_follow_the_definition) {
    json_t *m = read_json("tests/data/tale_deferral/manifest.json"), *entry;
    size_t  index;
    json_array_foreach(json_object_get(m, "deferred"), index, entry) {
        uint32_t                          d = (uint32_t)json_integer_value(json_object_get(entry, "max_deferred"));
        AT_END(model_run_close) model_run r;
        open_reference(&r, d);
        for (size_t p = 0; p < PROMPTS; p++) {
            char     path[256];
            uint32_t ids[256], n = read_prompt(golden, p, ids, 256);
            snprintf(path, sizeof path, "tests/data/tale_deferral/%s",
                     json_string_value(json_array_get(json_object_get(entry, "last_logits"), p)));
            FREED float *want = read_array(path, VOCAB, 4), *got = malloc((size_t)n * VOCAB * sizeof *got);
            double       largest = 0;
            model_run_forward(&r, &(model_piece){.n = n, .ids = ids}, 1);
            model_run_logits(&r, n, got);
            double worst = largest_difference(got + (size_t)(n - 1) * VOCAB, want, VOCAB, &largest);
            print_message("    D = %u, prompt %zu: largest difference %.2e of %.2f\n", d, p, worst, largest);
            assert_true(worst <= 5e-5 * largest);
        }
        td_model_work work;
        td_model_get_work(r.model, &work);
        assert_true(work.deferred_pairs > 0 && work.deferred_pairs < work.expert_pairs);
    }
    json_decref(m);
}

BEFORE_ALL {
    golden = read_json(GOLDEN "manifest.json");
}

AFTER_ALL {
    json_decref(golden);
}

typedef struct {
    const td_model *model;
    atomic_bool     stop, wrong;
    atomic_bool     block, experts; /* seen */
} watcher;

/* Reads what the tiers are in while they run. */
static void *watch(void *arg) {
    watcher               *w = arg;
    const td_model_config *c = td_model_get_config(w->model);
    while (!atomic_load(&w->stop)) {
        char        text[96];
        unsigned    layer;
        const char *at;
        td_model_describe(w->model, text, sizeof text);
        if (sscanf(text, "mla of layer %u on the device", &layer) == 1) {
            atomic_store(&w->block, true);
            if (layer >= c->n_layers) atomic_store(&w->wrong, true);
        }
        if ((at = strstr(text, "experts of layer ")) && sscanf(at, "experts of layer %u", &layer) == 1) {
            atomic_store(&w->experts, true);
            if (layer >= c->n_layers || !c->is_moe[layer]) atomic_store(&w->wrong, true);
        }
    }
    return NULL;
}

TEST(what_the_tiers_are_in_can_be_read) {
    AT_END(model_run_close) model_run r;
    uint32_t                          ids[256], n = read_prompt(golden, 0, ids, 256);
    char                              text[96];
    pthread_t                         thread;
    open_reference(&r, 0);
    watcher w = {.model = r.model};
    assert_int_equal(pthread_create(&thread, NULL, watch, &w), 0);
    for (int i = 0; i < 2000 && !(atomic_load(&w.block) && atomic_load(&w.experts)); i++)
        model_run_forward(&r, &(model_piece){.n = n, .ids = ids}, 1);
    atomic_store(&w.stop, true);
    pthread_join(thread, NULL);
    assert_true(atomic_load(&w.block) && atomic_load(&w.experts));
    assert_false(atomic_load(&w.wrong));
    td_model_describe(r.model, text, sizeof text);
    assert_string_equal(text, "");
}
