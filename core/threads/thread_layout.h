/*
 * Which thread runs on which core: expert workers over NUMA nodes and L3 domains, device threads apart from them; and on
 * which node the memory of each lies.
 *
 * DESIGN. The layout is a function of the topology, the measured bandwidth between nodes, and what was asked for.
 *   Homes     Subpools belong to nodes with cores and memory of their own, all of them by default. With fewer subpools than
 *             such nodes, those that read their own memory fastest are chosen, and among equals (within a tenth) those that
 *             read each other fastest. The node that the device's card hangs on comes first: the first subpool has the
 *             thread that reads what the card has copied and writes what it copies back.
 *   Experts   Every subpool gets as many threads as the others, since every shard is as large. It takes cores of its home,
 *             L3 by L3, and where these do not suffice, free cores of the nodes that read the home's memory fastest. Its
 *             memory lies on its home. When at least half of its threads that have a core are elsewhere, the memory is
 *             spread over all nodes with cores, so that every memory channel serves.
 *   Device    Threads of its own take the cores left over, from as few nodes as possible. Its memory lies on their node, or
 *             is spread.
 *   Card      Beside a card, the thread that launches steps and waits for them is busy all the time, and so is the driver's
 *             thread that calls functions of the host. Two cores are left to them, of at most a quarter of all. Without, a
 *             hand-over waits until the system takes the core from an expert thread: some ms a layer.
 *   Surplus   Threads beyond the cores are not pinned, and then no core belongs to a thread alone: a thread that waits soon
 *             gives its core back.
 */
#ifndef TD_CORE_THREADS_THREAD_LAYOUT_H
#define TD_CORE_THREADS_THREAD_LAYOUT_H

#include "core/machine/node_bandwidth.h"
#include "core/machine/topology.h"

typedef struct {
    uint32_t cpuinfer;      /* expert threads; 0: every core, or as many as the cgroup leaves time, less npu_threads and
                             * those of a card */
    uint32_t subpool_count; /* 0: one per node with cores and memory, at most cpuinfer */
    uint32_t npu_threads;   /* 0: the host device shares the expert threads */
    bool     card;          /* the device is a card, whose driver and launches want cores */
    bool     near_card;     /* that hangs on the node card_node, by its os_index */
    uint32_t card_node;
} td_thread_wishes;

typedef struct {
    uint32_t        n_experts; /* workers of the expert pool */
    uint32_t        n_subpools;
    uint32_t        n_npu;                        /* threads of the host device of its own; 0: it uses the expert pool */
    uint32_t        n_unpinned;                   /* threads of both without a core of their own */
    uint32_t        n_left;                       /* cores with none of these threads */
    uint32_t        home[TD_POOL_SUBPOOLS_MAX];   /* [n_subpools] index into the topology's nodes */
    td_worker_place experts[TD_POOL_WORKERS_MAX]; /* [n_experts], subpool by subpool, spread over L3 domains */
    td_worker_place npu[TD_POOL_WORKERS_MAX];     /* [n_npu] */
} td_thread_layout;

/**
 * The layout for a machine of this topology; the machine that this runs on is not read. A bandwidth of 0 is not known: nodes
 * then count by their cores and their order.
 * @return TD_EINVAL when cpuinfer is less than subpool_count, or more is asked for than a pool has room for.
 */
TD_NODISCARD td_status td_thread_layout_of(const td_topology *t, const td_node_bandwidth *b, const td_thread_wishes *w,
                                           td_thread_layout *layout, td_error *err);

/**
 * The layout for this machine: read it, measure between its nodes with `read` where it has several
 * (td_node_bandwidth_measure), and lay its threads out. On a machine that hwloc makes up nothing is measured, and the
 * layout's cpus and nodes are TD_CPU_ANY and TD_NODE_ANY. Logs what it found between nodes; warns about threads without a
 * core, or without the time to use it.
 * @return the statuses of td_topology_read, td_node_bandwidth_measure and td_thread_layout_of.
 */
TD_NODISCARD td_status td_thread_layout_here(td_read_fn read, const td_thread_wishes *w, td_thread_layout *layout,
                                             td_machine *machine, td_error *err);

#endif
