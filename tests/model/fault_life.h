/* A model's life on a card that a stand-in plays, in a process of its own: opened, two passes, closed. */
#ifndef TD_TESTS_FAULT_LIFE_H
#define TD_TESTS_FAULT_LIFE_H

#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "core/threads/pool.h"
#include "model_run.h"
#include "tests/td_test.h"

#define VOCAB 320
#define TOKENS 6
#define TIME_S 300 /* of a life that hangs */

typedef struct {
    td_status opened, ran; /* the first failure of each */
    int32_t   passes;      /* that gave numbers */
    bool      lost;        /* the model says at the end that a card is */
    float     logits[VOCAB];
    char      said[TD_ERROR_TEXT_MAX];
} life;

typedef struct {
    const char *device, *folder; /* of tests/data/golden */
    uint32_t    n_cards, device_experts;
    bool        sums_ahead;
} life_case;

/* A prompt, and a token after it; a pass that fails is run again, unless a card is lost, as the engine does. */
static inline void run_passes(td_model *m, life *l) {
    static const uint32_t                   ids[TOKENS] = {5, 17, 99, 3, 200, 41}, page[1] = {1};
    AT_END(td_step_rows_close) td_step_rows rows = {0};
    const float                            *logits = NULL;
    td_error                                err = {0};
    if (td_step_rows_open(&rows, 8, 2, 128, &err) != TD_OK) return;
    for (uint32_t i = 0; i < 2; i++) {
        td_out_rows out = {.row = (const uint32_t[]){i ? 0 : TOKENS - 2}, .n = 1};
        td_step_rows_clear(&rows);
        uint32_t         first = i ? TOKENS - 1 : 0;
        td_step_sequence seq = {.pages = page, .n_pages = 1, .absorbed = i == 1, .state = td_own_state(0, first)};
        td_step_rows_add(&rows, ids + first, first, TOKENS - 1 - first + i, &seq);
        td_status st = TD_EDEVICE;
        for (int attempt = 0; attempt < 2 && st != TD_OK && !td_model_is_lost(m, NULL); attempt++) {
            st = td_model_forward(m, &rows, out, &logits);
            if (st != TD_OK && l->ran == TD_OK) l->ran = st;
        }
        if (st != TD_OK) break;
        l->passes++;
        memcpy(l->logits, logits, sizeof l->logits);
    }
    l->lost = td_model_is_lost(m, NULL);
}

static inline life live(const life_case *c) {
    life            l = {0};
    td_worker_place place = {.cpu = TD_CPU_ANY, .node = UINT32_MAX};
    td_pool        *pool;
    td_error        err = {0};
    td_placed_model placed;
    char            path[256];
    json_error_t    e;
    snprintf(path, sizeof path, "tests/data/golden/%s/manifest.json", c->folder);
    json_auto_t *manifest = json_load_file(repo_path(path), 0, &e);
    if (td_pool_create(&place, 1, &pool, &err) != TD_OK) _exit(90);
    td_model_spec spec = td_model_spec_of(repo_path(json_string_value(json_object_get(manifest, "model"))), 8);
    spec.override_json = "{\"num_hidden_layers\": 2}";
    spec.device = c->device;
    spec.n_cards = c->n_cards;
    spec.device_experts = c->device_experts;
    spec.w8a8 = true;
    spec.experts.format = TD_EXPERT_INT8C;
    spec.max_seq = 2;
    spec.max_out = 2;
    spec.n_pages = 2;
    const td_model_probe probe = {.sums_ahead = c->sums_ahead};
    l.opened = td_placed_model_open(&spec, &(td_model_room){.expert_pool = pool}, &probe, &placed, &err);
    if (l.opened == TD_OK) {
        l.opened = td_model_load(placed.model, placed.shares.n_pages, &err);
        if (l.opened == TD_OK) run_passes(placed.model, &l);
        td_placed_model_close(&placed);
    }
    snprintf(l.said, sizeof l.said, "%s", err.text);
    td_pool_destroy(pool);
    return l;
}

/** In a process of its own. @param calls what the stand-in says it counted, where it does. */
static inline life live_with(const life_case *c, const char *variable, int n, int *calls) {
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
        l = live(c);
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
        fail_msg("%s, %s=%d: status %d: %s", c->folder, variable, n, status, said);
    const char *counted = strstr(said, "stand-in: ");
    if (calls) *calls = counted ? atoi(counted + strlen("stand-in: ")) : 0;
    return l;
}

#endif
