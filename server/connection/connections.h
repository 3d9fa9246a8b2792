/*
 * The open connections: how many there are, and how long each may take to send a request.
 *
 * libmicrohttpd bounds only the time in which nothing comes, so a client that sends a byte now and then would keep its
 * connection for ever. Its limit of connections closes new ones without an answer. This module has instead:
 *
 *   deadlines   the headers of a request, and then its body, must be there by a time
 *                 and so must the client take an answer that is known in full
 *   a reserve   a few more connections than --max-connections are taken, answered once and closed: /health and /metrics
 *               get their answers, every other path a 503
 *
 * Beyond the reserve no connection is accepted: clients wait in the socket's backlog.
 */
#ifndef TD_SERVER_CONNECTION_CONNECTIONS_H
#define TD_SERVER_CONNECTION_CONNECTIONS_H

#include <microhttpd.h>
#include <pthread.h>

#include "server/api/api_error.h"

#define TD_CONNECTIONS_RESERVE 64
#define TD_ANSWER_BYTES_PER_S ((uint64_t)1 << 20)

/** HEAD: waiting for a request and its headers; BODY: for its body; ANSWER: all is there. */
typedef enum { TD_READS_HEAD, TD_READS_BODY, TD_ANSWERS } td_connection_phase;

typedef struct td_connection  td_connection;
typedef struct td_connections td_connections;
struct td_connection {
    td_connections *all;
    td_connection  *next, **link; /* in a list; *link points here */
    int             fd;
    bool            reserve;       /* above the limit: answered once, and closed */
    bool            refused;       /* answered without libmicrohttpd; stays until the client has read that */
    bool            takes;         /* an answer that is known in full is being sent */
    int64_t         answer_ms;     /* when that began; monotonic */
    int64_t         deadline_ms;   /* monotonic; INT64_MAX: none */
    td_error_writer write_error;   /* of the API that is asked for; NULL: td_api_error_write */
    const char     *uri, *uri_end; /* in libmicrohttpd's buffer, for td_check_framing alone */
    bool            path_has_nul;  /* it has a %00, at which libmicrohttpd would end the path */
};

struct td_connections {
    uint32_t        max;               /* connections without the reserve */
    uint32_t        idle_s, request_s; /* how long a connection may wait for a request; for its headers, and for its body */
    pthread_mutex_t lock;              /* guards all below, and the connections' members */
    pthread_cond_t  changed;
    td_connection  *first;     /* the list of connections that libmicrohttpd has told of */
    td_connection  *expected;  /* the list of accepted ones that it has not told of yet */
    uint32_t        n;         /* in both lists, without the reserve */
    uint32_t        n_open;    /* in both lists */
    bool            closed;    /* no more are accepted */
    bool            ending;    /* td_connections_end was called */
    uint64_t        n_untaken; /* answers that were cut off because their clients took too little of them, ever */
};

void td_connections_init(td_connections *all, uint32_t max, uint32_t idle_s, uint32_t request_s);
void td_connections_free(td_connections *all);

/** libmicrohttpd's notification of connections that come and go: keeps a td_connection as their socket context. */
void td_connections_notify(void *all, struct MHD_Connection *connection, void **context,
                           enum MHD_ConnectionNotificationCode what);

/* The following are for the one thread that accepts. */

/** Wait until one more connection may be accepted. @return false after td_connections_close. */
bool td_connections_await_room(td_connections *all);
/** Wait for ms. @return false after td_connections_close. */
bool td_connections_pause(td_connections *all, int64_t ms);
/** Note a connection that is about to be handed to libmicrohttpd, which will tell td_connections_notify of it. Here is
 * decided, in the order in which they come, which ones are the reserve's. @return false: out of memory. */
TD_NODISCARD bool td_connections_expect(td_connections *all, int fd);
void              td_connections_unexpect(td_connections *all, int fd); /* libmicrohttpd did not take it */

/** No more are accepted. Ends td_connections_await_room and td_connections_pause, which return false from now on. */
void td_connections_close(td_connections *all);

/** The td_connection of a connection; NULL: there was no memory for it. It lives as long as the connection. */
td_connection *td_connection_of(struct MHD_Connection *connection);

/** Note the phase that a connection's request is in. @return false: the connection was refused meanwhile and is to end. */
bool td_connection_enter(td_connection *c, td_connection_phase phase);

/**
 * An answer that is known in full begins, with taken = 0, or so many bytes of it were taken. The client has the time of a
 * request, and a second more for each TD_ANSWER_BYTES_PER_S that it has taken; one that is slower is cut off.
 */
void td_connection_takes(td_connection *c, uint64_t taken);

/** Set how an error of the request that is being read is written. */
void td_connection_set_errors(td_connection *c, td_error_writer write_error);

/** Answer at once, straight to the socket: libmicrohttpd cannot answer in the middle of a request. The caller drops what
 * still comes; the connection ends within seconds. */
void td_connection_refuse(td_connection *c, const td_api_error *err);

/** Refuse the connections that are beyond their deadline, and end those that were refused before or take no answer. To be
 * called every second. */
void td_connections_sweep(td_connections *all);

/** End all connections, within seconds: requests that have arrived are answered, the others are not. To be called when no
 * more are accepted and before libmicrohttpd is stopped, which closes connections without td_connections_notify. */
void td_connections_end(td_connections *all);

/** How many answers were cut off because their clients took too little of them. */
uint64_t td_connections_untaken(td_connections *all);

#endif
