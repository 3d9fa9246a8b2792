#include "bench/bench.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_time.h"
#include "core/error.h"
#include "core/log/trace.h"
#include "core/machine/cpu.h"
#include "core/plural.h"
#include "kernels/kernels.h"

/* Bytes that are read and operations of both kinds: work that was done, or what can be done in a second, of which 0 means
 * that nobody has measured it; or shares of that. */
typedef struct {
    double read, int8, floats;
} amounts;

typedef struct {
    const char *shape, *kernel;
    uint32_t    m, threads;
    double      time_s, gbps, gops;
    const char *bound; /* what binds: "read", "int8" */
    double      fraction;
    amounts     of;      /* whatever binds; all 0: the row has no work */
    amounts     peaks;   /* of the same rounds; all 0: none were measured */
    double      f32;     /* the machine's */
    double      experts; /* what the machine's experts reach of their bound, beside a device; 0: none do */
} row;

static void print_json(const td_bench *b, const row *r) {
    json_t *o =
        json_pack("{s:s,s:s,s:i,s:i,s:s,s:f,s:f,s:f,s:s,s:f,s:f,s:s,s:s,s:s,s:i,s:i}", "bench", b->bench, "shape", r->shape,
                  "m", (int)r->m, "threads", (int)r->threads, "kernel", r->kernel, "time_us", 1e6 * r->time_s, "gbps",
                  r->gbps, "gops", r->gops, "bound", r->bound, "fraction", r->fraction, "int8_fraction", r->of.int8,
                  "commit", td_bench_commit, "tier", td_cpu_tier_name(td_cpu_features()), "cpu", b->machine.cpu, "cores",
                  (int)b->machine.n_cores, "nodes", (int)b->machine.n_nodes);
    if (r->peaks.read > 0) {
        json_object_set_new(o, "read_bound_gbps", json_real(1e-9 * r->peaks.read));
        json_object_set_new(o, "int8_bound_gops", json_real(1e-9 * r->peaks.int8));
    }
    if (r->f32 > 0) json_object_set_new(o, "f32_bound_gflops", json_real(1e-9 * r->f32));
    if (b->device) json_object_set_new(o, "device", json_string(b->card_text));
    if (b->device && r->fraction == 0) { /* nothing was measured that the row could stand against */
        json_object_del(o, "fraction");
        json_object_del(o, "int8_fraction");
    }
    if (b->card && r->peaks.read > 0) {
        json_object_set_new(o, "bf16_bound_gflops", json_real(1e-9 * r->peaks.floats));
        json_object_set_new(o, "read_fraction", json_real(r->of.read));
        json_object_set_new(o, "bf16_fraction", json_real(r->of.floats));
    }
    if (r->experts > 0) json_object_set_new(o, "experts_fraction", json_real(r->experts));
    json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(o);
}

static void print_table(td_bench *b, const row *r) {
    if (b->n_rows == 0) {
        printf("commit %s, %s, %u core%s, %u NUMA node%s, tier %s\n", td_bench_commit, b->machine.cpu, b->machine.n_cores,
               td_plural(b->machine.n_cores), b->machine.n_nodes, td_plural(b->machine.n_nodes),
               td_cpu_tier_name(td_cpu_features()));
        if (b->device) printf("%s\n", b->card_text);
        printf("%-34s %6s %7s %-24s %12s %8s %9s %7s %8s %8s%s\n", "shape", "m", "threads", "kernel", "us", "GB/s", "GOP/s",
               "bound", "fraction", "of int8", b->card ? "  of bf16" : "");
    }
    printf("%-34s %6u %7u %-24s %12.2f %8.2f %9.1f %7s", r->shape, r->m, r->threads, r->kernel, 1e6 * r->time_s, r->gbps,
           r->gops, r->bound);
    if (r->fraction > 0) printf(" %8.2f", r->fraction);
    if (r->of.int8 > 0 || r->of.floats > 0) printf(" %8.2f", r->of.int8);
    if (r->of.floats > 0) printf(" %8.2f", r->of.floats);
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

void td_bench_print_floats(td_bench *b, const char *shape, uint32_t m, const char *bound, double time_s, double ops,
                           double peak_per_s) {
    print_row(b, &(row){.shape = shape,
                        .m = m,
                        .kernel = td_kernels_here()->math->name,
                        .threads = td_pool_workers(b->pool),
                        .time_s = time_s,
                        .gops = 1e-9 * ops / time_s,
                        .bound = bound,
                        .fraction = ops / peak_per_s / time_s});
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

void td_bench_print_moved(td_bench *b, const char *shape, const td_residency_counts *of, uint32_t top_k) {
    const double pairs = (double)(of->hits + of->streamed + of->misses);
    const double hits = (double)of->hits / pairs, streamed = (double)of->streamed / pairs,
                 uploads = (double)of->uploads * top_k / pairs;
    if (b->o->json)
        printf(
            "{\"bench\":\"%s\",\"shape\":\"%s\",\"hits\":%.4f,\"streamed\":%.4f,\"uploads\":%.3f,\"streamed_uploads\":"
            "%" PRIu64 ",\"streamed_from_rows\":%u}\n",
            b->bench, shape, hits, streamed, uploads, of->stream.uploads, of->stream.crossover);
    else
        printf(
            "%s, %s: %.1f %% of pairs were of resident experts, %.1f %% of streamed ones; %.2f uploads a layer and token\n",
            b->bench, shape, 100 * hits, 100 * streamed, uploads);
    fflush(stdout);
}

/* ---- what rows stand against ------------------------------------------------------------------- */

void td_bench_stand(td_bench *b, const char *name, td_npu *device) {
    td_npu_caps caps;
    device->ops->caps(device, &caps);
    b->device = NULL;
    b->card = NULL;
    snprintf(b->card_text, sizeof b->card_text, "%s", caps.text);
    b->by_clock = !caps.unified_memory;
    if (caps.unified_memory || td_npu_threads_needed(name, 1)) return;
    b->device = name;
    if (device->ops->bound) b->card = device;
}

static td_status device_peaks(td_npu *card, amounts *p, td_error *err) {
    TD_TRY(card->ops->bound(card, TD_BOUND_READ, &p->read, err));
    TD_TRY(card->ops->bound(card, TD_BOUND_INT8, &p->int8, err));
    return card->ops->bound(card, TD_BOUND_BF16, &p->floats, err);
}

/* On this machine all operations stand against the int8 peak. */
static amounts machine_peaks(const td_bench *b) {
    double int8 = td_roofline_int8(b->roofline);
    return (amounts){.read = td_roofline_read(b->roofline), .int8 = int8, .floats = int8};
}

static td_status own_peaks(const td_bench *b, amounts *p, td_error *err) {
    *p = (amounts){0};
    if (!b->device) *p = machine_peaks(b);
    return b->card ? device_peaks(b->card, p, err) : TD_OK;
}

static amounts between(const amounts *a, const amounts *b) {
    return (amounts){0.5 * (a->read + b->read), 0.5 * (a->int8 + b->int8), 0.5 * (a->floats + b->floats)};
}

/* Work as the peaks are: bytes, int8 operations, others. */
static amounts work_of(const td_bench_case *c, uint32_t times) {
    if (!c->work) return (amounts){c->bytes * times, c->int8_ops * times, c->float_ops * times};
    td_tier_work w = c->work(c->ctx);
    return (amounts){(double)w.bytes, (double)w.int8_ops, (double)w.f32_ops};
}

static amounts experts_work_of(const td_bench_case *c) {
    td_tier_work w = c->experts_work ? c->experts_work(c->ctx) : (td_tier_work){0};
    return (amounts){(double)w.bytes, (double)w.int8_ops, (double)w.f32_ops};
}

static amounts less(const amounts *a, const amounts *b) {
    return (amounts){a->read - b->read, a->int8 - b->int8, a->floats - b->floats};
}

static double share(double work, double peak, double spent_s) {
    return peak > 0 ? work / peak / spent_s : 0;
}

static amounts shares_of(const amounts *work, const amounts *most, double spent_s) {
    return (amounts){share(work->read, most->read, spent_s), share(work->int8, most->int8, spent_s),
                     share(work->floats, most->floats, spent_s)};
}

/* Products of both kinds take the same units one after the other. */
static double fraction_of(const amounts *s) {
    double products = s->int8 + s->floats;
    return s->read > products ? s->read : products;
}

static const char *bound_of(const td_bench *b, const amounts *s, double experts) {
    double fraction = fraction_of(s);
    if (b->device && experts > fraction) return "experts";
    if (fraction == 0) return "none";
    if (s->read > s->int8 + s->floats) return "read";
    return s->int8 >= s->floats ? "int8" : "bf16";
}

/* ---- a row ------------------------------------------------------------------------------------- */

typedef struct {
    amounts peaks;
    double  time_s, gbps, gops, f32, experts;
    amounts of;
} measured;

/* Where a device works, its time is not this thread's. */
static double now_s(const td_bench *b) {
    return b->by_clock ? (double)td_trace_now() * 1e-9 : td_roofline_now_s(b->pool);
}

static td_status time_round(td_bench *b, const td_bench_case *c, measured *out, td_error *err) {
    uint32_t times = c->calls * (c->times ? c->times : 1);
    bool     beside = b->device && c->experts_work; /* the machine's experts work, too */
    amounts  before, after, machine = beside ? machine_peaks(b) : (amounts){0};
    TD_TRY(own_peaks(b, &before, err));
    amounts done = work_of(c, 0), experts = experts_work_of(c);
    double  begin = now_s(b);
    for (uint32_t i = 0; i < c->calls; i++) TD_TRY(c->run(c->ctx, err));
    double  spent = now_s(b) - begin;
    amounts now = work_of(c, times), experts_now = experts_work_of(c);
    TD_TRY(own_peaks(b, &after, err));
    done = less(&now, &done);
    experts = less(&experts_now, &experts);
    *out = (measured){.peaks = between(&before, &after),
                      .time_s = spent / times,
                      .gbps = 1e-9 * done.read / spent,
                      .gops = 1e-9 * (done.int8 + done.floats) / spent,
                      .f32 = b->device ? 0 : td_roofline_f32(b->roofline)};
    if (!b->device) { /* one peak for both */
        done.int8 += done.floats;
        done.floats = 0;
    }
    out->of = shares_of(&done, &out->peaks, spent);
    if (beside) {
        amounts of = shares_of(&experts, &machine, spent);
        out->experts = fraction_of(&of);
    }
    return TD_OK;
}

/* Of a member of each round. */
static double median_of(const measured *m, uint32_t n, size_t member) {
    double x[TD_BENCH_ROUNDS_MAX];
    for (uint32_t i = 0; i < n; i++) x[i] = *(const double *)((const char *)&m[i] + member);
    return bench_median(x, n);
}
#define MEDIAN(member) median_of(m, b->o->rounds, offsetof(measured, member))

td_status td_bench_time(td_bench *b, const td_bench_case *c, td_error *err) {
    measured m[TD_BENCH_ROUNDS_MAX];
    if ((!b->device || c->experts_work) && !b->roofline)
        TD_TRY(td_roofline_open(b->pool, TD_BENCH_BUFFER_BYTES, &b->roofline, err));
    TD_TRY(c->run(c->ctx, err));
    for (uint32_t r = 0; r < b->o->rounds; r++) TD_TRY(time_round(b, c, &m[r], err));
    row r = {.shape = c->shape,
             .kernel = c->kernel,
             .m = c->m,
             .threads = td_pool_workers(b->pool),
             .time_s = MEDIAN(time_s),
             .gbps = MEDIAN(gbps),
             .gops = MEDIAN(gops),
             .of = {MEDIAN(of.read), MEDIAN(of.int8), MEDIAN(of.floats)},
             .peaks = {MEDIAN(peaks.read), MEDIAN(peaks.int8), MEDIAN(peaks.floats)},
             .f32 = MEDIAN(f32),
             .experts = MEDIAN(experts)};
    r.bound = bound_of(b, &r.of, r.experts);
    r.fraction = fraction_of(&r.of);
    if (b->device && r.experts > r.fraction) r.fraction = r.experts;
    print_row(b, &r);
    return TD_OK;
}
