#include "core/threads/pool.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory/mem.h"
#include "core/threads/chaos.h"
#include "core/threads/thread.h"

/* Spinning is long enough to cover the gaps between steps, and short enough that an idle server's cores sleep. Workers
 * without a core to themselves give the core back soon, since the work that they wait for may need it. */
#define SPIN_US 2000
#define SPIN_US_SHARED 20
#define YIELD_EVERY 4096 /* spins of the caller at the end of a run */
#define YIELD_EVERY_SHARED 64

/*
 * How many items of a worker's share are taken, from its front (by itself) and from its back (by others). The word has the
 * run's number, modulo 256, and two counts of 28 bits. A word of another run means that none is taken, so that words need
 * no clearing. Relaxed: no data is passed through it.
 */
typedef _Atomic uint64_t taken_word;

#define COUNT_BITS 28
#define COUNT_MAX ((1u << COUNT_BITS) - 1)

typedef struct {
    _Alignas(TD_CPU_LINE) taken_word taken;
    _Alignas(TD_CPU_LINE) td_worker me;
    td_worker_place place;
    uint32_t        rank; /* place in the pool's order */
    td_pool        *pool;
    pthread_t       thread;
} worker;

_Static_assert(TD_POOL_ITEMS_MAX <= COUNT_MAX, "a share's counts");
_Static_assert(offsetof(worker, me) == TD_CPU_LINE, "what others write lies on a line of its own");

/* The workers that share the items of a run: a stretch of the pool's order. */
typedef struct {
    uint32_t first, n;
} team;

struct td_pool {
    uint32_t         n_workers, n_subpools;
    bool             alone;   /* every worker has a core to itself */
    worker          *workers; /* [n_workers]; 0 is the caller */
    worker         **order;   /* [n_workers] by subpool */
    team             teams[TD_POOL_SUBPOOLS_MAX];
    _Atomic uint32_t n_held; /* steps under way */
    /* the run; written by the caller before the epoch's release, read by workers after its acquire */
    td_pool_fn     fn;
    void          *ctx;
    uint32_t       n_items;
    bool           each; /* every subpool does all items; else all workers are one team */
    uint8_t        number;
    td_trace_label label;
    td_signal      epoch;                          /* +1 a run, and once to stop */
    _Alignas(TD_CPU_LINE) _Atomic uint32_t n_done; /* workers finished (release; partner: acquire in run) */
    bool stop;                                     /* written before the epoch's last rise */
};

/* Whether TD_SHARED_CORES=1 says that other programs compute on the cores too, as when many tests run beside each other. */
static bool shares_cores(void) {
    const char *s = getenv("TD_SHARED_CORES");
    return s && !strcmp(s, "1");
}

/* A thread without a core of its own may use all, and not only those of its creator, which may be pinned as another pool's
 * worker 0. */
static void pin(uint32_t cpu) {
    cpu_set_t set;
    if (cpu < CPU_SETSIZE) {
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
    } else if (!td_thread_cpus(&set)) {
        return;
    }
    /* A cpu that went offline only costs speed. */
    (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

typedef struct {
    uint32_t front, back;
} counts;

static counts unpack(uint64_t word, uint8_t run) {
    if ((uint8_t)(word >> 2 * COUNT_BITS) != run) return (counts){0, 0};
    return (counts){word >> COUNT_BITS & COUNT_MAX, word & COUNT_MAX};
}

/* One item of a share of n: its number from the front or from the back. @return false: none is left. */
static bool take(taken_word *taken, uint8_t run, uint32_t n, bool back, uint32_t *at) {
    uint64_t word = atomic_load_explicit(taken, memory_order_relaxed), after;
    do {
        counts c = unpack(word, run);
        if (c.front + c.back >= n) return false;
        *at = back ? n - 1 - c.back++ : c.front++;
        after = (uint64_t)run << 2 * COUNT_BITS | (uint64_t)c.front << COUNT_BITS | c.back;
    } while (!atomic_compare_exchange_weak_explicit(taken, &word, after, memory_order_relaxed, memory_order_relaxed));
    return true;
}

/* Own share first, front to back, then what others have left, back to front. */
static void take_items(td_pool *p, const worker *w) {
    const team t = p->each ? p->teams[w->me.subpool] : (team){0, p->n_workers};
    for (uint32_t i = 0; i < t.n; i++) {
        uint32_t rank = (w->rank - t.first + i) % t.n, at;
        uint32_t begin = (uint32_t)((uint64_t)p->n_items * rank / t.n),
                 end = (uint32_t)((uint64_t)p->n_items * (rank + 1) / t.n);
        while (take(&p->order[t.first + rank]->taken, p->number, end - begin, i > 0, &at)) {
            td_chaos_delay();
            p->fn(p->ctx, begin + at, &w->me);
        }
    }
}

static void *worker_main(void *arg) {
    worker  *w = arg;
    td_pool *p = w->pool;
    pin(w->place.cpu);
    const td_spin spin = td_pool_spin(p);
    for (uint32_t seen = 0;; seen++) {
        td_signal_wait(&p->epoch, seen, spin);
        if (p->stop) return NULL;
        uint64_t begin = td_trace_begin();
        take_items(p, w);
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
    char name[32]; /* 15 bytes are shown: ten of the name, a space and an index below TD_POOL_WORKERS_MAX */
    snprintf(name, sizeof name, "%.10s %u", w->place.name ? w->place.name : "worker", w->me.index);
    return td_thread_start(&w->thread, name, worker_main, w, err);
}

static void set_teams(td_pool *p, uint32_t n_workers) {
    for (uint32_t s = 0, n = 0; s < p->n_subpools; s++) {
        p->teams[s].first = n;
        for (uint32_t i = 0; i < n_workers; i++) {
            if (p->workers[i].me.subpool != s) continue;
            p->workers[i].rank = n;
            p->order[n++] = &p->workers[i];
        }
        p->teams[s].n = n - p->teams[s].first;
    }
}

td_status td_pool_create(const td_worker_place *places, uint32_t n_workers, td_pool **out, td_error *err) {
    *out = NULL;
    cpu_set_t all;
    (void)td_thread_cpus(&all); /* for pin: the thread that creates the first pool is not pinned yet */
    if (n_workers == 0 || n_workers > TD_POOL_WORKERS_MAX)
        return td_fail(err, TD_EINVAL, "a pool has 1 to %d workers, not %u", TD_POOL_WORKERS_MAX, n_workers);
    uint32_t n_subpools = 0;
    for (uint32_t i = 0; i < n_workers; i++)
        if (places[i].subpool >= n_subpools) n_subpools = places[i].subpool + 1;
    if (n_subpools > TD_POOL_SUBPOOLS_MAX) return td_fail(err, TD_EINVAL, "more than %d subpools", TD_POOL_SUBPOOLS_MAX);

    td_pool *p = aligned_alloc(TD_CPU_LINE, td_round_up(sizeof *p, TD_CPU_LINE));
    if (!p) return td_fail(err, TD_ENOMEM, "out of memory for a worker pool");
    memset(p, 0, sizeof *p);
    p->n_workers = 1; /* started so far, for destroy */
    p->n_subpools = n_subpools;
    p->workers = aligned_alloc(TD_CPU_LINE, n_workers * sizeof *p->workers);
    p->order = calloc(n_workers, sizeof *p->order);
    if (!p->workers || !p->order) {
        td_pool_destroy(p);
        return td_fail(err, TD_ENOMEM, "out of memory for a worker pool");
    }
    const bool shared = shares_cores();
    p->alone = !shared;
    for (uint32_t i = 0; i < n_workers; i++) {
        p->workers[i] = (worker){.me = {.index = i, .subpool = places[i].subpool}, .place = places[i], .pool = p};
        if (shared) p->workers[i].place.cpu = TD_CPU_ANY;
        p->alone &= places[i].cpu != TD_CPU_ANY && !places[i].shares;
    }
    set_teams(p, n_workers);
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
    free(p->order);
    free(p->workers);
    free(p);
}

uint32_t td_pool_workers(const td_pool *p) {
    return p->n_workers;
}
uint32_t td_pool_subpools(const td_pool *p) {
    return p->n_subpools;
}

td_spin td_pool_spin(const td_pool *p) {
    return p->alone ? (td_spin){.us = SPIN_US, .held = &p->n_held} : (td_spin){.us = SPIN_US_SHARED};
}

void td_pool_hold(td_pool *p) {
    atomic_fetch_add_explicit(&p->n_held, 1, memory_order_relaxed);
}
void td_pool_release(td_pool *p) {
    atomic_fetch_sub_explicit(&p->n_held, 1, memory_order_relaxed);
}

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

void td_pool_pin_caller(const td_pool *p) {
    pin(p->workers[0].place.cpu);
}

void td_pool_avoid(const td_pool *p) {
    cpu_set_t all, left;
    if (!td_thread_cpus(&all)) return;
    left = all;
    for (uint32_t i = 0; i < p->n_workers; i++)
        if (p->workers[i].place.cpu < CPU_SETSIZE) CPU_CLR(p->workers[i].place.cpu, &left);
    (void)pthread_setaffinity_np(pthread_self(), sizeof left, CPU_COUNT(&left) ? &left : &all);
}

void td_pool_label(td_pool *p, const td_trace_label *label) {
    if (td_trace_on()) p->label = *label;
}

static bool all_done(td_pool *p) {
    return atomic_load_explicit(&p->n_done, memory_order_acquire) == p->n_workers - 1;
}

static void run(td_pool *p, td_pool_fn fn, void *ctx, uint32_t n_items, bool each) {
    assert(n_items <= TD_POOL_ITEMS_MAX);
    p->fn = fn;
    p->ctx = ctx;
    p->n_items = n_items;
    p->each = each;
    if (++p->number == 0) /* the number wrapped: words of 256 runs ago would look like this run's */
        for (uint32_t i = 0; i < p->n_workers; i++) atomic_store_explicit(&p->workers[i].taken, 0, memory_order_relaxed);
    if (p->n_workers > 1) {
        atomic_store_explicit(&p->n_done, 0, memory_order_relaxed);
        td_signal_add(&p->epoch);
    }
    take_items(p, &p->workers[0]);
    /* Workers are counted, not items: the run's fields may be rewritten only when nobody reads them any more. */
    if (all_done(p)) return;
    uint64_t begin = td_trace_begin();
    uint32_t yield_every = p->alone ? YIELD_EVERY : YIELD_EVERY_SHARED;
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
