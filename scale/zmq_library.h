/*
 * The few functions of ZeroMQ that KV events use. They come from a shared library, which is loaded when KV events are
 * switched on; without them a server needs no ZeroMQ, neither to build nor to run. They are declared as in libzmq 4's
 * reference (api.zeromq.org/4-3).
 */
#ifndef TD_SCALE_ZMQ_LIBRARY_H
#define TD_SCALE_ZMQ_LIBRARY_H

#include "tandem.h"

/* Values from zmq.h. */
enum { TD_ZMQ_ROUTER = 6, TD_ZMQ_XPUB = 9 };
enum { TD_ZMQ_DONTWAIT = 1, TD_ZMQ_SNDMORE = 2 };
enum { TD_ZMQ_POLLIN = 1 };
enum {
    TD_ZMQ_RCVMORE = 13,
    TD_ZMQ_LINGER = 17,
    TD_ZMQ_MAXMSGSIZE = 22, /* its value is an int64_t; those of the others are int */
    TD_ZMQ_SNDHWM = 23,
    TD_ZMQ_RCVHWM = 24,
    TD_ZMQ_LAST_ENDPOINT = 32, /* its value is a text */
    TD_ZMQ_ROUTER_MANDATORY = 33,
    TD_ZMQ_TCP_KEEPALIVE = 34,
    TD_ZMQ_XPUB_VERBOSE = 40,
    TD_ZMQ_IPV6 = 42
};

typedef struct {
    _Alignas(8) unsigned char opaque[64];
} td_zmq_message;

typedef struct {
    void *socket; /* NULL: poll fd */
    int   fd;
    short events, revents;
} td_zmq_poll_item;

typedef struct {
    void *(*ctx_new)(void);
    int (*ctx_term)(void *context);
    void *(*socket)(void *context, int type);
    int (*close)(void *socket);
    int (*bind)(void *socket, const char *endpoint);
    int (*setsockopt)(void *socket, int option, const void *value, size_t size);
    int (*getsockopt)(void *socket, int option, void *value, size_t *size);
    int (*poll)(td_zmq_poll_item *items, int n, long timeout_ms);
    int (*recv)(void *socket, void *buffer, size_t size, int flags); /* @return the frame's size, which may be larger */
    int (*send)(void *socket, const void *data, size_t size, int flags);
    int (*msg_init)(td_zmq_message *m);
    int (*msg_init_size)(td_zmq_message *m, size_t size);
    void *(*msg_data)(td_zmq_message *m);
    int (*msg_copy)(td_zmq_message *to, td_zmq_message *from); /* both share the content */
    int (*msg_send)(td_zmq_message *m, void *socket, int flags);
    int (*msg_close)(td_zmq_message *m);
    int (*error)(void);
    const char *(*error_text)(int error);
} td_zmq;

/**
 * Load libzmq.so.5. It stays loaded as long as the process lives. A second call is allowed.
 * @return TD_ENOTFOUND with a sentence that names the package.
 */
TD_NODISCARD td_status td_zmq_load(td_zmq *z, td_error *err);

#endif
