/*
 * Requests of subscribers for messages that they missed, at a ROUTER socket:
 *   [peer, "", first number as 8 bytes, big-endian]  ->  [peer, "", number, message]..., then [peer, "", -1, ""]
 * What a peer sends may be anything. What is no request is dropped without an answer.
 */
#ifndef TD_SCALE_KV_REPLAY_H
#define TD_SCALE_KV_REPLAY_H

#include "scale/kv_event_log.h"

#define TD_KV_REPLAY_PEER_MAX 255 /* bytes of a peer's name, by ZeroMQ's rules */
#define TD_KV_REPLAY_FRAME_MAX 64 /* bytes that a peer's frame may have: more end its connection */

typedef struct {
    uint8_t  peer[TD_KV_REPLAY_PEER_MAX];
    int      peer_bytes;
    uint64_t first; /* number */
} td_kv_replay_request;

typedef enum { TD_KV_REPLAY_NONE, TD_KV_REPLAY_BAD, TD_KV_REPLAY_REQUEST } td_kv_replay_got;

/** Take one message off the socket, all its frames; never blocks. NONE: there was none. */
td_kv_replay_got td_kv_replay_receive(const td_zmq *zmq, void *router, td_kv_replay_request *out);

/** Send what the log has from number `from` on, and the end mark. Never blocks: a peer that does not take its answer does
 * not get the rest of it. @return false: it did not. */
bool td_kv_replay_answer(const td_zmq *zmq, void *router, const td_kv_replay_request *r, td_kv_event_log *log,
                         uint64_t from);

/** A sequence number on the wire. */
void td_kv_sequence_put(uint8_t out[8], uint64_t sequence);

#endif
