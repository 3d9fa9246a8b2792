/* How much memory and processor time the machine has, or the cgroups of this process leave of it. */
#ifndef TD_CORE_MACHINE_MACHINE_LIMITS_H
#define TD_CORE_MACHINE_MACHINE_LIMITS_H

#include "tandem.h"

/*
 * The limits of the process's own cgroup and of all above it count, of version 2 and of version 1.
 * root: where /proc and /sys lie: "" but for tests.
 */

/**
 * Pages of files that the system gives back when memory is wanted are available.
 * @param bytes of the machine, or the lowest limit where that is less. @param available_bytes now, the same way.
 * @return TD_EIO when /proc/meminfo does not tell.
 */
TD_NODISCARD td_status td_machine_memory(const char *root, uint64_t *bytes, uint64_t *available_bytes, td_error *err);

/** Processor time that may be used, in cores (docker --cpus, a service's CPUQuota): who has used it up is stopped for a
 * while. INFINITY: no limit. */
double td_machine_cpu_time(const char *root);

#endif
