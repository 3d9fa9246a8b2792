/*
 * Worker pools.
 *
 * DESIGN. A pool is a fixed set of workers, each pinned to a cpu and belonging to a subpool (one NUMA node). The thread that
 * calls td_pool_run is worker 0 and works too. Each worker starts with an equal share of consecutive items, so that what it
 * reads is one stream, and the same share goes to the same core in every run. A worker that is done takes items from the
 * ends of others' shares. A run ends when every item is done: everything written by the items is visible to the caller, and
 * everything the caller wrote before is visible to the items (epoch release/acquire, done-count release/acquire). Between
 * runs workers spin for td_pool_spin, then sleep on a futex: waking one takes 100 us. One run at a time, from one thread at
 * a time.
 */
#ifndef TD_CORE_THREADS_POOL_H
#define TD_CORE_THREADS_POOL_H

#include "core/log/trace.h"
#include "core/threads/signal_word.h"
#include "tandem.h"

#define TD_POOL_WORKERS_MAX 1024
#define TD_POOL_SUBPOOLS_MAX 64
#define TD_POOL_ITEMS_MAX ((1u << 28) - 1)
#define TD_CPU_ANY UINT32_MAX

typedef struct td_pool td_pool;

typedef struct {
    uint32_t    cpu;     /* OS index, or TD_CPU_ANY: all (td_thread_cpus) */
    uint32_t    subpool; /* 0 .. n_subpools - 1, every one used */
    bool        shares;  /* it shares its cpu with threads that have none of their own */
    uint32_t    node;    /* where the memory of its subpool should lie: OS index, TD_NODE_SPREAD or TD_NODE_ANY */
    const char *name;    /* of the pool, for the threads' names: "experts" makes "experts 3"; NULL: "worker" */
} td_worker_place;

typedef struct {
    uint32_t index; /* 0 .. n_workers - 1: for per-worker scratch */
    uint32_t subpool;
} td_worker;

typedef void (*td_pool_fn)(void *ctx, uint32_t item, const td_worker *w);

/** Start workers 1 .. n-1 at places[1 .. n-1]; places[0] is where the caller of td_pool_run should be. */
TD_NODISCARD td_status td_pool_create(const td_worker_place *places, uint32_t n_workers, td_pool **out, td_error *err);
void                   td_pool_destroy(td_pool *p);

uint32_t td_pool_workers(const td_pool *p);
uint32_t td_pool_subpools(const td_pool *p);
uint32_t td_pool_node(const td_pool *p, uint32_t subpool); /* where a subpool's memory should lie: for td_mem_map */
uint32_t td_pool_home(
    const td_pool *p); /* the same for memory that all subpools use; TD_NODE_SPREAD if their nodes differ */

/**
 * How a thread that works with the pool waits. It spins while the pool is held and 2 ms longer, which covers the gap
 * between two steps; only 20 us if workers have no core to themselves. Valid as long as the pool. With TD_SHARED_CORES=1 in
 * the environment no worker is pinned, and none has a core to itself.
 */
td_spin td_pool_spin(const td_pool *p);

/** A step begins: more runs are about to come. Any thread; as often as wanted, each with a release when it ends. */
void td_pool_hold(td_pool *p);
void td_pool_release(td_pool *p);

/** Pin the calling thread to worker 0's cpu, or let it use all (TD_CPU_ANY). */
void td_pool_pin_caller(const td_pool *p);

/**
 * The calling thread may use the cpus that no worker is pinned to; all, where there are none. What it starts inherits that, a
 * driver's threads too: beside a worker that spins on its cpu they would wait for the system to part the two.
 */
void td_pool_avoid(const td_pool *p);

/**
 * Name the next runs in a trace. Each worker but the caller gets a span per run; the caller gets one while it waits for the
 * others. From the thread that calls td_pool_run.
 */
void td_pool_label(td_pool *p, const td_trace_label *label);

/** for (i = 0; i < n_items; i++) fn(ctx, i, some worker), in parallel, in any order. */
void td_pool_run(td_pool *p, td_pool_fn fn, void *ctx, uint32_t n_items);

/** for each subpool s, for (i = 0; i < n_items; i++) fn(ctx, i, some worker of s): every subpool does all items, on its own
 * shard. */
void td_pool_run_each(td_pool *p, td_pool_fn fn, void *ctx, uint32_t n_items);

#endif
