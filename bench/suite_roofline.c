/* The bounds themselves: reading memory by threads and by pairs of NUMA nodes; int8, bf16 and f32 multiply-adds from
 * registers by threads. Of a device that can measure itself: reading and copying its memory, int8 and bf16 products. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_device.h"
#include "bench/bench_time.h"
#include "core/error.h"
#include "kernels/kernels.h"

#define PAIR_S 0.2 /* of a round over all pairs */

static double median_of(td_bench *b, td_roofline *r, double (*measure)(td_roofline *)) {
    double   x[TD_BENCH_ROUNDS_MAX];
    uint32_t n = b->o->rounds;
    for (uint32_t i = 0; i < n; i++) x[i] = measure(r);
    return 1e-9 * bench_median(x, n);
}

static td_status measure_threads(td_bench *b, uint32_t threads, td_error *err) {
    static td_thread_layout layout;
    td_machine              machine;
    td_pool                *pool;
    td_roofline            *r;
    TD_TRY(td_thread_layout_here(
        td_kernels_here()->read,
        &(td_thread_wishes){.cpuinfer = threads, .subpool_count = b->o->subpool_count < threads ? b->o->subpool_count : 0},
        &layout, &machine, err));
    TD_TRY(td_pool_create(layout.experts, layout.n_experts, &pool, err));
    td_pool_pin_caller(pool);
    td_status st = td_roofline_open(pool, (size_t)1 << 30, &r, err);
    if (st == TD_OK) {
        td_bench_print_bound(b, "memory", threads, "read", median_of(b, r, td_roofline_read), 0);
        td_bench_print_bound(b, "registers", threads, "int8", 0, median_of(b, r, td_roofline_int8));
        td_bench_print_bound(b, "registers", threads, "f32", 0, median_of(b, r, td_roofline_f32));
        double bf16 = median_of(b, r, td_roofline_bf16);
        if (bf16 > 0) td_bench_print_bound(b, "registers", threads, "bf16", 0, bf16);
        td_roofline_close(r);
    }
    td_pool_destroy(pool);
    return st;
}

typedef struct {
    td_topology       topology;
    td_node_bandwidth round[TD_BENCH_ROUNDS_MAX];
} node_rounds;

/* All cores of a node read the memory of a node. */
static void print_pairs(td_bench *b, const node_rounds *n, uint32_t rounds) {
    const td_topology *t = &n->topology;
    for (uint32_t i = 0; i < t->n_nodes; i++)
        for (uint32_t j = 0; j < t->n_nodes; j++) {
            char   shape[TD_BENCH_SHAPE_BYTES];
            double x[TD_BENCH_ROUNDS_MAX];
            for (uint32_t r = 0; r < rounds; r++) x[r] = 1e-9 * n->round[r].read[i][j];
            double gbps = bench_median(x, rounds);
            snprintf(shape, sizeof shape, "node %u reads node %u", t->nodes[i].os_index, t->nodes[j].os_index);
            if (gbps > 0) td_bench_print_bound(b, shape, t->nodes[i].n_cores, "read", gbps, 0);
        }
}

static td_status measure_nodes(td_bench *b, td_error *err) {
    uint32_t     rounds = b->o->rounds;
    node_rounds *n = calloc(1, sizeof *n);
    if (!n) return td_fail(err, TD_ENOMEM, "out of memory to measure the nodes");
    td_status st = td_topology_read(&n->topology, err);
    if (!n->topology.is_real) rounds = 0;
    for (uint32_t r = 0; r < rounds && st == TD_OK; r++)
        st = td_node_bandwidth_measure(&n->topology, td_kernels_here()->read, PAIR_S, &n->round[r], err);
    if (st == TD_OK && rounds) print_pairs(b, n, rounds);
    free(n);
    return st;
}

static const struct {
    td_npu_bound bound;
    const char  *shape, *kernel;
    bool         bytes;
} CARD[] = {{TD_BOUND_READ, "memory", "read", true},
            {TD_BOUND_COPY, "memory", "copy", true},
            {TD_BOUND_INT8, "registers", "int8", false},
            {TD_BOUND_BF16, "registers", "bf16", false}};

static td_status measure_card(td_bench *b, td_npu *card, td_error *err) {
    for (size_t i = 0; i < sizeof CARD / sizeof *CARD; i++) {
        double   x[TD_BENCH_ROUNDS_MAX];
        uint32_t n = b->o->rounds;
        for (uint32_t r = 0; r < n; r++) TD_TRY(card->ops->bound(card, CARD[i].bound, &x[r], err));
        double per_s = 1e-9 * bench_median(x, n);
        td_bench_print_bound(b, CARD[i].shape, 0, CARD[i].kernel, CARD[i].bytes ? per_s : 0, CARD[i].bytes ? 0 : per_s);
    }
    return TD_OK;
}

static td_status roofline_of_device(td_bench *b, td_error *err) {
    td_bench_device d;
    td_status       st = td_bench_device_open(&d, b, false, err);
    if (st == TD_OK && !b->card)
        st = td_fail(err, TD_ENOTSUP, "--device %s: this device cannot measure its own bounds", b->o->device);
    if (st == TD_OK) st = measure_card(b, d.npu, err);
    td_bench_device_close(&d);
    return st;
}

td_status td_bench_roofline(td_bench *b, td_error *err) {
    if (b->o->device && strcmp(b->o->device, "host") != 0) return roofline_of_device(b, err);
    uint32_t all = td_pool_workers(b->pool);
    for (uint32_t n = 1; n < all; n *= 2) TD_TRY(measure_threads(b, n, err));
    TD_TRY(measure_threads(b, all, err));
    return measure_nodes(b, err);
}
