#include "bench/bench.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_time.h"
#include "core/cpu.h"
#include "core/error.h"

typedef struct {
    const char *shape, *kernel;
    uint32_t    m, threads;
    double      time_s, gbps, gops;
    const char *bound; /* what binds: "read", "int8" */
    double      fraction;
    double      int8_fraction; /* of the int8 peak, whatever binds; 0: the row has no operations */
    td_bounds   bounds;        /* of the same rounds; all 0: none were measured */
} row;

static void print_json(const td_bench *b, const row *r) {
    json_t *o =
        json_pack("{s:s,s:s,s:i,s:i,s:s,s:f,s:f,s:f,s:s,s:f,s:f,s:s,s:s,s:s,s:i,s:i}", "bench", b->bench, "shape", r->shape,
                  "m", (int)r->m, "threads", (int)r->threads, "kernel", r->kernel, "time_us", 1e6 * r->time_s, "gbps",
                  r->gbps, "gops", r->gops, "bound", r->bound, "fraction", r->fraction, "int8_fraction", r->int8_fraction,
                  "commit", td_bench_commit, "tier", td_cpu_tier_name(td_cpu_features()), "cpu", b->machine.cpu, "cores",
                  (int)b->machine.n_cores, "nodes", (int)b->machine.n_nodes);
    if (r->bounds.read_bytes_per_s > 0) {
        json_object_set_new(o, "read_bound_gbps", json_real(1e-9 * r->bounds.read_bytes_per_s));
        json_object_set_new(o, "int8_bound_gops", json_real(1e-9 * r->bounds.int8_ops_per_s));
        json_object_set_new(o, "f32_bound_gflops", json_real(1e-9 * r->bounds.f32_ops_per_s));
    }
    json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(o);
}

static void print_table(td_bench *b, const row *r) {
    if (b->n_rows == 0) {
        printf("commit %s, %s, %u cores, %u NUMA nodes, tier %s\n", td_bench_commit, b->machine.cpu, b->machine.n_cores,
               b->machine.n_nodes, td_cpu_tier_name(td_cpu_features()));
        printf("%-34s %6s %7s %-24s %12s %8s %9s %6s %8s %8s\n", "shape", "m", "threads", "kernel", "us", "GB/s", "GOP/s",
               "bound", "fraction", "of int8");
    }
    printf("%-34s %6u %7u %-24s %12.2f %8.2f %9.1f %6s %8.2f", r->shape, r->m, r->threads, r->kernel, 1e6 * r->time_s,
           r->gbps, r->gops, r->bound, r->fraction);
    if (r->int8_fraction > 0)
        printf(" %8.2f\n", r->int8_fraction);
    else
        putchar('\n');
}

static void print_row(td_bench *b, const row *r) {
    if (b->o->json)
        print_json(b, r);
    else
        print_table(b, r);
    fflush(stdout);
    b->n_rows++;
}

bool td_bench_wanted(const td_bench *b, const char *shape) {
    return !b->o->filter || strstr(shape, b->o->filter);
}

td_status td_bench_check_memory(const td_bench *b, const char *what, uint64_t bytes, td_error *err) {
    if (bytes <= b->available_bytes) return TD_OK;
    return td_fail(err, TD_ENOMEM, "%s takes %.2f GiB, but only %.2f GiB of memory are available", what,
                   (double)bytes / (1 << 30), (double)b->available_bytes / (1 << 30));
}

void td_bench_print_bound(td_bench *b, const char *shape, uint32_t threads, const char *kernel, double gbps, double gops) {
    print_row(b, &(row){.shape = shape,
                        .kernel = kernel,
                        .threads = threads,
                        .gbps = gbps,
                        .gops = gops,
                        .bound = gbps > 0 ? "read" : kernel,
                        .fraction = 1});
}

void td_bench_print_time(td_bench *b, const char *shape, uint32_t threads, const char *kernel, double time_s,
                         const char *bound, double bound_s) {
    print_row(b, &(row){.shape = shape,
                        .kernel = kernel,
                        .threads = threads,
                        .time_s = time_s,
                        .bound = bound,
                        .fraction = bound_s / time_s});
}

void td_bench_print_disk(td_bench *b, const char *shape, const char *kernel, double time_s, double gbps, double fraction) {
    print_row(b, &(row){.shape = shape,
                        .kernel = kernel,
                        .threads = td_pool_workers(b->pool),
                        .time_s = time_s,
                        .gbps = gbps,
                        .bound = "disk",
                        .fraction = fraction});
}

void td_bench_print_link(td_bench *b, const char *shape, const char *kernel, double time_s, double gbps) {
    print_row(b, &(row){.shape = shape,
                        .kernel = kernel,
                        .threads = td_pool_workers(b->pool),
                        .time_s = time_s,
                        .gbps = gbps,
                        .bound = "link",
                        .fraction = 1});
}

void td_bench_print_cards(td_bench *b, const char *shape, uint64_t down_bytes, uint64_t up_bytes, uint64_t launches,
                          uint64_t replays) {
    const char *format = b->o->json ? "{\"bench\":\"%s\",\"shape\":\"%s\",\"link_down_bytes\":%" PRIu64
                                      ",\"link_up_bytes\":%" PRIu64 ",\"launches\":%" PRIu64 ",\"replays\":%" PRIu64 "}\n"
                                    : "%s, %s: %" PRIu64 " bytes to the device and %" PRIu64 " from it a step; %" PRIu64
                                      " launches, of which %" PRIu64 " are replays\n";
    printf(format, b->bench, shape, down_bytes, up_bytes, launches, replays);
    fflush(stdout);
}

/* Bytes and operations so far. */
static void work_of(const td_bench_case *c, uint32_t calls, double *bytes, double *ops) {
    if (c->work) {
        td_tier_work w = c->work(c->ctx);
        *bytes = (double)w.bytes;
        *ops = (double)w.int8_ops + (double)w.f32_ops;
    } else {
        *bytes = c->bytes * calls;
        *ops = c->ops * calls;
    }
}

td_status td_bench_time(td_bench *b, const td_bench_case *c, td_error *err) {
    double   time[TD_BENCH_ROUNDS_MAX], fraction[TD_BENCH_ROUNDS_MAX], gbps[TD_BENCH_ROUNDS_MAX], gops[TD_BENCH_ROUNDS_MAX];
    double   int8_fraction[TD_BENCH_ROUNDS_MAX];
    double   reads[TD_BENCH_ROUNDS_MAX], int8s[TD_BENCH_ROUNDS_MAX], f32s[TD_BENCH_ROUNDS_MAX];
    uint32_t rounds = b->o->rounds, n_by_read = 0;
    TD_TRY(c->run(c->ctx, err));
    for (uint32_t r = 0; r < rounds; r++) {
        double bytes0, ops0, bytes, ops;
        double read = td_roofline_read(b->roofline), int8 = td_roofline_int8(b->roofline);
        work_of(c, 0, &bytes0, &ops0);
        double begin = td_roofline_now_s(b->pool);
        for (uint32_t i = 0; i < c->calls; i++) TD_TRY(c->run(c->ctx, err));
        double spent = td_roofline_now_s(b->pool) - begin;
        work_of(c, c->calls, &bytes, &ops);
        bytes -= bytes0;
        ops -= ops0;
        reads[r] = 0.5 * (read + td_roofline_read(b->roofline));
        int8s[r] = 0.5 * (int8 + td_roofline_int8(b->roofline));
        f32s[r] = td_roofline_f32(b->roofline);
        double by_read = bytes / reads[r], by_int8 = ops / int8s[r];
        n_by_read += by_read > by_int8;
        time[r] = spent / c->calls;
        fraction[r] = (by_read > by_int8 ? by_read : by_int8) / spent;
        int8_fraction[r] = by_int8 / spent;
        gbps[r] = 1e-9 * bytes / spent;
        gops[r] = 1e-9 * ops / spent;
    }
    print_row(b, &(row){.shape = c->shape,
                        .kernel = c->kernel,
                        .m = c->m,
                        .threads = td_pool_workers(b->pool),
                        .time_s = bench_median(time, rounds),
                        .gbps = bench_median(gbps, rounds),
                        .gops = bench_median(gops, rounds),
                        .bound = 2 * n_by_read > rounds ? "read" : "int8",
                        .fraction = bench_median(fraction, rounds),
                        .int8_fraction = bench_median(int8_fraction, rounds),
                        .bounds = {.read_bytes_per_s = bench_median(reads, rounds),
                                   .int8_ops_per_s = bench_median(int8s, rounds),
                                   .f32_ops_per_s = bench_median(f32s, rounds)}});
    return TD_OK;
}
