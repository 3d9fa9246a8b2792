/*
 * KV events: what the prefix cache holds, told to routers that send a prompt where its beginning was computed before.
 *
 * DESIGN. A thread of its own publishes messages (kv_event_message.h) at an XPUB socket of ZeroMQ, [topic, number, message],
 * and answers requests for what was missed at a ROUTER socket (kv_replay.h). The engine only writes into a table
 * (kv_page_table.h); ZeroMQ drops what a subscriber is too slow to take, who sees that by the numbers and asks.
 *
 * Numbers go up by one. They begin at the time of the start, in microseconds since 1970: after a restart they are higher
 * than before, so a subscriber that knows the old ones sees that it missed some, asks, and is told "cleared" first. Who asks
 * for messages that are no longer kept gets those from the last "cleared" on; if that is gone, too, everything is told
 * again, to all, beginning with "cleared". To a new subscriber an empty message is sent, by whose number it sees what it
 * missed. Where there is no socket to ask, everything is told again instead.
 *
 * Neither socket asks who is there.
 */
#ifndef TD_SCALE_KV_EVENTS_H
#define TD_SCALE_KV_EVENTS_H

#include "tandem.h"

#define TD_KV_TEXT_MAX 256 /* bytes of an endpoint or the topic, with the NUL */
#define TD_KV_BUFFER_STEPS_MAX 1000000

typedef struct {
    bool     on;
    char     endpoint[TD_KV_TEXT_MAX];        /* where to publish; "tcp://127.0.0.1:5557" */
    char     replay_endpoint[TD_KV_TEXT_MAX]; /* "": nobody can ask for what was missed */
    char     topic[TD_KV_TEXT_MAX];           /* the first frame of every message; "" */
    uint32_t buffer_steps;                    /* messages kept for replay; 10000, at least what telling everything takes */
    uint32_t hwm;                             /* messages that a slow subscriber may be behind; 10000 */
} td_kv_events_config;

/**
 * SGLang's --kv-events-config: a JSON object, {"publisher": "zmq", "endpoint": "tcp://127.0.0.1:5557", ...}.
 * @return TD_EINVAL or TD_ENOTSUP with a sentence that names the member.
 */
TD_NODISCARD td_status td_kv_events_config_parse(const char *json, td_kv_events_config *out, td_error *err);

typedef struct td_kv_events td_kv_events;

/** Load ZeroMQ and bind. @param c copied. @return TD_EBUSY for a port in use; TD_ENOTFOUND without ZeroMQ; TD_EINVAL. */
TD_NODISCARD td_status td_kv_events_open(const td_kv_events_config *c, td_kv_events **out, td_error *err);

/** For one engine, which starts the publisher when it is opened; lives as long as the events. */
const td_cache_listener *td_kv_events_listener(td_kv_events *k);

/** After the engine was closed. NULL is fine. */
void td_kv_events_close(td_kv_events *k);

#endif
