/* A card that tests of its runtime open, its memory and copies, and the hand-over by bells that an expert tier makes. The
 * including file defines CARD_DEVICE, the name of the device. */
#ifndef TD_TESTS_ONE_CARD_H
#define TD_TESTS_ONE_CARD_H

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "npu/carried_rows.h"
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
    OK(c.ops->stream_create(c.npu, &c.stream, &err));
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
    OK(c->ops->copy(c->npu, c->stream, dst, src, bytes, TD_COPY_H2D));
}
static inline void to_host(card *c, void *dst, const void *src, size_t bytes) {
    OK(c->ops->copy(c->npu, c->stream, dst, src, bytes, TD_COPY_D2H));
}
static inline void sync_stream(card *c) {
    OK(c->ops->stream_sync(c->npu, c->stream));
}

/* Arrays of a hand-over: rows whose ends are a multiple of 16, of 4, of neither, and rows of which a few are more than a
 * block of threads carries at a time. */
enum { HANDED_ARRAYS = 4, HANDED_ROWS = 5, HANDED_BUCKET = 6, HANDED_FIRST = 3, HANDED_ROW_MAX = 17488 };
static const size_t HANDED_BYTES[HANDED_ARRAYS] = {17488, 4, 27, 64};

/* What the expert tier does: hears a bell, reads the rows that came before it, answers, rings. */
typedef struct {
    td_bell *up, *down;
    uint8_t *in[HANDED_ARRAYS], *out[HANDED_ARRAYS]; /* where the step's first row is */
    int      rounds;
} partner;

static inline void *answer(void *arg) {
    partner *p = arg;
    for (int i = 0; i < p->rounds; i++) {
        while (atomic_load_explicit(p->up, memory_order_acquire) == 0) usleep(10);
        atomic_store_explicit(p->up, 0, memory_order_relaxed);
        for (int a = 0; a < HANDED_ARRAYS; a++)
            for (size_t k = 0; k < HANDED_ROWS * HANDED_BYTES[a]; k++) p->out[a][k] = (uint8_t)(p->in[a][k] + 1);
        atomic_store_explicit(p->down, 1, memory_order_release);
    }
    return NULL;
}

/* Rows come back in stream order, or ahead on a branch. */
static inline void enqueue_back(card *c, td_npu_stream *branch, td_bell *bell, const td_carried *rows) {
    if (!branch) {
        OK(c->ops->bell_wait(c->npu, c->stream, bell, rows));
        return;
    }
    OK(c->ops->graph_fork(c->npu, c->stream, branch));
    assert_int_equal(c->ops->graph_fork(c->npu, c->stream, branch), TD_EINVAL);
    OK(c->ops->bell_wait(c->npu, branch, bell, NULL));
    OK(td_carry_by_copies(c->npu, branch, rows, TD_COPY_H2D));
    OK(c->ops->graph_join(c->npu, c->stream, branch));
    assert_int_equal(c->ops->graph_join(c->npu, c->stream, branch), TD_EINVAL);
}

/* Rows go to and fro, in a graph that is replayed: those of the step's counts, from its first row on.
 * @param branch where they come back; NULL: in stream order */
static inline void hand_over(card *c, td_npu_stream *branch) {
    enum { ROUNDS = 20, ROWS = HANDED_FIRST + HANDED_BUCKET, BYTES = ROWS * HANDED_ROW_MAX };
    char           *bells = pinned_memory(c, 128);
    td_step_counts *counts = pinned_memory(c, 64), *there = device_memory(c, 64);
    uint8_t        *up[HANDED_ARRAYS], *down[HANDED_ARRAYS], *device[HANDED_ARRAYS];
    partner         p = {.up = (td_bell *)bells, .down = (td_bell *)(bells + 64), .rounds = ROUNDS};
    td_step         step = {.max_tok = HANDED_BUCKET, .first_row = HANDED_FIRST, .host = {.counts = counts}};
    td_carried      rise = {.step = &step, .n = HANDED_ARRAYS}, fall = rise;
    pthread_t       thread;
    td_npu_graph   *g;
    td_npu_report   before, after;
    td_error        err = {0};
    step.dev.counts = there;
    counts->n_tok = HANDED_ROWS;
    to_device(c, there, counts, sizeof *counts);
    for (int a = 0; a < HANDED_ARRAYS; a++) {
        const size_t first = HANDED_FIRST * HANDED_BYTES[a];
        up[a] = pinned_memory(c, BYTES), down[a] = pinned_memory(c, BYTES), device[a] = device_memory(c, BYTES);
        for (size_t k = 0; k < BYTES; k++) down[a][k] = (uint8_t)(k * 7 + (size_t)a);
        to_device(c, device[a], down[a], BYTES);
        sync_stream(c);
        rise.arrays[a].to = p.in[a] = up[a] + first, rise.arrays[a].from = device[a] + first;
        fall.arrays[a].to = device[a] + first, fall.arrays[a].from = p.out[a] = down[a] + first;
        rise.arrays[a].row_bytes = fall.arrays[a].row_bytes = HANDED_BYTES[a];
    }
    OK(c->ops->graph_begin(c->npu, c->stream));
    OK(c->ops->bell_ring(c->npu, c->stream, p.up, &rise));
    enqueue_back(c, branch, p.down, &fall);
    OK(c->ops->graph_end(c->npu, c->stream, &g, &err));
    assert_int_equal(pthread_create(&thread, NULL, answer, &p), 0);
    c->ops->report(c->npu, &before);
    for (int i = 0; i < ROUNDS; i++) OK(c->ops->graph_launch(c->npu, c->stream, g));
    sync_stream(c);
    c->ops->report(c->npu, &after);
    size_t row = 0;
    for (int a = 0; a < HANDED_ARRAYS; a++) row += HANDED_BYTES[a];
    assert_int_equal(after.link_down_bytes - before.link_down_bytes, ROUNDS * HANDED_BUCKET * row);
    pthread_join(thread, NULL);
    c->ops->graph_destroy(c->npu, g);
    assert_int_equal(atomic_load(p.up), 0);
    assert_int_equal(atomic_load(p.down), 0);
    for (int a = 0; a < HANDED_ARRAYS; a++) {
        const size_t first = HANDED_FIRST * HANDED_BYTES[a], end = first + HANDED_ROWS * HANDED_BYTES[a];
        to_host(c, up[a], device[a], BYTES);
        sync_stream(c);
        for (size_t k = 0; k < BYTES; k++) /* rows of the bucket beyond the counts may be carried */
            if (k < end || k >= end + (HANDED_BUCKET - HANDED_ROWS) * HANDED_BYTES[a])
                assert_int_equal(up[a][k], (uint8_t)(k * 7 + (size_t)a + (k >= first && k < end ? ROUNDS : 0)));
        c->ops->free(c->npu, device[a], BYTES);
        c->ops->host_free(c->npu, up[a], BYTES);
        c->ops->host_free(c->npu, down[a], BYTES);
    }
    c->ops->free(c->npu, there, 64);
    c->ops->host_free(c->npu, counts, 64);
    c->ops->host_free(c->npu, bells, 128);
}

#endif
