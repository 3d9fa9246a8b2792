/* The messages that were published last, by their sequence numbers, for subscribers that missed some. One thread. */
#ifndef TD_SCALE_KV_EVENT_LOG_H
#define TD_SCALE_KV_EVENT_LOG_H

#include "scale/zmq_library.h"

typedef struct {
    const td_zmq   *zmq;
    td_zmq_message *messages; /* [n_max] a ring: message s is at s % n_max */
    uint32_t       *bytes;    /* [n_max] of each */
    uint32_t        n_max;
    uint64_t        bytes_max, n_bytes;
    uint64_t        begin, end; /* sequence numbers that are kept: begin .. end - 1; the next message gets `end` */
    uint64_t        base;       /* the last message that takes everything back that was told before */
} td_kv_event_log;

/** @param first the first message's number. Keeps n_max messages, of bytes_max bytes together; the last one always. */
TD_NODISCARD td_status td_kv_event_log_open(td_kv_event_log *l, const td_zmq *zmq, uint32_t n_max, uint64_t bytes_max,
                                            uint64_t first, td_error *err);
void                   td_kv_event_log_close(td_kv_event_log *l);

/** Keep a message, whose content is shared and not copied, under number l->end. The oldest go.
 *  @param is_base it begins with "everything is cleared". */
void td_kv_event_log_add(td_kv_event_log *l, td_zmq_message *m, uint32_t bytes, bool is_base);

/** A message that is kept; the log's. */
static inline td_zmq_message *td_kv_event_log_at(td_kv_event_log *l, uint64_t sequence) {
    return &l->messages[sequence % l->n_max];
}

/** What is kept tells everything to who knows nothing. */
static inline bool td_kv_event_log_has_base(const td_kv_event_log *l) {
    return l->base >= l->begin && l->base < l->end;
}

#endif
