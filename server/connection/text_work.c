#include "server/connection/text_work.h"

#include <errno.h>
#include <time.h>

#include "core/error.h"
#include "core/threads/thread.h"

#define ANSWERS_S 2 /* how long answers that are being written have when the server stops */

void td_text_work_init(td_text_work *w) {
    *w = (td_text_work){0};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->queued, NULL);
    pthread_cond_init(&w->fewer, NULL);
}

static td_text_job *take_from(td_text_work *w, bool is_long) {
    td_text_job *job = w->queues[is_long].first;
    if (job) w->queues[is_long].first = job->next;
    if (!w->queues[is_long].first) w->queues[is_long].last = NULL;
    return job;
}

/* Wait for the next job. When the queue closes, every thread takes all kinds, to tell them. NULL: there will be none. */
static td_text_job *take(td_text_work *w, bool short_only) {
    for (;;) {
        td_text_job *job = short_only && !w->closing ? NULL : take_from(w, true);
        if (!job) job = take_from(w, false);
        if (job || w->closing) return job;
        pthread_cond_wait(&w->queued, &w->lock);
    }
}

static void *run_jobs(void *arg) {
    td_text_work *w = arg;
    pthread_mutex_lock(&w->lock);
    bool short_only = w->n_begun++ == 0;
    for (td_text_job *job; (job = take(w, short_only));) {
        bool closing = w->closing;
        pthread_mutex_unlock(&w->lock);
        job->run(job->call, closing);
        pthread_mutex_lock(&w->lock);
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
        bool is_long = job->bytes > TD_TEXT_SHORT_BYTES;
        job->next = NULL;
        if (w->queues[is_long].last)
            w->queues[is_long].last->next = job;
        else
            w->queues[is_long].first = job;
        w->queues[is_long].last = job;
        job->state = TD_TEXT_QUEUED;
        w->n_suspended++;
        w->n_held++;
        pthread_cond_broadcast(&w->queued); /* not every thread may take it */
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
    if (ended) await_none(w, &w->n_held, &NEVER, ANSWERS_S); /* some clients do not read */
    pthread_mutex_unlock(&w->lock);
    if (!ended) return false;
    for (; w->n_threads; w->n_threads--) pthread_join(w->threads[w->n_threads - 1], NULL);
    return true;
}
