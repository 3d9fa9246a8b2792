/* The threads for long texts when the server stops. Running work is finished, waiting work is told that the server closes,
 * and nothing runs afterwards. There are no connections: calls that would suspend and resume one are counted. */
#include <pthread.h>
#include <stdatomic.h>

#include "server/connection/text_work.h"
#include "tests/td_test.h"

#define JOBS (TD_TEXT_THREADS + 2) /* that many run, the others wait */

typedef enum { UNTOUCHED, FINISHED, TOLD } outcome;

static td_text_work    g_work;
static td_text_job     g_jobs[JOBS];
static outcome         g_outcomes[JOBS];
static pthread_mutex_t g_gate = PTHREAD_MUTEX_INITIALIZER; /* whoever runs waits for it */
static atomic_int      g_running, g_suspended;

void __wrap_MHD_suspend_connection(struct MHD_Connection *connection);
void __wrap_MHD_resume_connection(struct MHD_Connection *connection);

void __wrap_MHD_suspend_connection(struct MHD_Connection *connection) {
    (void)connection;
    g_suspended++;
}
void __wrap_MHD_resume_connection(struct MHD_Connection *connection) {
    (void)connection;
    g_suspended--;
}

static td_text_kind run(void *call, bool closing) {
    outcome *o = call;
    g_running++;
    if (!closing) {
        pthread_mutex_lock(&g_gate);
        pthread_mutex_unlock(&g_gate);
    }
    *o = closing ? TOLD : FINISHED;
    return TD_TEXT_ENDED;
}

static td_text_kind run_freely(void *call, bool closing) {
    *(outcome *)call = closing ? TOLD : FINISHED;
    return TD_TEXT_ENDED;
}

static void *stop(void *arg) {
    (void)arg;
    assert_true(td_text_work_stop(&g_work, 1e6));
    return NULL;
}

static bool is_closing(void) {
    pthread_mutex_lock(&g_work.lock);
    bool closing = g_work.closing;
    pthread_mutex_unlock(&g_work.lock);
    return closing;
}

TEST(what_runs_is_finished_and_what_waits_is_told) {
    static const td_text_kind kinds[] = {TD_TEXT_SHORT, TD_TEXT_LONG, TD_TEXT_IMAGE};
    td_error                  err = {0};
    pthread_t                 stopping;
    td_text_job               late = {.run = run, .call = &(outcome){UNTOUCHED}};
    td_text_work_init(&g_work);
    OK(td_text_work_start(&g_work, &err));
    pthread_mutex_lock(&g_gate);
    for (int i = 0; i < JOBS; i++) {
        g_jobs[i] = (td_text_job){.run = run, .call = &g_outcomes[i], .kind = kinds[i % 3]};
        assert_true(td_text_work_put(&g_work, &g_jobs[i]));
    }
    while (g_running < TD_TEXT_THREADS) sched_yield();
    assert_int_equal(g_suspended, JOBS);
    pthread_create(&stopping, NULL, stop, NULL);
    while (!is_closing()) sched_yield();
    assert_false(td_text_work_put(&g_work, &late));
    pthread_mutex_unlock(&g_gate);
    for (int i = 0; i < JOBS; i++) {
        while (!td_text_work_done(&g_work, &g_jobs[i])) sched_yield();
        td_text_work_left(&g_work, &g_jobs[i]);
    }
    pthread_join(stopping, NULL);
    assert_int_equal(g_suspended, 0);
    for (int i = 0; i < JOBS; i++) assert_int_equal(g_outcomes[i], i < TD_TEXT_THREADS ? FINISHED : TOLD);
    assert_int_equal(*(outcome *)late.call, UNTOUCHED);
}

static void hold_up_no_short_text(td_text_kind kind) {
    td_text_work work;
    td_error     err = {0};
    td_text_job  jobs[JOBS];
    outcome      outcomes[JOBS] = {UNTOUCHED}, of_short = UNTOUCHED;
    td_text_job  short_job = {.run = run_freely, .call = &of_short, .kind = TD_TEXT_SHORT};
    const int    before = g_running;
    td_text_work_init(&work);
    OK(td_text_work_start(&work, &err));
    pthread_mutex_lock(&g_gate);
    for (int i = 0; i < JOBS; i++) {
        jobs[i] = (td_text_job){.run = run, .call = &outcomes[i], .kind = kind};
        assert_true(td_text_work_put(&work, &jobs[i]));
    }
    assert_true(td_text_work_put(&work, &short_job));
    while (!td_text_work_done(&work, &short_job)) sched_yield();
    assert_int_equal(of_short, FINISHED);
    for (int i = 0; i < JOBS; i++) assert_int_equal(outcomes[i], UNTOUCHED);
    td_text_work_left(&work, &short_job);
    while (g_running == before) sched_yield();
    if (kind == TD_TEXT_LONG)
        assert_false(td_text_work_stop(&work, 0.01)); /* a job runs, and does not see that it is cancelled */
    pthread_mutex_unlock(&g_gate);
    for (int i = 0; i < JOBS; i++) {
        while (!td_text_work_done(&work, &jobs[i])) sched_yield();
        td_text_work_left(&work, &jobs[i]);
    }
    assert_true(td_text_work_stop(&work, 1e6));
}

TEST(short_texts_do_not_wait_for_long_ones) {
    hold_up_no_short_text(TD_TEXT_LONG);
}

TEST(short_texts_do_not_wait_for_grammars) {
    hold_up_no_short_text(TD_TEXT_GRAMMAR);
}

TEST(short_texts_do_not_wait_for_images) {
    hold_up_no_short_text(TD_TEXT_IMAGE);
}

/* Its text is read at once; its grammar waits for its turn. */
static td_text_kind read_before_grammar(void *call, bool closing) {
    outcome *o = call;
    if (*o == UNTOUCHED && !closing) {
        *o = TOLD;
        return TD_TEXT_GRAMMAR;
    }
    return run_freely(call, closing);
}

TEST(the_grammar_of_a_short_text_is_compiled_in_its_turn) {
    td_text_work work;
    td_error     err = {0};
    outcome      of_job = UNTOUCHED;
    td_text_job  job = {.run = read_before_grammar, .call = &of_job, .kind = TD_TEXT_SHORT};
    td_text_work_init(&work);
    assert_true(td_text_work_put(&work, &job));
    OK(td_text_work_start(&work, &err));
    while (!td_text_work_done(&work, &job)) sched_yield();
    assert_int_equal(of_job, FINISHED);
    assert_int_equal(job.kind, TD_TEXT_GRAMMAR);
    td_text_work_left(&work, &job);
    assert_true(td_text_work_stop(&work, 1e6));
}

/* A request whose images are loaded one by one. */
typedef struct {
    int  left;     /* images */
    int *sequence; /* of the threads' work: whose image, in the order in which they were loaded */
    int *n, mine;
} loads;

static pthread_mutex_t g_order = PTHREAD_MUTEX_INITIALIZER;

static td_text_kind load_one(void *call, bool closing) {
    loads *l = call;
    if (closing) return TD_TEXT_ENDED;
    pthread_mutex_lock(&g_order);
    l->sequence[(*l->n)++] = l->mine;
    pthread_mutex_unlock(&g_order);
    return --l->left ? TD_TEXT_IMAGE : TD_TEXT_ENDED;
}

/* A request with one image waits for as many images of one with hundreds as there are threads, and not for all of them. */
TEST(requests_with_images_take_turns) {
    enum { MANY = 200 };
    td_text_work work;
    td_error     err = {0};
    int          sequence[MANY + 1], n = 0, at = 0;
    loads        many = {MANY, sequence, &n, 1}, one = {1, sequence, &n, 2};
    td_text_job  jobs[] = {{.run = load_one, .call = &many, .kind = TD_TEXT_IMAGE},
                           {.run = load_one, .call = &one, .kind = TD_TEXT_IMAGE}};
    td_text_work_init(&work);
    for (int i = 0; i < 2; i++) assert_true(td_text_work_put(&work, &jobs[i]));
    OK(td_text_work_start(&work, &err));
    for (int i = 0; i < 2; i++) {
        while (!td_text_work_done(&work, &jobs[i])) sched_yield();
        td_text_work_left(&work, &jobs[i]);
    }
    assert_true(td_text_work_stop(&work, 1e6));
    assert_int_equal(n, MANY + 1);
    while (sequence[at] != 2) at++;
    assert_true(at < MANY); /* the thread that took it may have been held up by the system meanwhile */
}

static td_text_work g_stopped;

static td_text_kind run_until_cancelled(void *call, bool closing) {
    g_running++;
    while (!closing && !td_text_work_cancelled(&g_stopped)) sched_yield();
    return run_freely(call, closing);
}

/* What runs without an end is cancelled when the time of the stop is over. */
TEST(a_stop_cancels_what_runs) {
    td_error    err = {0};
    outcome     of_job = UNTOUCHED;
    td_text_job job = {.run = run_until_cancelled, .call = &of_job, .kind = TD_TEXT_LONG};
    const int   before = g_running;
    td_text_work_init(&g_stopped);
    assert_true(td_text_work_put(&g_stopped, &job));
    OK(td_text_work_start(&g_stopped, &err));
    while (g_running == before) sched_yield(); /* a job that has not begun is told of the stop instead */
    assert_true(td_text_work_stop(&g_stopped, 0.01));
    assert_int_equal(of_job, FINISHED);
}
