/*
 * The cost for each family of the number formats of serving, W8A8 on the device and INT4 per channel in the experts. They
 * are compared with reference mode (bf16 weights, f32 sums) on the random checkpoints of tests/data/golden. Random weights
 * have no structure that rounding could spare, and their logits are wide (a standard deviation of 3). So these bounds are
 * far above what a trained model loses (docs/quantisation.md). They find errors in a family's rounding: a scale left out, a
 * weight rotated twice, rows in another order.
 */
#include <math.h>

#include "core/log/log.h"
#include "core/math/rng.h"
#include "model_run.h"
#include "tests/td_test.h"

#define N_TOK 128
#define SEED 21

/* Bounds: 1.25 times what was measured with AVX-512 VNNI. The other sets of instructions sum floats in another order;
 * integers are exact. */
typedef struct {
    const char *folder;
    double      w8a8;     /* median over the tokens of |logits - reference| / |reference|: experts in bf16 */
    double      int4;     /* the same with experts in INT4 */
    double      log_prob; /* with INT4: mean over the tokens of |log p - reference's| of the reference's best token */
} bound;

static const bound BOUNDS[] = {
    {"deepseek_v2_lite", 0.073, 0.143, 0.21}, {"deepseek_v2_group", 0.121, 0.202, 0.41},
    {"deepseek_v3_yarn", 0.133, 0.197, 0.39}, {"deepseek_v3_noqlora", 0.056, 0.163, 0.35},
    {"qwen3_moe", 0.026, 0.312, 0.92},        {"qwen3_moe_tied", 0.049, 0.377, 0.76},
    {"qwen2_moe", 0.035, 0.126, 0.23},        {"glm4_moe", 0.027, 0.163, 0.43},
    {"glm4_moe_yarn", 0.058, 0.156, 0.30},    {"glm4_moe_lite", 0.066, 0.135, 0.25},
    {"minimax_m2", 0.021, 0.130, 0.30},       {"kimi_k25", 0.120, 0.200, 0.47},
    {"gpt_oss", 0.062, 0.494, 1.36},          {"qwen3_next", 0.170, 0.510, 1.34},
    {"qwen3_5_moe", 0.145, 0.540, 1.45},      {"deepseek_v4", 0.044, 0.220, 0.46},
    {"deepseek_v32", 0.320, 0.370, 1.00},     {"glm_moe_dsa", 0.490, 0.550, 1.57},
    {"kimi_linear", 0.195, 0.480, 1.27},      {"glm5_next", 0.275, 0.355, 1.03},
};

/* Rounding changes which keys a row attends to. These are of the same models where it attends to all of them. */
static const bound ALL_KEYS[] = {
    {"deepseek_v32", 0.115, 0.205, 0.44},
    {"glm_moe_dsa", 0.198, 0.341, 0.81},
    {"glm5_next", 0.103, 0.152, 0.30},
};

static float *logits_of(const char *folder, const char *override_json, bool w8a8, td_expert_format experts,
                        uint32_t *vocab) {
    char                              path[128];
    uint32_t                          ids[N_TOK];
    AT_END(model_run_close) model_run r;
    snprintf(path, sizeof path, "tests/data/golden/%s", folder);
    model_run_open(&r, &(model_run_options){.path = path,
                                            .w8a8 = w8a8,
                                            .experts = experts,
                                            .n_seq = 1,
                                            .max_len = 2 * N_TOK,
                                            .override_json = override_json});
    *vocab = td_model_get_config(r.model)->vocab;
    float *logits = malloc((size_t)N_TOK * *vocab * sizeof *logits);
    assert_non_null(logits);
    for (uint32_t i = 0; i < N_TOK; i++) ids[i] = 2 + (uint32_t)(td_rng_u64(SEED, 0, i) % (*vocab - 2));
    model_run_forward(&r, &(model_piece){.n = N_TOK, .ids = ids}, 1);
    model_run_logits(&r, N_TOK, logits);
    return logits;
}

static double mean_log_prob_difference(const float *got, const float *want, uint32_t vocab) {
    double sum = 0;
    for (size_t t = 0; t < N_TOK; t++) {
        uint32_t best = arg_max(want + t * vocab, vocab);
        sum += fabs(log_prob(got + t * vocab, vocab, best) - log_prob(want + t * vocab, vocab, best));
    }
    return sum / N_TOK;
}

static void stay_within(const bound *bounds, size_t n, const char *override_json) {
    print_message("    %-20s  %s\n", "", "W8A8    W8A8 + INT4   log-probability");
    size_t beyond = 0;
    for (size_t i = 0; i < n; i++) {
        const bound *b = &bounds[i];
        uint32_t     vocab;
        FREED float *want = logits_of(b->folder, override_json, false, TD_EXPERT_BF16, &vocab),
                    *w8a8 = logits_of(b->folder, override_json, true, TD_EXPERT_BF16, &vocab),
                    *int4 = logits_of(b->folder, override_json, true, TD_EXPERT_INT4C, &vocab);
        double of_w8a8 = median_distance(w8a8, want, N_TOK, vocab), of_int4 = median_distance(int4, want, N_TOK, vocab),
               log_prob_difference = mean_log_prob_difference(int4, want, vocab);
        bool within =
            of_w8a8 > 0 && of_w8a8 < b->w8a8 && of_int4 > of_w8a8 && of_int4 < b->int4 && log_prob_difference < b->log_prob;
        print_message("    %-20s  %.4f  %.4f        %.3f%s\n", b->folder, of_w8a8, of_int4, log_prob_difference,
                      within ? "" : "   beyond its bound");
        beyond += !within;
    }
    assert_int_equal(beyond, 0);
}

TEST(rounding_stays_within_the_familys_bound) {
    stay_within(BOUNDS, sizeof BOUNDS / sizeof *BOUNDS, NULL);
    stay_within(ALL_KEYS, sizeof ALL_KEYS / sizeof *ALL_KEYS,
                "{\"index_topk\": 128, \"text_config\": {\"index_topk\": 128}}");
}

int main(void) {
    td_log_set_level(TD_LOG_WARNING); /* it loads three dozen models */
    return tests_run();
}
