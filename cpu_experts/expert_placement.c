/* Whether the shards lie where they should. */
#include <numa.h>

#include "core/log/log.h"
#include "core/memory/page_nodes.h"
#include "cpu_experts/expert_state.h"

void td_expert_report_placement(const td_experts *x, uint32_t layer) {
    if (numa_available() < 0 || numa_max_node() == 0) return;
    for (uint32_t s = 0; s < x->layout.n_shards; s++) {
        uint32_t node = td_pool_node(x->pool, s);
        if (node == TD_NODE_ANY || node == TD_NODE_SPREAD) continue;
        size_t n_known, n_on = td_pages_on_node(expert_shard_data(x, layer, s), x->layout.shard[s].bytes, node, &n_known);
        if (n_known == 0) continue;
        td_log(n_on == n_known ? TD_LOG_INFO : TD_LOG_WARNING,
               "experts of MoE layer %u, shard %u: %zu of %zu sampled pages lie on node %u", x->config.first_layer + layer,
               s, n_on, n_known, node);
    }
}
