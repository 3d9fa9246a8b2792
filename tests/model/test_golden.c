/*
 * Every architecture against outputs that transformers computed (tests/data/golden/README.md), with --quantization none.
 * Compared are logits at all positions, those of the MTP layer where the model has one, routed experts and their weights,
 * and greedy tokens from the KV cache. The prompt goes through in one piece, in odd chunks and token by token. Of prompts of
 * thousands of tokens the last logits are compared.
 */
#include <math.h>

#include "golden_files.h"

/* Two float32 programs that sum in different orders differ by about 1e-6 of the largest logit (the fixtures' own
 * cross-check: 7.2e-6). */
#define LOGIT_TOLERANCE 5e-5
/* Of a row's logits, and so of its log-probabilities at most twice as much. */
#define MEAN_TOLERANCE 5e-5
/* The absorbed form multiplies in another order again. */
#define WEIGHT_TOLERANCE 1e-4
#define TOKEN_BY_TOKEN_MAX 40 /* tokens of a prompt; beyond a window of 20 */
/* Of gpt_oss_as_stored: the median of a row's rms difference, of the row's rms; numpy, with the same rounding of the
 * experts' activations, has 0.022 to 0.027. A near tie of the router that falls the other way spoils a row. */
#define AS_STORED_ERROR 0.05
#define W8A8_ERROR 0.15

static void *read_member(const char *folder, json_t *prompt, const char *key) {
    json_t *a = json_object_get(prompt, key), *shape = json_object_get(a, "shape");
    char    path[512];
    size_t  n = 1;
    for (size_t i = 0; i < json_array_size(shape); i++) n *= (size_t)json_integer_value(json_array_get(shape, i));
    snprintf(path, sizeof path, "tests/data/golden/%s/%s", folder, json_string_value(json_object_get(a, "file")));
    return read_array(path, n, 4);
}

static void check_logits(const float *got, const float *want, size_t n, const char *what) {
    double worst = 0, largest = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)got[i] - want[i]));
        largest = fmax(largest, fabs((double)want[i]));
        sum += fabs((double)got[i] - want[i]);
    }
    print_message("    %s: largest difference %.2e of %.2f, mean %.1e\n", what, worst, largest, sum / (double)n);
    assert_true(worst <= LOGIT_TOLERANCE * largest && sum <= MEAN_TOLERANCE * (double)n);
}

static void check_routing(model_run *r, const char *folder, json_t *prompt, uint32_t n_tok) {
    const td_model_config *c = td_model_get_config(r->model);
    const json_t          *shape = json_object_get(json_object_get(prompt, "router_ids"), "shape");
    FREED int32_t         *ids = read_member(folder, prompt, "router_ids");
    FREED float           *weights = read_member(folder, prompt, "router_weights");
    if (getenv("TD_TEST_DEVICE_EXPERTS")) return; /* what a router chose stays on the device */
    size_t pairs = (size_t)n_tok * c->top_k, layers = (size_t)json_integer_value(json_array_get(shape, 0));
    for (uint32_t l = 0; l < layers && l < td_model_config_moe_layers(c) - c->n_mtp_layers; l++) {
        const uint16_t *got_ids;
        const float    *got_weights;
        td_model_get_routing(r->model, l, &got_ids, &got_weights);
        for (size_t i = 0; i < pairs; i++) {
            assert_int_equal(got_ids[i], ids[l * pairs + i]);
            assert_true(fabsf(got_weights[i] - weights[l * pairs + i]) <= WEIGHT_TOLERANCE * fabsf(weights[l * pairs + i]));
        }
    }
}

static void check_greedy(model_run *r, json_t *prompt, uint32_t n, const float *last_logits) {
    size_t       vocab = td_model_get_config(r->model)->vocab;
    json_t      *greedy = json_object_get(prompt, "greedy"), *gaps = json_object_get(prompt, "greedy_gaps");
    uint32_t     token = arg_max(last_logits, vocab);
    FREED float *logits = malloc(vocab * sizeof *logits);
    for (uint32_t i = 0; i < json_array_size(greedy); i++) {
        if (token != json_integer_value(json_array_get(greedy, i))) {
            /* allowed only at a near tie, and the paths part there */
            assert_true(json_real_value(json_array_get(gaps, i)) < 0.05);
            break;
        }
        model_piece piece = {.first = n + i, .n = 1, .ids = &token, .absorbed = true};
        model_run_forward(r, &piece, 1);
        model_run_logits(r, 1, logits);
        token = arg_max(logits, vocab);
    }
}

/* Each row is fed the token behind its own. */
static void check_mtp(model_run *r, const char *folder, json_t *prompt, const uint32_t *ids, uint32_t n) {
    if (!json_object_get(prompt, "mtp_logits")) return;
    size_t       vocab = td_model_get_config(r->model)->vocab;
    FREED float *want = read_member(folder, prompt, "mtp_logits"), *got = malloc(n * vocab * sizeof *got);
    uint32_t     fed[513];
    memcpy(fed, ids, n * sizeof *ids);
    fed[n] = (uint32_t)json_integer_value(json_array_get(json_object_get(prompt, "greedy"), 0));
    model_run_forward(r, &(model_piece){.n = n, .ids = ids}, 1);
    model_run_mtp_logits(r, fed + 1, n, got);
    check_logits(got, want, n * vocab, "MTP layer");
    for (uint32_t at = 0, chunk = 7; at < n; at += chunk) {
        uint32_t len = n - at < chunk ? n - at : chunk;
        float    piece_logits[7 * 4096];
        model_run_forward(r, &(model_piece){.first = at, .n = len, .ids = ids + at}, 1);
        model_run_mtp_logits(r, fed + at + 1, len, piece_logits);
        assert_memory_equal(piece_logits, got + at * vocab, len * vocab * sizeof *got);
    }
    for (uint32_t at = 0; at < n && n < 40; at++) { /* token by token, in the other form of MLA */
        model_run_forward(r, &(model_piece){.first = at, .n = 1, .ids = ids + at, .absorbed = true}, 1);
        model_run_mtp_logits(r, fed + at + 1, 1, got + at * vocab);
    }
    check_logits(got, want, n * vocab, "MTP layer, token by token");
}

/* In chunks, and token by token: the same numbers as whole. */
static void same_in_pieces(model_run *r, const uint32_t *ids, uint32_t n, bool absorbed, uint32_t chunk,
                           const float *whole) {
    size_t       vocab = td_model_get_config(r->model)->vocab;
    FREED float *logits = malloc(chunk * vocab * sizeof *logits);
    assert_non_null(logits);
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t len = n - at < chunk ? n - at : chunk;
        model_run_forward(r, &(model_piece){.first = at, .n = len, .ids = ids + at, .absorbed = absorbed}, 1);
        model_run_logits(r, len, logits);
        assert_memory_equal(logits, whole + at * vocab, len * vocab * sizeof *logits);
    }
}

static void run_folder(const char *folder) {
    json_t                           *manifest = read_manifest(folder), *prompt;
    size_t                            index;
    AT_END(model_run_close) model_run r;
    model_run_open(
        &r, &WITH(model_run_options, .path = model_of(manifest), .experts = TD_EXPERT_BF16, .n_seq = 1, .max_len = 512));
    size_t vocab = td_model_get_config(r.model)->vocab;
    json_array_foreach(json_object_get(manifest, "prompts"), index, prompt) {
        uint32_t     ids[512], n = read_ids(json_object_get(prompt, "ids"), ids, 512);
        FREED float *want = read_member(folder, prompt, "logits"), *got = malloc(n * vocab * sizeof *got);

        model_run_forward(&r, &(model_piece){.n = n, .ids = ids}, 1);
        model_run_logits(&r, n, got);
        check_logits(got, want, n * vocab, "whole");
        check_routing(&r, folder, prompt, n);
        check_greedy(&r, prompt, n, got + (n - 1) * vocab);

        same_in_pieces(&r, ids, n, false, 5, got);
        if (n <= TOKEN_BY_TOKEN_MAX) same_in_pieces(&r, ids, n, false, 1, got);

        model_run_forward(&r, &(model_piece){.n = n, .ids = ids, .absorbed = true},
                          1); /* the other form of MLA: the same to rounding */
        model_run_logits(&r, n, got);
        check_logits(got, want, n * vocab, "absorbed");
        if (n <= TOKEN_BY_TOKEN_MAX) same_in_pieces(&r, ids, n, true, 1, got);
        check_mtp(&r, folder, prompt, ids, n);
    }
    json_decref(manifest);
}

/* ---- long prompts ---------------------------------------------------------------------------- */

#define LONG "tests/data/long/"
#define LONG_MAX 16384
#define LONG_LAST 8

/* The prompt of scripts/golden/make_long.py. */
static void long_prompt(uint32_t x, uint32_t *ids, uint32_t n, uint32_t vocab) {
    for (uint32_t i = 0; i < n; i++) {
        x = (1103515245u * x + 12345u) & 0x7fffffffu;
        ids[i] = 2 + (x >> 8) % (vocab - 2);
    }
}

/* Thousands of positions beyond the length that the rope scaling starts from: the last rows as part of a chunk, and
 * generated. */
static void run_long(const json_t *want) {
    char     path[256];
    uint32_t n = (uint32_t)json_integer_value(json_object_get(want, "tokens")),
             last = (uint32_t)json_integer_value(json_object_get(want, "last"));
    FREED uint32_t                   *ids = malloc(LONG_MAX * sizeof *ids);
    AT_END(model_run_close) model_run r;
    assert_true(ids && n <= LONG_MAX && last <= LONG_LAST);
    snprintf(path, sizeof path, LONG "%s", json_string_value(json_object_get(want, "file")));
    model_run_open(
        &r, &WITH(model_run_options, .path = json_string_value(json_object_get(want, "model")), .experts = TD_EXPERT_BF16,
                  .n_seq = 1, .max_len = LONG_MAX, .override_json = "{\"max_position_embeddings\": 16384}"));
    uint32_t     vocab = td_model_get_config(r.model)->vocab;
    FREED float *expected = read_array(path, (size_t)last * vocab, 4), *got = malloc((size_t)last * vocab * sizeof *got);
    long_prompt((uint32_t)json_integer_value(json_object_get(want, "seed")), ids, n, vocab);
    print_message("    %s, %u tokens\n", json_string_value(json_object_get(want, "model")), n);
    for (uint32_t at = 0, chunk = 2000; at < n - last; at += chunk) {
        uint32_t len = n - last - at < chunk ? n - last - at : chunk;
        model_run_forward(&r, &(model_piece){.first = at, .n = len, .ids = ids + at}, 1);
    }
    for (int generated = 0; generated < 2; generated++) {
        model_run_forward(&r, &(model_piece){.first = n - last, .n = last, .ids = ids + n - last, .absorbed = generated}, 1);
        model_run_logits(&r, last, got);
        check_logits(got, expected, (size_t)last * vocab, generated ? "absorbed" : "in chunks");
    }
}

TEST(long_prompts) {
    json_t *manifest = json_load_file(repo_path(LONG "manifest.json"), 0, NULL), *want;
    size_t  i;
    assert_true(json_array_size(json_object_get(manifest, "cases")) > 0);
    json_array_foreach(json_object_get(manifest, "cases"), i, want) run_long(want);
    json_decref(manifest);
}

#define FOLDER_TEST(name)  \
    TEST(name) {           \
        run_folder(#name); \
    }
FOLDER_TEST(deepseek_v2_lite)
FOLDER_TEST(deepseek_v2_group)
FOLDER_TEST(deepseek_v3_yarn)
FOLDER_TEST(deepseek_v3_noqlora)
FOLDER_TEST(qwen3_moe)
FOLDER_TEST(qwen3_moe_tied)
FOLDER_TEST(qwen2_moe)
FOLDER_TEST(glm4_moe)
FOLDER_TEST(glm4_moe_yarn)
FOLDER_TEST(glm4_moe_lite)
FOLDER_TEST(kimi_k25)
FOLDER_TEST(deepseek_v32)
FOLDER_TEST(glm_moe_dsa)
FOLDER_TEST(qwen3_next)
FOLDER_TEST(qwen3_5_moe)
FOLDER_TEST(qwen3_vl_moe)
FOLDER_TEST(kimi_linear)

TEST(glm5_next) {
    if (getenv("TD_TEST_DEVICE_EXPERTS")) skip(); /* its gated unit is refused there: test_device_experts */
    run_folder("glm5_next");
}

static void run_deepseek_v4(const char *name) {
    if (getenv("TD_TEST_CARDS") || getenv("TD_TEST_DEVICE_EXPERTS")) skip(); /* refused: test_shards, test_device_experts */
    run_folder(name);
}

TEST(deepseek_v4) {
    run_deepseek_v4("deepseek_v4");
}

TEST(deepseek_v4_fp8) {
    run_deepseek_v4("deepseek_v4_fp8");
}

TEST(minimax_m2) {
    if (getenv("TD_TEST_CARDS")) skip(); /* several are refused: test_shards */
    run_folder("minimax_m2");
}

static void run_gpt_oss(const char *name) {
    if (getenv("TD_TEST_DEVICE_EXPERTS")) skip(); /* biases are refused there: test_device_experts */
    run_folder(name);
}

TEST(gpt_oss) {
    run_gpt_oss("gpt_oss");
}

TEST(gpt_oss_mxfp4) {
    run_gpt_oss("gpt_oss_mxfp4");
}

/* gpt-oss's experts in MXFP4, code by code, with activations in int8 per token; with W8A8 the device's too. */
TEST(gpt_oss_as_stored) {
    static const struct {
        bool   w8a8;
        double bound;
    } WAYS[] = {{false, AS_STORED_ERROR}, {true, W8A8_ERROR}};
    const td_expert_numbers *mxfp4 = td_expert_numbers_find("mxfp4");
    if (getenv("TD_TEST_DEVICE_EXPERTS")) skip();
    json_t *manifest = read_manifest("gpt_oss_mxfp4"), *prompt;
    size_t  index;
    for (size_t way = 0; way < sizeof WAYS / sizeof *WAYS; way++) {
        AT_END(model_run_close) model_run r;
        model_run_open(&r, &WITH(model_run_options, .path = model_of(manifest), .w8a8 = WAYS[way].w8a8,
                                 .experts = mxfp4->format, .groups = mxfp4->groups, .n_seq = 1, .max_len = 512));
        size_t vocab = td_model_get_config(r.model)->vocab;
        json_array_foreach(json_object_get(manifest, "prompts"), index, prompt) {
            uint32_t     ids[512], n = read_ids(json_object_get(prompt, "ids"), ids, 512);
            FREED float *want = read_member("gpt_oss_mxfp4", prompt, "logits"), *got = malloc(n * vocab * sizeof *got);
            model_run_forward(&r, &(model_piece){.n = n, .ids = ids}, 1);
            model_run_logits(&r, n, got);
            double error = median_distance(got, want, n, vocab);
            print_message("    %s, %u tokens: %.3f\n", WAYS[way].w8a8 ? "w8a8" : "experts alone", n, error);
            assert_true(error < WAYS[way].bound);
        }
    }
    json_decref(manifest);
}

/* "short": without the prompts of thousands of tokens, which an emulated processor takes too long for. */
int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "short")) cmocka_set_skip_filter("long_prompts");
    return tests_run();
}
