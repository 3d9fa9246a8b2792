#include "model/arch/model_config.h"

uint32_t td_moe_layers_in(const td_model_config *c, td_layer_range r) {
    uint32_t n = 0;
    for (uint32_t i = r.first; i < r.end; i++) n += c->is_moe[i];
    return n;
}

uint32_t td_model_config_moe_layers(const td_model_config *c) {
    return td_moe_layers_in(c, td_all_layers(c));
}
