#include "tests/standins/fake_zmq.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What a message's opaque bytes hold: shared content with a count. */
typedef struct {
    size_t  owners, size;
    uint8_t bytes[];
} content;

static fake_socket *counting;

static content *content_of(const td_zmq_message *m) {
    content *c;
    memcpy(&c, m->opaque, sizeof c);
    return c;
}

static void set_content(td_zmq_message *m, content *c) {
    memset(m, 0, sizeof *m);
    memcpy(m->opaque, &c, sizeof c);
}

static int msg_init(td_zmq_message *m) {
    set_content(m, NULL);
    return 0;
}

static int msg_init_size(td_zmq_message *m, size_t size) {
    content *c = calloc(1, sizeof *c + size);
    if (!c) abort();
    *c = (content){.owners = 1, .size = size};
    counting->contents++;
    set_content(m, c);
    return 0;
}

static void *msg_data(td_zmq_message *m) {
    return content_of(m)->bytes;
}

static int msg_close(td_zmq_message *m) {
    content *c = content_of(m);
    if (c && --c->owners == 0) {
        free(c);
        counting->contents--;
    }
    memset(m, 0xee, sizeof *m); /* closing twice is a crash */
    return 0;
}

static int msg_copy(td_zmq_message *to, td_zmq_message *from) {
    msg_close(to);
    content_of(from)->owners++;
    set_content(to, content_of(from));
    return 0;
}

static int keep(fake_socket *s, const void *bytes, size_t size, int flags) {
    if (s->n_out >= s->room || s->n_out == FAKE_FRAMES_MAX) {
        errno = EAGAIN;
        return -1;
    }
    if (!(flags & TD_ZMQ_DONTWAIT)) abort();
    fake_frame *f = &s->out[s->n_out++];
    f->size = size;
    f->more = flags & TD_ZMQ_SNDMORE;
    memcpy(f->bytes, bytes, size < FAKE_FRAME_BYTES_MAX ? size : FAKE_FRAME_BYTES_MAX);
    return (int)size;
}

static int send_bytes(void *socket, const void *bytes, size_t size, int flags) {
    return keep(socket, bytes, size, flags);
}

static int msg_send(td_zmq_message *m, void *socket, int flags) {
    int n = keep(socket, content_of(m)->bytes, content_of(m)->size, flags);
    if (n < 0) return -1;
    msg_close(m);
    return n;
}

static int receive(void *socket, void *buffer, size_t size, int flags) {
    fake_socket *s = socket;
    if (!(flags & TD_ZMQ_DONTWAIT)) abort();
    if (s->next_in == s->n_in) {
        errno = EAGAIN;
        return -1;
    }
    const fake_frame *f = &s->in[s->next_in++];
    size_t            n = f->size < size ? f->size : size;
    if (n) memcpy(buffer, f->bytes, n);
    return (int)f->size;
}

static int get_option(void *socket, int option, void *value, size_t *size) {
    const fake_socket *s = socket;
    int                more = s->next_in > 0 && s->in[s->next_in - 1].more;
    if (option != TD_ZMQ_RCVMORE || *size != sizeof more) abort();
    memcpy(value, &more, sizeof more);
    return 0;
}

td_zmq fake_zmq(fake_socket *counts) {
    counting = counts;
    return (td_zmq){.getsockopt = get_option,
                    .recv = receive,
                    .send = send_bytes,
                    .msg_init = msg_init,
                    .msg_init_size = msg_init_size,
                    .msg_data = msg_data,
                    .msg_copy = msg_copy,
                    .msg_send = msg_send,
                    .msg_close = msg_close};
}

void fake_put(fake_socket *s, const void *bytes, size_t size, bool more) {
    if (s->n_in == FAKE_FRAMES_MAX || size > FAKE_FRAME_BYTES_MAX) abort();
    fake_frame *f = &s->in[s->n_in++];
    if (size) memcpy(f->bytes, bytes, size);
    f->size = size;
    f->more = more;
}
