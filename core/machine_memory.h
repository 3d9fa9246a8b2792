/* How much memory the machine has, or the cgroups of this process leave of it. */
#ifndef TD_CORE_MACHINE_MEMORY_H
#define TD_CORE_MACHINE_MEMORY_H

#include "tandem.h"

/**
 * The limits of the process's own memory cgroup and of all above it count, of version 2 and of version 1; pages of files that the system gives
 * back when memory is wanted are available.
 * @param root  where /proc and /sys lie: "" but for tests.
 * @param bytes of the machine, or the lowest limit where that is less. @param available_bytes now, the same way.
 * @return TD_EIO when /proc/meminfo does not tell.
 */
TD_NODISCARD td_status td_machine_memory(const char *root, uint64_t *bytes, uint64_t *available_bytes, td_error *err);

#endif
