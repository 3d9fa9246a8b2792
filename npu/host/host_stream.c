/*
 * Streams, events and graphs of the host device.
 *
 * DESIGN. Every enqueuing call makes an op and submits it. A stream without a thread runs it at once; a stream with one puts it in
 * a ring that its thread empties in order; a stream that is being captured appends it to the graph. Launching a graph submits its
 * ops again, so records and waits take their tickets anew. A block op holds the device's turn while it runs; host calls and
 * copies do not. An op that fails stops nothing: the stream keeps the first failure until it is synchronised.
 *
 * With TD_CHAOS_SEED every op is preceded by a random delay, with TD_CHAOS_FAIL_OP a block fails (core/chaos.h).
 */
#include <pthread.h>
#include <stdlib.h>

#include "core/chaos.h"
#include "core/error.h"
#include "core/thread.h"
#include "npu/host/host_device.h"

#define RING_OPS 1024
#define SPIN_US  300 /* of an empty ring's thread: a step's head follows its layers within microseconds */

typedef enum { OP_BLOCK, OP_COPY, OP_HOST_CALL, OP_RECORD, OP_WAIT } op_kind;

typedef struct {
    op_kind kind;
    union {
        struct {
            const td_npu_block *block;
            const td_step      *step;
        };
        struct {
            void       *dst;
            const void *src;
            size_t      bytes;
        };
        struct {
            td_host_fn fn;
            void      *arg;
        };
        struct {
            td_npu_event *event;
            uint64_t      ticket; /* set when submitted to run */
        };
    };
} op;

struct td_npu_graph {
    op    *ops;
    size_t n, capacity;
};

struct td_npu_event {
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    uint64_t        issued; /* records submitted */
    uint64_t        done;   /* the latest record that was reached */
};

struct td_npu_stream {
    td_host_npu    *device;
    td_npu_graph   *capture; /* or NULL */
    td_status       status;  /* the first failure since the last sync */
    pthread_t       thread;  /* with own_threads; the rest is its ring */
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    bool            stop;
    _Atomic uint64_t submitted; /* ops; written under the lock; relaxed outside of it, where it only says that a look is worthwhile */
    uint64_t        finished;   /* the ring holds those in between */
    op              ring[RING_OPS];
};

static td_status run_block(td_host_npu *d, const td_npu_block *b, const td_step *step) {
    static const char *const names[TD_BLOCK_COUNT] = {
        [TD_BLOCK_EMBED] = "embed",   [TD_BLOCK_NORM] = "norm", [TD_BLOCK_LINEAR] = "linear",
        [TD_BLOCK_MLA] = "mla",       [TD_BLOCK_GQA] = "gqa",   [TD_BLOCK_MLP] = "mlp",
        [TD_BLOCK_ROUTER] = "router", [TD_BLOCK_COMBINE] = "combine", [TD_BLOCK_HEAD] = "head",
    };
    if (step->n_tok > b->desc.max_tok) return TD_EINVAL;
    pthread_mutex_lock(&d->turn);
    td_trace_label label = {TD_TRACE_DEVICE, names[b->desc.kind], {"tokens", b->desc.layer == TD_NO_LAYER ? NULL : "layer"}, {step->n_tok, b->desc.layer}};
    uint64_t       begin = td_trace_begin();
    td_pool_label(d->pool, &label);
    uint64_t     begin_ns = td_tier_begin(&d->meter, names[b->desc.kind], b->desc.layer);
    td_status    status = b->run(d, b, step);
    td_tier_work work = td_host_block_work(d, b, step);
    td_tier_end(&d->meter, begin_ns, &work);
    td_trace_end(begin, &label);
    pthread_mutex_unlock(&d->turn);
    return status;
}

static td_status run_op(td_npu_stream *s, const op *o) {
    uint64_t  begin;
    td_status status = TD_OK;
    td_chaos_delay();
    switch (o->kind) {
    case OP_BLOCK: /* after a failure nothing counts until the stream is synchronised: n,2 means the op and the retry's first */
        status = s->status == TD_OK && td_chaos_op_fails() ? TD_EDEVICE : run_block(s->device, o->block, o->step);
        break;
    case OP_COPY:
        begin = td_trace_begin();
        memmove(o->dst, o->src, o->bytes);
        td_trace_end(begin, &(td_trace_label){TD_TRACE_DEVICE, "copy", {"bytes"}, {o->bytes}});
        break;
    case OP_HOST_CALL: o->fn(o->arg); break;
    case OP_RECORD:
        pthread_mutex_lock(&o->event->lock);
        if (o->event->done < o->ticket) o->event->done = o->ticket;
        pthread_cond_broadcast(&o->event->changed);
        pthread_mutex_unlock(&o->event->lock);
        break;
    case OP_WAIT:
        begin = td_trace_begin();
        pthread_mutex_lock(&o->event->lock);
        while (o->event->done < o->ticket) pthread_cond_wait(&o->event->changed, &o->event->lock);
        pthread_mutex_unlock(&o->event->lock);
        td_trace_end(begin, &(td_trace_label){.tier = TD_TRACE_DEVICE, .name = "wait for event"});
        break;
    }
    return status;
}

/* Under the lock, for the ring's thread. While it has operations the pool's workers stay awake. */
static void await_op(td_npu_stream *s) {
    td_pool *pool = s->device->pool;
    td_pool_release(pool);
    pthread_mutex_unlock(&s->lock);
    uint32_t spin_us = td_pool_spin(pool).us;
    uint64_t until_ns = td_trace_now() + (spin_us < SPIN_US ? spin_us : SPIN_US) * UINT64_C(1000);
    while (atomic_load_explicit(&s->submitted, memory_order_relaxed) == s->finished && td_trace_now() < until_ns) td_cpu_relax();
    pthread_mutex_lock(&s->lock);
    while (s->finished == s->submitted && !s->stop) pthread_cond_wait(&s->changed, &s->lock);
    td_pool_hold(pool);
}

static void *stream_main(void *arg) {
    td_npu_stream *s = arg;
    td_pool_pin_caller(s->device->pool); /* it is worker 0 in its turn */
    td_pool_hold(s->device->pool);
    pthread_mutex_lock(&s->lock);
    for (;;) {
        if (s->finished == s->submitted && !s->stop) await_op(s);
        if (s->finished == s->submitted) break;
        op o = s->ring[s->finished % RING_OPS];
        pthread_mutex_unlock(&s->lock);
        td_status status = run_op(s, &o);
        pthread_mutex_lock(&s->lock);
        if (s->status == TD_OK) s->status = status;
        s->finished++;
        /* Who waits: a sync for the last op, an enqueue for a place in a full ring. Waking them for every op costs microseconds each. */
        if (s->finished == s->submitted || s->submitted - s->finished == RING_OPS - 1) pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    td_pool_release(s->device->pool);
    return NULL;
}

static td_status capture_op(td_npu_graph *g, const op *o) {
    if (g->n == g->capacity) {
        size_t capacity = g->capacity ? g->capacity * 2 : 64;
        op    *ops = realloc(g->ops, capacity * sizeof *ops);
        if (!ops) return TD_ENOMEM;
        g->ops = ops;
        g->capacity = capacity;
    }
    g->ops[g->n++] = *o;
    return TD_OK;
}

static td_status submit(td_npu_stream *s, const op *recorded) {
    if (s->capture) return capture_op(s->capture, recorded);
    op o = *recorded;
    if (o.kind == OP_RECORD || o.kind == OP_WAIT) {
        pthread_mutex_lock(&o.event->lock);
        if (o.kind == OP_RECORD) o.event->issued++;
        o.ticket = o.event->issued;
        pthread_mutex_unlock(&o.event->lock);
    }
    if (!s->device->own_threads) return run_op(s, &o);
    pthread_mutex_lock(&s->lock);
    while (s->submitted - s->finished == RING_OPS) pthread_cond_wait(&s->changed, &s->lock);
    s->ring[s->submitted++ % RING_OPS] = o;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return TD_OK;
}

td_status td_host_stream_create(td_npu *d, td_npu_stream **out, td_error *err) {
    *out = NULL;
    td_npu_stream *s = calloc(1, sizeof *s);
    if (!s) return td_fail(err, TD_ENOMEM, "out of memory for a stream");
    s->device = (td_host_npu *)d;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    td_status status = s->device->own_threads ? td_thread_start(&s->thread, "device stream", stream_main, s, err) : TD_OK;
    if (status != TD_OK) {
        pthread_cond_destroy(&s->changed);
        pthread_mutex_destroy(&s->lock);
        free(s);
        return status;
    }
    *out = s;
    return TD_OK;
}

void td_host_graph_destroy(td_npu *d, td_npu_graph *g) {
    (void)d;
    if (!g) return;
    free(g->ops);
    free(g);
}

void td_host_stream_destroy(td_npu *d, td_npu_stream *s) {
    if (!s) return;
    if (s->device->own_threads) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    td_host_graph_destroy(d, s->capture);
    free(s);
}

td_status td_host_stream_sync(td_npu *d, td_npu_stream *s) {
    (void)d;
    pthread_mutex_lock(&s->lock);
    while (s->finished != s->submitted) pthread_cond_wait(&s->changed, &s->lock);
    td_status status = s->status;
    s->status = TD_OK;
    pthread_mutex_unlock(&s->lock);
    return status;
}

td_status td_host_event_create(td_npu *d, td_npu_event **out, td_error *err) {
    (void)d;
    td_npu_event *e = calloc(1, sizeof *e);
    *out = e;
    if (!e) return td_fail(err, TD_ENOMEM, "out of memory for an event");
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    return TD_OK;
}

void td_host_event_destroy(td_npu *d, td_npu_event *e) {
    (void)d;
    if (!e) return;
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

td_status td_host_event_record(td_npu *d, td_npu_stream *s, td_npu_event *e) {
    (void)d;
    return submit(s, &(op){.kind = OP_RECORD, .event = e});
}

td_status td_host_event_wait(td_npu *d, td_npu_stream *s, td_npu_event *e) {
    (void)d;
    return submit(s, &(op){.kind = OP_WAIT, .event = e});
}

td_status td_host_event_sync(td_npu *d, td_npu_event *e) {
    (void)d;
    pthread_mutex_lock(&e->lock);
    uint64_t ticket = e->issued;
    while (e->done < ticket) pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    return TD_OK;
}

td_status td_host_copy(td_npu *d, td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind) {
    (void)d, (void)kind; /* one address space */
    return submit(s, &(op){.kind = OP_COPY, .dst = dst, .src = src, .bytes = bytes});
}

td_status td_host_call(td_npu *d, td_npu_stream *s, td_host_fn fn, void *arg) {
    (void)d;
    return submit(s, &(op){.kind = OP_HOST_CALL, .fn = fn, .arg = arg});
}

td_status td_host_enqueue(td_npu *d, td_npu_stream *s, td_npu_block *b, const td_step *step) {
    (void)d;
    return submit(s, &(op){.kind = OP_BLOCK, .block = b, .step = step});
}

td_status td_host_graph_begin(td_npu *d, td_npu_stream *s) {
    (void)d;
    if (s->capture) return TD_EINVAL;
    s->capture = calloc(1, sizeof *s->capture);
    return s->capture ? TD_OK : TD_ENOMEM;
}

td_status td_host_graph_end(td_npu *d, td_npu_stream *s, td_npu_graph **out, td_error *err) {
    (void)d;
    *out = s->capture;
    s->capture = NULL;
    return *out ? TD_OK : td_fail(err, TD_EINVAL, "the stream is not being captured");
}

td_status td_host_graph_launch(td_npu *d, td_npu_stream *s, td_npu_graph *g) {
    (void)d;
    for (size_t i = 0; i < g->n; i++) TD_TRY(submit(s, &g->ops[i]));
    return TD_OK;
}
