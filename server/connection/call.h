/* One HTTP request, which is a call of a route, from its headers until its answer is sent or its connection has ended. */
#ifndef TD_SERVER_CONNECTION_CALL_H
#define TD_SERVER_CONNECTION_CALL_H

#include <microhttpd.h>

#include "server/api/api.h"
#include "server/connection/connections.h"
#include "server/connection/text_work.h"
#include "server/request/api_request.h"

typedef struct td_server       td_server;
typedef struct td_call         td_call;
typedef struct td_token_answer td_token_answer;
typedef struct td_kept_answer  td_kept_answer;

typedef enum MHD_Result (*td_route_fn)(td_call *c);
/** A route's work on its text before it answers: on any thread, without libmicrohttpd. Fills req or reply; or sets failed
 * and err. @return what is left, which takes long, so call it again on a text thread for it. */
typedef td_text_kind (*td_work_fn)(td_call *c);

/** Lives in libmicrohttpd's per-request pointer; used by one thread at a time. */
struct td_call {
    td_server             *server;
    struct MHD_Connection *connection;
    td_answer_budget      *answers;     /* the server's */
    td_connection         *socket;      /* the connection's own state */
    const char            *cors_origin; /* the origin that browsers may call from; NULL: none */
    td_work_fn             work;        /* NULL: none */
    td_route_fn            handle;      /* NULL: fail with err */
    const char            *route;       /* what traces call it: the route's path */
    const td_api          *api;    /* writes the errors, and on routes that generate the answers. NULL: errors as OpenAI's */
    uint64_t               number; /* in traces */
    const char            *rest;   /* the part of the path after a route's prefix; valid in handle only */
    bool                   last;   /* the connection ends with the answer */
    char                   allow[24]; /* with a 405: the methods that the path takes */

    td_jbuf     body;
    size_t      body_counted; /* bytes of body that td_server.body_bytes counts */
    td_text_job text;         /* the work, when it is done on a text thread */

    bool           broken; /* err says why; the body is read and dropped */
    bool           failed; /* the work failed; err says why */
    td_api_error   err;
    bool           is_read; /* the body was read into req */
    td_api_request req;     /* the request, until the generation takes it over */
    td_jbuf        reply;   /* JSON that the work of other routes leaves */
    size_t         sent;    /* bytes of it that the client has taken, where it is sent in pieces */
    ssize_t (*read)(td_call *c, char *to, size_t max); /* gives the pieces of an answer (answer.h) */
    td_token_answer *tokens;                           /* what /tokenize and /detokenize leave; owned */
    td_kept_answer  *kept;                             /* what a kept response leaves; owned */
    td_generation   *generation;                       /* holds a reference once it was submitted */
};

#endif
