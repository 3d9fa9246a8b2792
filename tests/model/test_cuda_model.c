/*
 * Whole models on an NVIDIA card, as far as the stand-in and the emulated kernels show it: architectures against outputs
 * that transformers computed (tests/data/golden/README.md), with a prompt whole, in chunks and beside others.
 *
 * Tolerance. The device tier is W8A8 here, so both host and card differ from the outputs by what int8 costs. The card's
 * attention has queries, keys, values and probabilities in bf16, where the host has 16-bit integers. A bf16 rounding is 2^-9
 * of a value at most. Some dozen of them, which are independent, lie on the way through a layer, and there are up to four
 * layers: sqrt(50) * 2^-9 = 0.014. A row's error is the root mean square of its logits' difference relative to that of its
 * logits. Medians over the rows of a prompt are compared, because a row near a tie of two experts may choose the other one
 * and is far off then, on either device. The card's median may be CARD_FACTOR times the host's and CARD_SLACK more.
 */

#include "golden_run.h"
#include "tests/standins/cuda/use_cuda_standin.h"

/* Without TD_TEST_FULL: rows of a prompt, which is cut there; prompts of a model; and some models are left out. */
#define ROWS_MAX 10
#define PROMPTS_MAX 2
#define STEP_MAX 256

static void open_model(model_run *r, const char *path, const char *device, bool other_handover, uint32_t overlap) {
    model_run_open(r, &WITH(model_run_options, .path = path, .device = device, .w8a8 = true, .experts = TD_EXPERT_BF16,
                            .other_handover = other_handover, .overlap_min_tok = overlap, .n_seq = 3, .max_tok = STEP_MAX,
                            .max_len = TOKENS_MAX));
}

/* The form of MLA is the token's, so chunks of a prompt and company change no bit of it. */
static void same_bits(model_run *card, const uint32_t *ids, uint32_t n, const float *whole) {
    size_t       values = n * (size_t)td_model_get_config(card->model)->vocab;
    FREED float *got = malloc(values * sizeof *got);
    assert_non_null(got);
    run_in_chunks(card, ids, n, 7, false, got);
    assert_memory_equal(got, whole, values * sizeof *got);
    run_in_company(card, ids, n, got);
    assert_memory_equal(got, whole, values * sizeof *got);
}

/* Log-probabilities of rows of the last pass, of which the best logits come alone. */
static void check_logprobs(model_run *card, uint32_t n, const float *whole) {
    static const bool all[ROWS_MAX] = {true, true, true, true, true, true, true, true, true, true};
    size_t            vocab = td_model_get_config(card->model)->vocab;
    uint32_t          rows[ROWS_MAX];
    td_out_logprobs   sums[ROWS_MAX];
    const float      *got;
    if (n > ROWS_MAX) n = ROWS_MAX;
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = i;
        sums[i] = (td_out_logprobs){.wanted = i != 1, .id = i == 2 ? UINT32_MAX : (uint32_t)(i * 97 % vocab)};
    }
    td_out_rows out = {.row = rows, .best = all, .logprobs = sums, .n = n};
    OK(td_model_head(card->model, out, &got));
    check_log_sums(whole, got, vocab, sums, n);
}

static void run_folder(const char *folder) {
    json_t                           *manifest = read_manifest(folder), *prompt;
    const char                       *path = model_of(manifest);
    size_t                            index;
    AT_END(model_run_close) model_run host, card;
    open_model(&host, path, "host", false, 0);
    open_model(&card, path, "cuda", false, 0);
    size_t vocab = td_model_get_config(host.model)->vocab;
    json_array_foreach(json_object_get(manifest, "prompts"), index, prompt) {
        uint32_t ids[TOKENS_MAX], all = read_ids(json_object_get(prompt, "ids"), ids, TOKENS_MAX), n = all;
        if (!getenv("TD_TEST_FULL") && n > ROWS_MAX) n = ROWS_MAX;
        if (!getenv("TD_TEST_FULL") && index == PROMPTS_MAX) break;
        size_t       values = n * vocab;
        FREED float *want = read_logits(folder, prompt, "logits", all * vocab), *whole = malloc(values * sizeof *whole),
                    *got = malloc(values * sizeof *got);
        assert_true(whole && got);
        double of_host[2], of_card[2]; /* as a prompt, and token by token, absorbed */
        for (int absorbed = 0; absorbed < 2; absorbed++) {
            uint32_t chunk = absorbed ? 1 : n;
            run_in_chunks(&host, ids, n, chunk, absorbed, got);
            of_host[absorbed] = median_distance(got, want, n, vocab);
            run_in_chunks(&card, ids, n, chunk, absorbed, absorbed ? got : whole);
            of_card[absorbed] = median_distance(absorbed ? got : whole, want, n, vocab);
            if (!absorbed) check_logprobs(&card, n, whole);
        }
        print_message("    %s, %u tokens: host %.4f and %.4f, card %.4f and %.4f\n", folder, n, of_host[0], of_host[1],
                      of_card[0], of_card[1]);
        for (int i = 0; i < 2; i++) assert_true(of_card[i] <= CARD_FACTOR * of_host[i] + CARD_SLACK);
        same_bits(&card, ids, n, whole);
        check_mtp(&host, &card, folder, prompt, n);
    }
    json_decref(manifest);
}

#define FOLDER_TEST(name)  \
    TEST(name) {           \
        run_folder(#name); \
    }
#define FULL_FOLDER_TEST(name)               \
    TEST(name) {                             \
        if (!getenv("TD_TEST_FULL")) skip(); \
        run_folder(#name);                   \
    }
FOLDER_TEST(deepseek_v2_lite)
FULL_FOLDER_TEST(deepseek_v2_group)
FOLDER_TEST(deepseek_v3_yarn)
FULL_FOLDER_TEST(deepseek_v3_noqlora)
FOLDER_TEST(qwen3_moe)
FULL_FOLDER_TEST(qwen3_moe_tied)
FOLDER_TEST(qwen2_moe)
FOLDER_TEST(glm4_moe)
FULL_FOLDER_TEST(glm4_moe_yarn)
FOLDER_TEST(minimax_m2)
FULL_FOLDER_TEST(gpt_oss)
FOLDER_TEST(gpt_oss_mxfp4) /* its window is less than ROWS_MAX */

/* Products that the stand-in for cuBLASLt has computed. */
static uint64_t library_products(void) {
    uint64_t (*count)(void);
    void *library = dlopen(TD_CUDA_STANDIN "/libcublasLt.so.12", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD),
         *at = library ? dlsym(library, "standin_cublaslt_products") : NULL;
    assert_non_null(at);
    memcpy(&count, &at, sizeof at);
    return count();
}

/* cuBLASLt multiplies a prompt of more than 64 rows; in chunks of 64 it has nothing to do. The logits have the same bits. */
static void by_library_and_in_chunks(const char *folder) {
    enum { LONG = 70, CHUNK = 64 };
    json_auto_t                      *manifest = read_manifest(folder);
    uint32_t                          ids[TOKENS_MAX];
    AT_END(model_run_close) model_run card;
    assert_true(read_prompt(manifest, 2, ids, TOKENS_MAX) >= LONG);
    open_model(&card, model_of(manifest), "cuda", false, 0);
    size_t       values = LONG * (size_t)td_model_get_config(card.model)->vocab;
    FREED float *whole = malloc(values * sizeof *whole), *chunks = malloc(values * sizeof *chunks);
    uint64_t     before = on_own_card() ? 0 : library_products();
    assert_true(whole && chunks);
    run_in_chunks(&card, ids, LONG, CHUNK, false, chunks);
    if (!on_own_card()) assert_int_equal(library_products(), before);
    run_in_chunks(&card, ids, LONG, LONG, false, whole);
    if (!on_own_card()) assert_true(library_products() > before + td_model_get_config(card.model)->n_layers);
    assert_memory_equal(whole, chunks, values * sizeof *whole);
}

TEST(many_rows) {
    by_library_and_in_chunks("deepseek_v3_yarn");
    by_library_and_in_chunks("qwen2_moe");
}

/* Two prompts and a generated token of a third sequence in one step: the same bits in halves, replayed, and by either
 * hand-over. */
TEST(halves_and_handovers) {
    static const struct {
        uint32_t    overlap;
        bool        other;
        const char *bells;
    } WAYS[] = {{0, false, "words"}, {2, false, "calls"},  {0, true, "calls"},
                {2, true, "words"},  {0, true, "kernels"}, {2, true, "kernels"}};
    FREED float *want = NULL;
    json_auto_t *manifest = read_manifest("deepseek_v3_yarn");
    for (size_t w = 0; w < sizeof WAYS / sizeof *WAYS; w++) {
        AT_END(model_run_close) model_run r;
        setenv("TD_CUDA_BELLS", WAYS[w].bells, 1);
        open_model(&r, model_of(manifest), "cuda", WAYS[w].other, WAYS[w].overlap);
        run_mixed(&r, 20, 11, &want);
    }
    setenv("TD_CUDA_BELLS", "words", 1);
}

/* A filter of cmocka, as "qwen*". */
int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    use_cuda_standin("5", "words");
    return tests_run();
}
