#include "npu/handover_time.h"

#include <stdlib.h>

#include "core/error.h"
#include "core/log/trace.h"
#include "core/threads/signal_word.h"
#include "core/threads/thread.h"

#define TRIPS 32 /* hand-overs of one replay: about what a model has layers */
#define ROUNDS_MAX 64
#define SPIN_US 200

/* Two cache lines, as a port of the bridge has them. */
typedef struct {
    _Alignas(64) td_bell filled;
    _Alignas(64) td_bell summed;
} bells;

typedef struct {
    td_npu          *d;
    td_handover      form;
    td_npu_stream   *stream;
    td_npu_graph    *graph;
    bells           *pinned;
    uint32_t         rounds;
    td_signal        filled, summed; /* of host calls */
    uint32_t         asked;          /* by the device's calls, which run one after the other */
    pthread_t        answerer;
    _Atomic uint32_t stop; /* relaxed: the device has nothing under way by then, and the answerer nothing to read */
} trial;

static void call_filled(void *arg) {
    td_signal_add(&((trial *)arg)->filled);
}

static void call_summed(void *arg) {
    trial *t = arg;
    td_signal_wait(&t->summed, t->asked, (td_spin){.us = SPIN_US});
    t->asked++;
}

static void *answer_calls(void *arg) {
    trial *t = arg;
    for (uint32_t seen = 0;; seen++) {
        td_signal_wait(&t->filled, seen, (td_spin){.us = SPIN_US});
        if (atomic_load_explicit(&t->stop, memory_order_relaxed)) return NULL;
        td_signal_add(&t->summed);
    }
}

static void *answer_bells(void *arg) {
    trial *t = arg;
    for (;;) {
        while (!atomic_load_explicit(&t->pinned->filled, memory_order_acquire)) { /* with the device's ring */
            if (atomic_load_explicit(&t->stop, memory_order_relaxed)) return NULL;
            td_cpu_relax();
        }
        atomic_store_explicit(&t->pinned->filled, 0, memory_order_relaxed);
        atomic_store_explicit(&t->pinned->summed, 1, memory_order_release); /* with the device's wait */
    }
}

static void stop_answers(trial *t) {
    atomic_store_explicit(&t->stop, 1, memory_order_relaxed);
    if (t->form == TD_HANDOVER_HOST_CALL) td_signal_add(&t->filled);
    pthread_join(t->answerer, NULL);
}

static td_status enqueue_trips(trial *t) {
    const td_npu_ops *ops = t->d->ops;
    for (int i = 0; i < TRIPS; i++) {
        if (t->form == TD_HANDOVER_HOST_CALL) {
            TD_TRY(ops->host_call(t->d, t->stream, call_filled, t));
            TD_TRY(ops->host_call(t->d, t->stream, call_summed, t));
        } else {
            TD_TRY(ops->bell_ring(t->d, t->stream, &t->pinned->filled));
            TD_TRY(ops->bell_wait(t->d, t->stream, &t->pinned->summed));
        }
    }
    return TD_OK;
}

static td_status capture(trial *t, td_error *err) {
    const td_npu_ops *ops = t->d->ops;
    td_status         st = ops->graph_begin(t->d, t->stream);
    if (st != TD_OK) return td_fail(err, st, "the device cannot begin a capture");
    st = enqueue_trips(t);
    if (st == TD_OK) return ops->graph_end(t->d, t->stream, &t->graph, err);
    td_status ended = ops->graph_end(t->d, t->stream, NULL, NULL); /* the first failure is told */
    (void)ended;
    return td_fail(err, st, "a hand-over cannot be enqueued");
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static td_status replay(trial *t, double *seconds, td_error *err) {
    double took[ROUNDS_MAX];
    for (uint32_t i = 0; i < t->rounds; i++) {
        uint64_t  begin = td_trace_now();
        td_status st = t->d->ops->graph_launch(t->d, t->stream, t->graph);
        if (st == TD_OK) st = t->d->ops->stream_sync(t->d, t->stream);
        if (st != TD_OK) return td_fail(err, st, "a replay of %d hand-overs failed", TRIPS);
        took[i] = (double)(td_trace_now() - begin) * 1e-9 / TRIPS;
    }
    qsort(took, t->rounds, sizeof *took, by_size);
    *seconds = took[t->rounds / 2];
    return TD_OK;
}

static td_status run(trial *t, double *seconds, td_error *err) {
    TD_TRY(t->d->ops->stream_create(t->d, &t->stream, err));
    TD_TRY(t->d->ops->host_alloc(t->d, sizeof *t->pinned, (void **)&t->pinned, err));
    TD_TRY(capture(t, err));
    bool calls = t->form == TD_HANDOVER_HOST_CALL;
    TD_TRY(td_thread_start(&t->answerer, "hand-over", calls ? answer_calls : answer_bells, t, err));
    td_status st = replay(t, seconds, err);
    stop_answers(t);
    return st;
}

td_status td_handover_time(td_npu *d, td_handover form, uint32_t rounds, double *seconds, td_error *err) {
    td_npu_caps caps;
    d->ops->caps(d, &caps);
    if (caps.inline_work)
        return td_fail(err, TD_ENOTSUP, "the device runs its work on the caller's thread: nothing is handed over");
    trial *t = aligned_alloc(_Alignof(trial), sizeof *t);
    if (!t) return td_fail(err, TD_ENOMEM, "out of memory for a measurement");
    *t = (trial){.d = d, .form = form, .rounds = rounds < 1 ? 1 : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds};
    td_status st = run(t, seconds, err);
    if (t->graph) d->ops->graph_destroy(d, t->graph);
    if (t->pinned) d->ops->host_free(d, t->pinned, sizeof *t->pinned);
    if (t->stream) d->ops->stream_destroy(d, t->stream);
    free(t);
    return st;
}
