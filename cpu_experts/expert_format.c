/* The names of the experts' formats. */
#include <string.h>

#include "cpu_experts/cpu_experts.h"

static const td_expert_numbers NUMBERS[] = {
    {"none", TD_EXPERT_BF16, {0}},
    {"int4", TD_EXPERT_INT4C, {0}},
    {"int8", TD_EXPERT_INT8C, {0}},
    {"int4-g32", TD_EXPERT_INT4G, {.size = 32, .scale_dtype = TD_DT_BF16}},
    {"int4-g64", TD_EXPERT_INT4G, {.size = 64, .scale_dtype = TD_DT_BF16}},
    {"mxfp4", TD_EXPERT_FP4G, {.size = 32, .scale_dtype = TD_DT_F8_E8M0}},
    {"nvfp4", TD_EXPERT_FP4G, {.size = 16, .scale_dtype = TD_DT_F8_E4M3}},
    {"int4-g128", TD_EXPERT_INT4G, {.size = 128, .scale_dtype = TD_DT_BF16}},
};

#define N_NUMBERS (sizeof NUMBERS / sizeof *NUMBERS)

const td_expert_numbers *td_expert_numbers_at(size_t i) {
    return i < N_NUMBERS ? &NUMBERS[i] : NULL;
}

const td_expert_numbers *td_expert_numbers_find(const char *name) {
    for (size_t i = 0; i < N_NUMBERS; i++)
        if (!strcmp(name, NUMBERS[i].name)) return &NUMBERS[i];
    return NULL;
}
