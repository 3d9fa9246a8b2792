#include "model/arch/arch.h"

#include <stdio.h>
#include <string.h>

#include "model/arch/families.h"

static const td_arch *const ARCHS[] = {&TD_ARCH_DEEPSEEK_V2, &TD_ARCH_DEEPSEEK_V3, &TD_ARCH_QWEN2_MOE,
                                       &TD_ARCH_QWEN3_MOE,   &TD_ARCH_GLM4_MOE,    &TD_ARCH_GLM4_MOE_LITE,
                                       &TD_ARCH_MINIMAX_M2,  &TD_ARCH_KIMI_K25,    &TD_ARCH_KIMI_K25_OF_TRANSFORMERS};
#define N_ARCHS (sizeof ARCHS / sizeof *ARCHS)

const td_arch *td_arch_find(const char *name) {
    for (size_t i = 0; i < N_ARCHS; i++)
        if (!strcmp(name, ARCHS[i]->name)) return ARCHS[i];
    return NULL;
}

const char *td_arch_names(char *text, size_t size) {
    size_t at = 0;
    for (size_t i = 0; i < N_ARCHS && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s", i == 0 ? "" : i + 1 < N_ARCHS ? ", " : " and ", ARCHS[i]->name);
    return text;
}

td_layer_caches td_gqa_caches(const td_model_config *c) {
    td_layer_cache heads = {.kind = TD_KV_HEAD, .heads = c->kv_heads, .values = c->head_dim, .split = TD_SPLIT_ROWS};
    return (td_layer_caches){{heads, heads}, 2};
}

td_layer_caches td_mla_caches(const td_model_config *c) {
    return (td_layer_caches){{{.kind = TD_KV_LATENT, .heads = 1, .values = c->kv_lora, .split = TD_SPLIT_WHOLE},
                              {.kind = TD_KV_ROPE, .heads = 1, .values = c->rope_dim, .split = TD_SPLIT_WHOLE}},
                             2};
}
