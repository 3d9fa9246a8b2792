/* What a process keeps that looks at a stranger's file: its socket, some memory, some time. */
#ifndef TD_IMAGE_IMAGE_SANDBOX_H
#define TD_IMAGE_IMAGE_SANDBOX_H

#include <stdbool.h>
#include <stdint.h>

/**
 * Give up everything else, for good: descriptors beyond 2, new files, processes and core dumps, memory and processor time
 * beyond the limits, and new rights by any program. Where the kernel has seccomp filters, also every system call that
 * computing and talking over an open socket do not need: it fails with EPERM, and memory cannot be made executable.
 * A build with sanitizers, which need more, limits neither memory nor calls.
 * @param memory_bytes address space beside that of now.
 * @return false where a limit could not be set.
 */
bool td_image_confine(uint64_t memory_bytes, uint32_t time_s);

#endif
