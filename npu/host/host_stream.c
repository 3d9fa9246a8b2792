/*
 * Streams and captures of the host device.
 *
 * DESIGN. Every enqueuing call makes an op and submits it. A stream without a thread runs it at once; a stream with one puts
 * it in a ring that its thread empties in order; a stream that is being captured appends it to the graph. A launch is one
 * op, which runs the graph's in order; those of a branch go to the branch's ring when their turn comes. A block op holds the device's lock while it runs; host calls and copies do not. An op
 * that fails stops nothing on a stream with a thread, which keeps the first failure until it is synchronised.
 *
 * With TD_CHAOS_SEED every op is preceded by a random delay, with TD_CHAOS_FAIL_OP a block fails (core/threads/chaos.h).
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "core/error.h"
#include "core/threads/chaos.h"
#include "core/threads/thread.h"
#include "npu/bell_wait.h"
#include "npu/block_buffers.h"
#include "npu/host/host_device.h"

#define RING_OPS 1024
#define NAP_NS 20000
#define SPIN_US 300 /* of an empty ring's thread: a step's head follows its layers within microseconds */

typedef enum { OP_BLOCK, OP_COPY, OP_HOST_CALL, OP_RING, OP_WAIT, OP_GRAPH, OP_JOIN } op_kind;

typedef struct {
    op_kind        kind;
    td_npu_stream *branch; /* in a graph: whose op it is, or who is joined; NULL: of the stream that is captured */
    union {
        struct {
            const td_npu_block *block;
            const td_step      *step;
            td_block_part       part;
        };
        struct {
            void         *dst;
            const void   *src;
            size_t        bytes;
            td_host_link *link; /* or NULL */
        };
        struct {
            td_host_fn fn;
            void      *arg;
        };
        td_bell            *bell;
        const td_npu_graph *graph;
    };
} op;

struct td_npu_graph {
    op    *ops;
    size_t n, capacity;
};

struct td_npu_stream {
    td_host_npu    *device;
    td_npu_graph   *capture; /* or NULL */
    td_npu_stream  *trunk;   /* whose capture this stream is a branch of; or NULL */
    td_status       status;  /* the first failure since the last sync */
    pthread_t       thread;  /* with own_threads; the rest is its ring */
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    bool            stop;
    _Atomic uint64_t
        submitted;     /* ops; written under the lock; relaxed outside of it, where it only says that a look is worthwhile */
    uint64_t finished; /* the ring holds those in between */
    op       ring[RING_OPS];
};

/* What of a step the block's work reads; the counts are the device's too. */
static td_status see_step(const td_host_npu *d, const td_step *step, td_host_step *out) {
    const td_step_arrays *dev = &step->dev;
    const td_step_counts *counts = td_host_reach(d, dev->counts);
    *out = (td_host_step){
        .n_tok = counts->n_tok, .n_seq = counts->n_seq, .n_out = counts->n_out, .block_stride = step->block_stride};
    if (out->n_tok > step->max_tok || out->n_seq > step->max_seq || out->n_out > step->max_out) return TD_EINVAL;
    out->a = (td_step_arrays){.counts = counts,
                              .token = td_host_reach(d, dev->token),
                              .pos = td_host_reach(d, dev->pos),
                              .slot = td_host_reach(d, dev->slot),
                              .seq_start = td_host_reach(d, dev->seq_start),
                              .kv_len = td_host_reach(d, dev->kv_len),
                              .absorbed = td_host_reach(d, dev->absorbed),
                              .block_table = td_host_reach(d, dev->block_table),
                              .window_slot = td_host_reach(d, dev->window_slot ? dev->window_slot : dev->slot),
                              .window_table = td_host_reach(d, dev->window_table ? dev->window_table : dev->block_table),
                              .state_in = td_host_reach(d, dev->state_in),
                              .state_out = td_host_reach(d, dev->state_out),
                              .state_open = td_host_reach(d, dev->state_open),
                              .out_row = td_host_reach(d, dev->out_row),
                              .rope_pos = td_host_reach(d, dev->rope_pos),
                              .image_row = td_host_reach(d, dev->image_row)};
    return TD_OK;
}

/* The block over the rows of its buffers from first_row on. */
static td_npu_block shifted(const td_npu_block *b, td_dtype act, uint32_t first_row) {
    td_npu_block    s = *b;
    td_block_buffer list[TD_BLOCK_BUFFERS_MAX];
    size_t          n = td_block_buffers(&s.desc, act, list);
    for (size_t i = 0; i < n; i++)
        if (*list[i].at) *list[i].at = (char *)*list[i].at + first_row * list[i].row_bytes;
    return s;
}

/* ---- given speeds ------------------------------------------------------------------------------ */

/* Blocks that compute nothing then: those with products or with what they give. Routers choose, so norms compute too. */
static const bool WAITS[TD_BLOCK_COUNT] = {
    [TD_BLOCK_LINEAR] = true,  [TD_BLOCK_MLA] = true,      [TD_BLOCK_GQA] = true,  [TD_BLOCK_MLP] = true,
    [TD_BLOCK_EXPERTS] = true, [TD_BLOCK_RESIDENT] = true, [TD_BLOCK_JOIN] = true, [TD_BLOCK_HEAD] = true,
};

static void wait_until(uint64_t ns) {
    const struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}

static uint64_t card_ns(const td_host_speeds *v, const td_tier_work *w) {
    return (uint64_t)(1e9 * fmax((double)w->bytes / v->read_per_s, (double)(w->int8_ops + w->f32_ops) / v->ops_per_s));
}

/* Copies of all streams follow one another on a link. */
static void wait_for_link(td_host_link *link, uint64_t begin_ns, uint64_t ns) {
    uint64_t busy = atomic_load(&link->busy_until_ns), end;
    do end = (busy > begin_ns ? busy : begin_ns) + ns;
    while (!atomic_compare_exchange_weak(&link->busy_until_ns, &busy, end));
    wait_until(end);
}

static void run_copy(const td_host_npu *d, const op *o) {
    const uint64_t begin = td_trace_now();
    memcpy(o->dst, o->src, o->bytes);
    if (!o->link) return;
    atomic_fetch_add_explicit(&o->link->bytes, o->bytes, memory_order_relaxed);
    if (d->speeds.link_per_s > 0) wait_for_link(o->link, begin, (uint64_t)(1e9 * (double)o->bytes / d->speeds.link_per_s));
}

static td_tier_work work_of_part(const td_tier_work *w, const td_block_part *part) {
    return (td_tier_work){.bytes = w->bytes / part->n, .int8_ops = w->int8_ops / part->n, .f32_ops = w->f32_ops / part->n};
}

static td_status compute(td_host_npu *d, const td_npu_block *b, const td_host_step *s, const td_block_part *part) {
    const td_block_part within_reach = {.i = part->i, .n = part->n, .between = td_host_reach(d, part->between)};
    return b->run_part ? b->run_part(d, b, s, &within_reach) : b->run(d, b, s);
}

static td_status run_block(td_host_npu *d, const td_npu_block *b, const td_step *step, const td_block_part *part) {
    static const char *const names[TD_BLOCK_COUNT] = {
        [TD_BLOCK_EMBED] = "embed",   [TD_BLOCK_NORM] = "norm",       [TD_BLOCK_LINEAR] = "linear",
        [TD_BLOCK_MLA] = "mla",       [TD_BLOCK_GQA] = "gqa",         [TD_BLOCK_MLP] = "mlp",
        [TD_BLOCK_ROUTER] = "router", [TD_BLOCK_EXPERTS] = "experts", [TD_BLOCK_RESIDENT] = "resident experts",
        [TD_BLOCK_JOIN] = "join",     [TD_BLOCK_COMBINE] = "combine", [TD_BLOCK_ALL_REDUCE] = "all-reduce",
        [TD_BLOCK_HEAD] = "head",     [TD_BLOCK_TOP] = "top",         [TD_BLOCK_DELTA] = "delta",
        [TD_BLOCK_MIX] = "mix",       [TD_BLOCK_SPREAD] = "spread",   [TD_BLOCK_SPARSE] = "sparse",
    };
    td_host_step seen;
    td_npu_block at_rows;
    TD_TRY(see_step(d, step, &seen));
    if (seen.n_tok > b->desc.max_tok || step->first_row > b->desc.max_tok - seen.n_tok) return TD_EINVAL;
    if (step->first_row) {
        at_rows = shifted(b, d->act, step->first_row);
        b = &at_rows;
    }
    pthread_mutex_lock(&d->lock);
    td_trace_label label = {TD_TRACE_DEVICE,
                            names[b->desc.kind],
                            {"tokens", b->desc.layer == TD_NO_LAYER ? NULL : "layer"},
                            {seen.n_tok, b->desc.layer}};
    uint64_t       begin = td_trace_begin();
    td_pool_label(d->pool, &label);
    uint64_t     begin_ns = td_tier_begin(&d->meter, names[b->desc.kind], b->desc.layer);
    const bool   waits = d->speeds.ops_per_s > 0 && WAITS[b->desc.kind];
    td_status    status = waits ? TD_OK : compute(d, b, &seen, part);
    td_tier_work whole = td_host_block_work(d, b, &seen), work = work_of_part(&whole, part);
    if (waits) wait_until(begin_ns + card_ns(&d->speeds, &work));
    td_tier_end(&d->meter, begin_ns, &work);
    td_trace_end(begin, &label);
    pthread_mutex_unlock(&d->lock);
    return status;
}

/* A branch waits beside the stream that has the core: it sleeps between looks. */
static void await_bell(const td_npu_stream *s, const op *o) {
    while (o->branch && atomic_load_explicit(o->bell, memory_order_acquire) == 0) wait_until(td_trace_now() + NAP_NS);
    td_bell_await(o->bell, td_pool_spin(s->device->pool).us * UINT64_C(1000));
}

static td_status run_op(td_npu_stream *s, const op *o) {
    uint64_t  begin;
    td_status status = TD_OK;
    td_chaos_delay();
    switch (o->kind) {
        case OP_BLOCK: /* after a failure nothing counts until the stream is synchronised: n,2 means the op and the retry's first */
            status =
                s->status == TD_OK && td_chaos_op_fails() ? TD_EDEVICE : run_block(s->device, o->block, o->step, &o->part);
            if (status != TD_OK && o->block->desc.kind == TD_BLOCK_ALL_REDUCE)
                td_host_group_abort(o->block->desc.all_reduce.group); /* others wait for it */
            break;
        case OP_COPY:
            begin = td_trace_begin();
            run_copy(s->device, o);
            td_trace_end(begin, &(td_trace_label){TD_TRACE_DEVICE, "copy", {"bytes"}, {o->bytes}});
            break;
        case OP_HOST_CALL: o->fn(o->arg); break;
        case OP_RING: atomic_store_explicit(o->bell, 1, memory_order_release); break; /* with who polls it */
        case OP_WAIT:
            begin = td_trace_begin();
            await_bell(s, o);
            td_trace_end(begin, &(td_trace_label){.tier = TD_TRACE_DEVICE, .name = "wait for bell"});
            break;
        case OP_GRAPH:
        case OP_JOIN: break; /* run_graph's */
    }
    return status;
}

/* Into the ring of a stream with a thread. */
static void put(td_npu_stream *s, const op *o) {
    pthread_mutex_lock(&s->lock);
    while (s->submitted - s->finished == RING_OPS) pthread_cond_wait(&s->changed, &s->lock);
    s->ring[s->submitted++ % RING_OPS] = *o;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static td_status run_join(td_npu_stream *branch) {
    const uint64_t  begin = td_trace_begin();
    const td_status status = td_host_stream_sync(&branch->device->base, branch);
    td_trace_end(begin, &(td_trace_label){.tier = TD_TRACE_DEVICE, .name = "wait for branch"});
    return status;
}

/* An op of a graph. */
static td_status run_node(td_npu_stream *s, const op *o) {
    if (!o->branch) return run_op(s, o);
    if (o->kind == OP_JOIN) return run_join(o->branch);
    put(o->branch, o);
    return TD_OK;
}

static td_status run_graph(td_npu_stream *s, const td_npu_graph *g) {
    for (size_t i = 0; i < g->n; i++) {
        td_status status = run_node(s, &g->ops[i]);
        if (status == TD_OK) continue;
        if (!s->device->config.own_threads) return status;
        if (s->status == TD_OK) s->status = status;
    }
    return TD_OK;
}

static td_status run(td_npu_stream *s, const op *o) {
    return o->kind == OP_GRAPH ? run_graph(s, o->graph) : run_op(s, o);
}

/* Under the lock, for the ring's thread. While it has operations the pool's workers stay awake. */
static void await_op(td_npu_stream *s) {
    td_pool *pool = s->device->pool;
    td_pool_release(pool);
    pthread_mutex_unlock(&s->lock);
    uint32_t spin_us = td_pool_spin(pool).us;
    uint64_t until_ns = td_trace_now() + (spin_us < SPIN_US ? spin_us : SPIN_US) * UINT64_C(1000);
    while (atomic_load_explicit(&s->submitted, memory_order_relaxed) == s->finished && td_trace_now() < until_ns)
        td_cpu_relax();
    pthread_mutex_lock(&s->lock);
    while (s->finished == s->submitted && !s->stop) pthread_cond_wait(&s->changed, &s->lock);
    td_pool_hold(pool);
}

static void *stream_main(void *arg) {
    td_npu_stream *s = arg;
    td_pool_pin_caller(s->device->pool); /* it is worker 0 while it holds the device's lock */
    td_pool_hold(s->device->pool);
    pthread_mutex_lock(&s->lock);
    for (;;) {
        if (s->finished == s->submitted && !s->stop) await_op(s);
        if (s->finished == s->submitted) break;
        op o = s->ring[s->finished % RING_OPS];
        pthread_mutex_unlock(&s->lock);
        td_status status = run(s, &o);
        pthread_mutex_lock(&s->lock);
        if (s->status == TD_OK) s->status = status;
        s->finished++;
        /* Who waits: a sync for the last op, an enqueue for a place in a full ring. Waking them for every op costs
         * microseconds each. */
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

static td_status submit(td_npu_stream *s, const op *o) {
    if (s->trunk && s->trunk->capture) {
        op node = *o;
        node.branch = s;
        return capture_op(s->trunk->capture, &node);
    }
    if (s->capture) return capture_op(s->capture, o);
    td_card_count(&s->device->given.launches);
    if (o->kind == OP_GRAPH) td_card_count(&s->device->given.replays);
    if (!s->device->config.own_threads) return run(s, o);
    put(s, o);
    return TD_OK;
}

td_status td_host_stream_create(td_npu *d, td_npu_stream **out, td_error *err) {
    *out = NULL;
    td_npu_stream *s = calloc(1, sizeof *s);
    if (!s) return td_fail(err, TD_ENOMEM, "out of memory for a stream");
    s->device = (td_host_npu *)d;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    td_status status =
        s->device->config.own_threads ? td_thread_start(&s->thread, "device stream", stream_main, s, err) : TD_OK;
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
    if (s->device->config.own_threads) {
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

td_status td_host_copy(td_npu *d, td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind) {
    (void)kind; /* one address space, no link */
    return td_host_link_copy(d, s, dst, src, bytes, NULL);
}

td_status td_host_link_copy(td_npu *d, td_npu_stream *s, void *dst, const void *src, size_t bytes, td_host_link *link) {
    (void)d;
    return submit(s, &(op){.kind = OP_COPY, .dst = dst, .src = src, .bytes = bytes, .link = link});
}

td_status td_host_call(td_npu *d, td_npu_stream *s, td_host_fn fn, void *arg) {
    (void)d;
    return submit(s, &(op){.kind = OP_HOST_CALL, .fn = fn, .arg = arg});
}

td_status td_host_bell_ring(td_npu *d, td_npu_stream *s, td_bell *bell, const td_carried *rows) {
    (void)d;
    (void)rows; /* one address space */
    return submit(s, &(op){.kind = OP_RING, .bell = bell});
}

td_status td_host_bell_wait(td_npu *d, td_npu_stream *s, td_bell *bell, const td_carried *rows) {
    (void)d;
    (void)rows; /* one address space */
    return submit(s, &(op){.kind = OP_WAIT, .bell = bell});
}

td_status td_host_enqueue(td_npu *d, td_npu_stream *s, td_npu_block *b, const td_step *step) {
    return td_host_enqueue_part(d, s, b, step, &(td_block_part){.n = 1});
}

td_status td_host_enqueue_part(td_npu *d, td_npu_stream *s, td_npu_block *b, const td_step *step,
                               const td_block_part *part) {
    (void)d;
    if (part->n > 1 && !b->run_part) return TD_EINVAL;
    return submit(s, &(op){.kind = OP_BLOCK, .block = b, .step = step, .part = *part});
}

td_status td_host_graph_begin(td_npu *d, td_npu_stream *s) {
    (void)d;
    if (s->capture) return TD_EINVAL;
    s->capture = calloc(1, sizeof *s->capture);
    return s->capture ? TD_OK : TD_ENOMEM;
}

td_status td_host_graph_end(td_npu *d, td_npu_stream *s, td_npu_graph **out, td_error *err) {
    td_npu_graph *g = s->capture;
    s->capture = NULL;
    if (!g) return td_fail(err, TD_EINVAL, "the stream is not being captured");
    if (!out) {
        td_host_graph_destroy(d, g);
        return TD_OK;
    }
    td_card_count(&s->device->given.captures);
    *out = g;
    return TD_OK;
}

td_status td_host_graph_launch(td_npu *d, td_npu_stream *s, td_npu_graph *g) {
    (void)d;
    return s->capture ? TD_EINVAL : submit(s, &(op){.kind = OP_GRAPH, .graph = g});
}

td_status td_host_graph_fork(td_npu *d, td_npu_stream *s, td_npu_stream *branch) {
    (void)d;
    if (!s->capture || branch == s || branch->capture) return TD_EINVAL;
    branch->trunk = s;
    return TD_OK;
}

td_status td_host_graph_join(td_npu *d, td_npu_stream *s, td_npu_stream *branch) {
    (void)d;
    if (!s->capture || branch->trunk != s) return TD_EINVAL;
    branch->trunk = NULL;
    return capture_op(s->capture, &(op){.kind = OP_JOIN, .branch = branch});
}
