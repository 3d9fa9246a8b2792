#include "server/openai/responses_log.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

void td_event_log_init(td_event_log *log, td_answer_budget *budget) {
    *log = (td_event_log){.events.hold.budget = budget};
    pthread_mutex_init(&log->lock, NULL);
}

void td_event_log_free(td_event_log *log) {
    td_jbuf_free(&log->events);
    pthread_mutex_destroy(&log->lock);
}

static void resume_locked(td_event_reader *r) {
    if (!r->suspended) return;
    r->suspended = false;
    MHD_resume_connection(r->connection);
}

static void resume_all_locked(td_event_log *log) {
    for (td_event_reader *r = log->readers; r; r = r->next) resume_locked(r);
}

bool td_event_log_add(td_event_log *log, const char *events, size_t len) {
    pthread_mutex_lock(&log->lock);
    td_jbuf *b = &log->events;
    if (!log->dropped) td_jbuf_put(b, events, len);
    bool added = !b->failed;
    b->failed = false;
    b->refused = 0;
    if (added) resume_all_locked(log);
    pthread_mutex_unlock(&log->lock);
    return added;
}

void td_event_log_end(td_event_log *log) {
    pthread_mutex_lock(&log->lock);
    log->ended = true;
    resume_all_locked(log);
    pthread_mutex_unlock(&log->lock);
}

void td_event_log_drop(td_event_log *log) {
    pthread_mutex_lock(&log->lock);
    log->dropped = true;
    td_jbuf_free(&log->events);
    resume_all_locked(log);
    pthread_mutex_unlock(&log->lock);
}

bool td_event_log_is_dropped(td_event_log *log) {
    pthread_mutex_lock(&log->lock);
    bool dropped = log->dropped;
    pthread_mutex_unlock(&log->lock);
    return dropped;
}

void td_event_log_sweep(td_event_log *log) {
    pthread_mutex_lock(&log->lock);
    for (td_event_reader *r = log->readers; r; r = r->next) {
        struct pollfd p = {.fd = r->fd, .events = POLLRDHUP};
        if (!r->suspended || poll(&p, 1, 0) <= 0) continue;
        r->left = true;
        resume_locked(r);
    }
    pthread_mutex_unlock(&log->lock);
}

/* Where the events behind event `after` begin; their data, which is JSON, has no empty line. *n_events receives how many
 * there are before that place. @return false: there is no event of that number. */
static bool find_behind(const td_jbuf *events, uint64_t after, size_t *at, uint64_t *n_events) {
    *at = 0;
    for (*n_events = 0; *n_events <= after; ++*n_events) {
        const char *end = events->len > *at ? memmem(events->data + *at, events->len - *at, "\n\n", 2) : NULL;
        if (!end) return false;
        *at = (size_t)(end + 2 - events->data);
    }
    return true;
}

td_status td_event_log_open(td_event_log *log, td_event_reader *r, const uint64_t *after, uint64_t *n_events) {
    td_status st = TD_OK;
    pthread_mutex_lock(&log->lock);
    if (log->dropped)
        st = TD_ENOTFOUND;
    else if (after && !find_behind(&log->events, *after, &r->at, n_events))
        st = TD_EINVAL;
    if (st == TD_OK) {
        r->log = log;
        r->next = log->readers;
        r->link = &log->readers;
        if (r->next) r->next->link = &r->next;
        log->readers = r;
    }
    pthread_mutex_unlock(&log->lock);
    return st;
}

void td_event_log_close(td_event_reader *r) {
    pthread_mutex_t *lock = &r->log->lock;
    pthread_mutex_lock(lock);
    *r->link = r->next;
    if (r->next) r->next->link = r->link;
    pthread_mutex_unlock(lock);
}

static ssize_t read_locked(td_event_reader *r, char *to, size_t max) {
    const td_event_log *log = r->log;
    const td_jbuf      *events = &log->events;
    if (r->left || log->dropped) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (r->at < events->len) {
        size_t n = events->len - r->at < max ? events->len - r->at : max;
        memcpy(to, events->data + r->at, n);
        r->at += n;
        return (ssize_t)n;
    }
    if (log->ended) return MHD_CONTENT_READER_END_OF_STREAM;
    r->suspended = true;
    MHD_suspend_connection(r->connection);
    return 0;
}

ssize_t td_event_log_read(td_event_reader *r, char *to, size_t max) {
    pthread_mutex_t *lock = &r->log->lock;
    pthread_mutex_lock(lock);
    ssize_t n = read_locked(r, to, max);
    pthread_mutex_unlock(lock);
    return n;
}
