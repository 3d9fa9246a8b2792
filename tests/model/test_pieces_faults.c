/*
 * An operation fails in a piece of a pass, wherever in the pass that is: with hand-overs to the experts open, and without.
 * The pass is dropped, passes of others go on, and when it has begun again its bits are those of a whole pass. Which operation
 * fails is read once in the life of a process, so each has a process of its own.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "bridge/bridge.h"
#include "core/error.h"
#include "core/log/log.h"
#include "core/math/rng.h"
#include "model_run.h"
#include "tests/td_test.h"

#define SEED 20261129u
#define N_SEQ 3 /* 0: whole; 1: others; 2: in pieces */
#define LEN 70
#define MAX_TOK 128
#define OPERATIONS_MAX 5000 /* of a pass, and more */

typedef struct {
    model_run    r;
    td_step_rows aside;
    uint32_t     ids[LEN];
    float       *whole, *pieces; /* [LEN, vocab] */
} fixture;

static void open_fixture(fixture *f, const char *device) {
    *f = (fixture){0};
    model_run_open(&f->r, &WITH(model_run_options, .path = "tests/data/golden/deepseek_v2_lite", .experts = TD_EXPERT_BF16,
                                .max_tok = MAX_TOK, .n_seq = N_SEQ, .max_len = LEN, .device = device, .npu_threads = 1,
                                .overlap_min_tok = LEN / 2, .max_deferred = 1, .in_pieces = true));
    OK(td_step_rows_open(&f->aside, MAX_TOK, TD_ASIDE_SEQ, LEN, NULL));
    size_t vocab = td_model_get_config(f->r.model)->vocab;
    f->whole = calloc(LEN * vocab, sizeof *f->whole);
    f->pieces = calloc(LEN * vocab, sizeof *f->pieces);
    assert_true(f->whole && f->pieces && td_model_halves(f->r.model, LEN) == TD_HALVES);
    for (uint32_t i = 0; i < LEN; i++) f->ids[i] = (uint32_t)(td_rng_u64(SEED, 1, i) % vocab);
}

static void close_fixture(fixture *f) {
    model_run_close(&f->r);
    td_step_rows_close(&f->aside);
    free(f->whole);
    free(f->pieces);
}

static void run_whole(fixture *f, uint32_t seq) {
    model_run_forward(&f->r, &(model_piece){.seq = seq, .n = LEN, .ids = f->ids}, 1);
}

static td_status run_pieces(fixture *f, double budget_s) {
    td_piece piece = {.budget_s = budget_s, .part_s = budget_s / 8};
    model_run_fill(&f->r, &(model_piece){.seq = 2, .n = LEN, .ids = f->ids}, 1, &f->aside);
    td_model_start_pieces(f->r.model, &f->aside);
    while (!piece.ended) TD_TRY(td_model_run_piece(f->r.model, &piece));
    return TD_OK;
}

/* @return whether an operation of the pass was the one that fails. */
static bool live(const char *device, double budget_s) {
    AT_END(close_fixture) fixture f;
    open_fixture(&f, device);
    const td_status st = run_pieces(&f, budget_s);
    assert_true(st == TD_OK || st == TD_EDEVICE);
    if (st == TD_OK) return false;
    run_whole(&f, 1);
    OK(run_pieces(&f, budget_s));
    model_run_logits(&f.r, LEN, f.pieces);
    run_whole(&f, 0);
    model_run_logits(&f.r, LEN, f.whole);
    assert_memory_equal(f.whole, f.pieces, LEN * td_model_get_config(f.r.model)->vocab * sizeof *f.whole);
    return true;
}

enum { FAILED = 10, RAN };

static int in_own_process(uint32_t n, const char *device, double budget_s) {
    char  value[16];
    int   status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        snprintf(value, sizeof value, "%u", n);
        setenv("TD_CHAOS_FAIL_OP", value, 1);
        _exit(live(device, budget_s) ? FAILED : RAN);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void check_device(const char *device) {
    static const struct {
        double   budget_s;
        uint32_t every;                /* operation fails */
    } passes[] = {{0, 13}, {1000, 7}}; /* an operation in each piece, blocks in parts; and all in one piece */
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        uint32_t n = 1, every = passes[i].every;
        int      got;
        while ((got = in_own_process(n, device, passes[i].budget_s)) == FAILED && n < OPERATIONS_MAX) n += every;
        if (got != RAN || n < 4 * every) fail_msg("%s, operation %u, budget %g: %d", device, n, passes[i].budget_s, got);
    }
}

TEST(device_threads) {
    check_device("host");
}

TEST(memory_of_its_own) {
    check_device("apart");
}

BEFORE_ALL {
    td_log_set_level(TD_LOG_ERROR);
}
