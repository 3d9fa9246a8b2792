#include "model/arch/arch.h"

td_layer_caches td_gqa_caches(const td_model_config *c, uint32_t layer) {
    td_layer_cache heads = {.kind = TD_KV_HEAD, .heads = c->kv_heads, .values = c->head_dim, .split = TD_SPLIT_ROWS};
    (void)layer;
    return (td_layer_caches){{heads, heads}, 2};
}

static td_layer_cache *add_cache(td_layer_caches *list, td_kv_rows kind, uint32_t values) {
    td_layer_cache *cache = &list->cache[list->n++];
    *cache = (td_layer_cache){.kind = kind, .heads = 1, .values = values, .split = TD_SPLIT_WHOLE};
    return cache;
}

td_layer_caches td_mla_caches(const td_model_config *c, uint32_t layer) {
    td_layer_caches list = {0};
    td_index_desc   x = {0};
    td_index_sizes_of(c, layer, &x);
    add_cache(&list, TD_KV_LATENT, c->kv_lora);
    if (c->rope_dim) add_cache(&list, TD_KV_ROPE, c->rope_dim);
    if (x.heads) add_cache(&list, TD_KV_INDEX, x.dim)->tokens = x.pool;
    if (td_index_open_values(&x)) add_cache(&list, TD_KV_STATE, (uint32_t)td_index_open_values(&x))->per = TD_PER_OPEN;
    return list;
}

td_layer_caches td_delta_caches(const td_model_config *c) {
    const td_delta_desc d = {.form = c->delta.form,
                             .key_heads = c->delta.k_heads,
                             .value_heads = c->delta.v_heads,
                             .key_dim = c->delta.k_dim,
                             .value_dim = c->delta.v_dim,
                             .conv_width = c->delta.conv};
    td_layer_cache      state = {.per = TD_PER_STATE,
                                 .kind = TD_KV_STATE,
                                 .heads = c->delta.k_heads,
                                 .values = (uint32_t)td_delta_state_values(&d),
                                 .split = TD_SPLIT_ROWS},
                   open = state;
    open.per = TD_PER_OPEN;
    open.values = (uint32_t)td_delta_open_values(&d);
    return (td_layer_caches){{state, open}, 2};
}

void td_index_sizes_of(const td_model_config *c, uint32_t layer, td_index_desc *out) {
    const bool own = c->sparse.indexed[layer];
    out->top = c->sparse.index_top;
    out->pool = c->sparse.index_pool;
    out->heads = own ? c->sparse.index_heads : 0;
    out->dim = own ? c->sparse.index_dim : 0;
}

void td_sparse_sizes_of(const td_model_config *c, uint32_t layer, td_sparse_desc *out) {
    const bool indexed = c->sparse.indexed[layer];
    out->hidden = c->hidden;
    out->heads = c->heads;
    out->dim = c->head_dim;
    out->rope_dim = c->rope_dim;
    out->q_lora = c->q_lora;
    out->window = c->window;
    out->groups = c->sparse.o_groups;
    out->o_lora = c->sparse.o_lora;
    out->ratio = c->sparse.ratio[layer];
    out->overlap = c->sparse.ratio[layer] == TD_OVERLAP_RATIO;
    out->index_heads = indexed ? c->sparse.index_heads : 0;
    out->index_dim = indexed ? c->sparse.index_dim : 0;
    out->index_top = indexed ? c->sparse.index_top : 0;
    out->eps = c->eps;
}
