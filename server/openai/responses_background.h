/*
 * Responses in the background: made without a connection, polled, cancelled, and streamed to whoever asks for their events.
 *
 * A job is such a response and its generation. A thread writes the answers of all jobs as their news come, and the response
 * goes into the store when it ends (responses_store.h). The events of a job that was made as a stream are kept in a log
 * (responses_log.h), also for some time after it has ended; other jobs are gone then.
 *
 * All is bounded: the jobs that have not ended and how long they may take, the ended jobs whose events are kept and how long,
 * the bytes of all events. Events that find no room have those of ended jobs go, the oldest first, and else their own: the
 * response goes on without them.
 *
 * Threads: any. Locks, in the order in which they are taken: a job's `lock`, its generation's, the background's. The last
 * is taken on the engine thread too, for a flag.
 */
#ifndef TD_SERVER_OPENAI_RESPONSES_BACKGROUND_H
#define TD_SERVER_OPENAI_RESPONSES_BACKGROUND_H

#include "server/generation/watcher.h"
#include "server/openai/responses_log.h"
#include "server/openai/responses_store.h"

typedef struct td_background     td_background;
typedef struct td_background_job td_background_job;

/** How much there may be of all. */
typedef struct {
    uint32_t jobs_max;      /* that have not ended, and as many ended ones; 0: none are taken */
    uint32_t job_s;         /* a job may take so long, from its request on */
    uint32_t events_kept_s; /* after its end */
    size_t   events_max;    /* bytes, but for the first TD_ANSWER_FREE of each job */
} td_background_limits;

struct td_background_job {
    td_background *background;
    char           id[TD_RESPONSE_ID_MAX];
    uint64_t       begin_ns; /* of td_trace_now */
    bool           streams;  /* it has events */
    td_event_log   log;

    pthread_mutex_t lock;       /* held by whoever writes the answer, or reads what is written of it */
    td_generation  *generation; /* NULL: it has ended */

    /* guarded by the background's lock */
    uint32_t           refs;   /* the list's, and callers' */
    uint64_t           turn;   /* the thread is to look at it, at jobs with lower ones first; 0: it need not */
    uint64_t           end_ns; /* 0: it has not ended */
    td_background_job *next;   /* in the list */
};

struct td_background {
    td_background_limits limits;
    td_generations      *generations;
    td_watcher          *watcher;
    td_answer_budget     events; /* bytes of all logs */

    pthread_mutex_t    lock;      /* guards what follows */
    pthread_cond_t     changed;   /* a job is ready, or closing */
    td_background_job *first;     /* the list, the newest first */
    uint32_t           n_running; /* jobs that have not ended */
    uint32_t           n_ended;   /* others in the list */
    uint64_t           n_turns;   /* ever given */
    bool               closing;

    pthread_t thread;
    bool      runs;
};

void                   td_background_init(td_background *b, const td_background_limits *limits, td_generations *generations,
                                          td_watcher *watcher);
TD_NODISCARD td_status td_background_start(td_background *b, td_error *err);
/** End what still runs as failed, and the thread. To be called after td_watcher_close, before libmicrohttpd is stopped: no
 * connection is suspended afterwards. Does nothing for one that was not started. */
void td_background_stop(td_background *b);
/** All references must have been given back. */
void td_background_free(td_background *b);

/**
 * Begin a response. Takes the request over, also on failure. @param now receives the response as it begins.
 * @return a reference to its job; NULL: err says why not.
 */
td_background_job *td_background_begin(td_background *b, td_api_request *req, td_jbuf *now, td_api_error *err);

/** A reference to the job of a response; NULL: there is none. */
td_background_job *td_background_find(td_background *b, const char *id);
td_background_job *td_background_ref(td_background_job *job); /* the same job */
void               td_background_release(td_background_job *job);

/** Append the response as it is now. @return false: it has ended, and is in the store if it was kept. */
bool td_background_write(td_background_job *job, td_jbuf *now);

/** End a job now, as cancelled; one that has ended stays as it is. */
void td_background_cancel(td_background_job *job);

/** The same, and keep nothing of it. */
void td_background_forget(td_background_job *job);

uint32_t td_background_running(td_background *b);

#endif
