/* What the server's files share: the server's state, and one HTTP request's. */
#ifndef TD_SERVER_STATE_H
#define TD_SERVER_STATE_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "server/api/api.h"
#include "server/api/json_writer.h"
#include "server/connection/acceptor.h"
#include "server/connection/connections.h"
#include "server/connection/text_work.h"
#include "server/openai/responses_store.h"
#include "server/request/api_request.h"
#include "server/request/chat_form.h"
#include "server/request/grammar_cache.h"
#include "server/server.h"
#include "server/status/request_list.h"

#define TD_BODY_MAX ((size_t)16 << 20)    /* bytes of one request body */
#define TD_BODIES_MAX ((size_t)256 << 20) /* of all bodies being read */
#define TD_MODEL_NAMES_MAX 16
#define TD_GIB(bytes) ((double)(bytes) / (1 << 30)) /* what SGLang's answers call GB */
/* Bytes a slow reader may leave unsent before its request is cancelled: so many for the stream, and for each choice. */
#define TD_STREAM_UNSENT_MAX ((size_t)1 << 20)
#define TD_CHOICE_UNSENT_MAX ((size_t)16 << 10)

/* DRAINING: all is served, but /health says that it will end. */
typedef enum { TD_SERVER_STARTING, TD_SERVER_READY, TD_SERVER_DRAINING, TD_SERVER_STOPPING } td_server_phase;

/* A connection whose generation runs: what the watcher looks after. */
typedef struct {
    td_generation *generation; /* NULL: free; holds a reference */
    uint32_t       serial;     /* tells a reused slot from the one an event was meant for */
    int            fd;
} td_watch_slot;

struct td_server {
    td_server_options   opt;
    char                url[300];
    char                names[1024]; /* of the model, each terminated */
    const char         *model_names[TD_MODEL_NAMES_MAX];
    uint32_t            n_model_names;
    const char         *model_name; /* the first */
    int                 listen_fd;
    td_engine          *engine;
    td_engine_info      info;
    const td_tokenizer *tokenizer;
    td_chat_form        chat;
    const char         *tool_format, *reasoning_format;         /* of answers; NULL: they stay in the text */
    bool                tools_in_special, reasoning_in_special; /* their markers are special tokens */
    td_grammar_cache    grammars;
    td_response_store   responses;
    int64_t             started_s; /* Unix time */
    uint64_t            id_seed;
    struct MHD_Daemon  *daemon;
    td_connections      connections;
    td_acceptor         acceptor;
    td_text_work        text;

    atomic_int           phase;   /* td_server_phase; relaxed: a request that just misses a change is served as before it */
    atomic_bool          stalled; /* the watchdog's verdict */
    atomic_size_t        body_bytes;
    atomic_uint_fast64_t next_id, next_call;

    pthread_mutex_t   lock;      /* guards what follows */
    pthread_cond_t    changed;   /* n_watched or n_live fell, or stop_now */
    td_watch_slot    *slots;     /* [connections_max] */
    uint32_t          n_watched; /* slots in use: generations with a connection */
    uint32_t          n_live;    /* generations not freed yet */
    td_ended_requests ended;
    bool              stop_now;
    bool              closing; /* no generation may start any more */

    int       epoll_fd, event_fd;
    pthread_t watcher;
    bool      watching;
};

/* One HTTP request. Lives in libmicrohttpd's per-request pointer; used by one thread at a time. */
typedef enum MHD_Result (*td_route_fn)(td_call *c);
/** A route's work on its text, before it answers: on any thread, and without libmicrohttpd. Leaves req or reply, or failed
 * and err. @return true: there is more to do, which takes long: it is to be called again, on a text thread. */
typedef bool (*td_work_fn)(td_call *c);

struct td_call {
    td_server             *server;
    struct MHD_Connection *connection;
    td_connection         *socket; /* the connection's own state */
    td_work_fn             work;   /* NULL: none */
    td_route_fn            handle; /* NULL: fail with err */
    const char            *route;  /* what traces call it: the route's path */
    const td_api          *api;    /* that writes its errors; and of routes that generate, all else. NULL: OpenAI's errors */
    uint64_t               number; /* in traces */
    const char            *rest;   /* the part of the path after a route's prefix; valid in handle only */
    td_jbuf                body;
    size_t                 body_counted; /* bytes of it in server->body_bytes */
    bool                   last;         /* the connection ends with the answer */
    char                   allow[24];    /* with a 405: the methods that the path takes */
    bool                   broken;       /* err says why; the body is read and dropped */
    td_api_error           err;
    td_call               *next_text; /* in the queue of the text threads */
    td_text_state          text_state;
    bool                   is_read;    /* a generation's body is */
    bool                   failed;     /* the work failed: err */
    td_api_request         req;        /* a generation's, until that takes it */
    td_jbuf                reply;      /* of the other routes that have work: JSON */
    td_generation         *generation; /* holds a reference once it was submitted */
};

/** Answer with a JSON document; takes the buffer. A failed buffer becomes a 500. */
enum MHD_Result td_answer_json(td_call *c, int http, td_jbuf *json);
enum MHD_Result td_answer_text(td_call *c, int http, const char *content_type, td_jbuf *text);
enum MHD_Result td_answer_error(td_call *c, const td_api_error *err);

typedef struct {
    const char *name, *value; /* value NULL: left out */
} td_header;

/**
 * Queue a response with these headers and those that every answer carries, where they are not among these; takes the
 * response (NULL: there was no memory).
 * @return MHD_NO when memory is short: the connection ends, rather than with an answer that lacks a header.
 */
enum MHD_Result td_answer_response(td_call *c, int http, struct MHD_Response *r, const td_header *headers, size_t n);

/* Routes. generation_routes.c: */
bool            td_work_generate(td_call *c);
enum MHD_Result td_route_generate(td_call *c); /* after it */
enum MHD_Result td_route_health_generate(td_call *c);
enum MHD_Result td_route_resumed(td_call *c); /* the connection was resumed: its generation is done */
/* openai/responses_routes.c: */
enum MHD_Result td_route_get_response(td_call *c);
enum MHD_Result td_route_delete_response(td_call *c);
enum MHD_Result td_route_cancel_response(td_call *c);
/* control_routes.c: */
enum MHD_Result td_route_health(td_call *c);
enum MHD_Result td_route_abort_request(td_call *c);
enum MHD_Result td_route_flush_cache(td_call *c);
/* info_routes.c: */
enum MHD_Result td_route_models(td_call *c);
enum MHD_Result td_route_model(td_call *c);
enum MHD_Result td_route_model_info(td_call *c);
enum MHD_Result td_route_server_info(td_call *c);
/* load_routes.c: */
enum MHD_Result td_route_loads(td_call *c);
enum MHD_Result td_route_load(td_call *c);
/* request_list.c: */
enum MHD_Result td_route_requests(td_call *c);
/* console/console_files.c: */
enum MHD_Result td_route_console(td_call *c);
/* token_routes.c: */
bool            td_work_tokenize(td_call *c);
bool            td_work_detokenize(td_call *c);
enum MHD_Result td_route_reply(td_call *c); /* after either */
/* metrics.c: */
enum MHD_Result td_route_metrics(td_call *c);

static inline td_server_phase td_phase(const td_server *s) {
    return (td_server_phase)atomic_load_explicit(&s->phase, memory_order_relaxed);
}

/** 404 in err unless the name (NULL: any) is one of the model's. */
TD_NODISCARD td_status td_check_model(const td_server *s, const char *name, td_api_error *err);

/* watcher.c: */
TD_NODISCARD td_status td_watcher_start(td_server *s, td_error *err);
void                   td_watcher_stop(td_server *s);
/** What stalls the engine, in a sentence: the step, since when, and what it is in. */
void td_watchdog_describe(td_server *s, char *text, size_t size);
/** Look after a generation until td_unwatch. Takes a reference. @return the slot, UINT32_MAX when all are in use or the
 * server closes. */
uint32_t td_watch(td_server *s, td_generation *g, int fd);
void     td_unwatch(td_server *s, uint32_t slot);
/** The generation in a slot, with a reference; NULL: the slot is free. Slots are 0 .. connections_max - 1. */
td_generation *td_watched(td_server *s, uint32_t slot);
/** Have the watcher call td_generation_attend on the generations that asked for it; any thread, never blocks. */
void td_watcher_wake(td_server *s);

#endif
