/*
 * Streams (a thread and a queue each), events, and callbacks with the threads that fetch them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "standin.h"

static pthread_cond_t progress = PTHREAD_COND_INITIALIZER; /* an operation is done, a callback has come or is finished */

/* ---- operations -------------------------------------------------------------------------------- */

standin_op *standin_op_new(const char *name, standin_op_kind kind, void (*run)(standin_op *, standin_stream *)) {
    standin_op *op = calloc(1, sizeof *op);
    *op = (standin_op){.name = name, .kind = kind, .run = run, .refs = 1};
    return op;
}

void standin_op_use(standin_op *op, const void *at, size_t bytes, bool write, bool indexed) {
    if (!bytes) return;
    if (op->n_uses == STANDIN_USES_MAX)
        standin_refuse("stand-in", "%s uses more than %d pieces of memory", op->name, STANDIN_USES_MAX);
    op->uses[op->n_uses++] = (standin_use){.at = at, .bytes = bytes, .write = write, .indexed = indexed};
}

void standin_op_unref(standin_op *op) {
    if (--op->refs) return;
    if (op->drop) op->drop(op);
    free(op);
}

/* ---- the thread of a stream --------------------------------------------------------------------- */

void standin_run_op(standin_op *op, standin_stream *s) {
    bool is_work = op->kind != STANDIN_OP_SIGNAL && op->kind != STANDIN_OP_GRAPH; /* those look for themselves */
    if (is_work && standin_is_aborted(s)) {
        if (op->discard) op->discard(op);
        return;
    }
    standin_delay(&s->random);
    /* What runs behind a failed operation runs: streams go on by default (runtime 06 aclrtSetStreamFailureMode). */
    bool can_fail = op->kind == STANDIN_OP_KERNEL || (op->kind == STANDIN_OP_COPY && op->n_uses && op->uses[0].bytes > 8);
    if (can_fail && standin_op_fails())
        s->failure = standin_failure(TD_ACL_ERROR_RT_AICORE_EXCEPTION);
    else
        op->run(op, s);
}

static void *serve(void *arg) {
    standin_stream *s = arg;
    standin_lock();
    for (;;) {
        while (!s->first && !s->closing) pthread_cond_wait(&s->more, &standin_mutex);
        if (!s->first) break;
        standin_entry *e = s->first;
        atomic_store(&s->current, e->number);
        standin_unlock();
        standin_run_op(e->op, s);
        standin_lock();
        s->first = e->next;
        if (!s->first) s->last = NULL;
        s->done = e->number;
        standin_hold(e->op->uses, e->op->n_uses, false, -1);
        standin_op_unref(e->op);
        free(e);
        pthread_cond_broadcast(&progress);
    }
    standin_unlock();
    return NULL;
}

standin_stream *standin_stream_new(standin_context *c) {
    standin_stream *s = calloc(1, sizeof *s);
    standin_lock();
    standin_keep(s);
    *s = (standin_stream){.context = c, .alive = true, .line = standin_line_take()};
    s->random = standin_random_start();
    c->n_streams++;
    standin_unlock();
    pthread_cond_init(&s->more, NULL);
    pthread_create(&s->thread, NULL, serve, s);
    return s;
}

td_acl_status standin_stream_wait(standin_stream *s) {
    STANDIN_LOCKED;
    standin_gates_check(s, "aclrtSynchronizeStream");
    uint32_t until = s->enqueued;
    while (s->done < until) pthread_cond_wait(&progress, &standin_mutex);
    standin_host_saw(&s->clock);
    if (s->context->host_us < s->device_us) s->context->host_us = s->device_us;
    td_acl_status failure = s->failure;
    s->failure = TD_ACL_SUCCESS;
    return failure == TD_ACL_SUCCESS ? failure : standin_fail(failure, "an operation of the stream has failed");
}

void standin_stream_delete(standin_stream *s) {
    standin_lock();
    if (s->done < s->enqueued)
        standin_refuse("runtime 06 aclrtDestroyStream",
                       "a stream with unfinished operations is destroyed: synchronise it first");
    if (s->capture) standin_refuse("runtime 06 aclrtDestroyStream", "a stream is destroyed while it is captured");
    if (s->is_subscribed)
        standin_refuse("runtime 12 aclrtUnSubscribeReport",
                       "a stream is destroyed whose callbacks a thread still fetches: unsubscribe it first");
    s->closing = true;
    s->alive = false;
    s->context->n_streams--;
    pthread_cond_signal(&s->more);
    standin_line_give(s->line);
    standin_unlock();
    pthread_join(s->thread, NULL);
}

bool standin_is_aborted(const standin_stream *s) {
    return atomic_load(&s->current) <= atomic_load(&s->aborted);
}

/* runtime 06 aclrtStreamAbort: what runs is stopped, what is enqueued is dropped; who synchronises the stream is told. A
 * callback that a thread has begun goes on there: nothing stops a thread of the host. */
void standin_stream_abort(standin_stream *s) {
    STANDIN_LOCKED;
    if (s->capture) standin_refuse("runtime 06 aclrtStreamAbort", "a stream is aborted while it is captured");
    atomic_store(&s->aborted, s->enqueued);
    if (s->done < s->enqueued) s->failure = TD_ACL_ERROR_RT_STREAM_ABORT;
    standin_gates_aborted(s);
    pthread_cond_broadcast(&progress);
}

void standin_enqueue(standin_stream *s, standin_op *op) {
    standin_entry *e = calloc(1, sizeof *e);
    standin_host_into(&s->clock);
    uint32_t step = standin_line_step(s->line, &s->clock);
    *e = (standin_entry){.op = op, .number = ++s->enqueued};
    if (op->waits) standin_clock_merge(&s->clock, &op->waits->clock);
    if (op->kind != STANDIN_OP_GRAPH) /* a replay's operations have lines of their own */
        (void)standin_used_all(op->uses, op->n_uses, s->line, step, &s->clock, op->name);
    standin_hold(op->uses, op->n_uses, false, 1);
    if (op->records) {
        op->records->capture = NULL;
        op->records->stream = s;
        op->records->number = e->number;
        op->records->clock = s->clock;
        if (op->records->is_external) standin_gate_recorded(op->records, s);
    }
    if (op->reset) {
        if (op->reset->awaited)
            standin_refuse("runtime 07 aclrtResetEvent", "an event is reset while a run of a capture waits for it");
        op->reset->is_recorded = op->reset->is_stale = false;
    }
    if (s->last)
        s->last->next = e;
    else
        s->first = e;
    s->last = e;
    pthread_cond_signal(&s->more);
}

void standin_submit(standin_stream *s, standin_op *op) {
    STANDIN_LOCKED;
    /* A stream enters a capture by waiting for an event that was recorded in it (dev_guide 04-02). */
    if (!s->capture && op->waits && standin_capture_open(op->waits->capture)) s->capture = op->waits->capture;
    if (s->capture)
        standin_capture_add(s, op);
    else if (s->in_update)
        standin_update_add(s, op);
    else
        standin_enqueue(s, op);
}

/* ---- events ------------------------------------------------------------------------------------ */

static void run_nothing(standin_op *op, standin_stream *s) {
    (void)op;
    (void)s;
}

static void run_set(standin_op *op, standin_stream *s) {
    standin_event *e = op->payload;
    (void)s;
    STANDIN_LOCKED;
    e->is_set = true;
    pthread_cond_broadcast(&progress);
}

standin_op *standin_record_op(standin_event *e) {
    standin_op *op = standin_op_new("aclrtRecordEvent", STANDIN_OP_SIGNAL, e->is_external ? run_set : run_nothing);
    op->records = e;
    op->payload = e;
    return op;
}

/** What a wait waits for is what the last record was when the wait was enqueued. */
typedef struct {
    standin_stream *stream;
    uint32_t        number;
} wait_for;

static void run_wait(standin_op *op, standin_stream *s) {
    wait_for *w = op->payload;
    STANDIN_LOCKED;
    while (w->stream && w->stream->done < w->number && !standin_is_aborted(s)) pthread_cond_wait(&progress, &standin_mutex);
}

static void drop_payload(standin_op *op) {
    free(op->payload);
}

standin_op *standin_wait_op(standin_event *e) {
    standin_op *op = standin_op_new("aclrtStreamWaitEvent", STANDIN_OP_SIGNAL, run_wait);
    wait_for   *w = calloc(1, sizeof *w);
    *w = (wait_for){e->capture ? NULL : e->stream, e->number};
    op->payload = w;
    op->drop = drop_payload;
    op->waits = e;
    return op;
}

/* External events: a record sets a flag of the card, a capture waits for it and resets it (dev_guide 04-03). */
static void run_gate(standin_op *op, standin_stream *s) {
    const standin_event *e = op->payload;
    STANDIN_LOCKED;
    while (!e->is_set && !standin_is_aborted(s)) pthread_cond_wait(&progress, &standin_mutex);
}

static void run_reset(standin_op *op, standin_stream *s) {
    standin_event *e = op->payload;
    (void)s;
    STANDIN_LOCKED;
    e->is_set = false;
}

standin_op *standin_gate_op(standin_event *e) {
    standin_op *op = standin_op_new("aclrtStreamWaitEvent", STANDIN_OP_GATE, run_gate);
    op->payload = op->gate = e;
    return op;
}

standin_op *standin_reset_op(standin_event *e) {
    standin_op *op = standin_op_new("aclrtResetEvent", STANDIN_OP_GATE, run_reset);
    op->payload = op->reset = e;
    return op;
}

bool standin_event_done(const standin_event *e) {
    return !e->stream || e->stream->done >= e->number;
}

/* ---- callbacks --------------------------------------------------------------------------------- */

typedef struct report {
    struct report  *next;
    td_acl_callback fn;
    void           *arg;
    standin_stream *stream;
    bool            begun, finished;
    int             holders; /* the stream's thread and the one that fetches it */
} report;

typedef struct {
    uint64_t thread;
    int32_t  device;
    uint32_t n_streams;
    bool     polls; /* in aclrtProcessReport now, or in a callback */
    report  *first, *last;
} subscriber;

#define SUBSCRIBERS_MAX 1024 /* runtime 12 aclrtSubscribeReport: the largest number of threads */
static subscriber         subscribers[SUBSCRIBERS_MAX];
static _Thread_local bool in_callback;

bool standin_in_callback(void) {
    return in_callback;
}

static subscriber *subscriber_of(uint64_t thread) {
    for (size_t i = 0; i < SUBSCRIBERS_MAX; i++)
        if (subscribers[i].n_streams && subscribers[i].thread == thread) return &subscribers[i];
    return NULL;
}

td_acl_status standin_subscribe(uint64_t thread, standin_stream *s) {
    const char *document = "runtime 12 aclrtSubscribeReport";
    STANDIN_LOCKED;
    if (s->is_subscribed) standin_refuse(document, "a second thread subscribes to a stream: one stream has one thread");
    subscriber *found = subscriber_of(thread);
    for (size_t i = 0; i < SUBSCRIBERS_MAX && !found; i++)
        if (!subscribers[i].n_streams) {
            found = &subscribers[i];
            *found = (subscriber){.thread = thread, .device = s->context->device};
        }
    if (!found) standin_refuse(document, "more than %d threads subscribe", SUBSCRIBERS_MAX);
    if (found->device != s->context->device)
        standin_refuse(document, "one thread subscribes to streams of devices %d and %d: a thread serves one device",
                       found->device, s->context->device);
    found->n_streams++;
    s->is_subscribed = true;
    s->subscriber = thread;
    pthread_cond_broadcast(&progress);
    return TD_ACL_SUCCESS;
}

td_acl_status standin_unsubscribe(uint64_t thread, standin_stream *s) {
    const char *document = "runtime 12 aclrtUnSubscribeReport";
    STANDIN_LOCKED;
    subscriber *found = subscriber_of(thread);
    if (!s->is_subscribed || s->subscriber != thread || !found)
        standin_refuse(document, "a thread unsubscribes from a stream that it has not subscribed to");
    if (s->callbacks)
        standin_refuse(
            document,
            "a thread unsubscribes from a stream with %u callbacks that have not run: synchronise the stream first",
            s->callbacks);
    s->is_subscribed = false;
    found->n_streams--;
    return TD_ACL_SUCCESS;
}

static void let_go(report *r) {
    if (--r->holders == 0) free(r);
}

/* A report that nobody has fetched. */
static void withdraw(subscriber *from, report *r) {
    report **at = &from->first;
    while (*at != r) at = &(*at)->next;
    *at = r->next;
    from->last = NULL;
    for (report *x = from->first; x; x = x->next) from->last = x;
    r->stream->callbacks--;
    r->holders--; /* the thread that will not come */
}

static void after(struct timespec *t, uint64_t ms) {
    clock_gettime(CLOCK_REALTIME, t);
    t->tv_sec += (time_t)(ms / 1000);
    t->tv_nsec += (long)(ms % 1000) * 1000000;
    if (t->tv_nsec >= 1000000000) t->tv_sec++, t->tv_nsec -= 1000000000;
}

td_acl_status standin_process_report(int32_t timeout_ms) {
    struct timespec until;
    uint64_t        me = (uint64_t)pthread_self();
    if (timeout_ms == 0 || timeout_ms < -1)
        standin_refuse("runtime 12 aclrtProcessReport", "a timeout of %d ms: -1 or more than 0 is taken", timeout_ms);
    after(&until, timeout_ms < 0 ? 1000000000 : (uint64_t)timeout_ms);
    standin_lock();
    subscriber *mine = subscriber_of(me);
    if (!mine) {
        standin_unlock();
        return standin_fail(TD_ACL_ERROR_THREAD_NOT_SUBSCRIBE, "the thread has subscribed to no stream");
    }
    mine->polls = true;
    pthread_cond_broadcast(&progress);
    int late = 0;
    while (!mine->first && !late && mine->n_streams)
        late = pthread_cond_timedwait(&progress, &standin_mutex, &until) == ETIMEDOUT;
    report *r = mine->first;
    if (!r) {
        mine->polls = false;
        standin_unlock();
        return standin_fail(TD_ACL_ERROR_WAIT_CALLBACK_TIMEOUT, "no callback came");
    }
    mine->first = r->next;
    if (!mine->first) mine->last = NULL;
    r->begun = true;
    standin_unlock();
    in_callback = true;
    r->fn(r->arg);
    in_callback = false;
    standin_lock();
    mine->polls = false;
    r->finished = true;
    r->stream->callbacks--;
    let_go(r);
    pthread_cond_broadcast(&progress);
    standin_unlock();
    return TD_ACL_SUCCESS;
}

typedef struct {
    td_acl_callback fn;
    void           *arg;
    bool            blocks;
    standin_stream *bound; /* where it was launched: a capture keeps its thread, whatever stream it is run on */
} callback;

static void run_callback(standin_op *op, standin_stream *s) {
    const callback *c = op->payload;
    report         *r = calloc(1, sizeof *r);
    struct timespec until;
    uint64_t        patience = standin_setting("TD_STANDIN_POLL_MS", 5000);
    *r = (report){.fn = c->fn, .arg = c->arg, .stream = c->bound, .holders = 2};
    STANDIN_LOCKED;
    subscriber *to = c->bound->is_subscribed ? subscriber_of(c->bound->subscriber) : NULL;
    if (!to)
        standin_refuse("runtime 12 aclrtLaunchCallback",
                       "a callback has come up on a stream to which no thread has subscribed");
    if (to->last)
        to->last->next = r;
    else
        to->first = r;
    to->last = r;
    c->bound->callbacks++;
    pthread_cond_broadcast(&progress);
    after(&until, patience);
    while (!r->begun && !standin_is_aborted(s)) {
        if (pthread_cond_timedwait(&progress, &standin_mutex, &until) != ETIMEDOUT || r->begun || standin_is_aborted(s))
            continue;
        if (!to->polls)
            standin_refuse(
                "runtime 12 aclrtProcessReport",
                "a callback has lain for %llu ms: the thread that subscribed does not call aclrtProcessReport in a loop",
                (unsigned long long)patience);
        after(&until, patience);
    }
    while (c->blocks && r->begun && !r->finished && !standin_is_aborted(s)) pthread_cond_wait(&progress, &standin_mutex);
    if (!r->begun) withdraw(to, r);
    let_go(r);
}

standin_op *standin_callback_op(standin_stream *s, td_acl_callback fn, void *arg, td_acl_blocking blocking) {
    standin_op *op = standin_op_new("aclrtLaunchCallback", STANDIN_OP_CALLBACK, run_callback);
    callback   *c = calloc(1, sizeof *c);
    *c = (callback){fn, arg, blocking == TD_ACL_CALLBACK_BLOCK, s};
    op->payload = c;
    op->drop = drop_payload;
    return op;
}
