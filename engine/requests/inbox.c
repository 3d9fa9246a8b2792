#include "engine/requests/inbox.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "core/error.h"
#include "core/math/rng.h"
#include "engine/requests/request.h"

#define SEED_STREAM 1 /* of the engine's generator; the requests' own draws are stream 0 of their seeds */

struct td_inbox {
    atomic_uint     refs;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t  changed;
    td_request     *first, *last;
    uint32_t        n_waiting, max_waiting;
    uint64_t        waiting_tokens;
    uint64_t        seed, n_requests;
    bool            awake, flush, shut;
    double          deadline_s;
};

double td_now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

td_status td_inbox_create(uint32_t max_queued, uint64_t seed, td_inbox **out, td_error *err) {
    td_inbox *b = calloc(1, sizeof *b);
    *out = NULL;
    if (!b) return td_fail(err, TD_ENOMEM, "out of memory for the request queue");
    atomic_init(&b->refs, 1);
    b->max_waiting = max_queued;
    b->seed = seed;
    if (pthread_mutex_init(&b->lock, NULL)) {
        free(b);
        return td_fail(err, TD_ENOMEM, "cannot create a lock");
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    int failed = pthread_cond_init(&b->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (failed) {
        pthread_mutex_destroy(&b->lock);
        free(b);
        return td_fail(err, TD_ENOMEM, "cannot create a condition variable");
    }
    *out = b;
    return TD_OK;
}

td_inbox *td_inbox_hold(td_inbox *b) {
    atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    return b;
}

void td_inbox_release(td_inbox *b) {
    if (!b || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1) return;
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static void append(td_inbox *b, td_request *r, double now_s) {
    r->number = ++b->n_requests;
    r->seed = r->sampling.has_seed ? r->sampling.seed : td_rng_u64(b->seed, SEED_STREAM, r->number);
    r->submit_s = now_s;
    td_request_hold(r);
    r->next = NULL;
    if (b->last)
        b->last->next = r;
    else
        b->first = r;
    b->last = r;
    b->n_waiting++;
    b->waiting_tokens += r->n_tokens;
}

td_status td_inbox_put(td_inbox *b, td_request *const *r, size_t n) {
    pthread_mutex_lock(&b->lock);
    /* Those that were retracted wait too, and may be more than max_waiting. */
    size_t    room = b->n_waiting < b->max_waiting ? b->max_waiting - b->n_waiting : 0;
    td_status st = b->shut ? TD_ESHUTDOWN : n > room ? TD_EBUSY : TD_OK;
    if (st == TD_OK) {
        double now_s = td_now_s();
        for (size_t i = 0; i < n; i++) append(b, r[i], now_s);
        pthread_cond_signal(&b->changed);
    }
    pthread_mutex_unlock(&b->lock);
    return st;
}

void td_inbox_wake(td_inbox *b) {
    pthread_mutex_lock(&b->lock);
    b->awake = true;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

void td_inbox_flush(td_inbox *b) {
    pthread_mutex_lock(&b->lock);
    b->awake = b->flush = true;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

void td_inbox_shut(td_inbox *b, double deadline_s) {
    pthread_mutex_lock(&b->lock);
    b->shut = true;
    b->deadline_s = deadline_s;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

/* Sleep until there is news, or it is time. @return false: it is time. The lock is held. */
static bool sleep_until(td_inbox *b, double until_s) {
    if (isinf(until_s)) return pthread_cond_wait(&b->changed, &b->lock) == 0;
    struct timespec t = {.tv_sec = (time_t)until_s, .tv_nsec = (long)(1e9 * (until_s - floor(until_s)))};
    return pthread_cond_timedwait(&b->changed, &b->lock, &t) == 0;
}

td_inbox_news td_inbox_take(td_inbox *b, double until_s) {
    pthread_mutex_lock(&b->lock);
    while (until_s > 0 && !b->first && !b->awake && !b->shut && sleep_until(b, until_s)) continue;
    td_inbox_news news = {.requests = b->first, .flush = b->flush, .deadline_s = b->shut ? b->deadline_s : 0};
    b->first = b->last = NULL;
    b->awake = b->flush = false;
    pthread_mutex_unlock(&b->lock);
    return news;
}

void td_inbox_left(td_inbox *b, const td_request *r) {
    pthread_mutex_lock(&b->lock);
    b->n_waiting--;
    b->waiting_tokens -= r->n_tokens;
    pthread_mutex_unlock(&b->lock);
}

void td_inbox_rejoin(td_inbox *b, const td_request *r) {
    pthread_mutex_lock(&b->lock);
    b->n_waiting++;
    b->waiting_tokens += r->n_tokens;
    pthread_mutex_unlock(&b->lock);
}

uint32_t td_inbox_waiting(td_inbox *b, uint64_t *tokens) {
    pthread_mutex_lock(&b->lock);
    uint32_t n = b->n_waiting;
    if (tokens) *tokens = b->waiting_tokens;
    pthread_mutex_unlock(&b->lock);
    return n;
}
