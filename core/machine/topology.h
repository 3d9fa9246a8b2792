/* The machine as hwloc sees it, in plain data: NUMA nodes, and the cores that this process may use. */
#ifndef TD_CORE_MACHINE_TOPOLOGY_H
#define TD_CORE_MACHINE_TOPOLOGY_H

#include "core/threads/pool.h"

#define TD_NODES_MAX TD_POOL_SUBPOOLS_MAX

typedef struct {
    char     cpu[64];                        /* the processor's name, as hwloc tells it; "" where it does not */
    uint32_t n_cores, n_cpus, n_nodes, n_l3; /* n_nodes: those with cores */
    uint64_t l3_bytes;                       /* of all L3 caches */
    uint64_t memory_bytes;                   /* of the machine, or what the cgroups allow if that is less */
    uint64_t available_bytes;                /* likewise, now */
    double   cpu_time; /* cores' time that the cgroups allow (td_machine_cpu_time); INFINITY: no limit */
} td_machine;

typedef struct {
    uint32_t os_index;
    uint32_t n_cores;    /* 0: memory without cores (CXL, HBM) */
    uint32_t first_core; /* in cores[] */
    uint32_t n_l3;
    uint64_t memory_bytes; /* 0: cores without memory */
} td_numa_node;

typedef struct {
    uint32_t cpu;  /* OS index of its first hardware thread that may be used */
    uint32_t node; /* index into nodes[] */
    uint32_t l3;   /* hwloc's logical index of its L3; 0 without one */
    uint32_t
        cluster; /* hwloc's logical index of its group of cores below the L3 (shared L2, L3 tags); without one, its own */
} td_core;

typedef struct {
    td_machine machine;
    bool is_real; /* the machine this runs on; false: made up (HWLOC_SYNTHETIC, HWLOC_XMLFILE), nothing can be bound to it */
    uint32_t     n_nodes, n_cores;
    td_numa_node nodes[TD_NODES_MAX];        /* in order of os_index */
    td_core      cores[TD_POOL_WORKERS_MAX]; /* node by node; within a node in the order in which workers should take them:
                                                each L3 in turn, and of an L3 each cluster in turn */
} td_topology;

/** Read the machine: what the cgroup leaves of it, and the affinity (td_thread_cpus). @return TD_EIO, TD_ENOMEM. */
TD_NODISCARD td_status td_topology_read(td_topology *t, td_error *err);

#endif
