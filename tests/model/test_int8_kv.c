/*
 * The KV cache in 8 bits, of every family: what it changes beside 16 bits, and that its bits do not depend on how a prompt is
 * cut. That it takes about half of the memory, and who refuses it. The attention blocks are compared with double
 * precision in test_npu_attention, whole workloads in test_determinism.
 */
#include "core/log/log.h"
#include "core/math/rng.h"
#include "model_run.h"
#include "npu/host/host_npu.h"
#include "tests/td_test.h"

#define N_TOK 150 /* more than a page */
#define SEED 22

/* Golden distances: the median over the tokens of |logits - those with a cache in 16 bits| / |those|, experts in bf16, as
 * measured with AVX-512 VNNI. Random weights have no structure that rounding could spare, and of some a near tie of the
 * router, or of an indexer, falls the other way. */
typedef struct {
    const char *folder;
    double      distance;
} golden;

static const golden GOLDENS[] = {
    {"deepseek_v2_lite", 0.0442}, {"deepseek_v2_group", 0.0605},
    {"deepseek_v3_yarn", 0.0560}, {"deepseek_v3_noqlora", 0.0368},
    {"qwen3_moe", 0.0187},        {"qwen2_moe", 0.0272},
    {"glm4_moe", 0.0183},         {"glm4_moe_lite", 0.0452},
    {"minimax_m2", 0.0151},       {"kimi_k25", 0.0659},
    {"gpt_oss", 0.0452},          {"qwen3_next", 0.0122},
    {"qwen3_5_moe", 0.0242},      {"deepseek_v32", 0.1691},
    {"glm_moe_dsa", 0.3701},      {"kimi_linear", 0.0201},
    {"glm5_next", 0.0395},
};
#define LEAST 0.7 /* of a golden distance: other instruction sets round queries elsewhere */
#define MOST 1.4

static void open_folder(model_run *r, const char *folder, bool kv_int8) {
    char path[128];
    snprintf(path, sizeof path, "tests/data/golden/%s", folder);
    model_run_open(r, &WITH(model_run_options, .path = path, .w8a8 = true, .kv_int8 = kv_int8, .experts = TD_EXPERT_BF16,
                            .n_seq = 1, .max_len = N_TOK, .max_tok = N_TOK));
}

static void draw_ids(const model_run *r, uint32_t ids[N_TOK]) {
    const uint32_t vocab = td_model_get_config(r->model)->vocab;
    for (uint32_t i = 0; i < N_TOK; i++) ids[i] = 2 + (uint32_t)(td_rng_u64(SEED, 0, i) % (vocab - 2));
}

/* [N_TOK, vocab], the prompt cut into pieces of so many tokens. */
static float *logits_of(model_run *r, uint32_t piece) {
    const size_t vocab = td_model_get_config(r->model)->vocab;
    uint32_t     ids[N_TOK];
    float       *logits = malloc(N_TOK * vocab * sizeof *logits);
    assert_non_null(logits);
    draw_ids(r, ids);
    for (uint32_t at = 0, n; at < N_TOK; at += n) {
        n = N_TOK - at < piece ? N_TOK - at : piece;
        model_run_forward(r, &(model_piece){.first = at, .n = n, .ids = ids + at}, 1);
        model_run_logits(r, n, logits + at * vocab);
    }
    return logits;
}

static uint64_t kv_bytes(const model_run *r) {
    td_model_memory m;
    td_model_get_memory(r->model, &m);
    return m.kv_bytes_per_page + m.windows.page_bytes;
}

TEST(every_family_stays_near_16_bits) {
    size_t beyond = 0;
    for (size_t i = 0; i < sizeof GOLDENS / sizeof *GOLDENS; i++) {
        const golden                     *g = &GOLDENS[i];
        AT_END(model_run_close) model_run wide, narrow;
        open_folder(&wide, g->folder, false);
        open_folder(&narrow, g->folder, true);
        const size_t vocab = td_model_get_config(narrow.model)->vocab;
        FREED float *want = logits_of(&wide, N_TOK), *got = logits_of(&narrow, N_TOK), *cut = logits_of(&narrow, 37);
        const double distance = median_distance(got, want, N_TOK, vocab);
        const bool   within = distance > LEAST * g->distance && distance < MOST * g->distance;
        print_message("    %-20s  %.4f, a page %.2f times as large in 16 bits%s\n", g->folder, distance,
                      (double)kv_bytes(&wide) / (double)kv_bytes(&narrow), within ? "" : "   beyond its bounds");
        assert_memory_equal(got, cut, N_TOK * vocab * sizeof *got);
        assert_true(kv_bytes(&narrow) < kv_bytes(&wide));
        beyond += !within;
    }
    assert_int_equal(beyond, 0);
}

/* Rows of heads, latents and rope parts as real models have them: 8 bytes of scales beside 128, 512 and 64 values. */
TEST(it_takes_about_half) {
    const td_layer_cache head = {.kind = TD_KV_HEAD, .heads = 8, .values = 128, .split = TD_SPLIT_ROWS},
                         latent = {.kind = TD_KV_LATENT, .heads = 1, .values = 512, .split = TD_SPLIT_WHOLE},
                         rope = {.kind = TD_KV_ROPE, .heads = 1, .values = 64, .split = TD_SPLIT_WHOLE},
                         index = {.kind = TD_KV_INDEX, .heads = 1, .values = 128, .split = TD_SPLIT_WHOLE};
    AT_END(model_run_close) model_run r;
    td_model_spec                     wide = td_model_spec_of("", 1), narrow = wide;
    narrow.kv_int8 = true;
    open_folder(&r, "qwen3_moe", false);
    assert_int_equal(td_layer_cache_unit_bytes(&head, &wide, r.npu), 128 * 8 * (256 + 8));
    assert_int_equal(td_layer_cache_unit_bytes(&head, &narrow, r.npu), 128 * 8 * (128 + 8));
    assert_int_equal(td_layer_cache_unit_bytes(&latent, &narrow, r.npu), 128 * (512 + 8));
    assert_int_equal(td_layer_cache_unit_bytes(&rope, &narrow, r.npu), 128 * (64 + 8));
    assert_int_equal(td_layer_cache_unit_bytes(&index, &narrow, r.npu), td_layer_cache_unit_bytes(&index, &wide, r.npu));
}

/* ---- refusals ---------------------------------------------------------------------------------- */

static const td_npu_ops *g_host_ops;

static void caps_without(td_npu *d, td_npu_caps *out) {
    g_host_ops->caps(d, out);
    out->kv_int8 = false;
}

/* @param without the device's caps say that it keeps no cache of 8 bits */
static void is_refused(const char *folder, bool without, const char *sentence) {
    AT_END(model_run_close) model_run r;
    td_npu                           *npu;
    td_model                         *model;
    td_error                          err = {0};
    char                              path[128];
    open_folder(&r, "qwen3_moe", false); /* for its pool */
    OK(td_npu_open("host", &(td_npu_config){.act_dtype = TD_DT_BF16, .host = &(td_host_npu_config){.pool = r.pool}}, &npu,
                   &err));
    g_host_ops = npu->ops;
    td_npu_ops ops = *npu->ops;
    if (without) ops.caps = caps_without;
    npu->ops = &ops;
    snprintf(path, sizeof path, "tests/data/golden/%s", folder);
    td_model_spec spec = td_model_spec_of(repo_path(path), N_TOK);
    spec.w8a8 = spec.kv_int8 = true;
    assert_int_equal(td_model_open(&spec, NULL, &npu, r.pool, &model, &err), TD_ENOTSUP);
    assert_null(model);
    if (!strstr(err.text, sentence)) fail_msg("\"%s\" does not say \"%s\"", err.text, sentence);
    ops.close(npu);
}

TEST(who_does_not_have_it_refuses_it) {
    is_refused("qwen3_moe", true, "keeps no KV cache of 8 bits: leave kv-cache-dtype int8 away");
    is_refused("deepseek_v4", false, "DeepseekV4ForCausalLM keeps rows of its own kind, which are not there in 8 bits");
}

int main(void) {
    td_log_set_level(TD_LOG_WARNING);
    return tests_run();
}
