#include "core/machine/topology.h"

#include <errno.h>
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/machine/cpu.h"
#include "core/machine/machine_limits.h"
#include "core/threads/thread.h"

/* ---- hwloc's objects --------------------------------------------------------------------------- */

/* hwloc knows the cgroup's cpus by itself, but not taskset's. */
static void restrict_to_affinity(hwloc_topology_t topo) {
    cpu_set_t      cpus;
    hwloc_bitmap_t set;
    if (!hwloc_topology_is_thissystem(topo) || !td_thread_cpus(&cpus) || !(set = hwloc_bitmap_alloc())) return;
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &cpus)) hwloc_bitmap_set(set, cpu);
    if (hwloc_topology_restrict(topo, set, 0))
        td_warn("the affinity of this process is left out of account: %s", strerror(errno));
    hwloc_bitmap_free(set);
}

/* hwloc falls back to this machine without a word. */
static void warn_of_unread_variables(void) {
    static const char *const NAMES[] = {"HWLOC_SYNTHETIC", "HWLOC_XMLFILE"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (getenv(NAMES[i]) && !getenv("HWLOC_THISSYSTEM"))
            td_warn("hwloc could not read what %s describes; this machine counts", NAMES[i]);
}

static td_status load(hwloc_topology_t *out, td_error *err) {
    hwloc_topology_t topo;
    if (hwloc_topology_init(&topo)) return td_fail(err, TD_ENOMEM, "out of memory for the machine's topology");
    hwloc_topology_set_type_filter(topo, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_topology_load(topo)) {
        hwloc_topology_destroy(topo);
        return td_fail(err, TD_EIO, "hwloc cannot read the machine's topology");
    }
    if (hwloc_topology_is_thissystem(topo)) warn_of_unread_variables();
    restrict_to_affinity(topo);
    *out = topo;
    return TD_OK;
}

static void read_machine(hwloc_topology_t topo, td_machine *m) {
    m->n_cpus = (uint32_t)hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_PU);
    m->n_l3 = (uint32_t)hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_L3CACHE);
    for (hwloc_obj_t l3 = NULL; (l3 = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_L3CACHE, l3));)
        m->l3_bytes += l3->attr->cache.size;
    const char *cpu = hwloc_obj_get_info_by_name(hwloc_get_root_obj(topo), "CPUModel");
    hwloc_obj_t package = cpu ? NULL : hwloc_get_obj_by_type(topo, HWLOC_OBJ_PACKAGE, 0);
    if (package) cpu = hwloc_obj_get_info_by_name(package, "CPUModel");
    if (!hwloc_topology_is_thissystem(topo) || !td_cpu_name(m->cpu, sizeof m->cpu))
        snprintf(m->cpu, sizeof m->cpu, "%s", cpu ? cpu : "");
}

static int by_os_index(const void *pa, const void *pb) {
    const td_numa_node *a = pa, *b = pb;
    return a->os_index < b->os_index ? -1 : a->os_index > b->os_index;
}

static void read_nodes(hwloc_topology_t topo, td_topology *t) {
    for (hwloc_obj_t o = NULL; t->n_nodes < TD_NODES_MAX && (o = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_NUMANODE, o));)
        t->nodes[t->n_nodes++] = (td_numa_node){.os_index = o->os_index, .memory_bytes = o->attr->numanode.local_memory};
    qsort(t->nodes, t->n_nodes, sizeof *t->nodes, by_os_index);
}

/* The node closest to a core: memory without cores (HBM, CXL) may claim the cores of a whole package, so the smallest one
 * counts. */
static uint32_t node_of(hwloc_topology_t topo, const td_topology *t, hwloc_obj_t core) {
    hwloc_obj_t best = NULL;
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_NUMANODE, o));) {
        if (!hwloc_bitmap_isincluded(core->cpuset, o->cpuset)) continue;
        int larger = best ? hwloc_bitmap_weight(o->cpuset) - hwloc_bitmap_weight(best->cpuset) : -1;
        if (larger < 0 || (larger == 0 && o->os_index < best->os_index)) best = o;
    }
    for (uint32_t i = 0; best && i < t->n_nodes; i++)
        if (t->nodes[i].os_index == best->os_index) return i;
    return 0; /* the cgroup leaves the core, but not the memory next to it */
}

/* The largest group of cores below an L3 and a node; the core itself where there is none. */
static hwloc_obj_t cluster_of(hwloc_obj_t core) {
    hwloc_obj_t best = core;
    for (hwloc_obj_t o = core->parent; o && o->memory_arity == 0; o = o->parent) {
        if (o->type == HWLOC_OBJ_GROUP || o->type == HWLOC_OBJ_L2CACHE)
            best = o;
        else if (o->type != HWLOC_OBJ_L1CACHE)
            break;
    }
    return best;
}

/* ---- the order of cores ------------------------------------------------------------------------ */

typedef struct {
    td_core  core;
    uint32_t rank; /* how many cores of its cluster come before it */
    uint32_t nth;  /* how many clusters of its L3 (and node) come before its cluster */
} ranked_core;

static int by_round(const void *pa, const void *pb) {
    const ranked_core *a = pa, *b = pb;
    if (a->core.node != b->core.node) return a->core.node < b->core.node ? -1 : 1;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    if (a->nth != b->nth) return a->nth < b->nth ? -1 : 1;
    return a->core.l3 < b->core.l3 ? -1 : a->core.l3 > b->core.l3;
}

static bool same_l3(const td_core *a, const td_core *b) {
    return a->node == b->node && a->l3 == b->l3;
}

static td_status read_cores(hwloc_topology_t topo, td_topology *t, td_error *err) {
    ranked_core *list = calloc(TD_POOL_WORKERS_MAX, sizeof *list);
    if (!list) return td_fail(err, TD_ENOMEM, "out of memory for the machine's topology");
    uint32_t n = 0;
    for (hwloc_obj_t o = NULL; n < TD_POOL_WORKERS_MAX && (o = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_CORE, o)); n++) {
        hwloc_obj_t l3 = hwloc_get_ancestor_obj_by_type(topo, HWLOC_OBJ_L3CACHE, o), cluster = cluster_of(o);
        ranked_core r = {.core = {.cpu = (uint32_t)hwloc_bitmap_first(o->cpuset),
                                  .node = node_of(topo, t, o),
                                  .l3 = l3 ? l3->logical_index : 0,
                                  .cluster = (uint32_t)hwloc_bitmap_first(cluster->cpuset)}};
        for (uint32_t i = 0; i < n; i++) {
            if (!same_l3(&list[i].core, &r.core)) continue;
            if (list[i].core.cluster == r.core.cluster) {
                r.rank++;
                r.nth = list[i].nth;
            } else if (r.rank == 0 && list[i].rank == 0) {
                r.nth++;
            }
        }
        list[n] = r;
    }
    qsort(list, n, sizeof *list, by_round);
    for (uint32_t i = 0; i < n; i++) {
        td_numa_node *node = &t->nodes[list[i].core.node];
        if (node->n_cores++ == 0) node->first_core = i;
        uint32_t seen = node->first_core;
        while (seen < i && t->cores[seen].l3 != list[i].core.l3) seen++;
        node->n_l3 += seen == i;
        t->cores[i] = list[i].core;
    }
    t->n_cores = n;
    free(list);
    return n ? TD_OK : td_fail(err, TD_EIO, "hwloc finds no core that this process may use");
}

td_status td_topology_read(td_topology *t, td_error *err) {
    hwloc_topology_t topo = NULL;
    memset(t, 0, sizeof *t);
    TD_TRY(td_machine_memory("", &t->machine.memory_bytes, &t->machine.available_bytes, err));
    t->machine.cpu_time = td_machine_cpu_time("");
    TD_TRY(load(&topo, err));
    t->is_real = hwloc_topology_is_thissystem(topo);
    read_machine(topo, &t->machine);
    read_nodes(topo, t);
    td_status st = read_cores(topo, t, err);
    hwloc_topology_destroy(topo);
    t->machine.n_cores = t->n_cores;
    for (uint32_t i = 0; i < t->n_nodes; i++) t->machine.n_nodes += t->nodes[i].n_cores > 0;
    return st;
}
