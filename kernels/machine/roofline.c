/* Reading and multiplying as fast as the machine can, with the widest instructions that the CPU mask leaves. */
#include "kernels/machine/roofline.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/error.h"
#include "core/memory/mem.h"
#include "kernels/kernels.h"

#define PEAK_ITEMS 8 /* for each worker */
#define MEASURE_BYTES_MIN ((size_t)128 << 20)
#define MEASURE_BYTES_MAX ((size_t)512 << 20) /* of a subpool */
#define MEASURE_ROUNDS 3
#define MEASURE_FILL_S \
    0.05 /* the buffer ends where this time does: fresh pages may come slowly (a virtual machine's first use of them) */
#define MEASURE_S 0.12 /* no further round after so long: a busy machine must not delay a start for long */
#define FILL_BLOCKS 16u

struct td_roofline {
    td_pool *pool;
    size_t   bytes, filled;                /* of a subpool's buffer; how much of it was written, and is read */
    char    *buffer[TD_POOL_SUBPOOLS_MAX]; /* on its node */
    double (*operations)(void);            /* of the peak being measured: one item's worth; how many they were */
    double *done;                          /* [items] */
};

static double clock_s(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double wall_s(void) {
    return clock_s(CLOCK_MONOTONIC);
}

double td_roofline_now_s(const td_pool *pool) {
    return td_pool_workers(pool) == 1 ? clock_s(CLOCK_THREAD_CPUTIME_ID) : wall_s();
}

/* ---- memory ------------------------------------------------------------------------------------ */

static void read_item(void *ctx, uint32_t item, const td_worker *w) {
    const td_roofline *r = ctx;
    td_kernels_here()->read(r->buffer[w->subpool] + item * TD_ROOFLINE_BLOCK, TD_ROOFLINE_BLOCK);
}

/* A page that was never written is the system's page of zeros, which is in the cache. */
static void fill_item(void *ctx, uint32_t item, const td_worker *w) {
    const td_roofline *r = ctx;
    memset(r->buffer[w->subpool] + r->filled + item * TD_ROOFLINE_BLOCK, 1, TD_ROOFLINE_BLOCK);
}

double td_roofline_read(td_roofline *r) {
    double t0 = td_roofline_now_s(r->pool);
    td_pool_run_each(r->pool, read_item, r, (uint32_t)(r->filled / TD_ROOFLINE_BLOCK));
    return (double)r->filled * td_pool_subpools(r->pool) / (td_roofline_now_s(r->pool) - t0);
}

/* ---- arithmetic -------------------------------------------------------------------------------- */

static void peak_item(void *ctx, uint32_t item, const td_worker *w) {
    (void)w;
    td_roofline *r = ctx;
    r->done[item] = r->operations();
}

static double peak(td_roofline *r, double (*operations)(void)) {
    uint32_t n = PEAK_ITEMS * td_pool_workers(r->pool);
    r->operations = operations;
    double t0 = td_roofline_now_s(r->pool), sum = 0;
    td_pool_run(r->pool, peak_item, r, n);
    double t = td_roofline_now_s(r->pool) - t0;
    for (uint32_t i = 0; i < n; i++) sum += r->done[i];
    return sum / t;
}

double td_roofline_int8(td_roofline *r) {
    return peak(r, td_kernels_here()->int8_peak);
}
double td_roofline_f32(td_roofline *r) {
    return peak(r, td_kernels_here()->f32_peak);
}
double td_roofline_bf16(td_roofline *r) {
    return peak(r, td_kernels_here()->bf16_peak);
}

/* ---- the whole --------------------------------------------------------------------------------- */

static td_status open_unfilled(td_pool *pool, size_t bytes, td_roofline **out, td_error *err) {
    uint32_t     n = td_pool_subpools(pool);
    td_roofline *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return td_fail(err, TD_ENOMEM, "out of memory to measure the machine");
    r->pool = pool;
    r->bytes = td_round_up(bytes / n, TD_ROOFLINE_BLOCK);
    r->done = calloc((size_t)PEAK_ITEMS * td_pool_workers(pool), sizeof *r->done);
    td_status st = r->done ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory to measure the machine");
    for (uint32_t s = 0; s < n && st == TD_OK; s++) {
        void *p;
        st = td_mem_map(r->bytes, td_pool_node(pool, s), &p, err);
        if (st == TD_OK) r->buffer[s] = p;
    }
    if (st != TD_OK) {
        td_roofline_close(r);
        return st;
    }
    *out = r;
    return TD_OK;
}

/* Writes the buffers, piece by piece, up to their end, or, from min_bytes of each on, for so long. */
static void fill(td_roofline *r, size_t min_bytes, double seconds) {
    double end_s = wall_s() + seconds;
    while (r->filled < r->bytes && (r->filled < min_bytes || wall_s() < end_s)) {
        size_t   left = (r->bytes - r->filled) / TD_ROOFLINE_BLOCK;
        uint32_t n = left < FILL_BLOCKS ? (uint32_t)left : FILL_BLOCKS;
        td_pool_run_each(r->pool, fill_item, r, n);
        r->filled += n * TD_ROOFLINE_BLOCK;
    }
}

td_status td_roofline_open(td_pool *pool, size_t bytes, td_roofline **out, td_error *err) {
    TD_TRY(open_unfilled(pool, bytes, out, err));
    fill(*out, (*out)->bytes, 0);
    return TD_OK;
}

void td_roofline_close(td_roofline *r) {
    if (!r) return;
    for (uint32_t s = 0; s < TD_POOL_SUBPOOLS_MAX; s++) td_mem_unmap(r->buffer[s], r->bytes);
    free(r->done);
    free(r);
}

static size_t measure_bytes(const td_pool *pool, const td_machine *m) {
    uint64_t bytes = 2 * m->l3_bytes, most = MEASURE_BYTES_MAX * td_pool_subpools(pool);
    if (bytes < MEASURE_BYTES_MIN) bytes = MEASURE_BYTES_MIN;
    if (bytes > most) bytes = most;
    return (size_t)(bytes < m->available_bytes / 8 ? bytes : m->available_bytes / 8);
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

td_status td_roofline_measure(td_pool *pool, const td_machine *m, td_bounds *out, td_error *err) {
    td_roofline *r;
    cpu_set_t    before;
    bool         pinned = pthread_getaffinity_np(pthread_self(), sizeof before, &before) == 0;
    *out = (td_bounds){0};
    if (pinned) td_pool_pin_caller(pool);
    double    start_s = wall_s();
    td_status st = open_unfilled(pool, measure_bytes(pool, m), &r, err);
    if (st == TD_OK) fill(r, MEASURE_BYTES_MIN / td_pool_subpools(pool), MEASURE_FILL_S);
    for (int i = 0; i < MEASURE_ROUNDS && st == TD_OK && (i == 0 || wall_s() < start_s + MEASURE_S); i++) {
        out->read_bytes_per_s = larger(out->read_bytes_per_s, td_roofline_read(r));
        out->int8_ops_per_s = larger(out->int8_ops_per_s, td_roofline_int8(r));
        out->f32_ops_per_s = larger(out->f32_ops_per_s, td_roofline_f32(r));
    }
    if (st == TD_OK) td_roofline_close(r);
    if (pinned) pthread_setaffinity_np(pthread_self(), sizeof before, &before);
    return st;
}
