/*
 * Threads for requests whose text takes long. To parse, render and tokenise a body of megabytes takes seconds, to compile a
 * grammar some tenths of one. To load an image takes tens of milliseconds, and at worst half a minute. On an HTTP thread
 * that would hold up all its connections. The request's connection is suspended meanwhile.
 *
 * There are queues of short texts, of long ones, of grammars to compile for short ones, and of images to load. The first
 * thread takes short texts only, so that they never wait for all the others before them. The second takes grammars, and
 * short texts when there are none. Two take long texts, and give way to all other threads. Two take images, and give way
 * too, though less; the processes in which images are decoded do as their threads. A job loads one image, and goes to the
 * end of the queue with the next one.
 */
#ifndef TD_SERVER_CONNECTION_TEXT_WORK_H
#define TD_SERVER_CONNECTION_TEXT_WORK_H

#include <microhttpd.h>
#include <pthread.h>

#include "tandem.h"

#define TD_TEXT_THREADS 6
#define TD_TEXT_SHORT_BYTES ((size_t)1 << 20) /* up to here a text is short */
/* The HTTP thread works on smaller bodies itself, which takes milliseconds, unless td_work_fn says that it takes long. */
#define TD_TEXT_INLINE_BYTES ((size_t)32 << 10)

/** What a job's queue holds; of what is left of a job, TD_TEXT_ENDED: nothing. */
typedef enum {
    TD_TEXT_SHORT,
    TD_TEXT_LONG,
    TD_TEXT_GRAMMAR,
    TD_TEXT_IMAGE,
    TD_TEXT_KINDS,
    TD_TEXT_ENDED = TD_TEXT_KINDS
} td_text_kind;

/** NONE: not in a queue, because it was never put or has left. */
typedef enum { TD_TEXT_NONE, TD_TEXT_QUEUED, TD_TEXT_DONE } td_text_state;

/** The work of one request on its text; a member of its call. Zero-initialise what the queue has. */
typedef struct td_text_job td_text_job;
struct td_text_job {
    struct MHD_Connection *connection; /* suspended while the job waits and runs */
    /* On a text thread; closing: fail it instead. @return what is left: then it is run again, in its turn. */
    td_text_kind (*run)(void *call, bool closing);
    void        *call;
    td_text_kind kind;

    /* the queue's */
    td_text_job  *next;
    td_text_state state;
};

typedef struct {
    pthread_mutex_t lock;          /* guards all below, and the queue's part of the jobs */
    pthread_cond_t  queued, fewer; /* a job was put; n_held or n_suspended fell */
    struct {
        td_text_job *first, *last;
    } queues[TD_TEXT_KINDS];
    unsigned  n_held; /* jobs that were put and have not left */
    unsigned  n_suspended;
    unsigned  n_threads;
    bool      closing;
    bool      cancelled; /* what runs is to end */
    bool      hurry;     /* td_text_work_hurry was called */
    unsigned  n_begun;   /* threads that have begun: each has its own order of kinds */
    pthread_t threads[TD_TEXT_THREADS];
} td_text_work;

void                   td_text_work_init(td_text_work *w);
TD_NODISCARD td_status td_text_work_start(td_text_work *w, td_error *err);

/** Suspend the job's connection and queue the job; a text thread runs it and resumes the connection. @return false: closing,
 * nothing was done. */
TD_NODISCARD bool td_text_work_put(td_text_work *w, td_text_job *job);
/** Whether a job was run; asked when its connection was resumed. */
TD_NODISCARD bool td_text_work_done(td_text_work *w, const td_text_job *job);

/** Whether work is to end early, because the time that td_text_work_stop gave it is over. Any thread. */
TD_NODISCARD bool td_text_work_cancelled(td_text_work *w);

/** Take a job out: its request is answered, or its generation runs. Does nothing for a job that was not put. */
void td_text_work_left(td_text_work *w, td_text_job *job);

/**
 * Stop. Jobs that wait fail with a 503. Jobs that run have so many seconds, or until td_text_work_hurry is called, and are
 * then cancelled. When this returns true, all connections are resumed, their jobs have left or had two seconds for it, and
 * the threads have ended. @return false: a job still ran two seconds after it was cancelled; its thread and connection are
 * left as they are.
 */
bool td_text_work_stop(td_text_work *w, double seconds);
void td_text_work_hurry(td_text_work *w); /* ends the wait of a td_text_work_stop that another thread is in */

#endif
