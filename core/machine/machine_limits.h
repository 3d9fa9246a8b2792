/* How much memory and processor time this process may use: what the machine has and its cgroups allow. */
#ifndef TD_CORE_MACHINE_MACHINE_LIMITS_H
#define TD_CORE_MACHINE_MACHINE_LIMITS_H

#include "tandem.h"

/*
 * The limits of the process's own cgroup and of all above it count, for version 2 and version 1.
 * root: the folder that /proc and /sys lie in; "" except in tests.
 */

/**
 * Memory, all and available. Pages of files that the system gives back when memory is wanted count as available.
 * @param bytes of the machine, or the lowest limit if that is less. @param available_bytes likewise, now.
 * @return TD_EIO when /proc/meminfo does not tell.
 */
TD_NODISCARD td_status td_machine_memory(const char *root, uint64_t *bytes, uint64_t *available_bytes, td_error *err);

/** Processor time that may be used, in cores (docker --cpus, a service's CPUQuota). A process that has used it up is
 * stopped for a while. INFINITY: no limit. */
double td_machine_cpu_time(const char *root);

#endif
