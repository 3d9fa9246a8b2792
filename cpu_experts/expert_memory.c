/* The memory of a layer: of its own on the shards' nodes, or a mapped file. */
#include "core/error.h"
#include "cpu_experts/expert_state.h"

td_status td_expert_layer_memory(td_experts *x, uint32_t layer, td_error *err) {
    void **shards = x->shard_data + (size_t)layer * x->layout.n_shards;
    if (x->files[layer].base) td_expert_layer_release(x, layer);
    x->loaded[layer] = false;
    for (uint32_t s = 0; s < x->layout.n_shards; s++)
        if (!shards[s]) TD_TRY(td_mem_map(x->layout.shard[s].bytes, td_pool_node(x->pool, s), &shards[s], err));
    return TD_OK;
}

void td_expert_layer_release(td_experts *x, uint32_t layer) {
    void **shards = x->shard_data + (size_t)layer * x->layout.n_shards;
    bool   mapped = x->files[layer].base != NULL;
    x->loaded[layer] = false;
    for (uint32_t s = 0; s < x->layout.n_shards; s++) {
        if (!mapped) td_mem_unmap(shards[s], x->layout.shard[s].bytes);
        shards[s] = NULL;
    }
    td_file_map_close(&x->files[layer]);
}
