#include "scale/kv_event_log.h"

#include <stdlib.h>

#include "core/error.h"

td_status td_kv_event_log_open(td_kv_event_log *l, const td_zmq *zmq, uint32_t n_max, uint64_t bytes_max, uint64_t first,
                               td_error *err) {
    *l = (td_kv_event_log){.zmq = zmq, .n_max = n_max, .bytes_max = bytes_max, .begin = first, .end = first, .base = first};
    l->messages = calloc(n_max, sizeof *l->messages);
    l->bytes = calloc(n_max, sizeof *l->bytes);
    if (l->messages && l->bytes) return TD_OK;
    td_kv_event_log_close(l);
    return td_fail(err, TD_ENOMEM, "out of memory for the last %u messages of KV events", n_max);
}

static void drop_oldest(td_kv_event_log *l) {
    l->zmq->msg_close(td_kv_event_log_at(l, l->begin));
    l->n_bytes -= l->bytes[l->begin++ % l->n_max];
}

void td_kv_event_log_close(td_kv_event_log *l) {
    while (l->begin < l->end) drop_oldest(l);
    free(l->messages);
    free(l->bytes);
    *l = (td_kv_event_log){0};
}

void td_kv_event_log_add(td_kv_event_log *l, td_zmq_message *m, uint32_t bytes, bool is_base) {
    while (l->begin < l->end && (l->end - l->begin == l->n_max || l->n_bytes + bytes > l->bytes_max)) drop_oldest(l);
    td_zmq_message *kept = td_kv_event_log_at(l, l->end);
    l->zmq->msg_init(kept);
    l->zmq->msg_copy(kept, m);
    l->bytes[l->end % l->n_max] = bytes;
    l->n_bytes += bytes;
    if (is_base) l->base = l->end;
    l->end++;
}
