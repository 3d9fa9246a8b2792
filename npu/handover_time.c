#include "npu/handover_time.h"

#include <stdlib.h>

#include "core/error.h"
#include "core/log/trace.h"
#include "core/threads/signal_word.h"
#include "core/threads/thread.h"
#include "npu/carried_rows.h"

#define TRIPS 32 /* hand-overs of one replay: about what a model has layers */
#define ROUNDS_MAX 64
#define SPIN_US 200

/* A row as the bridge hands it over, of a large model: up int8 codes with a scale, ids and weights; down a sum of bf16. */
typedef struct {
    _Alignas(64) td_step_counts counts;
    _Alignas(64) int8_t codes[7168];
    _Alignas(64) float scale;
    _Alignas(64) uint16_t ids[8];
    _Alignas(64) float weights[8];
    _Alignas(64) uint16_t sum[7168];
} one_row;

/* Two cache lines, as a port of the bridge has them. */
typedef struct {
    _Alignas(64) td_bell filled;
    _Alignas(64) td_bell summed;
    one_row row;
} pinned_memory;

typedef struct {
    td_npu          *d;
    td_handover      form;
    td_npu_stream   *stream;
    td_npu_graph    *graph;
    pinned_memory   *pinned;
    one_row         *device; /* NULL with unified memory */
    td_step          step;
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
    one_row          *host = &t->pinned->row, *device = t->device;
    td_carried        up = {.step = &t->step}, down = up;
    if (device) {
        up = (td_carried){.step = &t->step,
                          .n = 4,
                          .arrays = {{host->codes, device->codes, sizeof host->codes},
                                     {&host->scale, &device->scale, sizeof host->scale},
                                     {host->ids, device->ids, sizeof host->ids},
                                     {host->weights, device->weights, sizeof host->weights}}};
        down = (td_carried){.step = &t->step, .n = 1, .arrays = {{device->sum, host->sum, sizeof host->sum}}};
    }
    for (int i = 0; i < TRIPS; i++) {
        if (t->form == TD_HANDOVER_HOST_CALL) {
            TD_TRY(td_carry_by_copies(t->d, t->stream, &up, TD_COPY_D2H));
            TD_TRY(ops->host_call(t->d, t->stream, call_filled, t));
            TD_TRY(ops->host_call(t->d, t->stream, call_summed, t));
            TD_TRY(td_carry_by_copies(t->d, t->stream, &down, TD_COPY_H2D));
        } else {
            TD_TRY(ops->bell_ring(t->d, t->stream, &t->pinned->filled, &up));
            TD_TRY(ops->bell_wait(t->d, t->stream, &t->pinned->summed, &down));
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

/* The memory, and a step of one row. */
static td_status prepare(trial *t, bool unified, td_error *err) {
    const td_npu_ops *ops = t->d->ops;
    TD_TRY(ops->stream_create(t->d, &t->stream, err));
    TD_TRY(ops->host_alloc(t->d, sizeof *t->pinned, (void **)&t->pinned, err));
    one_row *host = &t->pinned->row;
    host->counts = (td_step_counts){1, 1, 1};
    t->step = (td_step){.max_tok = 1, .max_seq = 1, .max_out = 1, .host = {.counts = &host->counts}};
    t->step.dev = t->step.host;
    if (unified) return TD_OK;
    TD_TRY(ops->alloc(t->d, sizeof *t->device, (void **)&t->device, err));
    t->step.dev.counts = &t->device->counts;
    td_status st = ops->copy(t->d, t->stream, &t->device->counts, &host->counts, sizeof host->counts, TD_COPY_H2D);
    if (st == TD_OK) st = ops->stream_sync(t->d, t->stream);
    return st == TD_OK ? TD_OK : td_fail(err, st, "a copy to the device failed");
}

static td_status run(trial *t, bool unified, double *seconds, td_error *err) {
    TD_TRY(prepare(t, unified, err));
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
    td_status st = run(t, caps.unified_memory, seconds, err);
    if (t->graph) d->ops->graph_destroy(d, t->graph);
    if (t->device) d->ops->free(d, t->device, sizeof *t->device);
    if (t->pinned) d->ops->host_free(d, t->pinned, sizeof *t->pinned);
    if (t->stream) d->ops->stream_destroy(d, t->stream);
    free(t);
    return st;
}
