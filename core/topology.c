#include "core/topology.h"

#include <errno.h>
#include <fcntl.h>
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log.h"
#include "core/mem.h"

/* One physical core this process may use. */
typedef struct {
    uint32_t cpu;  /* OS index of its first hardware thread */
    uint32_t node; /* OS index of its NUMA node */
    uint32_t l3;   /* logical index of its L3, 0 where there is none */
    uint32_t rank; /* how many cores of the same L3 come before it */
} core_info;

static int by_node_then_rank_then_l3(const void *pa, const void *pb) {
    const core_info *a = pa, *b = pb;
    if (a->node != b->node) return a->node < b->node ? -1 : 1;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    return a->l3 < b->l3 ? -1 : a->l3 > b->l3;
}

/* The text of a small file of the kernel's, terminated; false, with errno, when it cannot be read. */
static bool read_text(const char *path, char *to, size_t max) {
    ssize_t n = -1;
    int     fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    do n = read(fd, to, max - 1);
    while (n < 0 && errno == EINTR);
    int e = errno;
    close(fd);
    errno = e;
    to[n < 0 ? 0 : n] = 0;
    return n >= 0;
}

/* "max" and a missing file (no cgroup) are UINT64_MAX. */
static uint64_t read_number(const char *path) {
    char text[64], *end;
    if (!read_text(path, text, sizeof text)) return UINT64_MAX;
    uint64_t v = strtoull(text, &end, 10);
    return end == text ? UINT64_MAX : v;
}

static uint64_t meminfo_bytes(const char *text, const char *key) {
    const char *at = strstr(text, key);
    return at ? strtoull(at + strlen(key), NULL, 10) << 10 : 0;
}

static td_status read_memory(td_machine *m, td_error *err) {
    char text[4096]; /* what is wanted stands in the first lines */
    if (!read_text("/proc/meminfo", text, sizeof text))
        return td_fail(err, TD_EIO, "cannot read /proc/meminfo: %s", strerror(errno));
    m->memory_bytes = meminfo_bytes(text, "MemTotal:");
    m->available_bytes = meminfo_bytes(text, "MemAvailable:");
    if (!m->memory_bytes || !m->available_bytes) return td_fail(err, TD_EIO, "/proc/meminfo does not tell how much memory there is");
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max"), used = read_number("/sys/fs/cgroup/memory.current");
    if (limit == UINT64_MAX) return TD_OK;
    if (limit < m->memory_bytes) m->memory_bytes = limit;
    uint64_t left = used < limit ? limit - used : 0;
    if (used != UINT64_MAX && left < m->available_bytes) m->available_bytes = left;
    return TD_OK;
}

/* Cores in the order in which workers take them: node by node, and within a node one of each L3 in turn. */
static uint32_t list_cores(hwloc_topology_t topo, core_info *cores, uint32_t max) {
    uint32_t    n = 0;
    hwloc_obj_t core = NULL;
    while (n < max && (core = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_CORE, core))) {
        hwloc_obj_t l3 = hwloc_get_ancestor_obj_by_type(topo, HWLOC_OBJ_L3CACHE, core);
        hwloc_obj_t node = NULL;
        while ((node = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_NUMANODE, node)))
            if (hwloc_bitmap_isincluded(core->cpuset, node->cpuset)) break;
        core_info c = {.cpu = (uint32_t)hwloc_bitmap_first(core->cpuset), .node = node ? node->os_index : 0, .l3 = l3 ? l3->logical_index : 0};
        for (uint32_t i = 0; i < n; i++) c.rank += cores[i].l3 == c.l3 && cores[i].node == c.node;
        cores[n++] = c;
    }
    qsort(cores, n, sizeof *cores, by_node_then_rank_then_l3);
    return n;
}

static uint32_t count_nodes(const core_info *cores, uint32_t n) {
    uint32_t nodes = n > 0;
    for (uint32_t i = 1; i < n; i++) nodes += cores[i].node != cores[i - 1].node;
    return nodes;
}

/* The cores of the i-th node in use: *first and the count. */
static uint32_t node_cores(const core_info *cores, uint32_t n, uint32_t i, uint32_t *first) {
    uint32_t begin = 0;
    for (uint32_t node = 0;; node++) {
        uint32_t end = begin + 1;
        while (end < n && cores[end].node == cores[begin].node) end++;
        if (node == i || end >= n) {
            *first = begin;
            return end - begin;
        }
        begin = end;
    }
}

td_status td_topology_plan(uint32_t cpuinfer, uint32_t subpool_count, uint32_t npu_threads, td_thread_plan *plan, td_machine *machine,
                           td_error *err) {
    hwloc_topology_t topo;
    core_info       *cores = calloc(TD_POOL_WORKERS_MAX, sizeof *cores);
    memset(plan, 0, sizeof *plan);
    *machine = (td_machine){0};
    if (!cores || hwloc_topology_init(&topo)) {
        free(cores);
        return td_fail(err, TD_ENOMEM, "out of memory for the machine's topology");
    }
    hwloc_topology_set_type_filter(topo, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_topology_load(topo)) {
        hwloc_topology_destroy(topo);
        free(cores);
        return td_fail(err, TD_EIO, "hwloc cannot read the machine's topology");
    }
    uint32_t n = list_cores(topo, cores, TD_POOL_WORKERS_MAX);
    bool     can_bind = hwloc_topology_is_thissystem(topo);
    machine->n_cores = n;
    machine->n_cpus = (uint32_t)hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_PU);
    machine->n_l3 = (uint32_t)hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_L3CACHE);
    for (hwloc_obj_t l3 = NULL; (l3 = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_L3CACHE, l3));) machine->l3_bytes += l3->attr->cache.size;
    machine->n_nodes = count_nodes(cores, n);
    const char *cpu = hwloc_obj_get_info_by_name(hwloc_get_root_obj(topo), "CPUModel");
    hwloc_obj_t package = cpu ? NULL : hwloc_get_obj_by_type(topo, HWLOC_OBJ_PACKAGE, 0);
    if (package) cpu = hwloc_obj_get_info_by_name(package, "CPUModel");
    snprintf(machine->cpu, sizeof machine->cpu, "%s", cpu ? cpu : "");
    hwloc_topology_destroy(topo);

    td_status st = read_memory(machine, err);
    if (st == TD_OK && n == 0) st = td_fail(err, TD_EIO, "hwloc finds no core that this process may use");
    if (cpuinfer == 0) cpuinfer = n > npu_threads ? n - npu_threads : 1;
    if (subpool_count == 0) subpool_count = machine->n_nodes < cpuinfer ? machine->n_nodes : cpuinfer;
    if (st == TD_OK && (cpuinfer > TD_POOL_WORKERS_MAX || npu_threads > TD_POOL_WORKERS_MAX))
        st = td_fail(err, TD_EINVAL, "at most %d threads per tier", TD_POOL_WORKERS_MAX);
    if (st == TD_OK && subpool_count > TD_POOL_SUBPOOLS_MAX)
        st = td_fail(err, TD_EINVAL, "subpool-count %u is more than %d", subpool_count, TD_POOL_SUBPOOLS_MAX);
    if (st == TD_OK && cpuinfer < subpool_count)
        st = td_fail(err, TD_EINVAL, "cpuinfer %u is less than subpool-count %u: every subpool needs a thread", cpuinfer, subpool_count);
    if (st != TD_OK) {
        free(cores);
        return st;
    }
    if (cpuinfer + npu_threads > n)
        td_warn("%u expert and %u device threads on %u cores: the surplus is not pinned, expect less speed", cpuinfer, npu_threads, n);

    /* Experts: subpool s takes the next free cores of node s mod nodes. Then the device threads take what is left. */
    uint32_t taken[TD_POOL_SUBPOOLS_MAX] = {0}, n_nodes = machine->n_nodes;
    plan->n_experts = cpuinfer;
    plan->n_subpools = subpool_count;
    plan->n_npu = npu_threads;
    uint32_t w = 0;
    for (uint32_t s = 0; s < subpool_count; s++) {
        uint32_t first, node = s % n_nodes, have = node_cores(cores, n, node, &first);
        uint32_t want = cpuinfer / subpool_count + (s < cpuinfer % subpool_count);
        for (uint32_t i = 0; i < want; i++, w++) {
            uint32_t k = node < TD_POOL_SUBPOOLS_MAX ? taken[node]++ : have;
            plan->experts[w] = (td_worker_place){
                .cpu = can_bind && k < have ? cores[first + k].cpu : TD_CPU_ANY, .subpool = s, .node = can_bind ? cores[first].node : TD_NODE_ANY,
                .name = "experts"};
        }
    }
    w = 0;
    for (uint32_t node = 0; node < n_nodes && w < npu_threads; node++) {
        uint32_t first, have = node_cores(cores, n, node, &first);
        for (uint32_t k = node < TD_POOL_SUBPOOLS_MAX ? taken[node] : 0; k < have && w < npu_threads; k++)
            plan->npu[w++] = (td_worker_place){.cpu = can_bind ? cores[first + k].cpu : TD_CPU_ANY, .node = can_bind ? cores[first].node : TD_NODE_ANY,
                                               .name = "device"};
    }
    for (; w < npu_threads; w++) plan->npu[w] = (td_worker_place){.cpu = TD_CPU_ANY, .node = TD_NODE_ANY, .name = "device"};
    free(cores);
    return TD_OK;
}
