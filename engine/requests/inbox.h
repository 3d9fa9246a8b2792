/* The bounded queue between the threads that submit and the engine thread. The engine owns it. */
#ifndef TD_ENGINE_REQUESTS_INBOX_H
#define TD_ENGINE_REQUESTS_INBOX_H

#include "engine/requests/request.h"

typedef struct td_inbox td_inbox;

/**
 * @param waker      of the engine thread; borrowed.
 * @param max_queued requests that wait at the same time, here or with the scheduler.
 * @param seed       of the generator that gives a seed to requests without one.
 */
TD_NODISCARD td_status td_inbox_create(td_waker *waker, uint32_t max_queued, uint64_t seed, td_inbox **out, td_error *err);
void                   td_inbox_close(td_inbox *b); /* b may be NULL */

/**
 * Queue n requests, all or none: gives each its number, its seed (unless it has one) and the engine's reference.
 * @return TD_EBUSY when more than max_queued would wait, TD_ESHUTDOWN after td_inbox_shut. Any thread.
 */
TD_NODISCARD td_status td_inbox_put(td_inbox *b, td_request *const *r, size_t n);

/** The engine is to empty its prefix cache before it takes in what comes later. Any thread. */
void td_inbox_flush(td_inbox *b);
void td_inbox_shut(td_inbox *b, double deadline_s); /* no more requests; the engine is to end by then (monotonic clock) */

/** What came since the last look. */
typedef struct {
    td_request *requests;   /* oldest first, linked by `next` */
    bool        flush;      /* the prefix cache is to be emptied */
    double      deadline_s; /* once the inbox is shut, by when the engine is to end; else 0 */
} td_inbox_news;

/** Engine thread: take what has come. @param until_s sleep until there is something, a wake, the inbox is shut, or this time
 * of the monotonic clock has come; 0: do not sleep; INFINITY: for as long as it takes. */
td_inbox_news td_inbox_take(td_inbox *b, double until_s);

void td_inbox_left(td_inbox *b, const td_request *r);   /* r stopped waiting: it runs, or has ended */
void td_inbox_rejoin(td_inbox *b, const td_request *r); /* r was retracted and waits again; never refused */

/** How many requests wait. @param tokens receives the tokens that they have so far; may be NULL. */
uint32_t td_inbox_waiting(td_inbox *b, uint64_t *tokens);

#endif
