/* A card that tests of its runtime open, its memory and copies, and the hand-over by bells that an expert tier makes. The
 * including file defines CARD_DEVICE, the name of the device. */
#ifndef TD_TESTS_ONE_CARD_H
#define TD_TESTS_ONE_CARD_H

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "npu/npu.h"
#include "tests/td_test.h"

typedef struct {
    td_npu           *npu;
    const td_npu_ops *ops;
    td_npu_stream    *stream;
} card;

static inline card open_card(uint32_t which) {
    card     c;
    td_error err = {0};
    if (td_npu_open(CARD_DEVICE, &(td_npu_config){.act_dtype = TD_DT_BF16, .card = which}, &c.npu, &err) != TD_OK)
        fail_msg("%s", err.text);
    c.ops = c.npu->ops;
    assert_int_equal(c.ops->stream_create(c.npu, &c.stream, &err), TD_OK);
    return c;
}

static inline void close_card(card *c) {
    c->ops->stream_destroy(c->npu, c->stream);
    c->ops->close(c->npu);
}

static inline void *device_memory(card *c, size_t bytes) {
    void    *p;
    td_error err = {0};
    if (c->ops->alloc(c->npu, bytes, &p, &err) != TD_OK) fail_msg("%s", err.text);
    return p;
}
static inline void *pinned_memory(card *c, size_t bytes) {
    void    *p;
    td_error err = {0};
    if (c->ops->host_alloc(c->npu, bytes, &p, &err) != TD_OK) fail_msg("%s", err.text);
    return p;
}
static inline void to_device(card *c, void *dst, const void *src, size_t bytes) {
    assert_int_equal(c->ops->copy(c->npu, c->stream, dst, src, bytes, TD_COPY_H2D), TD_OK);
}
static inline void to_host(card *c, void *dst, const void *src, size_t bytes) {
    assert_int_equal(c->ops->copy(c->npu, c->stream, dst, src, bytes, TD_COPY_D2H), TD_OK);
}
static inline void sync_stream(card *c) {
    assert_int_equal(c->ops->stream_sync(c->npu, c->stream), TD_OK);
}

/* What the expert tier does: hears a bell, reads what came before it, answers, rings. */
typedef struct {
    td_bell        *up, *down;
    const uint32_t *in;
    uint32_t       *out;
    int             rounds;
} partner;

static inline void *answer(void *arg) {
    partner *p = arg;
    for (int i = 0; i < p->rounds; i++) {
        while (atomic_load_explicit(p->up, memory_order_acquire) == 0) usleep(10);
        atomic_store_explicit(p->up, 0, memory_order_relaxed);
        *p->out = *p->in + 1;
        atomic_store_explicit(p->down, 1, memory_order_release);
    }
    return NULL;
}

/* A number goes to and fro, in a graph that is replayed. */
static inline void hand_over(card *c) {
    enum { ROUNDS = 60 };
    char         *bells = pinned_memory(c, 128);
    uint32_t     *up = pinned_memory(c, 64), *down = pinned_memory(c, 64), *device = device_memory(c, 64);
    partner       p = {(td_bell *)bells, (td_bell *)(bells + 64), up, down, ROUNDS};
    pthread_t     thread;
    td_npu_graph *g;
    td_error      err = {0};
    assert_int_equal(c->ops->graph_begin(c->npu, c->stream), TD_OK);
    to_host(c, up, device, 64);
    assert_int_equal(c->ops->bell_ring(c->npu, c->stream, p.up), TD_OK);
    assert_int_equal(c->ops->bell_wait(c->npu, c->stream, p.down), TD_OK);
    to_device(c, device, down, 64);
    assert_int_equal(c->ops->graph_end(c->npu, c->stream, &g, &err), TD_OK);
    assert_int_equal(pthread_create(&thread, NULL, answer, &p), 0);
    for (int i = 0; i < ROUNDS; i++) assert_int_equal(c->ops->graph_launch(c->npu, c->stream, g), TD_OK);
    sync_stream(c);
    pthread_join(thread, NULL);
    to_host(c, up, device, 64);
    sync_stream(c);
    assert_int_equal(*up, ROUNDS);
    assert_int_equal(atomic_load(p.up), 0);
    assert_int_equal(atomic_load(p.down), 0);
    c->ops->graph_destroy(c->npu, g);
    c->ops->free(c->npu, device, 64);
    c->ops->host_free(c->npu, bells, 128);
    c->ops->host_free(c->npu, up, 64);
    c->ops->host_free(c->npu, down, 64);
}

#endif
