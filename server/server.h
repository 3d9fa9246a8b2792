/*
 * The HTTP server: OpenAI's API and the native one over a td_engine.
 *
 * DESIGN. A thread accepts connections (acceptor.h) and hands them to libmicrohttpd, whose threads read requests, parse them
 * (large ones: text_work.h), submit them to the engine and write answers. The engine thread calls back with news
 * (generation.c), which only parses them into the request's buffers and resumes the connection. While a connection is
 * suspended libmicrohttpd does not watch its socket: the watcher thread does (EPOLLRDHUP), and cancels the request of a
 * client that left. A response in the background has no connection; a thread writes its answer
 * (openai/responses_background.h). Everything is bounded: connections, header and body bytes and the time that they take to come, unsent
 * bytes per stream, idle time.
 */
#ifndef TD_SERVER_SERVER_H
#define TD_SERVER_SERVER_H

#include "tandem.h"

#define TD_SERVER_CONNECTIONS_MAX 4096

typedef struct td_server td_server;

/** The server's health, reported each second. */
typedef struct {
    uint32_t lost;    /* 1: a card can do nothing any more in this process */
    uint32_t stalled; /* 1: requests run, and the watchdog has seen no step end for too long */
    uint32_t running, queued;
} td_server_pulse;

/** Called on the watcher thread; must not block. */
typedef void (*td_server_pulse_fn)(void *user, const td_server_pulse *p);

/** Strings must live as long as the server. */
typedef struct {
    const char *host;              /* name or address to bind */
    uint16_t    port;              /* 0: any free one */
    const char *api_key;           /* NULL: open to all */
    const char *cors_origin;       /* origin that browsers may call from, "*" for all; NULL: none */
    const char *served_model_name; /* one name or several, with commas between; NULL: the last part of the model's path */
    const char *tool_call_parser;  /* a format's name, "none", or "auto": by the chat template */
    const char *reasoning_parser;  /* the same */
    const char *tokenizer_path;    /* shown by /get_model_info; NULL: the model's */
    const char *flags_json;        /* object of the flags in force, without secrets: /server_info shows them; NULL: none */
    uint32_t    connections_max;   /* 1 .. TD_SERVER_CONNECTIONS_MAX */
    uint32_t    stream_interval;   /* tokens per stream event, at least 1 */
    uint32_t    idle_timeout_s;    /* of a connection that sends or takes nothing */
    uint32_t    request_timeout_s; /* within which a request's headers, and then its body, must have come */
    uint32_t    answers_mib;       /* what answers hold until their clients have taken them, at least 1 */
    uint32_t    stored_responses_max;  /* responses that /v1/responses keeps; 0: none */
    uint32_t    stored_responses_mib;  /* size of their texts together, at least 1 */
    uint32_t    background_max;        /* responses that run or wait in the background; 0: none are taken */
    uint32_t    background_timeout_s;  /* one that takes longer has failed */
    uint32_t    background_events_mib; /* size of the events of those that are streams, at least 1 */
    uint32_t    background_events_s;   /* for so long after its end they are kept */
    uint32_t    watchdog_s;            /* /health says 503 if no step ends for so long while requests run; 0: off */
    bool        disable_console;       /* no page for browsers at / */
    const char *allowed_hosts;         /* names in `Host` that are answered, with commas between, "*" for all; NULL: where
                                       * only this machine reaches a server without a key, local ones, else all */
    bool        allow_get_flush;       /* GET /flush_cache, too */
    bool        allow_no_key;          /* an address that others reach needs no key */
    td_server_pulse_fn on_pulse;       /* called each second; NULL: none */
    void              *pulse_user;
} td_server_options;

void td_server_options_init(td_server_options *o);

/**
 * Take the address, so that a busy port is known before a model is loaded; connections are refused until td_server_start.
 * @return TD_EBUSY for a port in use; TD_EINVAL for a host that cannot be resolved or bound, or that others reach without a
 *         key; with a sentence.
 */
TD_NODISCARD td_status td_server_bind(const td_server_options *o, td_server **out, td_error *err);

/**
 * Listen. Until td_server_ready, /health says "starting" and generation requests get 503. The engine must outlive the
 * server.
 */
TD_NODISCARD td_status td_server_start(td_server *s, td_engine *engine, td_error *err);
void                   td_server_ready(td_server *s); /* the engine is warm: generation requests are served from now on */

/** "http://127.0.0.1:30000", with the port that was given. */
const char *td_server_url(const td_server *s);
const char *td_server_model_name(const td_server *s); /* the first; after start */

/** From now on /health says 503 "draining", so that routers send nothing any more; what comes is served all the same. */
void td_server_drain(td_server *s);

/**
 * Stop: no new connections, new generation requests get 503, running ones get grace_s seconds and are then cancelled; blocks
 * until all are answered. Call once, before td_server_free. Works on a server that was never started.
 * @return false when the engine did not end its requests: then neither the engine nor the server may be freed.
 */
bool td_server_stop(td_server *s, double grace_s);
void td_server_stop_now(td_server *s); /* ends the grace time of a td_server_stop that another thread is in */

/** After td_server_stop, or without it a server that was not started. */
void td_server_free(td_server *s);

#endif
