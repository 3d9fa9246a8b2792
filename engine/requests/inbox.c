#include "engine/requests/inbox.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "core/error.h"
#include "core/math/rng.h"

#define SEED_STREAM 1 /* of the engine's generator; the requests' own draws are stream 0 of their seeds */

struct td_inbox {
    td_waker   *waker; /* its lock guards all below */
    td_request *first, *last;
    uint32_t    n_waiting, max_waiting;
    uint64_t    waiting_tokens;
    uint64_t    seed, n_requests;
    bool        flush, shut;
    double      deadline_s;
};

td_status td_inbox_create(td_waker *waker, uint32_t max_queued, uint64_t seed, td_inbox **out, td_error *err) {
    td_inbox *b = calloc(1, sizeof *b);
    *out = NULL;
    if (!b) return td_fail(err, TD_ENOMEM, "out of memory for the request queue");
    b->waker = waker;
    b->max_waiting = max_queued;
    b->seed = seed;
    *out = b;
    return TD_OK;
}

void td_inbox_close(td_inbox *b) {
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
    pthread_mutex_lock(&b->waker->lock);
    /* Those that were retracted wait too, and may be more than max_waiting. */
    size_t    room = b->n_waiting < b->max_waiting ? b->max_waiting - b->n_waiting : 0;
    td_status st = b->shut ? TD_ESHUTDOWN : n > room ? TD_EBUSY : TD_OK;
    if (st == TD_OK) {
        double now_s = td_now_s();
        for (size_t i = 0; i < n; i++) append(b, r[i], now_s);
        b->waker->awake = true;
        pthread_cond_signal(&b->waker->changed);
    }
    pthread_mutex_unlock(&b->waker->lock);
    return st;
}

void td_inbox_flush(td_inbox *b) {
    pthread_mutex_lock(&b->waker->lock);
    b->waker->awake = b->flush = true;
    pthread_cond_signal(&b->waker->changed);
    pthread_mutex_unlock(&b->waker->lock);
}

void td_inbox_shut(td_inbox *b, double deadline_s) {
    pthread_mutex_lock(&b->waker->lock);
    b->waker->awake = b->shut = true;
    b->deadline_s = deadline_s;
    pthread_cond_signal(&b->waker->changed);
    pthread_mutex_unlock(&b->waker->lock);
}

/* Sleep until there is news, or it is time. @return false: it is time. The lock is held. */
static bool sleep_until(td_inbox *b, double until_s) {
    if (isinf(until_s)) return pthread_cond_wait(&b->waker->changed, &b->waker->lock) == 0;
    struct timespec t = {.tv_sec = (time_t)until_s, .tv_nsec = (long)(1e9 * (until_s - floor(until_s)))};
    return pthread_cond_timedwait(&b->waker->changed, &b->waker->lock, &t) == 0;
}

td_inbox_news td_inbox_take(td_inbox *b, double until_s) {
    pthread_mutex_lock(&b->waker->lock);
    while (until_s > 0 && !b->waker->awake && !b->shut && sleep_until(b, until_s)) continue;
    td_inbox_news news = {.requests = b->first, .flush = b->flush, .deadline_s = b->shut ? b->deadline_s : 0};
    b->first = b->last = NULL;
    b->waker->awake = b->flush = false;
    pthread_mutex_unlock(&b->waker->lock);
    return news;
}

void td_inbox_left(td_inbox *b, const td_request *r) {
    pthread_mutex_lock(&b->waker->lock);
    b->n_waiting--;
    b->waiting_tokens -= r->n_tokens;
    pthread_mutex_unlock(&b->waker->lock);
}

void td_inbox_rejoin(td_inbox *b, const td_request *r) {
    pthread_mutex_lock(&b->waker->lock);
    b->n_waiting++;
    b->waiting_tokens += r->n_tokens;
    pthread_mutex_unlock(&b->waker->lock);
}

uint32_t td_inbox_waiting(td_inbox *b, uint64_t *tokens) {
    pthread_mutex_lock(&b->waker->lock);
    uint32_t n = b->n_waiting;
    if (tokens) *tokens = b->waiting_tokens;
    pthread_mutex_unlock(&b->waker->lock);
    return n;
}
