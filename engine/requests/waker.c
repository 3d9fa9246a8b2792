#include "engine/requests/waker.h"

#include <stdlib.h>
#include <time.h>

#include "core/error.h"

double td_now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

td_status td_waker_create(td_waker **out, td_error *err) {
    td_waker *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w) return td_fail(err, TD_ENOMEM, "out of memory for the request queue");
    atomic_init(&w->refs, 1);
    if (pthread_mutex_init(&w->lock, NULL)) {
        free(w);
        return td_fail(err, TD_ENOMEM, "cannot create a lock");
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    int failed = pthread_cond_init(&w->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (failed) {
        pthread_mutex_destroy(&w->lock);
        free(w);
        return td_fail(err, TD_ENOMEM, "cannot create a condition variable");
    }
    *out = w;
    return TD_OK;
}

td_waker *td_waker_hold(td_waker *w) {
    atomic_fetch_add_explicit(&w->refs, 1, memory_order_relaxed);
    return w;
}

void td_waker_release(td_waker *w) {
    if (!w || atomic_fetch_sub_explicit(&w->refs, 1, memory_order_acq_rel) != 1) return;
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void td_waker_wake(td_waker *w) {
    pthread_mutex_lock(&w->lock);
    w->awake = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}
