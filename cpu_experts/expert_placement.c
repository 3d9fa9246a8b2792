/* Where pages really are: move_pages(2) without a target reports each page's node. */
#include <numa.h>
#include <numaif.h>

#include "core/log.h"
#include "cpu_experts/expert_store.h"

#define SAMPLES 256

size_t td_expert_pages_on_node(const void *p, size_t bytes, uint32_t node, size_t *n_known) {
    void  *page[SAMPLES];
    int    where[SAMPLES];
    size_t n_pages = bytes / TD_PAGE_BYTES, n = n_pages < SAMPLES ? n_pages : SAMPLES, n_on = 0;
    *n_known = 0;
    if (n == 0) return 0;
    for (size_t i = 0; i < n; i++) page[i] = (char *)(uintptr_t)p + n_pages * i / n * TD_PAGE_BYTES;
    if (move_pages(0, n, page, NULL, where, 0) != 0) return 0; /* a kernel without NUMA, or a container that forbids it */
    for (size_t i = 0; i < n; i++) {
        *n_known += where[i] >= 0; /* negative: not present */
        n_on += where[i] >= 0 && (uint32_t)where[i] == node;
    }
    return n_on;
}

void td_expert_report_placement(const td_experts *x, uint32_t layer) {
    if (numa_available() < 0 || numa_max_node() == 0) return;
    for (uint32_t s = 0; s < x->layout.n_shards; s++) {
        uint32_t node = td_pool_node(x->pool, s);
        size_t   n_known,
            n_on = td_expert_pages_on_node(expert_shard_data(x, layer, s), x->layout.shard[s].bytes, node, &n_known);
        if (node == TD_NODE_ANY || n_known == 0) continue;
        td_log(n_on == n_known ? TD_LOG_INFO : TD_LOG_WARNING,
               "experts of MoE layer %u, shard %u: %zu of %zu sampled pages lie on node %u", layer, s, n_on, n_known, node);
    }
}
