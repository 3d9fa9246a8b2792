/*
 * Requests of subscribers for messages that they missed, at a ROUTER socket:
 *   [peer, "", first number as 8 bytes, big-endian]  ->  [peer, "", number, message]..., then [peer, "", -1, ""]
 * A peer may send anything. What is not a request is dropped without an answer.
 */
#ifndef TD_SCALE_KV_REPLAY_H
#define TD_SCALE_KV_REPLAY_H

#include "scale/kv_event_log.h"

#define TD_KV_REPLAY_PEER_MAX 255 /* most bytes of a peer's name, by ZeroMQ's rules */
#define TD_KV_REPLAY_FRAME_MAX 64 /* most bytes of a peer's frame; a longer one ends its connection */

typedef struct {
    uint8_t  peer[TD_KV_REPLAY_PEER_MAX];
    int      peer_bytes;
    uint64_t first; /* number */
} td_kv_replay_request;

typedef enum { TD_KV_REPLAY_NONE, TD_KV_REPLAY_BAD, TD_KV_REPLAY_REQUEST } td_kv_replay_got;

/** Take one message, with all its frames, off the socket. Never blocks. @return TD_KV_REPLAY_NONE if there was none. */
td_kv_replay_got td_kv_replay_receive(const td_zmq *zmq, void *router, td_kv_replay_request *out);

/** Send the log's messages from number `from` on, then the end mark. Never blocks. @return false if the peer does not take
 * its answer; it then does not get the rest. */
bool td_kv_replay_answer(const td_zmq *zmq, void *router, const td_kv_replay_request *r, td_kv_event_log *log,
                         uint64_t from);

/** Write a sequence number as it is sent. */
void td_kv_sequence_put(uint8_t out[8], uint64_t sequence);

#endif
