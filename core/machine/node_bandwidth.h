/* How fast the cores of each NUMA node read the memory of each: measured, because what firmware tells (SLIT, HMAT) is
 * relative, coarse, or wrong. */
#ifndef TD_CORE_MACHINE_NODE_BANDWIDTH_H
#define TD_CORE_MACHINE_NODE_BANDWIDTH_H

#include "core/machine/topology.h"

/** Reads `bytes` from p, both multiples of 4 KiB, as fast as a core can: a loop for its instruction set (kernels/kernels.h).
 */
typedef void (*td_read_fn)(const char *p, size_t bytes);

typedef struct {
    /** [cores of node][memory of node], bytes per second, by index in the topology; 0: not known. */
    double read[TD_NODES_MAX][TD_NODES_MAX];
} td_node_bandwidth;

#define TD_NODE_BANDWIDTH_START_S 0.1 /* time for it when the engine starts */

/**
 * Measure each pair of nodes: all usable cores of one read a buffer on the other, after it was flushed from the caches.
 * Rounds over all pairs go on for about `seconds` (mapping the buffers comes on top), and the best of each pair counts.
 * Local reads come first, so that they are known when time runs out. A pair stays unknown if the system did not give memory
 * on that node. The calling thread's affinity is changed meanwhile and restored.
 * @return TD_ENOMEM, TD_EINVAL (a topology that is not real).
 */
TD_NODISCARD td_status td_node_bandwidth_measure(const td_topology *t, td_read_fn read, double seconds,
                                                 td_node_bandwidth *out, td_error *err);

#endif
