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

/* Wait for the next job. NULL: there will be none. */
static td_text_job *take(td_text_work *w) {
    while (!w->first && !w->closing) pthread_cond_wait(&w->queued, &w->lock);
    td_text_job *job = w->first;
    if (job) w->first = job->next;
    if (!w->first) w->last = NULL;
    return job;
}

static void *run_jobs(void *arg) {
    td_text_work *w = arg;
    pthread_mutex_lock(&w->lock);
    for (td_text_job *job; (job = take(w));) {
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
        if (w->last)
            w->last->next = job;
        else
            w->first = job;
        w->last = job;
        job->state = TD_TEXT_QUEUED;
        w->n_suspended++;
        w->n_held++;
        pthread_cond_signal(&w->queued);
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

void td_text_work_stop(td_text_work *w) {
    struct timespec until;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_broadcast(&w->queued);
    while (w->n_suspended) pthread_cond_wait(&w->fewer, &w->lock);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ANSWERS_S;
    while (w->n_held)
        if (pthread_cond_clockwait(&w->fewer, &w->lock, CLOCK_MONOTONIC, &until) == ETIMEDOUT)
            break; /* a client that does not read */
    pthread_mutex_unlock(&w->lock);
    for (; w->n_threads; w->n_threads--) pthread_join(w->threads[w->n_threads - 1], NULL);
}
