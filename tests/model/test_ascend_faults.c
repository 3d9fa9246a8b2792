/*
 * A model's life on an Ascend card with one failure in it: each call of the runtime that can fail, and each operation on a
 * stream, in turn (a sample of them; all with TD_TEST_FULL=1). What fails is told, what was taken is given back (the
 * stand-in looks when the card is closed), nothing hangs, and a pass that is run again gives the numbers of a life without
 * a failure. Each life is a process.
 */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/pool.h"
#include "model_run.h"

#define SAMPLE 24 /* lives of each kind and model */
#define VOCAB 320
#define TOKENS 6
#define TIME_S 60 /* of a life */

typedef struct {
    td_status opened, ran; /* the first failure of each */
    int32_t   passes;      /* that gave numbers */
    float     logits[VOCAB];
    char      said[TD_ERROR_TEXT_MAX];
} life;

static const char *const FOLDERS[] = {"deepseek_v3_yarn", "qwen2_moe"};
static const uint32_t    EXPERTS[] = {16, 8}; /* of their layers; TD_TEST_DEVICE_EXPERTS=1 has them on the card */

static uint32_t device_experts_of(const char *folder) {
    size_t i = 0;
    while (strcmp(FOLDERS[i], folder) != 0) i++;
    return getenv("TD_TEST_DEVICE_EXPERTS") ? EXPERTS[i] : 0;
}

/* A prompt, and a token after it; a pass that fails is run again, as the engine does. */
static void run_passes(td_model *m, life *l) {
    static const uint32_t ids[TOKENS] = {5, 17, 99, 3, 200, 41}, page[1] = {1};
    td_step_rows          rows = {0};
    const float          *logits = NULL;
    td_error              err = {0};
    if (td_step_rows_open(&rows, 8, 2, 128, &err) != TD_OK) return;
    for (uint32_t i = 0; i < 2; i++) {
        td_out_rows out = {.row = (const uint32_t[]){i ? 0 : TOKENS - 2}, .n = 1};
        td_step_rows_clear(&rows);
        td_step_rows_add(&rows, ids + (i ? TOKENS - 1 : 0), i ? TOKENS - 1 : 0, i ? 1 : TOKENS - 1, page, 1, i == 1);
        td_status st = TD_EDEVICE;
        for (int attempt = 0; attempt < 2 && st != TD_OK; attempt++) {
            st = td_model_forward(m, &rows, out, &logits);
            if (st != TD_OK && l->ran == TD_OK) l->ran = st;
        }
        if (st != TD_OK) break;
        l->passes++;
        memcpy(l->logits, logits, sizeof l->logits);
    }
    td_step_rows_close(&rows);
}

static life live(const char *folder) {
    life            l = {0};
    td_worker_place place = {.cpu = TD_CPU_ANY, .node = UINT32_MAX};
    td_pool        *pool;
    td_error        err = {0};
    td_placed_model placed;
    char            path[256];
    json_error_t    e;
    snprintf(path, sizeof path, "tests/data/golden/%s/manifest.json", folder);
    json_t *manifest = json_load_file(repo_path(path), 0, &e);
    if (td_pool_create(&place, 1, &pool, &err) != TD_OK) _exit(90);
    td_placement p = {.device = "npu",
                      .expert_pool = pool,
                      .n_cards = 1,
                      .n_pages = 2,
                      .model = {.model_path = repo_path(json_string_value(json_object_get(manifest, "model"))),
                                .override_json = "{\"num_hidden_layers\": 2}",
                                .w8a8 = true,
                                .expert_format = TD_EXPERT_INT8C,
                                .device_experts = device_experts_of(folder),
                                .max_tok = 8,
                                .max_seq = 2,
                                .max_out = 2}};
    l.opened = td_placed_model_open(&p, &placed, &err);
    if (l.opened == TD_OK) {
        l.opened = td_model_load(placed.model, p.n_pages, &err);
        if (l.opened == TD_OK) run_passes(placed.model, &l);
        td_placed_model_close(&placed);
    }
    snprintf(l.said, sizeof l.said, "%s", err.text);
    td_pool_destroy(pool);
    json_decref(manifest);
    return l;
}

/** In a process of its own. @param calls what the stand-in says it counted, where it does. */
static life live_with(const char *variable, int n, const char *folder, int *calls) {
    int  status, ends[2], words[2];
    char number[16], said[8192] = "";
    life l = {0};
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(pipe(words), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(TIME_S); /* what hangs ends by a signal */
        signal(SIGABRT, SIG_DFL);
        dup2(words[1], STDERR_FILENO);
        snprintf(number, sizeof number, "%d", n);
        setenv(variable, number, 1);
        l = live(folder);
        _exit(write(ends[1], &l, sizeof l) == sizeof l ? 0 : 91);
    }
    close(ends[1]);
    close(words[1]);
    size_t  got = 0;
    ssize_t more;
    while ((more = read(words[0], said + got, sizeof said - 1 - got)) > 0)
        if ((got += (size_t)more) > sizeof said / 2) { /* the end is what matters */
            memmove(said, said + got - sizeof said / 4, sizeof said / 4);
            got = sizeof said / 4;
        }
    said[got] = 0;
    bool whole = read(ends[0], &l, sizeof l) == sizeof l;
    close(ends[0]);
    close(words[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) || !whole)
        fail_msg("%s, %s=%d: status %d: %s", folder, variable, n, status, said);
    const char *counted = strstr(said, "stand-in: ");
    if (calls) *calls = counted ? atoi(counted + strlen("stand-in: ")) : 0;
    return l;
}

static void try_all(const char *variable, int n, const char *folder, const life *want) {
    int sample = getenv("TD_TEST_DEVICE_EXPERTS") ? SAMPLE / 3 : SAMPLE;
    int told = 0, lives = 0, step = getenv("TD_TEST_FULL") || n <= sample ? 1 : n / sample;
    for (int i = 1; i <= n; i += step, lives++) {
        life l = live_with(variable, i, folder, NULL);
        if (l.opened != TD_OK && l.opened != TD_EDEVICE && l.opened != TD_ENOMEM)
            fail_msg("%s=%d: the start ends with %d: %s", variable, i, l.opened, l.said);
        if (l.opened != TD_OK && !l.said[0]) fail_msg("%s=%d: the start ends without a sentence", variable, i);
        if (l.opened == TD_OK && l.passes == 2) assert_memory_equal(l.logits, want->logits, sizeof l.logits);
        if (l.opened == TD_OK && l.passes < 2) fail_msg("%s=%d: a pass that is run again fails again", variable, i);
        told += l.opened != TD_OK || l.ran != TD_OK;
    }
    print_message("    %s, %s: %d lives of %d, %d of them told of a failure\n", folder, variable, lives, n, told);
    assert_true(told * 10 >= lives * 7); /* what goes wrong at the end is told to nobody */
}

static void every_call_fails_once(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof FOLDERS / sizeof *FOLDERS; i++) {
        int  n = 0;
        life want = live_with("TD_STANDIN_FAIL", 0, FOLDERS[i], &n);
        assert_int_equal(want.opened, TD_OK);
        assert_int_equal(want.passes, 2);
        assert_true(n > 50);
        try_all("TD_STANDIN_FAIL", n, FOLDERS[i], &want);
    }
}

/* Kernels and copies of both passes; there are some thirty a layer. */
static void every_operation_fails_once(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof FOLDERS / sizeof *FOLDERS; i++) {
        life want = live_with("TD_STANDIN_DELAY_US", 1, FOLDERS[i], NULL);
        int  n = 1;
        assert_int_equal(want.passes, 2);
        for (int most = 4096; most; most /= 2) { /* the last one that is told */
            life l = live_with("TD_STANDIN_FAIL_OP", n + most, FOLDERS[i], NULL);
            if (l.opened != TD_OK || l.ran != TD_OK) n += most;
        }
        assert_true(n > 50);
        try_all("TD_STANDIN_FAIL_OP", n, FOLDERS[i], &want);
    }
}

/* A filter of cmocka, as "every_operation*". */
int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_fails_once),
        cmocka_unit_test(every_operation_fails_once),
    };
    setenv("ASCEND_HOME_PATH", TD_ASCEND_STANDIN, 1);
    setenv("TD_STANDIN_DELAY_US", "5", 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
