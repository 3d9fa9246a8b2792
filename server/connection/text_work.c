#include "server/connection/text_work.h"

#include <errno.h>
#include <time.h>

#include "core/error.h"
#include "core/threads/thread.h"

#define CANCEL_S 2  /* how long cancelled work has to end */
#define ANSWERS_S 2 /* how long answers that are being written have when the server stops */

/* Long texts take what others leave; of a core that others want all the time that is a seventieth. A step waits for the
 * slowest of its threads, and each of them may share its core with a text. With 10 chats took 1.3 times as long. */
#define LONG_GIVES_WAY 19
/* Images are what a person waits for: of a core that others want all the time they take a tenth. */
#define IMAGE_GIVES_WAY 10

/* What each thread takes, in this order, and how far it gives way. */
static const struct {
    int          nice;
    unsigned     n;
    td_text_kind kinds[TD_TEXT_KINDS];
} TAKES[TD_TEXT_THREADS] = {
    {0, 1, {TD_TEXT_SHORT}},
    {0, 2, {TD_TEXT_GRAMMAR, TD_TEXT_SHORT}},
    {LONG_GIVES_WAY, 1, {TD_TEXT_LONG}},
    {LONG_GIVES_WAY, 1, {TD_TEXT_LONG}},
    {IMAGE_GIVES_WAY, 1, {TD_TEXT_IMAGE}},
    {IMAGE_GIVES_WAY, 1, {TD_TEXT_IMAGE}},
};

void td_text_work_init(td_text_work *w) {
    *w = (td_text_work){0};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->queued, NULL);
    pthread_cond_init(&w->fewer, NULL);
}

static td_text_job *take_from(td_text_work *w, td_text_kind kind) {
    td_text_job *job = w->queues[kind].first;
    if (job) w->queues[kind].first = job->next;
    if (!w->queues[kind].first) w->queues[kind].last = NULL;
    return job;
}

static void append(td_text_work *w, td_text_job *job) {
    job->next = NULL;
    if (w->queues[job->kind].last)
        w->queues[job->kind].last->next = job;
    else
        w->queues[job->kind].first = job;
    w->queues[job->kind].last = job;
    pthread_cond_broadcast(&w->queued); /* not every thread may take it */
}

/* Wait for the next job of a thread. When the queue closes, every thread takes all kinds, to tell them. NULL: there will be
 * none. */
static td_text_job *take(td_text_work *w, unsigned thread) {
    for (;;) {
        td_text_job *job = NULL;
        for (unsigned i = 0; !job && i < TAKES[thread].n; i++) job = take_from(w, TAKES[thread].kinds[i]);
        for (unsigned kind = 0; !job && w->closing && kind < TD_TEXT_KINDS; kind++) job = take_from(w, kind);
        if (job || w->closing) return job;
        pthread_cond_wait(&w->queued, &w->lock);
    }
}

static void *run_jobs(void *arg) {
    td_text_work *w = arg;
    pthread_mutex_lock(&w->lock);
    unsigned thread = w->n_begun++;
    if (TAKES[thread].nice) td_thread_give_way(TAKES[thread].nice);
    for (td_text_job *job; (job = take(w, thread));) {
        bool closing = w->closing;
        pthread_mutex_unlock(&w->lock);
        td_text_kind left = job->run(job->call, closing);
        pthread_mutex_lock(&w->lock);
        if (left != TD_TEXT_ENDED) {
            job->kind = left;
            append(w, job);
            continue;
        }
        job->state = TD_TEXT_DONE;
        w->n_suspended--;
        MHD_resume_connection(job->connection); /* from here the job is the HTTP thread's */
        pthread_cond_broadcast(&w->fewer);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

td_status td_text_work_start(td_text_work *w, td_error *err) {
    for (; w->n_threads < TD_TEXT_THREADS; w->n_threads++)
        TD_TRY(td_thread_start(&w->threads[w->n_threads], "text", run_jobs, w, err));
    return TD_OK;
}

bool td_text_work_put(td_text_work *w, td_text_job *job) {
    pthread_mutex_lock(&w->lock);
    bool put = !w->closing;
    if (put) {
        MHD_suspend_connection(job->connection);
        append(w, job);
        job->state = TD_TEXT_QUEUED;
        w->n_suspended++;
        w->n_held++;
    }
    pthread_mutex_unlock(&w->lock);
    return put;
}

bool td_text_work_done(td_text_work *w, const td_text_job *job) {
    pthread_mutex_lock(&w->lock);
    bool done = job->state == TD_TEXT_DONE;
    pthread_mutex_unlock(&w->lock);
    return done;
}

bool td_text_work_cancelled(td_text_work *w) {
    pthread_mutex_lock(&w->lock);
    bool cancelled = w->cancelled;
    pthread_mutex_unlock(&w->lock);
    return cancelled;
}

void td_text_work_left(td_text_work *w, td_text_job *job) {
    pthread_mutex_lock(&w->lock);
    if (job->state != TD_TEXT_NONE) {
        job->state = TD_TEXT_NONE;
        w->n_held--;
        pthread_cond_broadcast(&w->fewer);
    }
    pthread_mutex_unlock(&w->lock);
}

/* Under the lock: wait until *count is 0, *hurry is set or the seconds have passed. @return whether it is 0. */
static bool await_none(td_text_work *w, const unsigned *count, const bool *hurry, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (until.tv_nsec >= 1000000000) until = (struct timespec){until.tv_sec + 1, until.tv_nsec - 1000000000};
    while (*count && !*hurry)
        if (pthread_cond_clockwait(&w->fewer, &w->lock, CLOCK_MONOTONIC, &until) == ETIMEDOUT) break;
    return *count == 0;
}

void td_text_work_hurry(td_text_work *w) {
    pthread_mutex_lock(&w->lock);
    w->hurry = true;
    pthread_cond_broadcast(&w->fewer);
    pthread_mutex_unlock(&w->lock);
}

bool td_text_work_stop(td_text_work *w, double seconds) {
    static const bool NEVER = false;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_broadcast(&w->queued);
    bool ended = await_none(w, &w->n_suspended, &w->hurry, seconds);
    w->cancelled = true;
    if (!ended) ended = await_none(w, &w->n_suspended, &NEVER, CANCEL_S);
    if (ended) await_none(w, &w->n_held, &NEVER, ANSWERS_S); /* some clients do not read */
    pthread_mutex_unlock(&w->lock);
    if (!ended) return false;
    for (; w->n_threads; w->n_threads--) pthread_join(w->threads[w->n_threads - 1], NULL);
    return true;
}
