#include "core/machine/node_bandwidth.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/error.h"
#include "core/machine/cpu.h"
#include "core/memory/mem.h"
#include "core/memory/page_nodes.h"

#define BLOCK_BYTES ((size_t)1 << 20)
#define BLOCKS_MIN 32u /* MiB of a buffer: a millisecond of reading at the least */
#define BLOCKS_PER_CORE 2u

typedef struct {
    const td_topology *t;
    td_read_fn         read;
    td_pool           *pool;                  /* every core; a subpool for each node with cores */
    uint32_t           subpool[TD_NODES_MAX]; /* of a node with cores */
    uint32_t           n_blocks;              /* of a buffer */
    char              *buffer[TD_NODES_MAX];  /* on each node with memory; NULL: none, or the system put it elsewhere */
    uint32_t           readers;               /* subpool whose turn it is */
    char              *reading;
} probe;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- items: blocks of a buffer ----------------------------------------------------------------- */

static void fill_block(void *ctx, uint32_t item, const td_worker *w) {
    const probe *p = ctx;
    (void)w;
    memset(p->reading + item * BLOCK_BYTES, 1, BLOCK_BYTES);
}

static void read_block(void *ctx, uint32_t item, const td_worker *w) {
    const probe *p = ctx;
    if (w->subpool == p->readers) p->read(p->reading + item * BLOCK_BYTES, BLOCK_BYTES);
}

static void flush_block(void *ctx, uint32_t item, const td_worker *w) {
    const probe *p = ctx;
    (void)w;
    td_cpu_flush(p->reading + item * BLOCK_BYTES, BLOCK_BYTES);
}

/* ---- buffers and pool -------------------------------------------------------------------------- */

static td_status open_pool(probe *p, td_error *err) {
    const td_topology *t = p->t;
    td_worker_place   *places = calloc(t->n_cores, sizeof *places);
    if (!places) return td_fail(err, TD_ENOMEM, "out of memory to measure the nodes");
    uint32_t n_subpools = 0, most = 0;
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        const td_numa_node *node = &t->nodes[i];
        if (node->n_cores > most) most = node->n_cores;
        p->subpool[i] = n_subpools;
        for (uint32_t c = node->first_core; c < node->first_core + node->n_cores; c++)
            places[c] =
                (td_worker_place){.cpu = t->cores[c].cpu, .subpool = n_subpools, .node = node->os_index, .name = "measure"};
        n_subpools += node->n_cores > 0;
    }
    p->n_blocks = BLOCKS_PER_CORE * most > BLOCKS_MIN ? BLOCKS_PER_CORE * most : BLOCKS_MIN;
    td_status st = td_pool_create(places, t->n_cores, &p->pool, err);
    free(places);
    return st;
}

static size_t buffer_bytes(const probe *p) {
    return p->n_blocks * BLOCK_BYTES;
}

static td_status open_buffer(probe *p, uint32_t node, td_error *err) {
    size_t bytes = buffer_bytes(p), n_known;
    void  *memory;
    if (p->t->n_nodes > 1 && p->t->nodes[node].memory_bytes == 0) return TD_OK;
    TD_TRY(td_mem_map(bytes, p->t->nodes[node].os_index, &memory, err));
    p->buffer[node] = p->reading = memory;
    td_pool_run(p->pool, fill_block, p, p->n_blocks);
    size_t n_on = td_pages_on_node(memory, bytes, p->t->nodes[node].os_index, &n_known);
    if (n_on == n_known) return TD_OK;
    td_mem_unmap(memory, bytes); /* the node is full: the rest lies elsewhere */
    p->buffer[node] = NULL;
    return TD_OK;
}

static void close_probe(probe *p) {
    for (uint32_t i = 0; i < p->t->n_nodes; i++) td_mem_unmap(p->buffer[i], buffer_bytes(p));
    td_pool_destroy(p->pool);
}

/* ---- the measurement --------------------------------------------------------------------------- */

static void measure_pair(probe *p, uint32_t cores, uint32_t memory, td_node_bandwidth *out) {
    if (!p->t->nodes[cores].n_cores || !p->buffer[memory]) return;
    p->readers = p->subpool[cores];
    p->reading = p->buffer[memory];
    td_pool_run(p->pool, flush_block, p, p->n_blocks);
    double t0 = now_s();
    td_pool_run_each(p->pool, read_block, p, p->n_blocks);
    double read = (double)buffer_bytes(p) / (now_s() - t0), *best = &out->read[cores][memory];
    if (read > *best) *best = read;
}

/* Pairs by distance of their indices: every node with itself comes first. */
static void measure_round(probe *p, double end_s, td_node_bandwidth *out) {
    uint32_t n = p->t->n_nodes;
    for (uint32_t apart = 0; apart < n && (apart == 0 || now_s() < end_s); apart++)
        for (uint32_t i = 0; i < n; i++) measure_pair(p, i, (i + apart) % n, out);
}

td_status td_node_bandwidth_measure(const td_topology *t, td_read_fn read, double seconds, td_node_bandwidth *out,
                                    td_error *err) {
    memset(out, 0, sizeof *out);
    if (!t->is_real) return td_fail(err, TD_EINVAL, "a machine that is made up cannot be measured");
    probe *p = calloc(1, sizeof *p);
    if (!p) return td_fail(err, TD_ENOMEM, "out of memory to measure the nodes");
    p->t = t;
    p->read = read;
    cpu_set_t before;
    bool      pinned = pthread_getaffinity_np(pthread_self(), sizeof before, &before) == 0;
    td_status st = open_pool(p, err);
    if (st == TD_OK && pinned) td_pool_pin_caller(p->pool);
    for (uint32_t i = 0; i < t->n_nodes && st == TD_OK; i++) st = open_buffer(p, i, err);
    double end_s = now_s() + seconds;
    do
        if (st == TD_OK) measure_round(p, end_s, out);
    while (st == TD_OK && now_s() < end_s);
    close_probe(p);
    if (pinned) pthread_setaffinity_np(pthread_self(), sizeof before, &before);
    free(p);
    return st;
}
