/*
 * Experts that move: whichever lie on the device, and whenever that changes, a model's logits have the bits that they have with
 * all experts on the CPU. Placements are drawn anew in each pass, or the policy's.
 */
#include "residency_run.h"

static void check_model(const char *path, uint32_t resident, td_expert_format format) {
    model_run_options o = {.path = path, .w8a8 = format != TD_EXPERT_BF16, .experts = format};
    check_residency(o, resident, 60, (const char *const[]){"host", "apart", NULL});
}

/* Other experts pass through the device's memory, drawn ones in drawn steps, which go whole or in halves. */
static void check_streamed(const char *path, uint32_t resident, td_expert_format format) {
    model_run_options o = {
        .path = path, .w8a8 = format != TD_EXPERT_BF16, .experts = format, .stream_experts = true, .overlap_min_tok = 20};
    for (; o.overlap_min_tok; o.overlap_min_tok -= 20)
        check_residency(o, resident, 20, (const char *const[]){"apart", NULL});
}

#define GOLDEN "tests/data/golden/"

TEST(int4) {
    check_model("models/tale-v3-14m", 6, TD_EXPERT_INT4C);
}
TEST(int8) {
    check_model(GOLDEN "deepseek_v3_yarn", 4, TD_EXPERT_INT8C);
}
TEST(bf16) {
    check_model(GOLDEN "qwen3_moe", 4, TD_EXPERT_BF16);
}
TEST(int4_with_biases_and_limits) {
    check_model(GOLDEN "gpt_oss", 3, TD_EXPERT_INT4C);
}
TEST(streamed_int4) {
    check_streamed("models/tale-v3-14m", 4, TD_EXPERT_INT4C);
}
TEST(streamed_bf16) {
    check_streamed(GOLDEN "qwen3_moe", 4, TD_EXPERT_BF16);
}
