/*
 * Whole models on an Ascend card, as far as the stand-in shows it: every architecture against outputs that transformers
 * computed (tests/data/golden/README.md), with a prompt whole, in chunks, token by token, and beside others.
 *
 * Tolerance. The device tier is W8A8 here, so both host and card differ from the outputs by what int8 costs; the card rounds
 * to bf16 between operations besides, where the host keeps f32. A row's error is the root mean square of its logits'
 * difference relative to that of its logits. Medians over the rows of a prompt are compared, because a row near a tie of two
 * experts may choose the other one and is far off then, on either device. The card's median may be CARD_FACTOR times the
 * host's and CARD_SLACK more. A bf16 rounding is 2^-9 of a value at most. Some dozen of them, which are independent, lie on
 * the way through a layer, and there are up to four layers: sqrt(50) * 2^-9 = 0.014.
 */
#include <time.h>
#include <unistd.h>

#include "core/math/rng.h"
#include "golden_run.h"
#include "quant/coded_matrix.h"

AT_END_OF(end_checkpoint, td_checkpoint, td_checkpoint_close)

#define STEP_MAX 512

static void open_model(model_run *r, const char *path, const char *device) {
    model_run_open(r, &WITH(model_run_options, .path = path, .device = device, .w8a8 = true, .experts = TD_EXPERT_BF16,
                            .n_seq = 3, .max_tok = STEP_MAX, .max_len = TOKENS_MAX));
}

/* On the stand-in a row's result depends on nothing but the row: the same bits as `whole`. */
static void same_bits(model_run *card, const uint32_t *ids, uint32_t n, const float *whole) {
    size_t       values = n * (size_t)td_model_get_config(card->model)->vocab;
    FREED float *got = malloc(values * sizeof *got);
    assert_non_null(got);
    run_in_chunks(card, ids, n, 5, false, got);
    assert_memory_equal(got, whole, values * sizeof *got);
    if (n <= ONE_BY_ONE_MAX || getenv("TD_TEST_FULL")) {
        run_in_chunks(card, ids, n, 1, true, got);
        assert_memory_equal(got, whole, values * sizeof *got);
    }
    run_in_company(card, ids, n, got);
    assert_memory_equal(got, whole, values * sizeof *got);
}

/* With TD_TEST_SAMPLE one prompt of a folder, drawn at random (TD_TEST_DRAW=n draws the same again); with TD_TEST_FULL all.
 */
static bool is_drawn(size_t index, size_t n) {
    static uint64_t seed;
    const char     *given = getenv("TD_TEST_DRAW");
    if (!getenv("TD_TEST_SAMPLE") || getenv("TD_TEST_FULL")) return true;
    if (!seed) {
        seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
        print_message("TD_TEST_DRAW=%llu\n", (unsigned long long)seed);
    }
    return index == td_rng_u64(seed, 1, n) % n;
}

static void run_folder(const char *folder) {
    json_t                           *manifest = read_manifest(folder), *prompt;
    const char                       *path = model_of(manifest);
    size_t                            index;
    AT_END(model_run_close) model_run host, card;
    open_model(&host, path, "host");
    open_model(&card, path, "npu");
    size_t vocab = td_model_get_config(host.model)->vocab;
    json_array_foreach(json_object_get(manifest, "prompts"), index, prompt) {
        if (!is_drawn(index, json_array_size(json_object_get(manifest, "prompts")))) continue;
        uint32_t ids[TOKENS_MAX], n = read_ids(json_object_get(prompt, "ids"), ids, TOKENS_MAX);
        assert_true(n + n / 3 + 1 <= STEP_MAX);
        size_t       values = n * vocab;
        FREED float *want = read_logits(folder, prompt, "logits", values), *whole = malloc(values * sizeof *whole),
                    *got = malloc(values * sizeof *got);
        assert_true(whole && got);
        run_in_chunks(&host, ids, n, n, false, got);
        double of_host = median_distance(got, want, n, vocab), allowed = CARD_FACTOR * of_host + CARD_SLACK;
        run_in_chunks(&card, ids, n, n, false, whole);
        double of_card = median_distance(whole, want, n, vocab);
        print_message("    %s, %u tokens: host %.4f, card %.4f\n", folder, n, of_host, of_card);
        assert_true(of_card <= allowed);
        same_bits(&card, ids, n, whole);
        check_mtp(&host, &card, folder, prompt, n);
    }
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
FOLDER_TEST(minimax_m2)

/* ---- experts of 4-bit codes --------------------------------------------------------------------- */

#define CODES_FACTOR 1.05 /* linears rounded to int8 are 1.1 times as far off as the host at least */

/* Calls of an operation that are given 4-bit codes, in the stand-in's list of calls. */
static size_t calls_with_codes(const char *list, const char *op) {
    FILE  *f = fopen(list, "r");
    char   line[4096];
    size_t n = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        n += !strncmp(line, op, strlen(op)) && line[strlen(op)] == ' ' && strstr(line, "=INT4[");
    fclose(f);
    return n;
}

/* Linears and all routed experts on the cards, against the logits of the decoded weights (tests/data/quantised/README.md).
 * @param kept the experts' codes are multiplied as they are, W4A16; else rounded to int8 */
static void run_coded(const char *name, uint32_t group, uint32_t cards, bool kept) {
    char path[160], list[] = "/tmp/td_ascend_calls_XXXXXX", n_cards[16];
    int  file = mkstemp(list);
    assert_true(file >= 0);
    close(file);
    setenv("TD_STANDIN_CALLS", list, 1);
    snprintf(n_cards, sizeof n_cards, "%u", cards);
    setenv("TD_STANDIN_DEVICES", n_cards, 1);
    snprintf(path, sizeof path, "tests/data/quantised/%s/manifest.json", name);
    json_auto_t *manifest = read_json(path);
    snprintf(path, sizeof path, "tests/data/quantised/%s", name);
    AT_END(model_run_close) model_run host, card;
    uint32_t                          ids[TOKENS_MAX], n = read_prompt(manifest, 0, ids, TOKENS_MAX);
    model_run                        *both[] = {&host, &card};
    for (int i = 0; i < 2; i++)
        model_run_open(both[i], &WITH(model_run_options, .path = path, .device = i ? "npu" : "host", .w8a8 = true,
                                      .experts = TD_EXPERT_INT4C, .device_experts = 4, .n_cards = i ? cards : 1, .n_seq = 3,
                                      .max_tok = STEP_MAX, .max_len = TOKENS_MAX));
    assert_int_equal(td_model_device_expert_group(card.model), group);
    size_t vocab = td_model_get_config(host.model)->vocab, values = n * vocab;
    snprintf(path, sizeof path, "tests/data/quantised/%s/p0_logits_bf16_experts.f32", name);
    FREED float *want = read_array(path, values, sizeof *want), *got = malloc(values * sizeof *got),
                *whole = malloc(values * sizeof *whole);
    run_in_chunks(&host, ids, n, n, false, got);
    double of_host = median_distance(got, want, n, vocab);
    run_in_chunks(&card, ids, n, n, false, whole);
    double of_card = median_distance(whole, want, n, vocab);
    size_t calls = calls_with_codes(list, "aclnnGroupedMatmulV5");
    print_message("    %s, %u tokens, experts on %u cards: host %.4f, card %.4f; %zu kinds of calls with 4 bits\n", name, n,
                  cards, of_host, of_card, calls);
    assert_true(of_card <= CODES_FACTOR * of_host);
    assert_int_equal(calls > 0, kept);
    same_bits(&card, ids, n, whole);
    unsetenv("TD_STANDIN_CALLS");
    unsetenv("TD_STANDIN_DEVICES");
    unlink(list);
}

TEST(experts_of_4_bits) {
    run_coded("awq", 32, 1, true);
    run_coded("packed_int4", 32, 1, true);
    run_coded("packed_int4_zeros", 32, 1, true);
    run_coded("gptq_int4_row", TD_CODED_ROW_GROUP, 1, true); /* a scale for each output */
    run_coded("gptq_int4", 0, 1, false);                     /* 96 inputs of down are no whole groups: rounded to int8 */
}

/* The log has the size of a group that would do. */
TEST(groups_that_cards_do_not_take) {
    char                              text[8192], path[] = "/tmp/td_ascend_log_XXXXXX";
    int                               log = mkstemp(path), stderr_was = dup(STDERR_FILENO);
    AT_END(model_run_close) model_run card;
    assert_true(log >= 0 && stderr_was >= 0 && dup2(log, STDERR_FILENO) == STDERR_FILENO);
    model_run_open(&card, &WITH(model_run_options, .path = "tests/data/quantised/gptq_int4", .device = "npu", .w8a8 = true,
                                .experts = TD_EXPERT_INT4C, .device_experts = 4, .n_seq = 1, .max_len = 64));
    assert_int_equal(dup2(stderr_was, STDERR_FILENO), STDERR_FILENO);
    close(stderr_was);
    ssize_t n = pread(log, text, sizeof text - 1, 0);
    assert_true(n > 0);
    text[n] = 0;
    close(log);
    unlink(path);
    assert_non_null(strstr(text, "which divide its inputs (hidden 128, and inter 96 on this card): groups of 32 would do"));
}

/* As DeepSeek-R1 and Kimi-K2 are published in 4 bits, wholly on the eight cards of a server. */
TEST(four_bits_on_eight_cards) {
    run_coded("awq_eighths", 32, 8, true);
    run_coded("packed_int4_eighths", 32, 8, true);
}

/* ---- DeepSeek-V3's sizes ------------------------------------------------------------------------ */

/* Its layers, but for their number, heads, experts and rows: what chooses between operations is as it is there. */
#define V3_SIZES                                                                                              \
    "\"hidden_size\": 7168, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, "        \
    "\"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, " \
    "\"n_routed_experts\": 8, \"n_group\": 4, \"topk_group\": 2, \"num_experts_per_tok\": 2"
#define V3_EXPERTS 8
#define V3_NEAR 0.08 /* host and card round int8 codes apart: twice what the unfused chain is off, 0.042 */

/* Random weights; no reference has outputs for them: near the host's, and the same bits however the rows are split. */
TEST(deepseek_v3_sizes) {
    enum { N = 13 };
    AT_END(end_checkpoint) td_checkpoint *dummy;
    AT_END(model_run_close) model_run     host, card;
    uint32_t                              ids[N];
    model_run_options                     o = WITH(model_run_options, .path = "tests/data/golden/deepseek_v3_yarn",
                                                   .override_json = "{\"num_hidden_layers\": 2, " V3_SIZES "}", .w8a8 = true,
                                                   .experts = TD_EXPERT_BF16, .n_seq = 3, .max_tok = 32, .max_len = 128);
    OK(td_checkpoint_open_dummy(1, &dummy, NULL));
    o.checkpoint = dummy;
    o.device = "host";
    model_run_open(&host, &o);
    o.device = "npu";
    model_run_open(&card, &o);
    for (uint32_t i = 0; i < N; i++) ids[i] = 2 + i * 37 % 300;
    size_t       vocab = td_model_get_config(host.model)->vocab;
    FREED float *want = malloc(N * vocab * sizeof *want), *got = malloc(N * vocab * sizeof *got);
    assert_true(want && got);
    run_in_chunks(&host, ids, N, N, false, want);
    run_in_chunks(&card, ids, N, N, false, got);
    double error = median_distance(got, want, N, vocab);
    print_message("    DeepSeek-V3's sizes, random weights: %.4f off the host\n", error);
    assert_true(error <= V3_NEAR);
    same_bits(&card, ids, N, got);
}

/* ---- ways through a step ------------------------------------------------------------------------ */

static void open_with(model_run *r, const model_run_options *ways) {
    model_run_options o = *ways;
    json_auto_t      *manifest = read_manifest("deepseek_v3_yarn");
    o.path = model_of(manifest);
    o.device = "npu";
    o.w8a8 = true;
    o.experts = TD_EXPERT_INT4C;
    o.n_seq = 3;
    o.max_tok = 128;
    o.max_len = TOKENS_MAX;
    model_run_open(r, &o);
}

/* Two prompts and a generated token of a third sequence in one step: the same bits in halves, and by either hand-over. */
TEST(halves_and_handovers) {
    static const model_run_options WAYS[] = {
        {0}, {.overlap_min_tok = 2}, {.other_handover = true}, {.overlap_min_tok = 2, .other_handover = true}};
    FREED float *want = NULL;
    for (size_t w = 0; w < sizeof WAYS / sizeof *WAYS; w++) {
        AT_END(model_run_close) model_run r;
        open_with(&r, &WAYS[w]);
        run_mixed(&r, 40, 21, &want);
    }
}

/* ---- the demo's model ---------------------------------------------------------------------------- */

#define TALE_TOKENS 60
#define TALE_NEAR 0.05 /* mean difference of log probabilities; what int8 alone costs is 0.01 to 0.02 */

static void open_tale(model_run *r, const char *device) {
    model_run_open(
        r, &WITH(model_run_options, .path = "models/tale-v3-14m", .device = device, .w8a8 = true, .experts = TD_EXPERT_INT4C,
                 .max_deferred = 1, .n_seq = 1, .max_tok = 64, .max_len = TOKENS_MAX));
}

/* What the host writes, the card finds as likely. With deferral, as the reference deployment has it. */
TEST(tale_agrees) {
    uint32_t                          ids[TALE_TOKENS + 1] = {0, 300, 17};
    AT_END(model_run_close) model_run host, card;
    double                            sum[2] = {0};
    open_tale(&host, "host");
    open_tale(&card, "npu");
    size_t       vocab = td_model_get_config(host.model)->vocab;
    FREED float *logits = malloc(vocab * sizeof *logits);
    assert_non_null(logits);
    for (uint32_t i = 0; i < TALE_TOKENS; i++) {
        model_run *both[2] = {&host, &card};
        double     likely[2];
        for (int d = 0; d < 2; d++) {
            model_run_forward(both[d], &(model_piece){.first = i, .n = 1, .ids = ids + i, .absorbed = true}, 1);
            model_run_logits(both[d], 1, logits);
            if (d == 0 && i >= 2) ids[i + 1] = arg_max(logits, vocab);
            likely[d] = log_prob(logits, vocab, ids[i + 1]);
        }
        sum[0] += likely[0];
        sum[1] += fabs(likely[0] - likely[1]);
    }
    print_message("    mean log probability %.3f, mean difference of the card's %.4f\n", sum[0] / TALE_TOKENS,
                  sum[1] / TALE_TOKENS);
    assert_true(sum[1] / TALE_TOKENS <= TALE_NEAR);
}

/* ---- what a replay waits for --------------------------------------------------------------------- */

#define WITHOUT_MTP ", \"num_nextn_predict_layers\": 0" /* its layer is behind the last one, wherever that is */
#define UPDATE_US 60                                    /* of the stand-in's clock; */
#define COPY_US 20                                      /* of rows, slots and tables of a step, before it */

/* Microseconds that a card without work waited for the host, at most in a replay that had an update for each of n_layers.
 * Each but the first has one copy to the card before it. */
static unsigned longest_wait(const char *path, const td_checkpoint *checkpoint, uint32_t n_layers) {
    char      override[512], log[] = "/tmp/td_ascend_clock_XXXXXX";
    int       file = mkstemp(log);
    model_run r;
    uint32_t  ids[12] = {1, 2, 3};
    assert_true(file >= 0);
    setenv("TD_STANDIN_CLOCK", log, 1);
    snprintf(override, sizeof override, "{\"num_hidden_layers\": %u" WITHOUT_MTP ", " V3_SIZES "}", n_layers);
    model_run_open(
        &r, &WITH(model_run_options, .path = path, .checkpoint = checkpoint, .override_json = override, .device = "npu",
                  .w8a8 = true, .experts = TD_EXPERT_INT4C, .n_seq = 1, .max_tok = 8, .max_len = 128));
    for (uint32_t i = 0; i < 12; i++) model_run_forward(&r, &(model_piece){.first = i, .n = 1, .ids = ids + i}, 1);
    model_run_close(&r);
    unsetenv("TD_STANDIN_CLOCK");
    unsigned updates, copies, waited, longest = 0, replays = 0;
    FILE    *f = fdopen(file, "r");
    while (fscanf(f, "updates %u, copies %u, waited %u us\n", &updates, &copies, &waited) == 3) {
        if (updates != n_layers) continue; /* of a hand-over that is measured, or with the lengths that it had */
        if (replays++ == 0) continue;      /* behind the load's copies */
        assert_int_equal(copies, 1);
        if (waited > longest) longest = waited;
    }
    fclose(f);
    unlink(log);
    assert_true(replays >= 10);
    return longest;
}

/* A copy, and what an update takes at most, however many layers there are: updates come while the layers before them run. TD_ASCEND_EVENTS=0 is
 * this test's other form: all of them come before. */
TEST(a_replay_waits_for_one_update) {
    const char    *value = getenv("TD_ASCEND_EVENTS"), *path = repo_path("tests/data/golden/deepseek_v3_yarn");
    const uint32_t n_layers = 6;
    td_checkpoint *dummy;
    OK(td_checkpoint_open_dummy(1, &dummy, NULL));
    unsigned longest = longest_wait(path, dummy, n_layers);
    td_checkpoint_close(dummy);
    print_message("    %u layers: a replay waits for the host %u us at most\n", n_layers, longest);
    if (value && !strcmp(value, "0"))
        assert_int_equal(longest, COPY_US + n_layers * UPDATE_US);
    else
        assert_true(longest <= UPDATE_US);
}

/* ---- launches ---------------------------------------------------------------------------------- */

#define LAUNCHES_MAX 27       /* of a layer with experts, one operation each */
#define LAUNCHES_FUSED_MAX 16 /* of DeepSeek-V3's, where operations do what several do */
#define EXPERTS_FUSED 5   /* besides, where the experts are on the card: rows to them, sums of counts, two products, back; */
#define EXPERTS_UNFUSED 8 /* codes, counts and three of the middle one by one */

/** Operations of the vendor's in the first capture of a model, of one token. checkpoint NULL: the path's own. */
static uint32_t launches_of(const char *path, const td_checkpoint *checkpoint, const char *sizes, uint32_t n_layers,
                            uint32_t device_experts) {
    char      override[512], log[] = "/tmp/td_ascend_launches_XXXXXX";
    int       file = mkstemp(log);
    model_run r;
    assert_true(file >= 0);
    setenv("TD_STANDIN_LOG", log, 1);
    snprintf(override, sizeof override, "{\"num_hidden_layers\": %u%s}", n_layers, sizes);
    model_run_open(&r, &WITH(model_run_options, .path = path, .checkpoint = checkpoint, .override_json = override,
                             .device = "npu", .w8a8 = true, .experts = TD_EXPERT_INT4C, .device_experts = device_experts,
                             .n_seq = 1, .max_tok = 8, .max_len = 128));
    model_run_close(&r);
    unsetenv("TD_STANDIN_LOG");
    char     text[16384];
    ssize_t  n = read(file, text, sizeof text - 1);
    uint32_t launches = 0;
    assert_true(n > 0);
    text[n] = 0;
    char *line = text, *end; /* captures of hand-overs, which are measured first, have no operations */
    while ((end = strchr(line, '\n')) != NULL && !memmem(line, (size_t)(end - line), "aclnn", 5)) line = end + 1;
    assert_non_null(end);
    *end = 0;
    for (char *name = strtok(line, " "); name; name = strtok(NULL, " ")) launches += !strncmp(name, "aclnn", 5);
    close(file);
    unlink(log);
    return launches;
}

TEST(launches_per_layer) {
    static const struct {
        const char *folder;
        uint32_t    n_layers; /* the last one has experts */
    } MODELS[] = {{"deepseek_v3_yarn", 3}, {"deepseek_v3_noqlora", 3}, {"qwen2_moe", 4}, {"qwen3_moe", 4}};
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) {
        json_auto_t *manifest = read_manifest(MODELS[i].folder);
        const char  *path = model_of(manifest);
        uint32_t     all = launches_of(path, NULL, WITHOUT_MTP, MODELS[i].n_layers, 0),
                 last = all - launches_of(path, NULL, WITHOUT_MTP, MODELS[i].n_layers - 1, 0);
        print_message("    %s: %u launches in a layer with experts, %u in a token of %u layers\n", MODELS[i].folder, last,
                      all, MODELS[i].n_layers);
        assert_true(last > 10 && last <= LAUNCHES_MAX);
    }
}

static uint32_t launches_of_a_v3_layer(uint32_t device_experts) {
    td_checkpoint *dummy;
    const char    *path = repo_path("tests/data/golden/deepseek_v3_yarn");
    OK(td_checkpoint_open_dummy(1, &dummy, NULL));
    uint32_t last = launches_of(path, dummy, ", " V3_SIZES, 3, device_experts) -
                    launches_of(path, dummy, ", " V3_SIZES, 2, device_experts);
    td_checkpoint_close(dummy);
    return last;
}

TEST(launches_of_deepseek_v3) {
    const char *value = getenv("TD_ASCEND_FUSED");
    bool        unfused = value && !strcmp(value, "0");
    uint32_t    last = launches_of_a_v3_layer(0), on_card = launches_of_a_v3_layer(V3_EXPERTS);
    print_message("    DeepSeek-V3's sizes: %u launches in a layer with experts, %u where they are on the card\n", last,
                  on_card);
    assert_true(last > 10 && last <= (unfused ? LAUNCHES_MAX : LAUNCHES_FUSED_MAX));
    assert_int_equal(on_card - last, unfused ? EXPERTS_UNFUSED : EXPERTS_FUSED);
}

/* What a card has in use behind steps of all kinds is what was planned. The room that captured attentions have for their
 * sums is in it: one for all, in the blocks' working memory. Not planned are the arrays of captured steps, and what the
 * stand-in's allocations are rounded up to. */
TEST(memory_is_planned) {
    enum { ROWS = 256, LEN = 512 };
    const uint64_t                    unplanned = 2 << 20;
    td_checkpoint                    *dummy;
    AT_END(model_run_close) model_run r;
    uint32_t                          ids[ROWS];
    td_npu_caps                       caps;
    td_model_memory                   planned;
    OK(td_checkpoint_open_dummy(1, &dummy, NULL));
    model_run_open(&r, &WITH(model_run_options, .path = repo_path("tests/data/golden/deepseek_v3_yarn"), .checkpoint = dummy,
                             .override_json = "{\"num_hidden_layers\": 2, " V3_SIZES "}", .device = "npu", .w8a8 = true,
                             .experts = TD_EXPERT_INT4C, .n_seq = 2, .max_tok = ROWS, .max_len = LEN));
    for (uint32_t i = 0; i < ROWS; i++) ids[i] = i % 64;
    model_run_forward(&r, &(model_piece){.n = ROWS, .ids = ids}, 1);
    model_run_forward(&r, &(model_piece){.first = ROWS, .n = 1, .ids = ids, .absorbed = true}, 1);
    td_model_get_memory(r.model, &planned);
    r.npu->ops->caps(r.npu, &caps);
    const uint64_t used = caps.memory_total - caps.memory_free,
                   all = planned.npu_weight_bytes + planned.device_scratch_bytes + td_model_kv_bytes(&planned, r.n_pages);
    print_message("    %.1f MB in use, %.1f planned, of which %.1f are working memory\n", 1e-6 * (double)used,
                  1e-6 * (double)all, 1e-6 * (double)planned.device_scratch_bytes);
    assert_true(used <= all + unplanned);
    td_checkpoint_close(dummy);
}

/* A filter of cmocka, as "launches*". */
int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    setenv("ASCEND_HOME_PATH", TD_ASCEND_STANDIN, 1);
    setenv("TD_STANDIN_DELAY_US", "5", 0); /* some 200000 operations */
    return tests_run();
}
