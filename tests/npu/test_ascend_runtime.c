/*
 * The runtime half of the Ascend backend on the stand-in: memory, streams, copies, host calls, bells, captures. The stand-in
 * ends a process that breaks a rule of CANN, so code that passes here keeps the rules. When the last card is closed, it
 * checks that everything was given back.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define CARD_DEVICE "npu"
#include "npu/ascend/ascend_open.h"
#include "one_card.h"
#include "tests/td_test.h"

TEST(refusals) {
    td_npu       *npu;
    td_error      err = {0};
    td_npu_config config = {.act_dtype = TD_DT_BF16}, reference = {.act_dtype = TD_DT_F32};
    config.card = 2;
    assert_int_equal(td_ascend_npu_open(&config, &npu, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "there is no Ascend card 2: this process sees 2"));
    assert_null(npu);
    config.card = UINT32_MAX;
    assert_int_equal(td_ascend_npu_open(&config, &npu, &err), TD_EINVAL);
    assert_int_equal(td_ascend_npu_open(&reference, &npu, &err), TD_ENOTSUP);
    assert_non_null(strstr(err.text, "bf16"));
}

TEST(memory_is_zeroed_and_aligned) {
    AT_END(close_card) card c = open_card(0);
    td_npu_caps             before, caps;
    c.ops->caps(c.npu, &before);
    assert_non_null(strstr(before.text, "Ascend910B4, card 0 (CANN 9.1.0)"));
    assert_true(before.memory_free > 0 && before.memory_free <= before.memory_total);
    assert_false(before.unified_memory || before.inline_work);
    for (size_t bytes = 1; bytes < 10000000; bytes = bytes * 7 + 3) {
        char *p = device_memory(&c, bytes), *h = pinned_memory(&c, bytes);
        assert_int_equal((uintptr_t)p % 64 + (uintptr_t)h % 64, 0);
        for (size_t i = 0; i < bytes; i += 997) assert_int_equal(h[i], 0);
        memset(h, 1, bytes);
        to_host(&c, h, p, bytes);
        sync_stream(&c);
        for (size_t i = 0; i < bytes; i++)
            if (h[i]) fail_msg("byte %zu of %zu is %d", i, bytes, h[i]);
        c.ops->caps(c.npu, &caps);
        assert_true(caps.memory_free <= before.memory_free - bytes);
        c.ops->free(c.npu, p, bytes);
        c.ops->host_free(c.npu, h, bytes);
    }
    void    *p;
    td_error err = {0};
    assert_int_equal(c.ops->alloc(c.npu, before.memory_free + 1, &p, &err), TD_ENOMEM);
    assert_non_null(strstr(err.text, "aclrtMalloc of"));
    assert_non_null(strstr(err.text, "more do not fit"));
    assert_null(p);
}

typedef struct {
    int            *log;
    _Atomic size_t *n;
    int             id;
} note;

static void take_note(void *arg) {
    note *e = arg;
    e->log[atomic_fetch_add(e->n, 1)] = e->id;
}

#define MANY 500

TEST(host_calls_come_in_order) {
    static int     log[MANY];
    static note    notes[MANY];
    _Atomic size_t n = 0;
    card           c = open_card(0);
    for (int i = 0; i < MANY; i++) {
        notes[i] = (note){log, &n, i};
        OK(c.ops->host_call(c.npu, c.stream, take_note, &notes[i]));
    }
    sync_stream(&c);
    assert_int_equal(n, MANY);
    for (int i = 0; i < MANY; i++) assert_int_equal(log[i], i);
    /* A stream is destroyed after what is enqueued has run. */
    n = 0;
    for (int i = 0; i < MANY; i++) OK(c.ops->host_call(c.npu, c.stream, take_note, &notes[i]));
    close_card(&c);
    assert_int_equal(n, MANY);
}

/* Up, through the host, and down: what an expert tier does by host calls. */
typedef struct {
    const uint32_t *from;
    uint32_t       *to;
} doubling;

static void twice(void *arg) {
    doubling *d = arg;
    *d->to = 2 * *d->from + 1;
}

TEST(a_capture_replays_with_new_contents) {
    AT_END(close_card) card c = open_card(0);
    uint32_t               *in = pinned_memory(&c, 64), *mid = pinned_memory(&c, 64), *out = pinned_memory(&c, 64),
             *device = device_memory(&c, 64);
    doubling      d = {mid, out};
    td_npu_graph *g;
    td_error      err = {0};
    td_npu_report before, after;
    td_card_stats card_before, card_after;
    c.ops->stats(c.npu, &card_before);
    OK(c.ops->graph_begin(c.npu, c.stream));
    assert_int_equal(c.ops->graph_begin(c.npu, c.stream), TD_EINVAL);
    to_device(&c, device, in, 64);
    to_host(&c, mid, device, 64);
    OK(c.ops->host_call(c.npu, c.stream, twice, &d));
    to_device(&c, device, out, 64);
    to_host(&c, mid, device, 64);
    OK(c.ops->graph_end(c.npu, c.stream, &g, &err));
    assert_int_equal(c.ops->graph_end(c.npu, c.stream, NULL, &err), TD_EINVAL);
    sync_stream(&c);
    assert_int_equal(*mid, 0); /* recorded, not run */
    c.ops->stats(c.npu, &card_after);
    assert_int_equal(card_after.launches, card_before.launches);
    c.ops->report(c.npu, &before);
    for (uint32_t i = 0; i < 50; i++) {
        *in = i;
        OK(c.ops->graph_launch(c.npu, c.stream, g));
        sync_stream(&c);
        assert_int_equal(*mid, 2 * i + 1);
    }
    c.ops->report(c.npu, &after);
    assert_int_equal(after.link_down_bytes - before.link_down_bytes, 50 * 128);
    assert_int_equal(after.link_up_bytes - before.link_up_bytes, 50 * 128);
    c.ops->stats(c.npu, &card_after);
    assert_int_equal(card_after.launches - card_before.launches, 50);
    assert_int_equal(card_after.replays - card_before.replays, 50);
    assert_int_equal(card_after.captures - card_before.captures, 1);
    assert_int_equal(card_after.failures, card_before.failures);
    assert_true(card_after.memory_free > 0 && card_after.memory_free < card_after.memory_total);
    c.ops->graph_destroy(c.npu, g);
    /* One that is thrown away, and one that its stream is destroyed in. */
    OK(c.ops->graph_begin(c.npu, c.stream));
    to_device(&c, device, in, 64);
    OK(c.ops->graph_end(c.npu, c.stream, NULL, &err));
    td_npu_stream *other;
    OK(c.ops->stream_create(c.npu, &other, &err));
    OK(c.ops->graph_begin(c.npu, other));
    OK(c.ops->copy(c.npu, other, device, in, 64, TD_COPY_H2D));
    c.ops->stream_destroy(c.npu, other);
    c.ops->free(c.npu, device, 64);
    c.ops->host_free(c.npu, in, 64);
    c.ops->host_free(c.npu, mid, 64);
    c.ops->host_free(c.npu, out, 64);
}

TEST(bells_hand_over) {
    AT_END(close_card) card c = open_card(0);
    hand_over(&c, NULL);
}

/* Two cards at once, each on a thread that did not open it; one is captured while the other works. */
typedef struct {
    card     c;
    uint32_t seen;
} worker;

static void *work(void *arg) {
    worker   *w = arg;
    uint32_t *in = pinned_memory(&w->c, 64), *out = pinned_memory(&w->c, 64), *device = device_memory(&w->c, 64);
    for (uint32_t i = 1; i <= 40; i++) {
        td_npu_graph *g;
        td_error      err = {0};
        *in = i;
        OK(w->c.ops->graph_begin(w->c.npu, w->c.stream));
        to_device(&w->c, device, in, 64);
        to_host(&w->c, out, device, 64);
        OK(w->c.ops->graph_end(w->c.npu, w->c.stream, &g, &err));
        OK(w->c.ops->graph_launch(w->c.npu, w->c.stream, g));
        sync_stream(&w->c);
        w->seen += *out == i;
        w->c.ops->graph_destroy(w->c.npu, g);
    }
    w->c.ops->free(w->c.npu, device, 64);
    w->c.ops->host_free(w->c.npu, in, 64);
    w->c.ops->host_free(w->c.npu, out, 64);
    return NULL;
}

TEST(cards_work_side_by_side) {
    worker    workers[2] = {{.c = open_card(0)}, {.c = open_card(1)}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(workers[i].seen, 40);
        close_card(&workers[i].c);
    }
}

/* ---- failures ---------------------------------------------------------------------------------- */

/*
 * A card's life, as the engine uses it, with one failure in it. The failure is reported, everything that was taken is given
 * back, which the stand-in checks when the card is closed, and nothing hangs. A stream that has failed is synchronised, and
 * its work done again. @return what failed first.
 */
static td_status live_with_failure(char *said, size_t said_bytes) {
    td_npu_config     config = {.act_dtype = TD_DT_BF16};
    td_npu           *npu;
    td_error          err = {0};
    td_status         st = td_ascend_npu_open(&config, &npu, &err), again = TD_OK;
    td_npu_stream    *s = NULL;
    td_npu_graph     *g = NULL;
    uint32_t         *device = NULL, *pinned = NULL;
    char             *bells = NULL;
    const td_npu_ops *o = st == TD_OK ? npu->ops : NULL;
    if (st == TD_OK) st = o->stream_create(npu, &s, &err);
    if (st == TD_OK) st = o->alloc(npu, 64, (void **)&device, &err);
    if (st == TD_OK) st = o->host_alloc(npu, 64, (void **)&pinned, &err);
    if (st == TD_OK) st = o->host_alloc(npu, 128, (void **)&bells, &err);
    bool     opened = st == TD_OK;
    doubling d = {pinned, opened ? (uint32_t *)(bells + 32) : NULL};
    if (opened) {
        bool begun = (st = o->graph_begin(npu, s)) == TD_OK;
        if (begun) {
            td_status in = o->copy(npu, s, device, pinned, 64, TD_COPY_H2D);
            if (in == TD_OK) in = o->host_call(npu, s, twice, &d);
            if (in == TD_OK) in = o->bell_ring(npu, s, (td_bell *)bells, NULL);
            if (in == TD_OK) in = o->bell_wait(npu, s, (td_bell *)(bells + 64), NULL);
            if (in == TD_OK) in = o->copy(npu, s, pinned, device, 64, TD_COPY_D2H);
            st = o->graph_end(npu, s, in == TD_OK ? &g : NULL, &err);
            if (in != TD_OK) st = in;
        }
        for (int round = 0; g && round < 3; round++) {
            pinned[0] = 20;
            *(td_bell *)(bells + 64) = 1; /* rung before */
            td_status launched = o->graph_launch(npu, s, g), ran = o->stream_sync(npu, s);
            if (launched == TD_OK && ran == TD_OK) again = pinned[0] == 20 && *d.to == 41 ? TD_OK : TD_EFORMAT;
            if (st == TD_OK) st = launched != TD_OK ? launched : ran;
        }
        *(td_bell *)(bells + 64) = 0;
    }
    snprintf(said, said_bytes, "%s", err.text);
    if (again != TD_OK) snprintf(said, said_bytes, "wrong numbers in a round that was said to be right");
    if (g) o->graph_destroy(npu, g);
    if (s) o->stream_destroy(npu, s);
    if (device) o->free(npu, device, 64);
    if (pinned) o->host_free(npu, pinned, 64);
    if (bells) o->host_free(npu, bells, 128);
    if (o) o->close(npu);
    return again != TD_OK ? again : st;
}

/** In a process of its own. @return what it returned; fails when it ended otherwise. */
static td_status try_failure(const char *variable, int n, char *said, size_t said_bytes) {
    int  status, ends[2];
    char number[16];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char text[512] = "";
        alarm(20); /* what hangs ends by a signal */
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        snprintf(number, sizeof number, "%d", n);
        setenv(variable, number, 1);
        td_status st = live_with_failure(text, sizeof text);
        fputs(text, stderr);
        _exit(-st);
    }
    close(ends[1]);
    FILE  *f = fdopen(ends[0], "r");
    size_t got = fread(said, 1, said_bytes - 1, f);
    said[got] = 0;
    fclose(f);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status)) fail_msg("%s=%d: signal %d: %s", variable, n, WTERMSIG(status), said);
    return (td_status)-WEXITSTATUS(status);
}

FIRST_TEST(every_call_fails_once) {
    char said[2048], *count;
    OK(try_failure("TD_STANDIN_FAIL", 0, said, sizeof said));
    count = strstr(said, "stand-in: ");
    assert_non_null(count);
    int n = atoi(count + strlen("stand-in: "));
    print_message("%d calls\n", n);
    assert_true(n > 20);
    int quiet = 0;
    for (int i = 1; i <= n; i++) {
        td_status st = try_failure("TD_STANDIN_FAIL", i, said, sizeof said);
        if (st != TD_EDEVICE && st != TD_ENOMEM && st != TD_OK) fail_msg("call %d: %d: %s", i, st, said);
        quiet += st == TD_OK;
        if (st != TD_OK && !strstr(said, "as TD_STANDIN_FAIL wants it")) fail_msg("call %d is told as: %s", i, said);
    }
    assert_true(quiet <= 1); /* the synchronisation of a stream that is destroyed: nobody is told */
    OK(try_failure("TD_STANDIN_FAIL", n + 1, said, sizeof said));
}

FIRST_TEST(every_operation_fails_once) {
    char said[2048];
    int  failed = 0;
    for (int i = 1; i <= 9; i++) {
        td_status st = try_failure("TD_STANDIN_FAIL_OP", i, said, sizeof said);
        if (st != TD_EDEVICE && st != TD_OK) fail_msg("operation %d: %d: %s", i, st, said);
        if (st != TD_OK && !strstr(said, "an operation of the stream has failed"))
            fail_msg("operation %d is told as: %s", i, said);
        failed += st != TD_OK;
    }
    assert_int_equal(failed, 7); /* the zeroing of 64 bytes, and two copies a round */
}

/* ---- a card that is lost -------------------------------------------------------------------------- */

/* What is for good has a sentence; an operation that failed is none of it. */
TEST(a_lost_card_says_what_happened) {
    static const struct {
        const char *status, *words; /* NULL: not lost */
    } CASES[] = {{"507010", "Ascend card 0 is lost (507010): the card was reset or has broken down"},
                 {"507053", "(507053): its memory has an error that ECC cannot correct: npu-smi info -t ecc"},
                 {"507054", "(507054): its memory has an error that ECC cannot correct"},
                 {"507899", "(507899): the card was reset"},
                 {"507901", "(507901): the card was reset"},
                 {"507015", NULL}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        AT_END(close_card) card c = open_card(0);
        uint32_t               *pinned = pinned_memory(&c, 64), *device = device_memory(&c, 64);
        td_error                why = {0};
        assert_false(c.ops->lost(c.npu, &why));
        setenv("TD_STANDIN_STATUS", CASES[i].status, 1);
        setenv("TD_STANDIN_LOST", "/", 1);
        td_status copied = c.ops->copy(c.npu, c.stream, device, pinned, 64, TD_COPY_H2D);
        assert_int_equal(copied, TD_EDEVICE);
        unsetenv("TD_STANDIN_LOST");
        unsetenv("TD_STANDIN_STATUS");
        assert_int_equal(c.ops->lost(c.npu, &why), CASES[i].words != NULL);
        assert_int_equal(why.status, CASES[i].words ? TD_ELOST : TD_OK);
        if (CASES[i].words && !strstr(why.text, CASES[i].words)) fail_msg("\"%s\" has no \"%s\"", why.text, CASES[i].words);
        c.ops->free(c.npu, device, 64);
        c.ops->host_free(c.npu, pinned, 64);
    }
}

int main(void) {
    /* Else LD_LIBRARY_PATH has them. */
    if (!getenv("TD_TEST_ASCEND_BY_PATH")) setenv("ASCEND_HOME_PATH", TD_ASCEND_STANDIN, 1);
    return tests_run();
}
