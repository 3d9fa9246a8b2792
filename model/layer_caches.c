#include "model/layer_caches.h"

td_layer_caches td_layer_caches_of(const td_model_config *c, uint32_t layer) {
    return c->arch->caches(c, layer);
}

/* Rows whose numbers the spec chooses; others have numbers of their own. */
static bool takes_int8(td_kv_rows kind) {
    return kind == TD_KV_HEAD || kind == TD_KV_LATENT || kind == TD_KV_ROPE;
}

size_t td_layer_cache_unit_bytes(const td_layer_cache *cache, const td_model_spec *s, td_npu *d) {
    size_t heads = cache->split == TD_SPLIT_ROWS ? cache->heads / s->n_cards : cache->heads;
    if (cache->kind == TD_KV_STATE) return heads * cache->values * sizeof(float);
    td_kv_rows rows = s->kv_int8 && takes_int8(cache->kind) ? TD_KV_INT8 : cache->kind;
    return heads * d->ops->kv_page_bytes(d, rows, cache->values) / (cache->tokens ? cache->tokens : 1);
}

bool td_layer_caches_take_int8(const td_model_config *c, td_layer_range layers) {
    for (uint32_t layer = layers.first; layer < layers.end; layer++) {
        td_layer_caches list = td_layer_caches_of(c, layer);
        for (uint32_t i = 0; i < list.n; i++)
            if (list.cache[i].kind == TD_KV_ROW) return false;
    }
    return true;
}

uint64_t td_layer_caches_unit_bytes(const td_model_config *c, td_layer_range layers, td_cache_per per,
                                    const td_model_spec *s, td_npu *d) {
    uint64_t sum = 0;
    for (uint32_t layer = layers.first; layer < layers.end; layer++) {
        td_layer_caches list = td_layer_caches_of(c, layer);
        for (uint32_t i = 0; i < list.n; i++)
            if (list.cache[i].per == per) sum += td_layer_cache_unit_bytes(&list.cache[i], s, d);
    }
    return sum;
}

bool td_layer_caches_recurrent(const td_model_config *c, td_layer_range layers) {
    for (uint32_t layer = layers.first; layer < layers.end; layer++) {
        td_layer_caches list = td_layer_caches_of(c, layer);
        for (uint32_t i = 0; i < list.n; i++)
            if (list.cache[i].per == TD_PER_STATE) return true;
    }
    return false;
}

uint32_t td_layer_caches_window(const td_model_config *c, td_layer_range layers) {
    uint32_t most = 0;
    for (uint32_t layer = layers.first; layer < layers.end; layer++) {
        td_layer_caches list = td_layer_caches_of(c, layer);
        for (uint32_t i = 0; i < list.n; i++)
            if (list.cache[i].per == TD_PER_WINDOW && list.cache[i].window > most) most = list.cache[i].window;
    }
    return most;
}

uint32_t td_layer_caches_cut_heads(const td_model_config *c, td_cache_per per) {
    td_layer_range all = td_all_layers(c);
    for (uint32_t layer = all.first; layer < all.end; layer++) {
        td_layer_caches list = td_layer_caches_of(c, layer);
        for (uint32_t i = 0; i < list.n; i++)
            if (list.cache[i].per == per && list.cache[i].split == TD_SPLIT_ROWS) return list.cache[i].heads;
    }
    return 0;
}

uint32_t td_layer_caches_one_form_from(const td_model_config *c) {
    td_layer_range all = td_all_layers(c);
    for (uint32_t layer = all.first; layer < all.end; layer++) {
        td_layer_caches list = td_layer_caches_of(c, layer);
        for (uint32_t i = 0; i < list.n; i++)
            if (list.cache[i].kind == TD_KV_LATENT) {
                td_index_desc x = {0};
                td_index_sizes_of(c, layer, &x);
                return td_model_chooses_tokens(c) ? td_index_first(&x) : UINT32_MAX;
            }
    }
    return 0;
}
