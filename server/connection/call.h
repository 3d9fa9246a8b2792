/* One HTTP request, which is a call of a route, from its headers until its answer is sent or its connection has ended. */
#ifndef TD_SERVER_CONNECTION_CALL_H
#define TD_SERVER_CONNECTION_CALL_H

#include <microhttpd.h>

#include "server/api/api.h"
#include "server/connection/connections.h"
#include "server/connection/text_work.h"
#include "server/request/api_request.h"

typedef struct td_server td_server;
typedef struct td_call   td_call;

typedef enum MHD_Result (*td_route_fn)(td_call *c);
/** A route's work on its text, before it answers: on any thread, and without libmicrohttpd. Leaves req or reply, or failed
 * and err. @return true: there is more to do, which takes long: it is to be called again, on a text thread. */
typedef bool (*td_work_fn)(td_call *c);

/** Lives in libmicrohttpd's per-request pointer; used by one thread at a time. */
struct td_call {
    td_server             *server;
    struct MHD_Connection *connection;
    td_connection         *socket;      /* the connection's own state */
    const char            *cors_origin; /* that browsers may call from; NULL: none */
    td_work_fn             work;        /* NULL: none */
    td_route_fn            handle;      /* NULL: fail with err */
    const char            *route;       /* what traces call it: the route's path */
    const td_api          *api;    /* that writes its errors; and of routes that generate, all else. NULL: OpenAI's errors */
    uint64_t               number; /* in traces */
    const char            *rest;   /* the part of the path after a route's prefix; valid in handle only */
    bool                   last;   /* the connection ends with the answer */
    char                   allow[24]; /* with a 405: the methods that the path takes */

    td_jbuf     body;
    size_t      body_counted; /* bytes of it that count as being read */
    td_text_job text;         /* the work, when it is done on a text thread */

    bool           broken; /* err says why; the body is read and dropped */
    bool           failed; /* the work failed: err */
    td_api_error   err;
    bool           is_read;    /* a generation's body is */
    td_api_request req;        /* a generation's, until that takes it */
    td_jbuf        reply;      /* of the other routes that have work: JSON */
    td_generation *generation; /* holds a reference once it was submitted */
};

#endif
