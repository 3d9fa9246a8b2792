/*
 * How other threads wake the engine thread. The engine and every request hold a reference, so that a request can be
 * cancelled whenever its submitter calls, even after the engine is gone.
 */
#ifndef TD_ENGINE_REQUESTS_WAKER_H
#define TD_ENGINE_REQUESTS_WAKER_H

#include <pthread.h>
#include <stdatomic.h>

#include "tandem.h"

typedef struct {
    atomic_uint     refs;    /* acq_rel: the last owner sees what the others wrote */
    pthread_mutex_t lock;    /* guards all of the inbox */
    pthread_cond_t  changed; /* with the monotonic clock */
    atomic_bool     awake;   /* the engine is to look at its requests; written under the lock, read without it, relaxed */
} td_waker;

/** One reference, the caller's. @return TD_ENOMEM. */
TD_NODISCARD td_status td_waker_create(td_waker **out, td_error *err);
td_waker              *td_waker_hold(td_waker *w);    /* one reference more; returns w */
void                   td_waker_release(td_waker *w); /* w may be NULL */

void td_waker_wake(td_waker *w); /* make the engine look at its requests; any thread */

double td_now_s(void); /* monotonic clock */

#endif
