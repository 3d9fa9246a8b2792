/* The names of the experts' formats. */
#include <string.h>

#include "cpu_experts/cpu_experts.h"
#include "quant/coded_matrix.h"

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
    if (!strcmp(name, "int4-channel")) name = "int4";
    for (size_t i = 0; i < N_NUMBERS; i++)
        if (!strcmp(name, NUMBERS[i].name)) return &NUMBERS[i];
    return NULL;
}

/* Groups as checkpoints have them, which nobody chooses by name. */
#define GROUPS(size)                                                                                                              \
    {{"int4-g" size " (f32 scales)", "int4-g" size " (f32 scales, zeros)"}, {"int4-g" size, "int4-g" size " (zeros)"},            \
     {"int4-g" size " (f16 scales)", "int4-g" size " (f16 scales, zeros)"}}
static const char *const GROUP_NAMES[3][3][2] = {GROUPS("32"), GROUPS("64"), GROUPS("128")}; /* by size, scales, zeros */
_Static_assert(TD_DT_F32 == 0 && TD_DT_BF16 == 1 && TD_DT_F16 == 2, "the order of GROUP_NAMES");

static const char *name_of(td_expert_format format, const td_expert_groups *g) {
    if (format == TD_EXPERT_INT4G) return GROUP_NAMES[g->size / 64][g->scale_dtype][g->zero_points];
    for (size_t i = 0; i < N_NUMBERS; i++)
        if (NUMBERS[i].format == format && (format != TD_EXPERT_FP4G || NUMBERS[i].groups.size == g->size)) return NUMBERS[i].name;
    return "";
}

const char *td_expert_format_name(td_expert_format format, const td_expert_groups *g) { return name_of(format, g); }

bool td_expert_format_carries(td_expert_format format, const td_expert_groups *g, const td_coded_matrix *m) {
    bool words = m->codes >= TD_CODES_ROW_WORDS, whole_rows = m->group >= m->k && m->scale_rows == 1, centred = m->zeros == TD_ZEROS_NONE || m->symmetric;
    if (m->group_of || m->scale_rows != 1 || (m->factor != 1 && format != TD_EXPERT_FP4G)) return false;
    switch (format) {
    case TD_EXPERT_INT4C: return words && m->bits == 4 && whole_rows && centred;
    case TD_EXPERT_INT8C: return (words || m->codes == TD_CODES_INT8) && m->bits == 8 && whole_rows && centred;
    case TD_EXPERT_INT4G:
        return words && m->bits == 4 && (whole_rows || m->group == g->size) && m->scale_dtype == g->scale_dtype && (g->zero_points || centred);
    case TD_EXPERT_FP4G: return m->codes == TD_CODES_E2M1 && m->group == g->size && m->scale_dtype == g->scale_dtype;
    case TD_EXPERT_BF16: break;
    }
    return false;
}

bool td_expert_exact_numbers(const td_coded_matrix *m, td_expert_numbers *out) {
    static const td_expert_format FORMATS[] = {TD_EXPERT_INT4C, TD_EXPERT_INT8C, TD_EXPERT_INT4G, TD_EXPERT_FP4G};
    bool                          whole_rows = m->group >= m->k, centred = m->zeros == TD_ZEROS_NONE || m->symmetric;
    td_expert_groups              groups = {.size = whole_rows ? 128 : (uint16_t)m->group, .scale_dtype = m->scale_dtype, .zero_points = !centred};
    if (!whole_rows && m->group > 128) return false;
    if (m->codes != TD_CODES_E2M1 && groups.size != 32 && groups.size != 64 && groups.size != 128) return false;
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (td_expert_format_carries(FORMATS[i], &groups, m)) {
            *out = (td_expert_numbers){.format = FORMATS[i], .groups = td_expert_has_groups(FORMATS[i]) ? groups : (td_expert_groups){0}};
            out->name = name_of(out->format, &out->groups);
            return true;
        }
    return false;
}
