/* The machine (hwloc), and the plan of who works where: expert workers over NUMA nodes and L3 domains, device threads apart. */
#ifndef TD_CORE_TOPOLOGY_H
#define TD_CORE_TOPOLOGY_H

#include "core/pool.h"

typedef struct {
    uint32_t n_experts;                              /* workers of the expert pool */
    uint32_t n_subpools;
    uint32_t n_npu;                                  /* threads of the host device of its own; 0: it uses the expert pool */
    td_worker_place experts[TD_POOL_WORKERS_MAX];    /* [n_experts], subpool by subpool, spread over L3 domains */
    td_worker_place npu[TD_POOL_WORKERS_MAX];        /* [n_npu] */
} td_thread_plan;

typedef struct {
    char     cpu[64];         /* the processor's name, as hwloc tells it; "" where it does not */
    uint32_t n_cores, n_cpus, n_nodes, n_l3;
    uint64_t l3_bytes;        /* of all L3 caches */
    uint64_t memory_bytes;    /* of the machine, or of its cgroup where that is less */
    uint64_t available_bytes; /* now, the same way */
} td_machine;

/**
 * Plan the threads.
 * @param cpuinfer      expert threads; 0: every physical core this process may use, less npu_threads.
 * @param subpool_count 0: one per NUMA node that has cores, at most cpuinfer.
 * @param npu_threads   0: the host device shares the expert threads.
 * More threads than cores is allowed (tests do it) with a warning: the surplus is not pinned.
 * @return TD_EINVAL when cpuinfer is less than subpool_count.
 */
TD_NODISCARD td_status td_topology_plan(uint32_t cpuinfer, uint32_t subpool_count, uint32_t npu_threads, td_thread_plan *plan,
                                        td_machine *machine, td_error *err);

#endif
