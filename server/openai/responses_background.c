#include "server/openai/responses_background.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/log/trace.h"
#include "core/threads/thread.h"
#include "server/answer/answer.h"
#include "server/answer/answer_stream.h"
#include "server/openai/responses.h"

#define SECOND_NS UINT64_C(1000000000)

/* ---- the list ---- */

static void job_free(td_background_job *job) {
    td_event_log_free(&job->log);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

static void ref_locked(td_background_job *job) {
    job->refs++;
}

td_background_job *td_background_ref(td_background_job *job) {
    td_background *b = job->background;
    pthread_mutex_lock(&b->lock);
    ref_locked(job);
    pthread_mutex_unlock(&b->lock);
    return job;
}

void td_background_release(td_background_job *job) {
    td_background *b = job->background;
    pthread_mutex_lock(&b->lock);
    bool last = --job->refs == 0;
    pthread_mutex_unlock(&b->lock);
    if (last) job_free(job);
}

/* Take an ended job out of the list, and its events from those who still read them. The list's reference is the caller's
 * then. */
static void unlist_locked(td_background *b, td_background_job *job) {
    td_background_job **at = &b->first;
    while (*at != job) at = &(*at)->next;
    *at = job->next;
    b->n_ended--;
    td_event_log_drop(&job->log);
}

static bool is_listed_locked(const td_background *b, const td_background_job *job) {
    const td_background_job *at = b->first;
    while (at && at != job) at = at->next;
    return at != NULL;
}

static td_background_job *oldest_ended_locked(const td_background *b) {
    td_background_job *oldest = NULL;
    for (td_background_job *job = b->first; job; job = job->next)
        if (job->end_ns && (!oldest || job->end_ns < oldest->end_ns)) oldest = job;
    return oldest;
}

/* Forget the ended job that has been so for longest, if there are more than n_ended_max or it ended before a time.
 * @return whether there was one. */
static bool forget_oldest(td_background *b, uint32_t n_ended_max, uint64_t before_ns) {
    pthread_mutex_lock(&b->lock);
    td_background_job *job = oldest_ended_locked(b);
    bool               goes = job && (b->n_ended > n_ended_max || job->end_ns < before_ns);
    if (goes) unlist_locked(b, job);
    pthread_mutex_unlock(&b->lock);
    if (goes) td_background_release(job);
    return goes;
}

td_background_job *td_background_find(td_background *b, const char *id) {
    pthread_mutex_lock(&b->lock);
    td_background_job *job = b->first;
    while (job && strcmp(job->id, id) != 0) job = job->next;
    if (job) ref_locked(job);
    pthread_mutex_unlock(&b->lock);
    return job;
}

uint32_t td_background_running(td_background *b) {
    pthread_mutex_lock(&b->lock);
    uint32_t n = b->n_running;
    pthread_mutex_unlock(&b->lock);
    return n;
}

/* ---- writing the answers; under the job's lock ---- */

/* The job has ended. It stays in the list as long as its events are kept. */
static void end_job(td_background_job *job) {
    td_background *b = job->background;
    td_generation *g = job->generation;
    td_event_log_end(&job->log);
    job->generation = NULL;
    td_generation_leave(g);
    pthread_mutex_lock(&b->lock);
    job->end_ns = td_trace_now();
    b->n_running--;
    b->n_ended++;
    bool goes = !job->streams || td_event_log_is_dropped(&job->log);
    if (goes) {
        unlist_locked(b, job);
        job->refs--; /* not the last one: the caller has one */
    }
    pthread_mutex_unlock(&b->lock);
    forget_oldest(b, b->limits.jobs_max, 0);
    td_unwatch(b->watcher, g->slot); /* now nobody has to wait for this job any more */
    td_generation_unref(g);
}

/* Keep the events that were written, with others' going for them, or keep none any more. */
static void keep_events(td_background_job *job) {
    td_background *b = job->background;
    td_generation *g = job->generation;
    bool           kept = td_event_log_add(&job->log, g->out.data, g->out.len);
    while (!kept && forget_oldest(b, 0, 0)) kept = td_event_log_add(&job->log, g->out.data, g->out.len);
    if (!kept) {
        td_warn("request %s: there is no room for its events any more; it goes on without them", g->id);
        td_event_log_drop(&job->log);
    }
    g->out.len = 0;
}

static void write_events(td_background_job *job) {
    td_generation *g = job->generation;
    td_write_stream(g);
    if (g->out.failed) {
        td_event_log_drop(&job->log);
        td_generation_fail(g, 500, "internal_error", "Out of memory while the answer was written.");
        td_response_keep_failed(g);
        end_job(job);
        return;
    }
    keep_events(job);
    if (g->out_ended) end_job(job);
}

static void write_whole(td_background_job *job) {
    td_generation *g = job->generation;
    pthread_mutex_lock(&g->lock);
    bool has_error = g->has_error;
    pthread_mutex_unlock(&g->lock);
    if (has_error)
        td_response_keep_failed(g);
    else
        td_response_end(g);
    end_job(job);
}

/* A generation that was given up, since nobody took its news in time or the server must end, has an error, too. */
static void fail_if_aborted(td_generation *g) {
    pthread_mutex_lock(&g->lock);
    bool aborted = g->aborted;
    pthread_mutex_unlock(&g->lock);
    if (aborted)
        td_generation_fail(g, 503, "aborted", "The response was given up: the server ends, or its memory is short.");
}

static void write_answer(td_background_job *job) {
    while (job->generation && !td_generation_wait(job->generation)) {
        fail_if_aborted(job->generation);
        if (job->streams)
            write_events(job);
        else
            write_whole(job);
    }
}

/* ---- the thread ---- */

static void call_thread_locked(td_background *b, td_background_job *job) {
    if (!job->turn) job->turn = ++b->n_turns;
    pthread_cond_signal(&b->changed);
}

static void wake(void *user) {
    td_background_job *job = user;
    td_background     *b = job->background;
    pthread_mutex_lock(&b->lock);
    call_thread_locked(b, job);
    pthread_mutex_unlock(&b->lock);
}

static bool is_late(const td_background_job *job) {
    return td_trace_now() - job->begin_ns > job->background->limits.job_s * SECOND_NS;
}

static void attend(td_background_job *job, bool closing) {
    pthread_mutex_lock(&job->lock);
    td_generation *g = job->generation;
    if (g && closing) td_generation_fail(g, 503, "shutting_down", "The server is shutting down.");
    if (g && is_late(job))
        td_generation_fail(g, 503, "timeout", "The response did not end within the time of --background-timeout.");
    write_answer(job);
    pthread_mutex_unlock(&job->lock);
}

/* A reference to the job that the thread is to look at next; NULL: at none. */
static td_background_job *next_locked(const td_background *b) {
    td_background_job *next = NULL;
    for (td_background_job *job = b->first; job; job = job->next)
        if (job->turn && (!next || job->turn < next->turn)) next = job;
    if (!next) return NULL;
    next->turn = 0;
    ref_locked(next);
    return next;
}

/* Once a second: jobs that are late are looked at, events that are old go, readers that have left do. */
static void sweep(td_background *b) {
    uint64_t now = td_trace_now(), kept = b->limits.events_kept_s * SECOND_NS;
    while (now > kept && forget_oldest(b, b->limits.jobs_max, now - kept)) continue;
    pthread_mutex_lock(&b->lock);
    for (td_background_job *job = b->first; job; job = job->next) {
        td_event_log_sweep(&job->log);
        if (!job->end_ns && is_late(job)) call_thread_locked(b, job);
    }
    pthread_mutex_unlock(&b->lock);
}

static void wait_locked(td_background *b) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec++;
    pthread_cond_clockwait(&b->changed, &b->lock, CLOCK_MONOTONIC, &until);
}

static void *run(void *arg) {
    td_background *b = arg;
    uint64_t       swept = td_trace_now();
    pthread_mutex_lock(&b->lock);
    for (;;) {
        td_background_job *job = next_locked(b);
        bool               closing = b->closing;
        if (!job && closing && b->n_running == 0) break;
        if (!job && td_trace_now() - swept < SECOND_NS) {
            wait_locked(b);
            continue;
        }
        pthread_mutex_unlock(&b->lock);
        if (job) {
            attend(job, closing);
            td_background_release(job);
        }
        if (td_trace_now() - swept >= SECOND_NS) {
            sweep(b);
            swept = td_trace_now();
        }
        pthread_mutex_lock(&b->lock);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

void td_background_init(td_background *b, const td_background_limits *limits, td_generations *generations,
                        td_watcher *watcher) {
    *b =
        (td_background){.limits = *limits, .generations = generations, .watcher = watcher, .events.max = limits->events_max};
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
}

td_status td_background_start(td_background *b, td_error *err) {
    TD_TRY(td_thread_start(&b->thread, "background", run, b, err));
    b->runs = true;
    return TD_OK;
}

void td_background_stop(td_background *b) {
    if (!b->runs) return;
    pthread_mutex_lock(&b->lock);
    b->closing = true;
    for (td_background_job *job = b->first; job; job = job->next) call_thread_locked(b, job);
    pthread_cond_signal(&b->changed); /* also where there is no job */
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    b->runs = false;
}

void td_background_free(td_background *b) {
    while (forget_oldest(b, 0, 0)) continue;
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
}

/* ---- what clients do ---- */

/* Count one more job. */
static td_status take_place(td_background *b, td_api_error *err) {
    if (b->limits.jobs_max == 0)
        return td_api_bad(err, "background", "'background' is not supported by this server (--max-background-responses 0).");
    pthread_mutex_lock(&b->lock);
    bool room = b->n_running < b->limits.jobs_max;
    if (room) b->n_running++;
    pthread_mutex_unlock(&b->lock);
    if (room) return TD_OK;
    return td_api_fail(err, 503, "queue_full", "%u responses run or wait in the background (--max-background-responses).",
                       b->limits.jobs_max);
}

static void leave_place(td_background *b) {
    pthread_mutex_lock(&b->lock);
    b->n_running--;
    pthread_mutex_unlock(&b->lock);
}

static td_background_job *job_new(td_background *b, td_generation *g) {
    td_background_job *job = calloc(1, sizeof *job);
    if (!job) return NULL;
    *job = (td_background_job){.background = b,
                               .begin_ns = g->begin_ns,
                               .streams = g->req.stream.on,
                               .generation = g,
                               .refs = 2}; /* the list's and the caller's */
    snprintf(job->id, sizeof job->id, "%.*s", TD_RESPONSE_ID_MAX - 1, g->id);
    td_event_log_init(&job->log, &b->events);
    pthread_mutex_init(&job->lock, NULL);
    return job;
}

/* Whether what the client is to get at once is there: else it would never have the id. */
static td_status check_written(td_background_job *job, const td_jbuf *now, td_api_error *err) {
    if (job->generation->out.failed || (now->failed && !now->refused)) return td_api_no_memory(err);
    if (now->failed) return td_answer_no_room(err, &now->hold, now->refused);
    if (!td_event_log_is_dropped(&job->log)) return TD_OK;
    return td_api_fail(err, 503, "queue_full", "There is no room for its events (--background-events-mib).");
}

/* Run a generation that has no writer yet. */
static td_status submit(td_background *b, td_background_job *job, td_jbuf *now, td_api_error *err) {
    td_generation *g = job->generation;
    g->slot = td_watch(b->watcher, g, -1);
    if (g->slot == UINT32_MAX) return td_api_fail(err, 503, "queue_full", "Too many requests are running.");
    g->waiter = (td_generation_waiter){wake, job};
    if (job->streams) {
        g->req.api->begin(g, &g->out);
        keep_events(job);
    } else {
        td_response_write_now(g, now);
    }
    td_status st = check_written(job, now, err) == TD_OK ? td_generation_submit(g, err) : TD_EINVAL;
    if (st != TD_OK) td_unwatch(b->watcher, g->slot);
    return st;
}

static void list(td_background *b, td_background_job *job) {
    pthread_mutex_lock(&b->lock);
    job->next = b->first;
    b->first = job;
    call_thread_locked(b, job);
    pthread_mutex_unlock(&b->lock);
}

static td_background_job *begin(td_background *b, td_api_request *req, td_jbuf *now, td_api_error *err) {
    td_generation     *g = td_generation_new(b->generations, req);
    td_background_job *job = g ? job_new(b, g) : NULL;
    td_status          st = job ? submit(b, job, now, err) : td_api_no_memory(err);
    if (st == TD_OK) {
        list(b, job);
        return job;
    }
    if (g) {
        td_generation_leave(g);
        td_generation_unref(g);
    }
    if (job) job_free(job);
    return NULL;
}

td_background_job *td_background_begin(td_background *b, td_api_request *req, td_jbuf *now, td_api_error *err) {
    if (take_place(b, err) != TD_OK) {
        td_api_request_free(req);
        return NULL;
    }
    td_background_job *job = begin(b, req, now, err);
    if (!job) leave_place(b);
    return job;
}

bool td_background_write(td_background_job *job, td_jbuf *now) {
    pthread_mutex_lock(&job->lock);
    bool runs = job->generation != NULL;
    if (runs) td_response_write_now(job->generation, now);
    pthread_mutex_unlock(&job->lock);
    return runs;
}

static void cancel(td_background_job *job, bool keeps) {
    pthread_mutex_lock(&job->lock);
    td_generation *g = job->generation;
    if (g) {
        td_response *own = g->req.own;
        own->stores = own->stores && keeps;
        td_generation_cut(g);
        write_answer(job);
    }
    pthread_mutex_unlock(&job->lock);
}

void td_background_cancel(td_background_job *job) {
    cancel(job, true);
}

void td_background_forget(td_background_job *job) {
    td_background *b = job->background;
    cancel(job, false);
    pthread_mutex_lock(&b->lock);
    bool listed = is_listed_locked(b, job);
    if (listed) unlist_locked(b, job);
    pthread_mutex_unlock(&b->lock);
    if (listed) td_background_release(job);
}
