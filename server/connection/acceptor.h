/*
 * The thread that accepts connections and hands them to libmicrohttpd. libmicrohttpd gets no listening socket, because it
 * could not be stopped safely with one. MHD_quiesce_daemon and libmicrohttpd's own threads may both take the socket out of
 * an epoll set, and the second to do so aborts the process (0.9.75; open in 1.0.1).
 */
#ifndef TD_SERVER_CONNECTION_ACCEPTOR_H
#define TD_SERVER_CONNECTION_ACCEPTOR_H

#include <microhttpd.h>
#include <pthread.h>

#include "server/connection/connections.h"

typedef struct {
    int                fd; /* a blocking socket that listens; the caller's */
    struct MHD_Daemon *daemon;
    td_connections    *connections;
    pthread_t          thread;
    bool               running;
} td_acceptor;

/** Start the thread. What a points to, and the socket, must outlive it. */
TD_NODISCARD td_status td_acceptor_start(td_acceptor *a, td_error *err);

/** Shut the socket, so that clients are refused at once, and end the thread. To be called before libmicrohttpd is stopped.
 * Does nothing for an acceptor that was not started. */
void td_acceptor_stop(td_acceptor *a);

#endif
