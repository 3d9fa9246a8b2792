#include "server/connection/text_work.h"

#include <errno.h>
#include <time.h>

#include "core/error.h"
#include "core/thread.h"
#include "core/trace.h"
#include "server/server_state.h"

#define ANSWERS_S 2

void td_text_work_init(td_text_work *w) {
    *w = (td_text_work){0};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->queued, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->fewer, &attr);
    pthread_condattr_destroy(&attr);
}

/* The next call, which the caller then owns; NULL: there will be none. */
static td_call *take(td_text_work *w) {
    while (!w->first && !w->closing) pthread_cond_wait(&w->queued, &w->lock);
    td_call *c = w->first;
    if (c) w->first = c->next_text;
    if (!w->first) w->last = NULL;
    return c;
}

static void *run(void *arg) {
    td_text_work *w = arg;
    pthread_mutex_lock(&w->lock);
    for (td_call *c; (c = take(w));) {
        bool closing = w->closing;
        pthread_mutex_unlock(&w->lock);
        uint64_t begin = td_trace_begin();
        if (closing)
            c->failed = td_api_fail(&c->err, 503, "shutting_down", "The server is shutting down.") != TD_OK;
        else
            while (c->work(c)) {
            }
        td_trace_end(begin, &(td_trace_label){TD_TRACE_HTTP, c->route, {"request"}, {c->number}});
        pthread_mutex_lock(&w->lock);
        c->text_state = TD_TEXT_DONE;
        w->n_suspended--;
        MHD_resume_connection(c->connection); /* from here the call is the HTTP thread's */
        pthread_cond_broadcast(&w->fewer);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

td_status td_text_work_start(td_text_work *w, td_error *err) {
    for (; w->n_threads < TD_TEXT_THREADS; w->n_threads++)
        TD_TRY(td_thread_start(&w->threads[w->n_threads], "text", run, w, err));
    return TD_OK;
}

bool td_text_work_put(td_text_work *w, td_call *c) {
    pthread_mutex_lock(&w->lock);
    bool put = !w->closing;
    if (put) {
        MHD_suspend_connection(c->connection);
        if (w->last)
            w->last->next_text = c;
        else
            w->first = c;
        w->last = c;
        c->text_state = TD_TEXT_QUEUED;
        w->n_suspended++;
        w->n_held++;
        pthread_cond_signal(&w->queued);
    }
    pthread_mutex_unlock(&w->lock);
    return put;
}

bool td_text_work_done(td_text_work *w, td_call *c) {
    pthread_mutex_lock(&w->lock);
    bool done = c->text_state == TD_TEXT_DONE;
    pthread_mutex_unlock(&w->lock);
    return done;
}

void td_text_work_left(td_text_work *w, td_call *c) {
    pthread_mutex_lock(&w->lock);
    if (c->text_state != TD_TEXT_NONE) {
        c->text_state = TD_TEXT_NONE;
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
        if (pthread_cond_timedwait(&w->fewer, &w->lock, &until) == ETIMEDOUT) break; /* a client that does not read */
    pthread_mutex_unlock(&w->lock);
    for (; w->n_threads; w->n_threads--) pthread_join(w->threads[w->n_threads - 1], NULL);
}
