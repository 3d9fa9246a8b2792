#include "scale/kv_replay.h"

void td_kv_sequence_put(uint8_t out[8], uint64_t sequence) {
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)(sequence >> (56 - 8 * i));
}

static bool has_more(const td_zmq *zmq, void *router) {
    int    more = 0;
    size_t size = sizeof more;
    return zmq->getsockopt(router, TD_ZMQ_RCVMORE, &more, &size) == 0 && more;
}

td_kv_replay_got td_kv_replay_receive(const td_zmq *zmq, void *router, td_kv_replay_request *out) {
    uint8_t delimiter[1], number[8], rest[1];
    bool    ok = true;
    out->peer_bytes = zmq->recv(router, out->peer, sizeof out->peer, TD_ZMQ_DONTWAIT);
    if (out->peer_bytes < 0) return TD_KV_REPLAY_NONE;
    ok = out->peer_bytes > 0 && out->peer_bytes <= TD_KV_REPLAY_PEER_MAX && has_more(zmq, router);
    ok = ok && zmq->recv(router, delimiter, sizeof delimiter, TD_ZMQ_DONTWAIT) == 0 && has_more(zmq, router);
    ok = ok && zmq->recv(router, number, sizeof number, TD_ZMQ_DONTWAIT) == sizeof number;
    while (has_more(zmq, router)) { /* all frames of a message arrive together, so this reads the rest of it */
        ok = false;
        if (zmq->recv(router, rest, sizeof rest, TD_ZMQ_DONTWAIT) < 0) break;
    }
    if (!ok) return TD_KV_REPLAY_BAD;
    out->first = 0;
    for (int i = 0; i < 8; i++) out->first = out->first << 8 | number[i];
    return TD_KV_REPLAY_REQUEST;
}

/* Sends the frames that go before the message: peer, "", number. */
static bool send_head(const td_zmq *zmq, void *router, const td_kv_replay_request *r, uint64_t sequence) {
    const int flags = TD_ZMQ_SNDMORE | TD_ZMQ_DONTWAIT;
    uint8_t   number[8];
    td_kv_sequence_put(number, sequence);
    return zmq->send(router, r->peer, (size_t)r->peer_bytes, flags) >= 0 && zmq->send(router, "", 0, flags) >= 0 &&
           zmq->send(router, number, sizeof number, flags) >= 0;
}

static bool send_kept(const td_zmq *zmq, void *router, const td_kv_replay_request *r, td_kv_event_log *log,
                      uint64_t sequence) {
    td_zmq_message m; /* owned by ZeroMQ after sending */
    zmq->msg_init(&m);
    if (zmq->msg_copy(&m, td_kv_event_log_at(log, sequence)) == 0 && send_head(zmq, router, r, sequence) &&
        zmq->msg_send(&m, router, TD_ZMQ_DONTWAIT) >= 0)
        return true;
    zmq->msg_close(&m);
    return false;
}

bool td_kv_replay_answer(const td_zmq *zmq, void *router, const td_kv_replay_request *r, td_kv_event_log *log,
                         uint64_t from) {
    if (from < log->begin) from = log->begin;
    for (; from < log->end; from++)
        if (!send_kept(zmq, router, r, log, from)) return false;
    return send_head(zmq, router, r, UINT64_MAX) && zmq->send(router, "", 0, TD_ZMQ_DONTWAIT) >= 0;
}
