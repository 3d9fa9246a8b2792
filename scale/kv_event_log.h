/* The last published messages by their sequence numbers, kept for subscribers that missed some. For one thread only. */
#ifndef TD_SCALE_KV_EVENT_LOG_H
#define TD_SCALE_KV_EVENT_LOG_H

#include "scale/zmq_library.h"

typedef struct {
    const td_zmq   *zmq;
    td_zmq_message *messages; /* [n_max] a ring: message s is at s % n_max */
    uint32_t       *bytes;    /* [n_max] size of each message */
    uint32_t        n_max;
    uint64_t        bytes_max, n_bytes;
    uint64_t        begin, end; /* sequence numbers that are kept: begin .. end - 1; the next message gets `end` */
    uint64_t        base;       /* number of the last message that begins with "everything is cleared" */
} td_kv_event_log;

/** @param first number of the first message. The log keeps up to n_max messages of bytes_max bytes together, and always the
 * last one. */
TD_NODISCARD td_status td_kv_event_log_open(td_kv_event_log *l, const td_zmq *zmq, uint32_t n_max, uint64_t bytes_max,
                                            uint64_t first, td_error *err);
void                   td_kv_event_log_close(td_kv_event_log *l);

/** Keep a message under number l->end. Its content is shared, not copied. The oldest messages are dropped when there is no
 * room. @param is_base the message begins with "everything is cleared". */
void td_kv_event_log_add(td_kv_event_log *l, td_zmq_message *m, uint32_t bytes, bool is_base);

/** A message that is kept; owned by the log. */
static inline td_zmq_message *td_kv_event_log_at(td_kv_event_log *l, uint64_t sequence) {
    return &l->messages[sequence % l->n_max];
}

/** Whether the kept messages tell a new subscriber everything. */
static inline bool td_kv_event_log_has_base(const td_kv_event_log *l) {
    return l->base >= l->begin && l->base < l->end;
}

#endif
