/* The memory of a layer: of its own on the shards' nodes, or a mapped file. And whether the shards lie where they should. */
#include <numa.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/memory/page_nodes.h"
#include "cpu_experts/expert_state.h"

td_status td_expert_layer_memory(td_experts *x, uint32_t layer, td_error *err) {
    void **shards = x->shard_data + (size_t)layer * x->layout.n_shards;
    if (x->files[layer].base) td_expert_layer_release(x, layer);
    td_expert_origin_close(x, layer);
    x->loaded[layer] = false;
    for (uint32_t s = 0; s < x->layout.n_shards; s++)
        if (!shards[s]) TD_TRY(td_mem_map(x->layout.shard[s].bytes, td_pool_node(x->pool, s), &shards[s], err));
    return TD_OK;
}

void td_expert_layer_release(td_experts *x, uint32_t layer) {
    void **shards = x->shard_data + (size_t)layer * x->layout.n_shards;
    bool   mapped = x->files[layer].base != NULL;
    td_expert_origin_close(x, layer);
    x->loaded[layer] = false;
    for (uint32_t s = 0; s < x->layout.n_shards; s++) {
        if (!mapped) td_mem_unmap(shards[s], x->layout.shard[s].bytes);
        shards[s] = NULL;
    }
    td_file_map_close(&x->files[layer]);
}

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
