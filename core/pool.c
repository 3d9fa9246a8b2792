#include "core/pool.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/chaos.h"
#include "core/error.h"
#include "core/mem.h"
#include "core/signal_word.h"
#include "core/thread.h"

/* Long enough to cover the gaps inside a decode step (device phases between expert phases), short enough that an idle
   server's cores sleep. A pool with workers that have no core of their own gives the core back at once. */
#define SPIN_US          2000
#define SPIN_US_UNPINNED 20
#define YIELD_EVERY          4096 /* spins of the caller at the end of a run */
#define YIELD_EVERY_UNPINNED 64

/* Each on its own cache line: the counter is written by every worker of a subpool for every item. */
typedef struct {
    _Alignas(TD_CACHE_LINE) _Atomic uint32_t next; /* item to hand out; relaxed: items carry no data by it */
} item_counter;

typedef struct {
    _Alignas(TD_CACHE_LINE) td_worker me;
    td_worker_place place;
    td_pool        *pool;
    pthread_t       thread;
} worker;

_Static_assert(sizeof(item_counter) == TD_CACHE_LINE, "a counter owns its line");

struct td_pool {
    uint32_t n_workers, n_subpools;
    bool     pinned; /* every worker has a core of its own */
    /* the run; written by the caller before the epoch's release, read by workers after its acquire */
    td_pool_fn fn;
    void      *ctx;
    uint32_t   n_items;
    bool       each; /* one counter per subpool; else all take from counter 0 */
    td_trace_label label;
    td_signal    epoch; /* +1 a run, and once to stop */
    _Alignas(TD_CACHE_LINE) _Atomic uint32_t n_done; /* workers finished (release; partner: acquire in run) */
    bool         stop;  /* written before the epoch's last rise */
    item_counter *counters; /* [n_subpools] */
    worker       *workers;  /* [n_workers]; 0 is the caller */
};

static void pin(uint32_t cpu) {
    if (cpu == TD_CPU_ANY || cpu >= CPU_SETSIZE) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    /* A cpu that went offline only costs speed. */
    (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

static void take_items(td_pool *p, const td_worker *me) {
    _Atomic uint32_t *next = &p->counters[p->each ? me->subpool : 0].next;
    for (;;) {
        uint32_t i = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        if (i >= p->n_items) return;
        td_chaos_delay();
        p->fn(p->ctx, i, me);
    }
}

static void *worker_main(void *arg) {
    worker  *w = arg;
    td_pool *p = w->pool;
    pin(w->place.cpu);
    for (uint32_t seen = 0;; seen++) {
        td_signal_wait(&p->epoch, seen, td_pool_spin_us(p));
        if (p->stop) return NULL;
        uint64_t begin = td_trace_begin();
        take_items(p, &w->me);
        if (!begin) {
            atomic_fetch_add_explicit(&p->n_done, 1, memory_order_release);
            continue;
        }
        /* The caller does not wait for the writing of the span. */
        td_trace_label label = p->label;
        uint64_t       end = td_trace_now();
        atomic_fetch_add_explicit(&p->n_done, 1, memory_order_release);
        if (label.name) td_trace_span(begin, end, &label);
    }
}

static td_status start_worker(worker *w, td_error *err) {
    char name[32]; /* 15 bytes are shown: ten, a space and an index below TD_POOL_WORKERS_MAX */
    snprintf(name, sizeof name, "%.10s %u", w->place.name ? w->place.name : "worker", w->me.index);
    return td_thread_start(&w->thread, name, worker_main, w, err);
}

td_status td_pool_create(const td_worker_place *places, uint32_t n_workers, td_pool **out, td_error *err) {
    *out = NULL;
    if (n_workers == 0 || n_workers > TD_POOL_WORKERS_MAX)
        return td_fail(err, TD_EINVAL, "a pool has 1 to %d workers, not %u", TD_POOL_WORKERS_MAX, n_workers);
    uint32_t n_subpools = 0;
    for (uint32_t i = 0; i < n_workers; i++)
        if (places[i].subpool >= n_subpools) n_subpools = places[i].subpool + 1;
    if (n_subpools > TD_POOL_SUBPOOLS_MAX) return td_fail(err, TD_EINVAL, "more than %d subpools", TD_POOL_SUBPOOLS_MAX);

    td_pool *p = aligned_alloc(TD_CACHE_LINE, td_round_up(sizeof *p, TD_CACHE_LINE));
    if (!p) return td_fail(err, TD_ENOMEM, "out of memory for a worker pool");
    memset(p, 0, sizeof *p);
    p->n_workers = 1; /* started so far, for destroy */
    p->n_subpools = n_subpools;
    p->counters = aligned_alloc(TD_CACHE_LINE, n_subpools * sizeof *p->counters);
    p->workers = aligned_alloc(TD_CACHE_LINE, n_workers * sizeof *p->workers);
    if (!p->counters || !p->workers) {
        td_pool_destroy(p);
        return td_fail(err, TD_ENOMEM, "out of memory for a worker pool");
    }
    memset(p->counters, 0, n_subpools * sizeof *p->counters);
    p->pinned = true;
    for (uint32_t i = 0; i < n_workers; i++) p->pinned &= places[i].cpu != TD_CPU_ANY;
    for (uint32_t i = 0; i < n_workers; i++)
        p->workers[i] = (worker){.me = {.index = i, .subpool = places[i].subpool}, .place = places[i], .pool = p};
    for (uint32_t i = 1; i < n_workers; i++) {
        td_status st = start_worker(&p->workers[i], err);
        if (st != TD_OK) {
            td_pool_destroy(p);
            return st;
        }
        p->n_workers++;
    }
    *out = p;
    return TD_OK;
}

void td_pool_destroy(td_pool *p) {
    if (!p) return;
    p->stop = true;
    td_signal_add(&p->epoch);
    for (uint32_t i = 1; i < p->n_workers; i++) pthread_join(p->workers[i].thread, NULL);
    free(p->counters);
    free(p->workers);
    free(p);
}

uint32_t td_pool_workers(const td_pool *p) { return p->n_workers; }
uint32_t td_pool_subpools(const td_pool *p) { return p->n_subpools; }
uint32_t td_pool_spin_us(const td_pool *p) { return p->pinned ? SPIN_US : SPIN_US_UNPINNED; }

uint32_t td_pool_node(const td_pool *p, uint32_t subpool) {
    for (uint32_t i = 0; i < p->n_workers; i++)
        if (p->workers[i].place.subpool == subpool) return p->workers[i].place.node;
    return TD_NODE_ANY;
}

uint32_t td_pool_home(const td_pool *p) {
    for (uint32_t i = 1; i < p->n_workers; i++)
        if (p->workers[i].place.node != p->workers[0].place.node) return TD_NODE_SPREAD;
    return p->workers[0].place.node;
}

void td_pool_pin_caller(const td_pool *p) { pin(p->workers[0].place.cpu); }

void td_pool_label(td_pool *p, const td_trace_label *label) {
    if (td_trace_on()) p->label = *label;
}

static bool all_done(td_pool *p) { return atomic_load_explicit(&p->n_done, memory_order_acquire) == p->n_workers - 1; }

static void run(td_pool *p, td_pool_fn fn, void *ctx, uint32_t n_items, bool each) {
    assert(n_items < UINT32_MAX - TD_POOL_WORKERS_MAX);
    p->fn = fn;
    p->ctx = ctx;
    p->n_items = n_items;
    p->each = each;
    for (uint32_t s = 0; s < p->n_subpools; s++) atomic_store_explicit(&p->counters[s].next, 0, memory_order_relaxed);
    if (p->n_workers > 1) {
        atomic_store_explicit(&p->n_done, 0, memory_order_relaxed);
        td_signal_add(&p->epoch);
    }
    take_items(p, &p->workers[0].me);
    /* Workers are counted, not items: the run's fields may be rewritten only when nobody reads them any more. */
    if (all_done(p)) return;
    uint64_t begin = td_trace_begin();
    uint32_t yield_every = p->pinned ? YIELD_EVERY : YIELD_EVERY_UNPINNED;
    for (uint32_t spin = 1; !all_done(p); spin++) {
        td_cpu_relax();
        if (spin % yield_every == 0) sched_yield();
    }
    td_trace_end(begin, &(td_trace_label){.tier = p->label.tier, .name = "wait for workers"});
}

void td_pool_run(td_pool *p, td_pool_fn fn, void *ctx, uint32_t n_items) {
    if (n_items == 1 || p->n_workers == 1) { /* not worth a wake-up */
        for (uint32_t i = 0; i < n_items; i++) fn(ctx, i, &p->workers[0].me);
        return;
    }
    if (n_items) run(p, fn, ctx, n_items, false);
}

void td_pool_run_each(td_pool *p, td_pool_fn fn, void *ctx, uint32_t n_items) {
    if (p->n_subpools == 1)
        td_pool_run(p, fn, ctx, n_items);
    else if (n_items)
        run(p, fn, ctx, n_items, true);
}
