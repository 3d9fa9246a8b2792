/* A server: its parts, each of which belongs to the file of its name, and the routes, which answer requests. */
#ifndef TD_SERVER_STATE_H
#define TD_SERVER_STATE_H

#include "server/connection/acceptor.h"
#include "server/connection/call.h"
#include "server/generation/watcher.h"
#include "server/openai/responses_background.h"
#include "server/openai/responses_store.h"
#include "server/request/served_model.h"
#include "server/server.h"

#define TD_GIB(bytes) ((double)(bytes) / (1 << 30)) /* what SGLang's answers call GB */

/* DRAINING: requests are still served, but /health says 503. */
typedef enum { TD_SERVER_STARTING, TD_SERVER_READY, TD_SERVER_DRAINING, TD_SERVER_STOPPING } td_server_phase;

struct td_server {
    td_server_options opt;
    char              url[300];
    int64_t           started_s; /* Unix time */
    int               listen_fd;
    bool              is_local; /* it can be reached from this machine alone */
    td_engine        *engine;

    td_served_model   model;
    td_response_store responses;
    td_connections    connections;
    td_acceptor       acceptor;
    td_text_work      text;
    td_generations    generations;
    td_answer_budget  answers;
    td_watcher        watcher;
    td_background     background;

    /* http_server.c's */
    struct MHD_Daemon   *daemon;
    atomic_int           phase; /* td_server_phase; relaxed: a request that just misses a change is served as before it */
    atomic_size_t        body_bytes; /* bytes of all bodies being read; relaxed: a count */
    atomic_uint_fast64_t next_call;  /* relaxed: a counter */
};

static inline td_server_phase td_phase(const td_server *s) {
    return (td_server_phase)atomic_load_explicit(&s->phase, memory_order_relaxed);
}

/* ---- the routes ---- */

/* image_work.c: */
/** Part of the work of a route whose body was read into c->req: load its next image, if one is left. counts: for its tokens
 * alone. @return TD_TEXT_ENDED: go on, or c->failed. Else return that, and come here again on that thread. */
td_text_kind td_work_image(td_call *c, bool counts);

/* generation_routes.c: */
td_text_kind    td_work_generate(td_call *c);
enum MHD_Result td_route_generate(td_call *c); /* after it */
enum MHD_Result td_route_health_generate(td_call *c);
enum MHD_Result td_route_resumed(td_call *c); /* the connection was resumed: its generation is done */
/* openai/responses_start.c: */
enum MHD_Result td_route_respond(td_call *c); /* after td_work_generate */
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
/* anthropic/messages_count.c: */
td_text_kind td_work_count_tokens(td_call *c); /* td_route_reply after it */
td_text_kind td_work_count_input(td_call *c);  /* likewise */
/* token_routes.c: */
td_text_kind    td_work_tokenize(td_call *c); /* td_route_tokens (token_answer.h) after these */
td_text_kind    td_work_detokenize(td_call *c);
enum MHD_Result td_route_reply(td_call *c); /* answers with the JSON that a work left */
/* metrics.c: */
enum MHD_Result td_route_metrics(td_call *c);

#endif
