/* The families, each defined in a file of its own. */
#ifndef TD_MODEL_ARCH_FAMILIES_H
#define TD_MODEL_ARCH_FAMILIES_H

#include "model/arch/arch.h"

extern const td_arch TD_ARCH_DEEPSEEK_V2, TD_ARCH_DEEPSEEK_V3;           /* deepseek.c; V3 is Kimi-K2 too */
extern const td_arch TD_ARCH_KIMI_K25, TD_ARCH_KIMI_K25_OF_TRANSFORMERS; /* deepseek.c: one family, two names */
extern const td_arch TD_ARCH_QWEN2_MOE, TD_ARCH_QWEN3_MOE;               /* qwen_moe.c */
extern const td_arch TD_ARCH_GLM4_MOE;                                   /* glm4_moe.c */
extern const td_arch TD_ARCH_GLM4_MOE_LITE;                              /* glm4_moe_lite.c */
extern const td_arch TD_ARCH_MINIMAX_M2;                                 /* minimax_m2.c */

#endif
