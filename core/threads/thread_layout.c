#include "core/threads/thread_layout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/memory/mem.h"
#include "core/plural.h"

#define AS_FAST 0.9 /* times the best: a short measurement cannot tell these apart */
#define LINE_BYTES 1024
#define CARD_CORES 2

typedef struct {
    const td_topology       *t;
    const td_node_bandwidth *b;
    bool                     taken[TD_POOL_WORKERS_MAX]; /* [n_cores] */
    uint32_t                 n_free[TD_NODES_MAX];       /* cores of a node */
    uint32_t                 homes[TD_NODES_MAX];        /* nodes that may have subpools, in order of their index */
    uint32_t                 n_homes, n_fixed;           /* n_fixed: how many of them are chosen already */
} placer;

/* ---- nodes ------------------------------------------------------------------------------------- */

/* Find the nodes that may have subpools: those with cores and memory; if there is none, all with cores. */
static void find_homes(placer *p) {
    for (int need_memory = 1; need_memory >= 0 && p->n_homes == 0; need_memory--)
        for (uint32_t i = 0; i < p->t->n_nodes; i++)
            if (p->t->nodes[i].n_cores && (p->t->nodes[i].memory_bytes || !need_memory)) p->homes[p->n_homes++] = i;
}

/* How well a node serves a subpool of its own: its local bandwidth, or its cores where nothing was measured. */
static double local_score(const placer *p, uint32_t node) {
    double read = p->b->read[node][node];
    return read > 0 ? read : p->t->nodes[node].n_cores;
}

static int by_index(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void move_home(placer *p, uint32_t from, uint32_t to) {
    uint32_t node = p->homes[from];
    memmove(p->homes + to + 1, p->homes + to, (from - to) * sizeof *p->homes); /* the others stay in order */
    p->homes[to] = node;
}

/* A card's node is the first home, if it can be one. */
static void begin_at_card(placer *p, const td_thread_wishes *w) {
    for (uint32_t i = 0; w->near_card && i < p->n_homes; i++)
        if (p->t->nodes[p->homes[i]].os_index == w->card_node) {
            move_home(p, i, 0);
            p->n_fixed = 1;
        }
}

/* Keep `want` of the homes. One after the other the fastest is chosen; among those about as fast, the one closest to the
 * homes chosen before. */
static void choose_homes(placer *p, uint32_t want) {
    for (uint32_t n = p->n_fixed; n < want; n++) {
        double   fastest = 0, best_near = -1;
        uint32_t best = n;
        for (uint32_t i = n; i < p->n_homes; i++)
            if (local_score(p, p->homes[i]) > fastest) fastest = local_score(p, p->homes[i]);
        for (uint32_t i = n; i < p->n_homes; i++) {
            double near = 0;
            for (uint32_t k = 0; k < n; k++)
                near += p->b->read[p->homes[i]][p->homes[k]] + p->b->read[p->homes[k]][p->homes[i]];
            if (local_score(p, p->homes[i]) < AS_FAST * fastest || near <= best_near / AS_FAST) continue;
            best_near = near;
            best = i;
        }
        move_home(p, best, n);
    }
    p->n_homes = want;
    qsort(p->homes + p->n_fixed, want - p->n_fixed, sizeof *p->homes, by_index);
}

/* The node with a free core that reads the memory of `home` fastest. @return false: no core is free. */
static bool next_node(const placer *p, uint32_t home, uint32_t *node) {
    double best = -1;
    *node = home;
    for (uint32_t i = 0; i < p->t->n_nodes; i++)
        if (p->n_free[i] && p->b->read[i][home] > best) {
            best = p->b->read[i][home];
            *node = i;
        }
    return best >= 0;
}

/* Where the memory of threads on a node should lie: on that node; if it has none, on the node with cores that it reads
 * fastest. */
static uint32_t memory_node(const placer *p, uint32_t node) {
    double   best = -1;
    uint32_t at = node;
    if (p->t->nodes[node].memory_bytes) return p->t->nodes[node].os_index;
    for (uint32_t i = 0; i < p->t->n_nodes; i++)
        if (p->t->nodes[i].n_cores && p->t->nodes[i].memory_bytes && p->b->read[node][i] > best) {
            best = p->b->read[node][i];
            at = i;
        }
    return p->t->nodes[at].os_index;
}

/* ---- cores ------------------------------------------------------------------------------------- */

/* The next core of a node; one must be free. */
static uint32_t take_core(placer *p, uint32_t node) {
    uint32_t i = p->t->nodes[node].first_core;
    while (p->taken[i]) i++;
    p->taken[i] = true;
    p->n_free[node]--;
    return p->t->cores[i].cpu;
}

/* The subpools take cores of their homes first, all of them, and then of other nodes. */
static void place_experts(placer *p, td_thread_layout *layout) {
    uint32_t n_local[TD_POOL_SUBPOOLS_MAX], first = 0;
    for (uint32_t s = 0; s < layout->n_subpools; s++) {
        uint32_t want = layout->n_experts / layout->n_subpools + (s < layout->n_experts % layout->n_subpools);
        layout->home[s] = p->homes[s % p->n_homes];
        n_local[s] = 0;
        for (uint32_t i = first; i < first + want; i++) {
            bool local = p->n_free[layout->home[s]] > 0;
            layout->experts[i] = (td_worker_place){
                .cpu = local ? take_core(p, layout->home[s]) : TD_CPU_ANY, .subpool = s, .name = "experts"};
            n_local[s] += local;
        }
        first += want;
    }
    uint32_t n_away[TD_POOL_SUBPOOLS_MAX] = {0};
    for (uint32_t i = 0; i < layout->n_experts; i++) {
        uint32_t s = layout->experts[i].subpool, node;
        if (layout->experts[i].cpu != TD_CPU_ANY) continue;
        if (next_node(p, layout->home[s], &node)) {
            layout->experts[i].cpu = take_core(p, node);
            n_away[s]++;
        } else {
            layout->n_unpinned++;
        }
    }
    for (uint32_t i = 0; i < layout->n_experts; i++) {
        uint32_t s = layout->experts[i].subpool;
        layout->experts[i].node = n_away[s] && n_away[s] >= n_local[s] ? TD_NODE_SPREAD : memory_node(p, layout->home[s]);
    }
}

static void place_device(placer *p, td_thread_layout *layout) {
    uint32_t n = 0, n_nodes = 0, memory = TD_NODE_ANY;
    while (n < layout->n_npu) {
        uint32_t node = 0;
        for (uint32_t i = 1; i < p->t->n_nodes; i++)
            if (p->n_free[i] > p->n_free[node]) node = i;
        if (p->n_free[node] == 0) break;
        for (; n < layout->n_npu && p->n_free[node]; n++)
            layout->npu[n] = (td_worker_place){.cpu = take_core(p, node), .name = "device"};
        memory = n_nodes++ == 0 ? memory_node(p, node) : TD_NODE_SPREAD;
    }
    layout->n_unpinned += layout->n_npu - n;
    for (; n < layout->n_npu; n++) layout->npu[n] = (td_worker_place){.cpu = TD_CPU_ANY, .name = "device"};
    for (uint32_t i = 0; i < layout->n_npu; i++) layout->npu[i].node = memory;
}

/* How many cores' time the cgroup allows: more threads would be stopped again and again. */
static uint32_t cores_with_time(const td_topology *t) {
    double time = ceil(t->machine.cpu_time);
    return time < t->n_cores ? (uint32_t)fmax(time, 1) : t->n_cores;
}

/* Cores that a card's threads have to themselves. */
static uint32_t cores_of_card(uint32_t n_cores, const td_thread_wishes *w) {
    return !w->card ? 0 : n_cores / 4 < CARD_CORES ? n_cores / 4 : CARD_CORES;
}

td_status td_thread_layout_of(const td_topology *t, const td_node_bandwidth *b, const td_thread_wishes *w,
                              td_thread_layout *layout, td_error *err) {
    memset(layout, 0, sizeof *layout);
    placer p = {.t = t, .b = b};
    for (uint32_t i = 0; i < t->n_nodes; i++) p.n_free[i] = t->nodes[i].n_cores;
    find_homes(&p);
    begin_at_card(&p, w);
    uint32_t n_cores = cores_with_time(t), apart = w->npu_threads + cores_of_card(n_cores, w);
    layout->n_npu = w->npu_threads;
    layout->n_experts = w->cpuinfer ? w->cpuinfer : n_cores > apart ? n_cores - apart : 1;
    layout->n_subpools = w->subpool_count ? w->subpool_count : p.n_homes < layout->n_experts ? p.n_homes : layout->n_experts;
    if (layout->n_experts > TD_POOL_WORKERS_MAX || layout->n_npu > TD_POOL_WORKERS_MAX)
        return td_fail(err, TD_EINVAL, "at most %d threads per tier", TD_POOL_WORKERS_MAX);
    if (layout->n_subpools > TD_POOL_SUBPOOLS_MAX)
        return td_fail(err, TD_EINVAL, "subpool-count %u is more than %d", layout->n_subpools, TD_POOL_SUBPOOLS_MAX);
    if (layout->n_experts < layout->n_subpools)
        return td_fail(err, TD_EINVAL, "cpuinfer %u is less than subpool-count %u: every subpool needs a thread",
                       layout->n_experts, layout->n_subpools);
    if (layout->n_subpools < p.n_homes) choose_homes(&p, layout->n_subpools);
    place_experts(&p, layout);
    place_device(&p, layout);
    for (uint32_t i = 0; i < t->n_nodes; i++) layout->n_left += p.n_free[i];
    const bool shares = layout->n_unpinned > 0 || (w->card && !layout->n_left);
    for (uint32_t i = 0; i < layout->n_experts; i++) layout->experts[i].shares = shares;
    for (uint32_t i = 0; i < layout->n_npu; i++) layout->npu[i].shares = shares;
    return TD_OK;
}

/* ---- this machine ------------------------------------------------------------------------------ */

static void forget_places(td_worker_place *places, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        places[i].cpu = TD_CPU_ANY;
        places[i].node = TD_NODE_ANY;
    }
}

static void log_bandwidth(const td_topology *t, const td_node_bandwidth *b) {
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        char   text[LINE_BYTES] = "";
        size_t at = 0;
        for (uint32_t j = 0; j < t->n_nodes && at < sizeof text; j++)
            if (b->read[i][j] > 0)
                at += (size_t)snprintf(text + at, sizeof text - at, "%s%.1f from node %u", at ? ", " : "",
                                       b->read[i][j] * 1e-9, t->nodes[j].os_index);
        if (at)
            td_info("node %u, %u core%s: read bandwidth in GB/s: %s", t->nodes[i].os_index, t->nodes[i].n_cores,
                    td_plural(t->nodes[i].n_cores), text);
    }
}

typedef struct {
    td_topology       topology;
    td_node_bandwidth bandwidth;
} known;

td_status td_thread_layout_here(td_read_fn read, const td_thread_wishes *w, td_thread_layout *layout, td_machine *machine,
                                td_error *err) {
    *machine = (td_machine){0};
    known *k = calloc(1, sizeof *k);
    if (!k) return td_fail(err, TD_ENOMEM, "out of memory for the machine's topology");
    td_status st = td_topology_read(&k->topology, err);
    if (st == TD_OK && k->topology.is_real && k->topology.n_nodes > 1) {
        st = td_node_bandwidth_measure(&k->topology, read, TD_NODE_BANDWIDTH_START_S, &k->bandwidth, err);
        if (st == TD_OK) log_bandwidth(&k->topology, &k->bandwidth);
    }
    if (st == TD_OK) st = td_thread_layout_of(&k->topology, &k->bandwidth, w, layout, err);
    if (st == TD_OK && w->near_card && k->topology.n_nodes > 1)
        td_info("the card hangs on NUMA node %u; the experts' first subpool is on node %u", w->card_node,
                k->topology.nodes[layout->home[0]].os_index);
    if (st == TD_OK && layout->n_unpinned)
        td_warn("%u expert and %u device threads on %u core%s: the surplus is not pinned, expect less speed",
                layout->n_experts, layout->n_npu, k->topology.n_cores, td_plural(k->topology.n_cores));
    if (st == TD_OK && w->card && !layout->n_left && !layout->n_unpinned && k->topology.n_cores > 1)
        td_warn("every core has an expert thread, and the card's driver wants one: give --cpuinfer %u, or expect less speed",
                k->topology.n_cores - (cores_of_card(k->topology.n_cores, w) ? cores_of_card(k->topology.n_cores, w) : 1));
    if (st == TD_OK && layout->n_experts + layout->n_npu > ceil(k->topology.machine.cpu_time))
        td_warn(
            "the cgroup leaves %u thread%s the time of %.1f cores: they will be stopped again and again; give --cpuinfer "
            "and --npu-threads that are %.0f together, or less",
            layout->n_experts + layout->n_npu, td_plural(layout->n_experts + layout->n_npu), k->topology.machine.cpu_time,
            ceil(k->topology.machine.cpu_time));
    if (st == TD_OK && !k->topology.is_real) {
        td_warn("the machine is made up (HWLOC_SYNTHETIC or HWLOC_XMLFILE): no thread is pinned, expect less speed");
        forget_places(layout->experts, layout->n_experts);
        forget_places(layout->npu, layout->n_npu);
    }
    *machine = k->topology.machine;
    free(k);
    return st;
}
