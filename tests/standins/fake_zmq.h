/* A socket of ZeroMQ without a network. It gives the frames that a test has put in, and keeps the frames that are sent. */
#ifndef TD_TESTS_FAKE_ZMQ_H
#define TD_TESTS_FAKE_ZMQ_H

#include "scale/zmq_library.h"

#define FAKE_FRAMES_MAX 512
#define FAKE_FRAME_BYTES_MAX 256

typedef struct {
    uint8_t bytes[FAKE_FRAME_BYTES_MAX];
    size_t  size;
    bool    more;
} fake_frame;

typedef struct {
    fake_frame in[FAKE_FRAMES_MAX], out[FAKE_FRAMES_MAX];
    size_t     n_in, next_in, n_out;
    size_t     room;     /* frames that may be sent before EAGAIN */
    size_t     contents; /* messages' contents that live */
} fake_socket;

/** The functions; sockets are fake_socket. Contents are counted in `counts`. */
td_zmq fake_zmq(fake_socket *counts);

void fake_put(fake_socket *s, const void *bytes, size_t size, bool more);

#endif
