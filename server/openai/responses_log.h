/*
 * The events of a stream that goes on without its client, and the connections that read them: each from any event on, at its
 * own speed. The bytes count in a budget.
 *
 * Threads: any. `lock` guards the log and its readers. libmicrohttpd is called with it held, and calls nothing back.
 */
#ifndef TD_SERVER_OPENAI_RESPONSES_LOG_H
#define TD_SERVER_OPENAI_RESPONSES_LOG_H

#include <microhttpd.h>
#include <pthread.h>

#include "server/api/json_writer.h"

typedef struct td_event_reader td_event_reader;

typedef struct {
    pthread_mutex_t  lock;
    td_jbuf          events;  /* one behind the other, each ending in an empty line; counts in its hold's budget */
    bool             ended;   /* no more will come */
    bool             dropped; /* they are not kept any more */
    td_event_reader *readers; /* the first */
} td_event_log;

/** A connection that reads a log. The members are the log's. */
struct td_event_reader {
    td_event_log          *log;
    size_t                 at; /* bytes of the events that it has */
    struct MHD_Connection *connection;
    int                    fd; /* the connection's */
    bool                   suspended;
    bool                   left; /* its client has closed the connection */
    td_event_reader       *next, **link;
};

void td_event_log_init(td_event_log *log, td_answer_budget *budget);
/** No reader may be left. */
void td_event_log_free(td_event_log *log);

/** Append whole events and resume the readers. @return false: there is no room for them, and nothing changed. */
TD_NODISCARD bool td_event_log_add(td_event_log *log, const char *events, size_t len);
/** No more will come: readers get what there is, and the end. */
void td_event_log_end(td_event_log *log);
/** Free the events, and break the connections that still read. What is added later is not kept. */
void td_event_log_drop(td_event_log *log);
bool td_event_log_is_dropped(td_event_log *log);

/** Resume the readers whose clients have left, since libmicrohttpd does not look at a suspended connection. */
void td_event_log_sweep(td_event_log *log);

/**
 * Have r read the log, from the beginning, or from behind the event with a number.
 * @param after that number, from 0; NULL: from the beginning. @param n_events receives how many there are, if there is none
 *              of that number.
 * @return TD_OK; TD_EINVAL: there is no event of that number; TD_ENOTFOUND: they are not kept.
 */
TD_NODISCARD td_status td_event_log_open(td_event_log *log, td_event_reader *r, const uint64_t *after, uint64_t *n_events);
void                   td_event_log_close(td_event_reader *r);

/** For libmicrohttpd: the next bytes, or 0 with the connection suspended until there are more. */
ssize_t td_event_log_read(td_event_reader *r, char *to, size_t max);

#endif
