/*
 * A pass that goes in pieces gives the bits of one that goes whole, wherever it is cut, and so does each pass between its
 * pieces. Compared are logits of the model and of its MTP layer, for every family, with and without deferred experts. CTest
 * runs this again with cuts and delays that are drawn (TD_CHAOS_SEED), and on devices with threads of their own, where large
 * passes go in halves.
 */
#include <math.h>

#include "bridge/bridge.h"
#include "core/log/log.h"
#include "core/math/rng.h"
#include "core/threads/chaos.h"
#include "model_run.h"
#include "tests/td_test.h"

#define SEED 20261128u
#define N_SEQ 4 /* the last one's prompt goes in pieces */
#define LONG (N_SEQ - 1)
#define MAX_LEN 400
#define MAX_TOK 128
#define BETWEEN_MAX 16 /* rows of a step between pieces */
#define HALVES_FROM 40 /* rows of a pass that goes in halves, where the device has threads of its own */

static uint64_t g_draws;
static uint32_t draw(uint32_t n) {
    return (uint32_t)(td_rng_u64(SEED, 0, g_draws++) % n);
}

typedef struct {
    model_run    r;
    td_step_rows aside;
    uint32_t     ids[N_SEQ][MAX_LEN], done[N_SEQ];
    float       *logits; /* [N_SEQ, MAX_LEN, vocab] of each token, then the MTP layer's */
    uint32_t     vocab, n_between;
    bool         mtp;
} company;

static float *logits_at(const company *c, uint32_t mtp, uint32_t seq, uint32_t pos) {
    return c->logits + (((size_t)mtp * N_SEQ + seq) * MAX_LEN + pos) * c->vocab;
}

static void open_company(company *c, const model_run_options *o) {
    *c = (company){0};
    model_run_open(&c->r, o);
    OK(td_step_rows_open(&c->aside, MAX_TOK, TD_ASIDE_SEQ, MAX_LEN, NULL));
    c->vocab = td_model_get_config(c->r.model)->vocab;
    c->mtp = td_model_get_config(c->r.model)->n_mtp_layers;
    c->logits = calloc((size_t)2 * N_SEQ * MAX_LEN * c->vocab, sizeof *c->logits);
    assert_non_null(c->logits);
    for (uint32_t q = 0; q < N_SEQ; q++)
        for (uint32_t i = 0; i < MAX_LEN; i++) c->ids[q][i] = (uint32_t)(td_rng_u64(SEED, 1 + q, i) % c->vocab);
}

static void close_company(company *c) {
    model_run_close(&c->r);
    td_step_rows_close(&c->aside);
    free(c->logits);
}

/* The logits of the last pass, which was over n tokens of a sequence. */
static void keep_logits(company *c, const td_step_rows *rows, uint32_t seq, uint32_t first, uint32_t n) {
    model_run_logits(&c->r, n, logits_at(c, 0, seq, first));
    if (c->mtp) model_run_mtp_logits(&c->r, rows->token, n, logits_at(c, 1, seq, first));
}

static model_piece next_piece(company *c, uint32_t seq, uint32_t n) {
    if (n > MAX_LEN - c->done[seq]) n = MAX_LEN - c->done[seq];
    model_piece p = {.seq = seq,
                     .first = c->done[seq],
                     .n = n,
                     .ids = c->ids[seq] + c->done[seq],
                     .absorbed = c->done[seq] >= MAX_LEN / 2};
    if (!p.absorbed && p.first + p.n > MAX_LEN / 2) p.n = MAX_LEN / 2 - p.first; /* what is behind was generated */
    c->done[seq] += p.n;
    return p;
}

static void run_whole(company *c, uint32_t seq, uint32_t n) {
    const model_piece p = next_piece(c, seq, n);
    if (p.n) keep_logits(c, model_run_forward(&c->r, &p, 1), seq, p.first, p.n);
}

/* @param drop leave it after a piece, and begin again */
static void run_in_pieces(company *c, uint32_t n, bool drop) {
    const model_piece p = next_piece(c, LONG, n);
    if (!p.n) return;
    model_run_fill(&c->r, &p, 1, &c->aside);
    td_model_start_pieces(c->r.model, &c->aside);
    static atomic_bool yes = true;
    for (td_piece piece = {0}; !piece.ended;) {
        const bool cuts = draw(32), has_time = !cuts || draw(2); /* one operation, or all */
        piece = (td_piece){.budget_s = has_time ? (double)INFINITY : 0,
                           .part_s = has_time && !cuts ? 100 : 0,
                           .waited_for = cuts && has_time ? &yes : NULL};
        OK(td_model_run_piece(c->r.model, &piece));
        if (piece.ended) break;
        assert_int_equal(piece.gave_way, piece.waited_for != NULL);
        c->n_between++;
        run_whole(c, draw(LONG), 1 + draw(BETWEEN_MAX));
        if (drop) td_model_start_pieces(c->r.model, &c->aside);
        drop = false;
    }
    keep_logits(c, &c->aside, LONG, p.first, p.n);
}

/* @param resident experts of a layer that are on the device, drawn anew in each pass and piece; never in the whole passes */
static void check_model(const char *path, uint32_t top_k, bool w8a8, uint32_t resident) {
    for (uint32_t deferred = 0; deferred < top_k; deferred++) {
        model_run_options o =
            WITH(model_run_options, .path = path, .w8a8 = w8a8, .experts = w8a8 ? TD_EXPERT_INT4C : TD_EXPERT_BF16,
                 .max_deferred = deferred, .max_tok = MAX_TOK, .n_seq = N_SEQ, .max_len = MAX_LEN,
                 .overlap_min_tok = HALVES_FROM, .in_pieces = true);
        company whole, pieces;
        open_company(&whole, &o);
        o.device_experts = resident;
        o.residency_seed = resident ? 1 + deferred : 0;
        open_company(&pieces, &o);
        const td_model_spec *spec = td_model_get_spec(pieces.r.model);
        assert_true(spec->in_pieces && spec->aside_tok > MAX_TOK / 2);
        assert_int_equal(td_model_halves(pieces.r.model, spec->aside_tok), pieces.r.n_npu_pools ? TD_HALVES : 1);
        while (pieces.done[LONG] < MAX_LEN) run_in_pieces(&pieces, 1 + draw(spec->aside_tok), draw(3) == 0);
        for (uint32_t q = 0; q < N_SEQ; q++)
            while (pieces.done[q] < MAX_LEN) run_whole(&pieces, q, BETWEEN_MAX);
        for (uint32_t q = 0; q < N_SEQ; q++)
            while (whole.done[q] < MAX_LEN) run_whole(&whole, q, MAX_TOK);
        /* Drawn cuts are behind an eighth of some 160 operations: how many is luck, that there are none is not. */
        assert_true(pieces.n_between >= (td_chaos_on() ? 1 : 10));
        for (uint32_t q = 0; q < N_SEQ; q++)
            for (uint32_t pos = 0; pos < MAX_LEN; pos++)
                for (uint32_t mtp = 0; mtp <= whole.mtp; mtp++)
                    if (memcmp(logits_at(&whole, mtp, q, pos), logits_at(&pieces, mtp, q, pos), whole.vocab * sizeof(float)))
                        fail_msg("%s, %u deferred: other bits at position %u of sequence %u%s", path, deferred, pos, q,
                                 mtp ? ", MTP layer" : "");
        close_company(&whole);
        close_company(&pieces);
    }
}

#define FOLDER_TEST(name, top_k)                                  \
    TEST(name) {                                                  \
        check_model("tests/data/golden/" #name, top_k, false, 0); \
    }
FOLDER_TEST(deepseek_v2_lite, 3)
FOLDER_TEST(deepseek_v2_group, 4)
FOLDER_TEST(deepseek_v3_yarn, 4)
FOLDER_TEST(deepseek_v3_noqlora, 4)
FOLDER_TEST(qwen3_moe, 2)
FOLDER_TEST(qwen2_moe, 2)
FOLDER_TEST(glm4_moe, 4)
FOLDER_TEST(minimax_m2, 4)
FOLDER_TEST(gpt_oss, 3)
FOLDER_TEST(deepseek_v32, 4)
FOLDER_TEST(glm_moe_dsa, 4)

TEST(demo_model_with_mtp) {
    check_model("models/tale-v3-14m", 4, true, 0);
}

/* Experts come and go between the pieces, but for those that an open layer has marked. */
TEST(deepseek_v2_lite_with_resident_experts) {
    check_model("tests/data/golden/deepseek_v2_lite", 3, false, 4);
}
TEST(glm4_moe_with_resident_experts) {
    check_model("tests/data/golden/glm4_moe", 2, false, 6);
}
TEST(demo_model_with_resident_experts) {
    check_model("models/tale-v3-14m", 2, true, 6);
}

/* Where it cannot be, the spec says so. */
TEST(others_go_whole) {
    static const struct {
        const char *what, *path;
        uint32_t    npu_threads, n_cards, device_experts;
        const char *device;
    } cases[] = {
        {"recurrent", "tests/data/golden/qwen3_next", 0, 1, 0, "host"},
        {"two cards", "tests/data/golden/qwen3_moe", 2, 2, 0, "host"},
        {"streamed experts", "tests/data/golden/qwen3_moe", 0, 1, 4, "apart"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AT_END(model_run_close) model_run r;
        model_run_open(
            &r, &WITH(model_run_options, .path = cases[i].path, .experts = TD_EXPERT_BF16, .max_tok = MAX_TOK, .n_seq = 1,
                      .max_len = MAX_LEN, .npu_threads = cases[i].npu_threads, .n_cards = cases[i].n_cards,
                      .device_experts = cases[i].device_experts, .stream_experts = cases[i].device_experts > 0,
                      .device = cases[i].device, .in_pieces = true));
        const td_model_spec *spec = td_model_get_spec(r.model);
        if (spec->in_pieces || spec->aside_tok) fail_msg("%s: a pass could go in pieces", cases[i].what);
    }
}

BEFORE_ALL {
    td_log_set_level(TD_LOG_WARNING);
    const char *chaos = getenv("TD_CHAOS_SEED");
    print_message("seed %u, TD_CHAOS_SEED %s\n", SEED, chaos ? chaos : "not set");
}
