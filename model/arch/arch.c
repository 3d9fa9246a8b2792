#include "model/arch/arch.h"

#include <stdio.h>
#include <string.h>

#include "model/arch/families.h"

static const td_arch *const ARCHS[] = {&TD_ARCH_DEEPSEEK_V2, &TD_ARCH_DEEPSEEK_V3, &TD_ARCH_QWEN2_MOE,
                                       &TD_ARCH_QWEN3_MOE,   &TD_ARCH_GLM4_MOE,    &TD_ARCH_GLM4_MOE_LITE,
                                       &TD_ARCH_MINIMAX_M2,  &TD_ARCH_KIMI_K25,    &TD_ARCH_KIMI_K25_OF_TRANSFORMERS,
                                       &TD_ARCH_GPT_OSS};
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

/* ---- what several families have ---------------------------------------------------------------- */

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

/* clang-format off */
#define DENSE_LAYER(attention) {                                              \
    {TD_LAYER_NORM, TD_ROLE_INPUT_NORM},    /* h = norm(x) */                 \
    {.kind = TD_LAYER_##attention},         /* a = attention(h) */            \
    {TD_LAYER_ADD_NORM, TD_ROLE_POST_NORM}, /* x += a, h = norm(x) */         \
    {.kind = TD_LAYER_MLP},                 /* m = mlp(h) */                  \
    {.kind = TD_LAYER_ADD},                 /* x += m */                      \
    {.kind = TD_LAYER_END},                                                   \
}
#define MOE_LAYER(attention) {                                                \
    {TD_LAYER_NORM, TD_ROLE_INPUT_NORM},    /* h = norm(x) */                 \
    {.kind = TD_LAYER_##attention},         /* a = attention(h) */            \
    {TD_LAYER_ADD_NORM, TD_ROLE_POST_NORM}, /* x += a, h = norm(x) */         \
    {.kind = TD_LAYER_ROUTE},               /* e, w = router(h) */            \
    {.kind = TD_LAYER_SHARED},              /* m = shared expert(h) */        \
    {.kind = TD_LAYER_ADD_EXPERTS},         /* x += m + sum of w * experts e(h) */ \
    {.kind = TD_LAYER_END},                                                   \
}
/* clang-format on */

const td_layer_op *td_gqa_layer(const td_model_config *c, uint32_t layer) {
    static const td_layer_op DENSE[] = DENSE_LAYER(GQA), MOE[] = MOE_LAYER(GQA);
    return c->is_moe[layer] ? MOE : DENSE;
}

const td_layer_op *td_mla_layer(const td_model_config *c, uint32_t layer) {
    static const td_layer_op DENSE[] = DENSE_LAYER(MLA), MOE[] = MOE_LAYER(MLA);
    return c->is_moe[layer] ? MOE : DENSE;
}
