/* Experts that move on an NVIDIA card, on the stand-in: logits have the bits that they have with all experts on the CPU, and
 * the rest of the model on the card. */
#include "residency_run.h"
#include "tests/standins/cuda/use_cuda_standin.h"

static void check_model(const char *path, uint32_t resident, td_expert_format format) {
    check_residency((model_run_options){.path = path, .w8a8 = true, .experts = format}, resident, 16,
                    (const char *const[]){"cuda", NULL});
}

#define GOLDEN "tests/data/golden/"

TEST(int8) {
    check_model(GOLDEN "deepseek_v3_yarn", 4, TD_EXPERT_INT8C);
}
TEST(bf16) {
    check_model(GOLDEN "qwen3_moe", 4, TD_EXPERT_BF16);
}
TEST(int4_with_biases_and_limits) {
    check_model(GOLDEN "gpt_oss", 3, TD_EXPERT_INT4C);
}

TEST(deferred_on_two_cards) {
    if (on_own_card()) skip(); /* there may be one alone */
    model_run_options o = {
        .path = GOLDEN "deepseek_v3_yarn", .w8a8 = true, .experts = TD_EXPERT_INT8C, .n_cards = 2, .max_deferred = 1};
    check_residency(o, 4, 4, (const char *const[]){"cuda", NULL});
}

TEST(streamed) {
    model_run_options o = {
        .path = GOLDEN "deepseek_v3_yarn", .w8a8 = true, .experts = TD_EXPERT_INT8C, .stream_experts = true};
    check_residency(o, 4, 4, (const char *const[]){"cuda", NULL});
}

/* Each card streams a part of what is streamed. */
static void check_streamed_on_cards(model_run_options o, uint32_t n_cards) {
    if (on_own_card()) skip(); /* there may be one alone */
    o.n_cards = n_cards;
    o.stream_experts = true;
    check_residency(o, 4, 4, (const char *const[]){"cuda", NULL});
}

TEST(streamed_on_two_cards) {
    check_streamed_on_cards((model_run_options){.path = GOLDEN "qwen3_moe", .w8a8 = true, .experts = TD_EXPERT_INT4C}, 2);
}
TEST(streamed_on_four_cards) {
    check_streamed_on_cards((model_run_options){.path = GOLDEN "deepseek_v3_yarn", .w8a8 = true, .experts = TD_EXPERT_INT8C},
                            4);
}

int main(void) {
    setenv("TD_STANDIN_DEVICES", "4", 1);
    use_cuda_standin("5", "words");
    return tests_run();
}
