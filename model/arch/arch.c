#include "model/arch/arch.h"

td_layer_caches td_gqa_caches(const td_model_config *c, uint32_t layer) {
    td_layer_cache heads = {.kind = TD_KV_HEAD, .heads = c->kv_heads, .values = c->head_dim, .split = TD_SPLIT_ROWS};
    (void)layer;
    return (td_layer_caches){{heads, heads}, 2};
}

td_layer_caches td_mla_caches(const td_model_config *c, uint32_t layer) {
    (void)layer;
    return (td_layer_caches){{{.kind = TD_KV_LATENT, .heads = 1, .values = c->kv_lora, .split = TD_SPLIT_WHOLE},
                              {.kind = TD_KV_ROPE, .heads = 1, .values = c->rope_dim, .split = TD_SPLIT_WHOLE}},
                             2};
}
