/*
 * Routed experts on the device compute what the CPU's experts compute. They give the same bits alone and among others, on
 * host and apart, in pieces of any size. Over several cards they are near one card. test_golden_device_experts compares them
 * with transformers.
 */

#include "core/math/rng.h"
#include "model_run.h"
#include "tests/td_test.h"

#define TOKENS 40
#define N_SEQ 3
#define GOLDEN "tests/data/golden/"

/* Logits [N_SEQ, TOKENS + 1, vocab]; those of sequences that did not run are zeros. */
typedef struct {
    float   *logits;
    uint32_t vocab, n_experts, n_moe;
} record;

/* The sequences first_seq .. end_seq - 1, prompts in chunks of `chunk`, then one token. */
static record run_model(const model_run_options *o, uint32_t first_seq, uint32_t end_seq, uint32_t chunk) {
    AT_END(model_run_close) model_run r;
    uint32_t                          ids[N_SEQ][TOKENS + 1];
    model_run_open(&r, o);
    const td_model_config *c = td_model_get_config(r.model);
    record                 out = {.vocab = c->vocab, .n_experts = c->n_experts, .n_moe = td_model_config_moe_layers(c)};
    FREED float           *logits = malloc((size_t)N_SEQ * TOKENS * c->vocab * sizeof *logits);
    out.logits = calloc((size_t)N_SEQ * (TOKENS + 1) * c->vocab, sizeof *out.logits);
    assert_true(logits && out.logits);
    for (uint32_t s = 0; s < N_SEQ; s++)
        for (uint32_t i = 0; i <= TOKENS; i++) ids[s][i] = (uint32_t)(td_rng_u64(7, s, i) % c->vocab);
    for (uint32_t at = 0, n; at <= TOKENS; at += n) {
        model_piece pieces[N_SEQ];
        n = at == TOKENS ? 1 : chunk < TOKENS - at ? chunk : TOKENS - at;
        for (uint32_t s = first_seq; s < end_seq; s++)
            pieces[s - first_seq] =
                (model_piece){.seq = s, .first = at, .n = n, .ids = ids[s] + at, .absorbed = at == TOKENS};
        const td_step_rows *step = model_run_forward(&r, pieces, end_seq - first_seq);
        model_run_logits(&r, step->n_tok, logits);
        for (uint32_t s = first_seq; s < end_seq; s++)
            memcpy(out.logits + ((size_t)s * (TOKENS + 1) + at) * c->vocab, logits + (size_t)(s - first_seq) * n * c->vocab,
                   (size_t)n * c->vocab * sizeof *logits);
    }
    td_model_work w;
    td_model_get_work(r.model, &w);
    assert_int_equal(w.experts.bytes > 0, !o->device_experts);
    return out;
}

static size_t values_of_sequence(const record *r) {
    return (size_t)(TOKENS + 1) * r->vocab;
}

static void expect_same_bits(const record *a, const record *b, uint32_t first_seq, uint32_t end_seq) {
    size_t n = values_of_sequence(a), at = first_seq * n;
    assert_memory_equal(a->logits + at, b->logits + at, (end_seq - first_seq) * n * sizeof *a->logits);
}

static double record_distance(const record *a, const record *b) {
    return distance(a->logits, b->logits, N_SEQ * values_of_sequence(a));
}

static void check_model(const char *path, uint32_t n_experts, bool w8a8) {
    model_run_options o =
        WITH(model_run_options, .path = path, .w8a8 = w8a8, .experts = w8a8 ? TD_EXPERT_INT8C : TD_EXPERT_BF16,
             .n_seq = N_SEQ, .max_len = TOKENS + 1, .max_tok = N_SEQ * TOKENS);
    record cpu = run_model(&o, 0, N_SEQ, 23);
    o.device_experts = n_experts;
    record device = run_model(&o, 0, N_SEQ, 23), alone = run_model(&o, 1, 2, 7);
    expect_same_bits(&device, &alone, 1, 2);
    o.device = "apart";
    record apart = run_model(&o, 0, N_SEQ, 40);
    expect_same_bits(&device, &apart, 0, N_SEQ);
    o.n_cards = 2;
    record cards = run_model(&o, 0, N_SEQ, 23);
    double far = record_distance(&device, &cpu), far_cards = record_distance(&cards, &device);
    print_message("    %s, %s: %.1e from experts on the CPU; two cards %.1e from one\n", path, w8a8 ? "w8a8" : "none", far,
                  far_cards);
    /* f32: sums in another order. W8A8: the CPU's experts in int8 compute the same; for cards see test_tensor_parallel. */
    assert_true(w8a8 ? !(far > 0) : far < 1e-5);
    assert_true(far_cards < (w8a8 ? 0.125 : 1e-4));
    record *all[] = {&cpu, &device, &alone, &apart, &cards};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->logits);
}

TEST(mla) {
    check_model(GOLDEN "deepseek_v2_lite", 8, false);
    check_model(GOLDEN "deepseek_v3_yarn", 16, true);
    check_model("models/tale-v3-14m", 16, true);
}

TEST(gqa) {
    check_model(GOLDEN "qwen3_moe", 8, true);
    check_model(GOLDEN "qwen2_moe", 8, false);
}

static td_error refusal_of(td_model_spec spec) {
    td_error        err = {0};
    td_worker_place place = {.cpu = TD_CPU_ANY, .node = TD_NODE_ANY};
    td_pool        *pool;
    td_placed_model m;
    spec.max_out = 8;
    spec.experts.format = TD_EXPERT_INT4C;
    spec.n_pages = 1;
    OK(td_pool_create(&place, 1, &pool, &err));
    assert_int_not_equal(td_placed_model_open(&spec, &(td_model_room){.expert_pool = pool}, NULL, &m, &err), TD_OK);
    td_pool_destroy(pool);
    return err;
}

TEST(refusals) {
    td_model_spec s = td_model_spec_of(repo_path("models/tale-v3-14m"), 8);
    s.device_experts = 17;
    assert_non_null(strstr(refusal_of(s).text, "num-gpu-experts 17: a layer has 16 routed experts"));
    s.device_experts = 1;
    assert_non_null(strstr(refusal_of(s).text, "num-gpu-experts 1: a token chooses 4 experts of a layer"));
    s.device_experts = 8;
    s.n_cards = 2;
    s.device_experts = 7;
    assert_non_null(strstr(refusal_of(s).text, "num-gpu-experts 7: each of 2 cards has equally many of a layer"));
    s.n_cards = 1;
    s.device_experts = 16;
    s.cpu_weight_path = "/nowhere";
    assert_non_null(strstr(refusal_of(s).text, "the experts in /nowhere are packed for the CPU"));
    s = td_model_spec_of(repo_path(GOLDEN "gpt_oss"), 8);
    s.device_experts = 8;
    assert_non_null(strstr(refusal_of(s).text, "num-gpu-experts 8: this model's experts have biases"));
    s = td_model_spec_of(repo_path(GOLDEN "glm5_next"), 8);
    s.device_experts = 16;
    assert_non_null(strstr(refusal_of(s).text, "num-gpu-experts 16: this model's experts have another gated unit"));
}
