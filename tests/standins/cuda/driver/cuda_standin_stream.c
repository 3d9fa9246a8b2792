/*
 * Streams (a thread and a queue each), events and host functions.
 */
#include <stdlib.h>

#include "tests/standins/cuda/driver/cuda_standin.h"

static pthread_cond_t     progress = PTHREAD_COND_INITIALIZER; /* an operation is done */
static _Thread_local bool in_host_function;

bool standin_in_host_function(void) {
    return in_host_function;
}

void standin_wait_progress(void) {
    pthread_cond_wait(&progress, &standin_mutex);
}

/* ---- operations -------------------------------------------------------------------------------- */

standin_op *standin_op_new(const char *name, standin_op_kind kind, void (*run)(standin_op *, td_cu_stream)) {
    standin_op *op = calloc(1, sizeof *op);
    *op = (standin_op){.name = name, .kind = kind, .run = run, .refs = 1};
    return op;
}

void standin_op_use(standin_op *op, const void *at, size_t bytes, bool write, bool indexed) {
    op->uses[op->n_uses++] = (standin_use){at, bytes, write, indexed, .device = standin_current()->device};
}

void standin_op_unref(standin_op *op) {
    if (--op->refs) return;
    if (op->drop) op->drop(op);
    free(op);
}

/** What an operation uses, while it is enqueued. */
static void hold(const standin_op *op, int by) {
    standin_hold(op->uses, op->n_uses, false, by);
    if (op->module) op->module->in_use += (uint32_t)by;
}

/* What has run before a stream wrote a word or called a host function: the host may know it, and enqueue what comes after
 * it. Under the lock. */
static standin_clock told;

void standin_enqueue(td_cu_stream s, standin_op *op) {
    standin_entry *e = calloc(1, sizeof *e);
    *e = (standin_entry){.op = op, .number = ++s->enqueued};
    standin_host_into(&s->clock);
    standin_host_into(&e->host);
    standin_clock_merge(&e->host, &told);
    if (op->kind == STANDIN_WAIT) standin_clock_merge(&s->clock, &op->event->clock);
    uint32_t step = standin_line_step(s->line, &s->clock);
    (void)standin_used_all(op->uses, op->n_uses, s->line, step, &s->clock, op->name);
    hold(op, 1);
    if (op->kind == STANDIN_RECORD) {
        op->event->capture = NULL;
        op->event->stream = s;
        op->event->number = e->number;
        op->event->clock = s->clock;
    }
    *(s->last ? &s->last->next : &s->first) = e;
    s->last = e;
    pthread_cond_signal(&s->more);
}

void standin_submit(td_cu_stream s, standin_op *op) {
    STANDIN_LOCKED;
    /* guide, Cross-stream Dependencies and Events: a stream enters a capture by waiting for an event of it. */
    if (!s->capture && op->kind == STANDIN_WAIT && standin_capture_open(op->event->capture)) s->capture = op->event->capture;
    if (s->capture)
        standin_capture_add(s, op);
    else
        standin_enqueue(s, op);
}

/* ---- the thread of a stream -------------------------------------------------------------------- */

/* Where a stream and the host hear from each other. */
static bool meets_host(const standin_op *op) {
    return op->kind == STANDIN_WRITE_VALUE || op->kind == STANDIN_WAIT_VALUE || op->kind == STANDIN_HOST;
}

static void tell_host(td_cu_stream s) {
    STANDIN_LOCKED;
    standin_clock_merge(&told, &s->run_clock);
}

/* What the host has synchronised by now comes before what the stream runs next. */
static void hear_host(td_cu_stream s) {
    STANDIN_LOCKED;
    standin_host_into(&s->run_clock);
}

void standin_run_op(standin_op *op, td_cu_stream s) {
    standin_delay(&s->random);
    bool is_work = op->kind == STANDIN_KERNEL || op->kind == STANDIN_COPY || op->kind == STANDIN_WRITE_VALUE;
    /* Nothing runs in a context that has failed, host functions neither (cuLaunchHostFunc). Waits end by themselves. */
    if (is_work && !atomic_load(&s->context->failure)) standin_op_fails(s->context);
    if (is_work && !atomic_load(&s->context->failure)) standin_ran(op, s);
    if (op->kind == STANDIN_WAIT || op->kind == STANDIN_WAIT_VALUE || op->kind == STANDIN_GRAPH ||
        !atomic_load(&s->context->failure)) {
        if (meets_host(op)) tell_host(s);
        op->run(op, s);
        if (meets_host(op)) hear_host(s);
    }
}

/* What a stream's thread knows of the order: what the host had seen, and what events carry. */
static void before_entry(const standin_entry *e, td_cu_stream s) {
    standin_clock_merge(&s->run_clock, &e->host);
}
static void after_entry(const standin_entry *e, td_cu_stream s) {
    if (e->op->kind == STANDIN_RECORD) e->op->event->run_clock = s->run_clock;
    if (e->op->kind == STANDIN_WAIT) standin_clock_merge(&s->run_clock, &e->op->event->run_clock);
}

static void *serve(void *arg) {
    td_cu_stream s = arg;
    standin_lock();
    while (s->first || !s->closing) {
        standin_entry *e = s->first;
        if (!e) {
            pthread_cond_wait(&s->more, &standin_mutex);
            continue;
        }
        before_entry(e, s);
        standin_unlock();
        standin_run_op(e->op, s);
        standin_lock();
        after_entry(e, s);
        s->first = e->next;
        if (!s->first) s->last = NULL;
        s->done = e->number;
        hold(e->op, -1);
        standin_op_unref(e->op);
        free(e);
        pthread_cond_broadcast(&progress);
    }
    standin_unlock();
    return NULL;
}

td_cu_stream standin_stream_of(td_cu_stream s, const char *call) {
    if (!s)
        standin_refuse("guide, Default Stream",
                       "%s on the default stream, which waits for others and cannot be captured: name one", call);
    if (!s->alive) standin_refuse("cuStreamDestroy", "%s on a stream that is destroyed", call);
    if (s->context != standin_current())
        standin_refuse("guide, Stream and Event Behavior", "%s on a stream of another context than the thread's", call);
    return s;
}

td_cu_status cuStreamCreate(td_cu_stream *stream, unsigned flags) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    if (flags != TD_CU_STREAM_NON_BLOCKING)
        standin_refuse("cuStreamCreate",
                       "a stream with flags %u: without CU_STREAM_NON_BLOCKING it waits for the default stream", flags);
    STANDIN_CAN_FAIL;
    td_cu_stream s = calloc(1, sizeof *s);
    standin_lock();
    standin_keep(s);
    *s = (struct CUstream_st){.context = standin_current(), .alive = true, .line = standin_line_take()};
    s->run_line = standin_line_take();
    s->random = standin_random_start();
    s->context->n_things++;
    standin_unlock();
    pthread_cond_init(&s->more, NULL);
    pthread_create(&s->thread, NULL, serve, s);
    *stream = s;
    return TD_CUDA_SUCCESS;
}

td_cu_status cuStreamDestroy_v2(td_cu_stream stream) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT | STANDIN_RELEASES);
    td_cu_stream s = standin_stream_of(stream, "cuStreamDestroy");
    standin_lock();
    if (s->capture) standin_refuse("cuStreamDestroy", "a stream is destroyed while it is captured");
    if (s->done < s->enqueued)
        standin_refuse("cuStreamDestroy",
                       "a stream with unfinished operations is destroyed: nobody could say when its memory may be freed");
    s->closing = true;
    s->alive = false;
    s->context->n_things--;
    pthread_cond_signal(&s->more);
    standin_line_give(s->line);
    standin_line_give(s->run_line);
    standin_unlock();
    pthread_join(s->thread, NULL);
    return standin_left();
}

td_cu_status cuStreamSynchronize(td_cu_stream stream) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT | STANDIN_RELEASES);
    td_cu_stream s = standin_stream_of(stream, "cuStreamSynchronize");
    standin_lock();
    if (s->capture)
        standin_refuse("guide, Prohibited and Unhandled Operations", "cuStreamSynchronize of a stream that is captured");
    for (uint64_t until = s->enqueued; s->done < until;) standin_wait_progress();
    standin_host_saw(&s->clock);
    standin_host_saw(&s->run_clock);
    standin_unlock();
    td_cu_status st = standin_left();
    return st == TD_CUDA_SUCCESS ? standin_fails(__func__) : st;
}

/* ---- events ------------------------------------------------------------------------------------ */

static td_cu_event event_of(td_cu_event e, const char *call) {
    if (!e || !e->alive) standin_refuse("cuEventDestroy", "%s of an event that is none, or is destroyed", call);
    return e;
}

td_cu_status cuEventCreate(td_cu_event *event, unsigned flags) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    if (flags & ~(unsigned)(TD_CU_EVENT_BLOCKING_SYNC | TD_CU_EVENT_DISABLE_TIMING))
        standin_refuse("cuEventCreate", "an event with flags 0x%x", flags);
    STANDIN_CAN_FAIL;
    td_cu_event e = calloc(1, sizeof *e);
    *e = (struct CUevent_st){.context = standin_current(), .alive = true};
    STANDIN_LOCKED;
    standin_keep(e);
    e->context->n_things++;
    *event = e;
    return TD_CUDA_SUCCESS;
}

td_cu_status cuEventDestroy_v2(td_cu_event event) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT | STANDIN_RELEASES);
    td_cu_event e = event_of(event, "cuEventDestroy");
    STANDIN_LOCKED;
    if (standin_capture_open(e->capture))
        standin_refuse("cuEventDestroy", "an event is destroyed while a capture is made with it");
    e->alive = false;
    e->context->n_things--;
    return standin_left();
}

static void run_nothing(standin_op *op, td_cu_stream s) {
    (void)op;
    (void)s;
}

td_cu_status cuEventRecord(td_cu_event event, td_cu_stream stream) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    td_cu_stream s = standin_stream_of(stream, "cuEventRecord");
    td_cu_event  e = event_of(event, "cuEventRecord");
    if (e->context != s->context)
        standin_refuse("cuEventRecord", "an event of another context than its stream's is recorded");
    STANDIN_CAN_FAIL;
    standin_op *op = standin_op_new("cuEventRecord", STANDIN_RECORD, run_nothing);
    op->event = e;
    standin_submit(s, op);
    return TD_CUDA_SUCCESS;
}

/** What a wait waits for is what the last record was when the wait was enqueued. */
typedef struct {
    td_cu_stream stream; /* NULL: inside a capture, whose nodes are ordered by it */
    uint64_t     number;
} wait_for;

static void run_wait(standin_op *op, td_cu_stream s) {
    const wait_for *w = op->payload;
    (void)s;
    STANDIN_LOCKED;
    while (w->stream && w->stream->done < w->number) standin_wait_progress();
}

static void drop_payload(standin_op *op) {
    free(op->payload);
}

td_cu_status cuStreamWaitEvent(td_cu_stream stream, td_cu_event event, unsigned flags) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    td_cu_stream s = standin_stream_of(stream, "cuStreamWaitEvent");
    td_cu_event  e = event_of(event, "cuStreamWaitEvent");
    if (flags) standin_refuse("cuStreamWaitEvent", "its flags are %u: they have to be 0", flags);
    STANDIN_CAN_FAIL;
    standin_op *op = standin_op_new("cuStreamWaitEvent", STANDIN_WAIT, run_wait);
    wait_for   *w = calloc(1, sizeof *w);
    standin_lock();
    if (!e->stream && !e->capture)
        standin_refuse("cuStreamWaitEvent", "a stream waits for an event that was never recorded: it waits for nothing");
    if (e->capture && !standin_capture_open(e->capture))
        standin_refuse("guide, Prohibited and Unhandled Operations",
                       "a stream waits for an event that was last recorded in a capture that has ended");
    *w = (wait_for){e->capture ? NULL : e->stream, e->number};
    standin_unlock();
    op->event = e;
    op->payload = w;
    op->drop = drop_payload;
    standin_submit(s, op);
    return TD_CUDA_SUCCESS;
}

/** Whether its last record has come up; the host knows then what was before it. Under the lock. */
static bool event_done(td_cu_event e, const char *call) {
    if (e->capture)
        standin_refuse("guide, Prohibited and Unhandled Operations", "%s of an event that was last recorded in a capture",
                       call);
    if (e->stream && e->stream->done < e->number) return false;
    if (e->stream) standin_host_saw(&e->clock);
    if (e->stream) standin_host_saw(&e->run_clock);
    return true;
}

td_cu_status cuEventQuery(td_cu_event event) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    td_cu_event e = event_of(event, "cuEventQuery");
    STANDIN_LOCKED;
    bool done = event_done(e, "cuEventQuery");
    return done ? standin_left() : TD_CUDA_ERROR_NOT_READY;
}

td_cu_status cuEventSynchronize(td_cu_event event) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT | STANDIN_RELEASES);
    td_cu_event e = event_of(event, "cuEventSynchronize");
    STANDIN_LOCKED;
    while (!event_done(e, "cuEventSynchronize")) standin_wait_progress();
    return standin_left();
}

/* ---- host functions ---------------------------------------------------------------------------- */

typedef struct {
    td_cu_host_fn fn;
    void         *arg;
} host_call;

static void run_host(standin_op *op, td_cu_stream s) {
    const host_call *c = op->payload;
    (void)s;
    in_host_function = true;
    c->fn(c->arg);
    in_host_function = false;
}

td_cu_status cuLaunchHostFunc(td_cu_stream stream, td_cu_host_fn fn, void *arg) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    td_cu_stream s = standin_stream_of(stream, "cuLaunchHostFunc");
    STANDIN_CAN_FAIL;
    standin_op *op = standin_op_new("cuLaunchHostFunc", STANDIN_HOST, run_host);
    host_call  *c = calloc(1, sizeof *c);
    *c = (host_call){fn, arg};
    op->payload = c;
    op->drop = drop_payload;
    standin_submit(s, op);
    return TD_CUDA_SUCCESS;
}
