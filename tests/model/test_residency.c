/*
 * Experts that move: whichever lie on the device, and whenever that changes, a model's logits have the bits that they have
 * with all experts on the CPU. Placements are drawn anew in each pass, or the policy's. The same where what is resident has
 * left host memory, and where its file can be read no more.
 */
#include <stdlib.h>
#include <unistd.h>

#include "folder_files.h"
#include "residency_run.h"
#include "tandem_tools.h"

static const char *const DEVICES[] = {"host", "apart", NULL};

static void check_model(const char *path, uint32_t resident, td_expert_format format) {
    model_run_options o = {.path = path, .w8a8 = format != TD_EXPERT_BF16, .experts = format};
    check_residency(o, resident, 60, DEVICES);
}

/* Other experts pass through the device's memory, drawn ones in drawn steps, which go whole or in halves. */
static void check_streamed(const char *path, uint32_t resident, td_expert_format format) {
    model_run_options o = {
        .path = path, .w8a8 = format != TD_EXPERT_BF16, .experts = format, .stream_experts = true, .overlap_min_tok = 20};
    for (; o.overlap_min_tok; o.overlap_min_tok -= 20)
        check_residency(o, resident, 20, (const char *const[]){"apart", NULL});
}

#define GOLDEN "tests/data/golden/"
#define CHUNK 8
#define N_CHUNKS 24

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

/* Of each row some experts are added in the next layer, wherever they lie. Steps go in halves, or whole. */
static void check_deferred(model_run_options o, uint32_t resident) {
    for (o.overlap_min_tok = 20; o.overlap_min_tok; o.overlap_min_tok -= 20) check_residency(o, resident, 12, DEVICES);
}

TEST(deferred_int4) {
    check_deferred(
        (model_run_options){.path = "models/tale-v3-14m", .w8a8 = true, .experts = TD_EXPERT_INT4C, .max_deferred = 3}, 6);
}
TEST(deferred_bf16) {
    check_deferred((model_run_options){.path = GOLDEN "qwen3_moe", .experts = TD_EXPERT_BF16, .max_deferred = 1}, 4);
}
TEST(deferred_on_two_cards) {
    model_run_options o = {
        .path = GOLDEN "deepseek_v3_yarn", .w8a8 = true, .experts = TD_EXPERT_INT8C, .max_deferred = 1, .n_cards = 2};
    check_deferred(o, 4);
}
TEST(deferred_and_streamed) {
    model_run_options o = {.path = "models/tale-v3-14m",
                           .w8a8 = true,
                           .experts = TD_EXPERT_INT4C,
                           .max_deferred = 2,
                           .stream_experts = true,
                           .overlap_min_tok = 20};
    check_residency(o, 4, 12, (const char *const[]){"apart", NULL});
}

/* Several cards share the slots. Steps go whole, or in halves. */
static void check_cards(const char *path, uint32_t resident, td_expert_format format, uint32_t n_cards) {
    model_run_options o = {
        .path = path, .w8a8 = format != TD_EXPERT_BF16, .experts = format, .n_cards = n_cards, .overlap_min_tok = 20};
    for (; o.overlap_min_tok; o.overlap_min_tok -= 20) check_residency(o, resident, 12, DEVICES);
}

TEST(int4_on_two_cards) {
    check_cards("models/tale-v3-14m", 6, TD_EXPERT_INT4C, 2);
}
TEST(int8_on_four_cards) {
    check_cards(GOLDEN "deepseek_v3_yarn", 4, TD_EXPERT_INT8C, 4);
}
TEST(bf16_on_two_cards) {
    check_cards(GOLDEN "qwen3_moe", 4, TD_EXPERT_BF16, 2);
}

/* Each card streams a part of what is streamed. Steps go in halves, or whole. */
static void check_streamed_on_cards(model_run_options o, uint32_t resident) {
    o.stream_experts = true;
    for (o.overlap_min_tok = 20; o.overlap_min_tok; o.overlap_min_tok -= 20)
        check_residency(o, resident, 12, (const char *const[]){"apart", NULL});
}

TEST(streamed_int4_on_two_cards) {
    check_streamed_on_cards(
        (model_run_options){.path = "models/tale-v3-14m", .w8a8 = true, .experts = TD_EXPERT_INT4C, .n_cards = 2}, 6);
}
TEST(streamed_int8_on_four_cards) {
    check_streamed_on_cards(
        (model_run_options){.path = GOLDEN "deepseek_v3_yarn", .w8a8 = true, .experts = TD_EXPERT_INT8C, .n_cards = 4}, 4);
}
TEST(streamed_bf16_on_two_cards) {
    check_streamed_on_cards((model_run_options){.path = GOLDEN "qwen3_moe", .experts = TD_EXPERT_BF16, .n_cards = 2}, 4);
}
TEST(deferred_and_streamed_on_two_cards) {
    check_streamed_on_cards(
        (model_run_options){
            .path = "models/tale-v3-14m", .w8a8 = true, .experts = TD_EXPERT_INT4C, .n_cards = 2, .max_deferred = 2},
        6);
}

/* A card's table of functions, of which launches fail while they are to. */
static td_npu_ops        failing_ops;
static bool              launches_fail;
static const td_npu_ops *real_ops;

static td_status launch_or_fail(td_npu *d, td_npu_stream *s, td_npu_graph *g) {
    return launches_fail ? TD_EDEVICE : real_ops->graph_launch(d, s, g);
}

/* Chunks of a prompt, and each of them fails on the last card first where `fails`. */
static void run_chunks(const model_run_options *o, const uint32_t *ids, bool fails, float *logits) {
    AT_END(model_run_close) model_run r;
    model_run_open(&r, o);
    td_npu *last = r.placed.npus[o->n_cards - 1];
    real_ops = last->ops;
    failing_ops = *real_ops;
    failing_ops.graph_launch = launch_or_fail;
    last->ops = &failing_ops;
    for (uint32_t at = 0; at < o->max_len; at += CHUNK) {
        const model_piece piece = {.first = at, .n = CHUNK, .ids = ids + at};
        if (fails) {
            launches_fail = true;
            model_run_fill(&r, &piece, 1, &r.rows);
            assert_int_equal(td_model_forward(r.model, &r.rows, (td_out_rows){0}, NULL), TD_EDEVICE);
            launches_fail = false;
        }
        model_run_forward(&r, &piece, 1);
    }
    model_run_logits(&r, CHUNK, logits);
    last->ops = real_ops;
    if (o->stream_experts) assert_true(counts_of(&r).stream.steps > 0);
}

/* It leaves no slot, and the others must not wait for what would come to it. Some of the passes stream more than a ring holds. */
TEST(a_card_that_runs_nothing_lets_the_others_end) {
    uint32_t          ids[N_CHUNKS * CHUNK], vocab = 4096;
    model_run_options o = {.path = "models/tale-v3-14m",
                           .device = "apart",
                           .w8a8 = true,
                           .experts = TD_EXPERT_INT4C,
                           .n_seq = 1,
                           .max_len = N_CHUNKS * CHUNK,
                           .max_tok = CHUNK};
    for (uint32_t i = 0; i < o.max_len; i++) ids[i] = (uint32_t)(td_rng_u64(5, 0, i) % vocab);
    FREED float *want = calloc((size_t)CHUNK * vocab, sizeof *want), *got = calloc((size_t)CHUNK * vocab, sizeof *got);
    for (o.n_cards = 2; o.n_cards <= 4; o.n_cards += 2) {
        o.device_experts = 0;
        o.stream_experts = false;
        run_chunks(&o, ids, false, want);
        o.device_experts = 4;
        o.stream_experts = true;
        for (o.residency_seed = 1; o.residency_seed <= 2; o.residency_seed++) {
            run_chunks(&o, ids, true, got);
            assert_memory_equal(got, want, (size_t)CHUNK * vocab * sizeof *got);
        }
    }
}

/* ---- what is resident leaves host memory ----------------------------------------------------------- */

static char folder[] = "/tmp/test_residency.XXXXXX";

static int quantised(void **state) {
    (void)state;
    td_error            err = {0};
    td_quantize_options q =
        WITH(td_quantize_options, .model_path = TD_SOURCE_DIR "/models/tale-v3-14m", .output_path = folder,
             .quantization = "w8a8_int8", .expert_quantization = "int4", .subpool_count = 1, .threads = 2);
    if (!mkdtemp(folder) || rmdir(folder) != 0 || td_quantize(&q, &err) != TD_OK) fail_msg("%s", err.text);
    return 0;
}

static int removed(void **state) {
    (void)state;
    remove_folder(folder);
    memcpy(folder + sizeof folder - 7, "XXXXXX", 6);
    residency_midway = NULL;
    return 0;
}

static void expert_files(const char *of, void (*change)(const char *path)) {
    for (int i = 0; i < 100; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/experts-%05d.tdx", of, i);
        if (access(path, F_OK) == 0) change(path);
    }
}

static void forget(const char *path) {
    assert_int_equal(unlink(path), 0);
}
static void shorten(const char *path) {
    assert_int_equal(truncate(path, 5000), 0);
}
static void forget_files(const char *of) {
    expert_files(of, forget);
}
static void shorten_files(const char *of) {
    expert_files(of, shorten);
}

static const model_run_options DROPPED = {
    .path = folder, .w8a8 = true, .experts = TD_EXPERT_INT4C, .experts_as_stored = true, .drop_experts = true};

TEST_WITH(experts_that_left_host_memory, quantised, removed) {
    check_residency(DROPPED, 6, 60, DEVICES);
    assert_true(residency_counts.reads > 0 && residency_counts.unread == 0);
    assert_true(residency_counts.dropped_bytes > 0);
}

TEST_WITH(experts_of_two_cards_that_left_host_memory, quantised, removed) {
    model_run_options o = DROPPED;
    o.n_cards = 2;
    check_residency(o, 6, 60, DEVICES);
    assert_true(residency_counts.reads > 0 && residency_counts.unread == 0);
}

/* Those that pass through the device are in host memory meanwhile, with one card or two. */
TEST_WITH(streamed_experts_while_others_left_host_memory, quantised, removed) {
    model_run_options o = DROPPED;
    o.stream_experts = true;
    for (o.n_cards = 1; o.n_cards <= 2; o.n_cards++) {
        check_residency(o, 6, 20, (const char *const[]){"apart", NULL});
        assert_true(residency_counts.reads > 0 && residency_counts.stream.uploads > 0);
    }
}

/* One run, of drawn placements. */
static void check_midway(const char *device, void (*midway)(const char *of)) {
    uint32_t          vocab;
    model_run_options o = DROPPED;
    o.n_seq = N_SEQ, o.max_len = PROMPT + 60, o.max_tok = N_SEQ * PROMPT, o.device = device;
    FREED float *want = run_model(&o, &vocab);
    o.device_experts = 6;
    o.residency_seed = 1;
    residency_midway = midway;
    FREED float *got = run_model(&o, &vocab);
    assert_memory_equal(got, want, (size_t)o.max_len * N_SEQ * vocab * sizeof *got);
}

/* Files stay open: names may go. */
TEST_WITH(files_that_vanish_are_read_all_the_same, quantised, removed) {
    check_midway("apart", forget_files);
    assert_true(residency_counts.reads > 0 && residency_counts.unread == 0);
}

/* An expert that cannot be read again stays on the device, and all others go on. */
TEST_WITH(experts_whose_files_were_cut_short_stay_on_the_device, quantised, removed) {
    for (int host = 0; host < 2; host++) {
        if (host) {
            removed(NULL);
            quantised(NULL);
        }
        check_midway(host ? "host" : "apart", shorten_files);
        assert_true(residency_counts.unread > 0);
    }
}
