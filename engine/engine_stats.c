#include "engine/engine_stats.h"

#include <math.h>
#include <string.h>

#include "core/error.h"
#include "engine/requests/waker.h"

/* Bounds of the usual serving dashboards: time to first token and in the queue, and time per output token. */
static const double slow_bounds_s[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
                                       0.75,  1,     2.5,  5,    7.5,  10,   20,   40,  80,   160};
static const double fast_bounds_s[] = {0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1,
                                       0.15,  0.2,  0.3,   0.4,  0.5,   0.75, 1,    2.5,  5,     10};

_Static_assert(sizeof slow_bounds_s / sizeof *slow_bounds_s == TD_HISTOGRAM_MAX, "every bucket has a bound");
_Static_assert(sizeof fast_bounds_s / sizeof *fast_bounds_s == TD_HISTOGRAM_MAX, "every bucket has a bound");

static void set_bounds(td_histogram *h, const double *bounds) {
    h->n = TD_HISTOGRAM_MAX;
    memcpy(h->bound_s, bounds, sizeof h->bound_s);
}

td_status td_stats_open(td_stats *t, td_error *err) {
    memset(&t->s, 0, sizeof t->s);
    set_bounds(&t->s.ttft, slow_bounds_s);
    set_bounds(&t->s.queue_time, slow_bounds_s);
    set_bounds(&t->s.e2e, slow_bounds_s);
    set_bounds(&t->s.tpot, fast_bounds_s);
    if (pthread_mutex_init(&t->lock, NULL)) return td_fail(err, TD_ENOMEM, "cannot create a lock");
    return TD_OK;
}

void td_stats_close(td_stats *t) {
    pthread_mutex_destroy(&t->lock);
}

void td_stats_phase(td_stats *t, td_step_phase phase, const td_step_rows *step) {
    pthread_mutex_lock(&t->lock);
    if (phase == TD_STEP_SCHEDULING) {
        /* A round that found nothing to run was no step: its number is given again. */
        bool was_a_step = t->step.tokens > 0 || t->step.number == 0;
        t->step = (td_engine_step){.number = t->step.number + was_a_step};
        t->step_begin_s = td_now_s();
    }
    t->step.phase = phase;
    if (step) {
        t->step.tokens = step->n_tok;
        t->step.sequences = step->n_seq;
    }
    pthread_mutex_unlock(&t->lock);
}

void td_stats_ended(td_stats *t, td_finish finish, double seconds) {
    td_engine_stats *s = &t->s;
    uint64_t *const  counts[] = {[TD_FINISH_STOP] = &s->requests_stopped,
                                 [TD_FINISH_LENGTH] = &s->requests_length,
                                 [TD_FINISH_ABORT] = &s->requests_aborted,
                                 [TD_FINISH_ERROR] = &s->requests_failed};
    pthread_mutex_lock(&t->lock);
    ++*counts[finish];
    td_histogram_observe(&s->e2e, seconds);
    pthread_mutex_unlock(&t->lock);
}

/* max(bytes / bandwidth, int8 / its peak + f32 / its peak) / busy time */
td_tier_rate td_tier_rate_of(const td_tier_work *from, const td_tier_work *to, const td_bounds *bounds) {
    double busy_s = 1e-9 * (double)(to->busy_ns - from->busy_ns), bytes = (double)(to->bytes - from->bytes);
    bool   measured = bounds->read_bytes_per_s > 0;
    if (busy_s <= 0) return (td_tier_rate){0, measured ? 0 : NAN};
    td_tier_rate r = {.bytes_per_s = bytes / busy_s, .bound_fraction = NAN};
    if (measured) {
        double memory_s = bytes / bounds->read_bytes_per_s;
        double compute_s = (double)(to->int8_ops - from->int8_ops) / bounds->int8_ops_per_s +
                           (double)(to->f32_ops - from->f32_ops) / bounds->f32_ops_per_s;
        r.bound_fraction = (memory_s > compute_s ? memory_s : compute_s) / busy_s;
    }
    return r;
}

void td_histogram_observe(td_histogram *h, double seconds) {
    uint32_t i = 0;
    while (i < h->n && seconds > h->bound_s[i]) i++;
    h->count[i]++;
    h->sum_s += seconds;
}
