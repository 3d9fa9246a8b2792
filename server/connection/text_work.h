/*
 * Threads for requests whose text takes long: parsing, rendering and tokenizing a body of megabytes would hold up every
 * connection of an HTTP thread for seconds, compiling a grammar for some tenths of one. The connection is suspended
 * meanwhile.
 */
#ifndef TD_SERVER_CONNECTION_TEXT_WORK_H
#define TD_SERVER_CONNECTION_TEXT_WORK_H

#include <pthread.h>

#include "tandem.h"

#define TD_TEXT_THREADS 2
#define TD_TEXT_INLINE_BYTES \
    ((size_t)32 << 10) /* bodies up to this are worked on at once, but for what their work says takes long: milliseconds */

typedef struct td_call td_call;

/** NONE: never put, or left again. */
typedef enum { TD_TEXT_NONE, TD_TEXT_QUEUED, TD_TEXT_DONE } td_text_state;

typedef struct {
    pthread_mutex_t lock; /* guards all below, and the calls' next_text and text_state */
    pthread_cond_t  queued, fewer;
    td_call        *first, *last;
    unsigned        n_held; /* calls that were put and have not left */
    unsigned        n_suspended;
    unsigned        n_threads;
    bool            closing;
    pthread_t       threads[TD_TEXT_THREADS];
} td_text_work;

void                   td_text_work_init(td_text_work *w);
TD_NODISCARD td_status td_text_work_start(td_text_work *w, td_error *err);

/** Suspend a call's connection, run its work on a text thread, and resume it. @return false: closing, nothing was done. */
TD_NODISCARD bool td_text_work_put(td_text_work *w, td_call *c);
/** Whether the work of a call that was resumed is done. */
TD_NODISCARD bool td_text_work_done(td_text_work *w, td_call *c);

/** A call that was put is answered, or its generation runs. Does nothing for others. */
void td_text_work_left(td_text_work *w, td_call *c);

/**
 * What runs is finished, what waits fails with a 503; all connections are resumed when this returns, and their calls have
 * left or had two seconds. Then the threads end.
 */
void td_text_work_stop(td_text_work *w);

#endif
