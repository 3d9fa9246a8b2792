/*
 * KV events tell routers what the prefix cache holds, so that they can send a prompt to the server that has computed its
 * beginning.
 *
 * DESIGN. A thread of its own publishes messages (kv_event_message.h) at an XPUB socket of ZeroMQ, [topic, number, message],
 * and answers requests for what was missed at a ROUTER socket (kv_replay.h). The engine only writes into a table
 * (kv_page_table.h). ZeroMQ drops messages for a subscriber that is too slow; the subscriber sees the gap in the numbers and
 * asks for them.
 *
 * Numbers go up by one. They begin at the time of the start, in microseconds since 1970, so that they are higher after a
 * restart. A subscriber that knows older numbers then sees that it missed some, asks, and is told "cleared" first. A
 * subscriber that asks for messages that are no longer kept gets those from the last "cleared" on. If that is no longer kept
 * either, everything is told again to all, beginning with "cleared". When a subscriber is new, an empty message is
 * published, and its number shows the subscriber what it missed. If there is no socket to ask at, everything is told again
 * instead.
 *
 * Neither socket authenticates its peers.
 */
#ifndef TD_SCALE_KV_EVENTS_H
#define TD_SCALE_KV_EVENTS_H

#include "tandem.h"

#define TD_KV_TEXT_MAX 256 /* bytes of an endpoint or the topic, with the NUL */
#define TD_KV_BUFFER_STEPS_MAX 1000000

typedef struct {
    bool     on;
    char     endpoint[TD_KV_TEXT_MAX];        /* where to publish; "tcp://127.0.0.1:5557" */
    char     replay_endpoint[TD_KV_TEXT_MAX]; /* "": no socket to ask for missed messages */
    char     topic[TD_KV_TEXT_MAX];           /* the first frame of every message; "" */
    uint32_t buffer_steps; /* messages kept for replay, 10000; at least as many as telling everything takes */
    uint32_t hwm;          /* messages that a slow subscriber may be behind, 10000 */
} td_kv_events_config;

/**
 * SGLang's --kv-events-config: a JSON object, {"publisher": "zmq", "endpoint": "tcp://127.0.0.1:5557", ...}.
 * @return TD_EINVAL or TD_ENOTSUP with a sentence that names the member.
 */
TD_NODISCARD td_status td_kv_events_config_parse(const char *json, td_kv_events_config *out, td_error *err);

typedef struct td_kv_events td_kv_events;

/** Load ZeroMQ and bind. @param c copied. @return TD_EBUSY for a port in use; TD_ENOTFOUND without ZeroMQ; TD_EINVAL. */
TD_NODISCARD td_status td_kv_events_open(const td_kv_events_config *c, td_kv_events **out, td_error *err);

/** The listener for one engine, which starts the publisher when it is opened. Valid as long as the events. */
const td_cache_listener *td_kv_events_listener(td_kv_events *k);

/** Call it after the engine was closed. NULL is allowed. */
void td_kv_events_close(td_kv_events *k);

#endif
