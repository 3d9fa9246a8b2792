/* The bounds themselves, by the number of threads: reading memory, int8 and f32 multiply-adds from registers. */
#include "bench/bench.h"
#include "bench/bench_time.h"
#include "core/error.h"

static double median_of(td_bench *b, td_roofline *r, double (*measure)(td_roofline *)) {
    double   x[9];
    uint32_t n = b->o->rounds < 9 ? b->o->rounds : 9;
    for (uint32_t i = 0; i < n; i++) x[i] = measure(r);
    return 1e-9 * bench_median(x, n);
}

static td_status measure_threads(td_bench *b, uint32_t threads, td_error *err) {
    static td_thread_plan plan;
    td_machine            machine;
    td_pool              *pool;
    td_roofline          *r;
    TD_TRY(td_topology_plan(threads, b->o->subpool_count && b->o->subpool_count < threads ? b->o->subpool_count : 0, 0, &plan, &machine, err));
    TD_TRY(td_pool_create(plan.experts, plan.n_experts, &pool, err));
    td_pool_pin_caller(pool);
    td_status st = td_roofline_open(pool, (size_t)1 << 30, &r, err);
    if (st == TD_OK) {
        td_bench_print_bound(b, "memory", threads, "read", median_of(b, r, td_roofline_read), 0);
        td_bench_print_bound(b, "registers", threads, "int8", 0, median_of(b, r, td_roofline_int8));
        td_bench_print_bound(b, "registers", threads, "f32", 0, median_of(b, r, td_roofline_f32));
        td_roofline_close(r);
    }
    td_pool_destroy(pool);
    return st;
}

td_status td_bench_roofline(td_bench *b, td_error *err) {
    uint32_t all = td_pool_workers(b->pool);
    for (uint32_t n = 1; n < all; n *= 2) TD_TRY(measure_threads(b, n, err));
    return measure_threads(b, all, err);
}
