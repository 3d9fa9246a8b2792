/*
 * What a parallel loop costs: runs of empty items, beside the time in which a cache line goes from one core to another and
 * back, which no run can do without. "asleep": the workers have slept since the run before, so that the system has to wake
 * them.
 */
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "bench/bench.h"
#include "bench/bench_time.h"
#include "core/error.h"
#include "core/memory/mem.h"
#include "core/threads/signal_word.h"
#include "core/threads/thread_layout.h"
#include "kernels/kernels.h"

#define RUNS 20000 /* of a round */
#define SLEEPY_RUNS 20
#define LINE_TRIPS 20000
#define REST_US 5000     /* longer than workers spin */
#define ITEMS_EACH 8     /* items for each worker */
#define YIELD_EVERY 4096 /* looks: the other may be waiting for this core */

static void nothing(void *ctx, uint32_t item, const td_worker *w) {
    (void)ctx, (void)item, (void)w;
}

/* Two workers raise a number in turn: item 0 from even values, item 1 from odd ones. */
typedef struct {
    _Alignas(TD_CPU_LINE) _Atomic uint32_t value;
} line;

static void play(void *ctx, uint32_t item, const td_worker *w) {
    line *l = ctx;
    (void)w;
    for (uint32_t i = item; i < 2 * LINE_TRIPS; i += 2) {
        for (uint32_t look = 1; atomic_load_explicit(&l->value, memory_order_acquire) != i; look++) {
            td_cpu_relax();
            if (look % YIELD_EVERY == 0) sched_yield();
        }
        atomic_store_explicit(&l->value, i + 1, memory_order_release);
    }
}

/* Between worker 0 and another: both items are theirs for as long as the loop lasts. */
static double round_trip_s(td_pool *pool) {
    line   l = {0};
    double begin = td_roofline_now_s(pool);
    td_pool_run(pool, play, &l, 2);
    return (td_roofline_now_s(pool) - begin) / LINE_TRIPS;
}

static double run_s(td_pool *pool, uint32_t n_items) {
    double begin = td_roofline_now_s(pool);
    for (int i = 0; i < RUNS; i++) td_pool_run(pool, nothing, NULL, n_items);
    return (td_roofline_now_s(pool) - begin) / RUNS;
}

static double sleepy_run_s(td_pool *pool, uint32_t n_items) {
    double sum = 0;
    for (int i = 0; i < SLEEPY_RUNS; i++) {
        nanosleep(&(struct timespec){.tv_nsec = REST_US * 1000L}, NULL);
        double begin = td_roofline_now_s(pool);
        td_pool_run(pool, nothing, NULL, n_items);
        sum += td_roofline_now_s(pool) - begin;
    }
    return sum / SLEEPY_RUNS;
}

static td_status measure_threads(td_bench *b, uint32_t threads, td_error *err) {
    static td_thread_layout layout;
    td_machine              machine;
    td_pool                *pool;
    double   trip[TD_BENCH_ROUNDS_MAX], few[TD_BENCH_ROUNDS_MAX], many[TD_BENCH_ROUNDS_MAX], sleepy[TD_BENCH_ROUNDS_MAX];
    uint32_t rounds = b->o->rounds;
    TD_TRY(td_thread_layout_here(
        td_kernels_here()->read,
        &(td_thread_wishes){.cpuinfer = threads, .subpool_count = b->o->subpool_count < threads ? b->o->subpool_count : 0},
        &layout, &machine, err));
    TD_TRY(td_pool_create(layout.experts, layout.n_experts, &pool, err));
    td_pool_pin_caller(pool);
    for (uint32_t i = 0; i < rounds; i++) {
        trip[i] = round_trip_s(pool);
        few[i] = run_s(pool, threads);
        many[i] = run_s(pool, ITEMS_EACH * threads);
        sleepy[i] = sleepy_run_s(pool, threads);
    }
    td_pool_destroy(pool);
    double line_s = bench_median(trip, rounds);
    td_bench_print_time(b, "cache line there and back", 2, "line", line_s, "line", line_s);
    td_bench_print_time(b, "1 empty item a thread", threads, "run", bench_median(few, rounds), "line", line_s);
    td_bench_print_time(b, "8 empty items a thread", threads, "run", bench_median(many, rounds), "line", line_s);
    td_bench_print_time(b, "1 empty item a thread, asleep", threads, "run", bench_median(sleepy, rounds), "line", line_s);
    return TD_OK;
}

td_status td_bench_pool(td_bench *b, td_error *err) {
    uint32_t all = td_pool_workers(b->pool);
    if (all == 1) return td_fail(err, TD_EINVAL, "a pool of one thread has no loops to measure");
    for (uint32_t n = 2; n < all; n *= 2) TD_TRY(measure_threads(b, n, err));
    return measure_threads(b, all, err);
}
