/* The families, each defined in a file of this folder. */
#ifndef TD_MODEL_ARCH_FAMILIES_H
#define TD_MODEL_ARCH_FAMILIES_H

#include "model/arch/arch.h"

/* Each family is a line here: X(NAME) for the td_arch TD_ARCH_NAME. */
#define TD_FAMILIES(X)                                                                     \
    X(DEEPSEEK_V2)                                                                         \
    X(DEEPSEEK_V3) /* Kimi-K2 too */                                                       \
    X(QWEN2_MOE)                                                                           \
    X(QWEN3_MOE)                                                                           \
    X(QWEN3_VL_MOE)                                                                        \
    X(GLM4_MOE)                                                                            \
    X(GLM4_MOE_LITE)                                                                       \
    X(MINIMAX_M2)                                                                          \
    X(KIMI_K25)                                                                            \
    X(KIMI_K25_OF_TRANSFORMERS) /* the same family under the name that transformers has */ \
    X(GPT_OSS)                                                                             \
    X(QWEN3_NEXT)                                                                          \
    X(QWEN3_5_MOE_TEXT)                                                                    \
    X(QWEN3_5_MOE)                                                                         \
    X(DEEPSEEK_V4)                                                                         \
    X(DEEPSEEK_V32)                                                                        \
    X(GLM_MOE_DSA)                                                                         \
    X(KIMI_LINEAR)                                                                         \
    X(GLM5_NEXT)

#define TD_DECLARE_FAMILY(NAME) extern const td_arch TD_ARCH_##NAME;
TD_FAMILIES(TD_DECLARE_FAMILY)
#undef TD_DECLARE_FAMILY

/** Of Qwen3-VL (qwen3_vl.c), whose language model is qwen_moe.c's: td_arch.read_vision and encoder. */
void td_qwen3_vl_read_vision(td_config_reader *r, td_model_config *c);
void td_qwen3_vl_encoder(td_vision_pass *p, const td_vision_config *c, uint32_t out);

/** The family of this name in `architectures`; NULL: not supported. */
const td_arch *td_arch_find(const char *name);

/** "A, B and C": the names of all, for sentences. Returns text. */
const char *td_arch_names(char *text, size_t size);

#endif
