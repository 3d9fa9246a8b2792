/* On which NUMA node pages really lie, whatever was asked for. */
#ifndef TD_CORE_MEMORY_PAGE_NODES_H
#define TD_CORE_MEMORY_PAGE_NODES_H

#include <stddef.h>
#include <stdint.h>

/**
 * How many of up to 256 sampled pages of [p, p + bytes) lie on a node. *n_known counts those whose place the system tells:
 * pages that are present, and none where the kernel has no NUMA or a container forbids the question.
 */
size_t td_pages_on_node(const void *p, size_t bytes, uint32_t node, size_t *n_known);

#endif
