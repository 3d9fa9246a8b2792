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
    {"int4-g128", TD_EXPERT_INT4G, {.size = 128, .scale_dtype = TD_DT_BF16}},
    {"mxfp4", TD_EXPERT_FP4G, {.size = 32, .scale_dtype = TD_DT_F8_E8M0}},
    {"nvfp4", TD_EXPERT_FP4G, {.size = 16, .scale_dtype = TD_DT_F8_E4M3}},
};

#define N_NUMBERS (sizeof NUMBERS / sizeof *NUMBERS)

bool td_expert_takes_int8(td_expert_format format) {
    return format != TD_EXPERT_BF16;
}

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
#define GROUPS(size)                                                                                                        \
    {                                                                                                                       \
        {"int4-g" size " (f32 scales)", "int4-g" size " (f32 scales, zeros)"}, {"int4-g" size, "int4-g" size " (zeros)"}, { \
            "int4-g" size " (f16 scales)", "int4-g" size " (f16 scales, zeros)"                                             \
        }                                                                                                                   \
    }
static const char *const GROUP_NAMES[3][3][2] = {GROUPS("32"), GROUPS("64"), GROUPS("128")}; /* by size, scales, zeros */
_Static_assert(TD_DT_F32 == 0 && TD_DT_BF16 == 1 && TD_DT_F16 == 2, "the order of GROUP_NAMES");

const char *td_expert_format_name(td_expert_format format, const td_expert_groups *g) {
    if (format == TD_EXPERT_INT4G) return GROUP_NAMES[g->size / 64][g->scale_dtype][g->zero_points];
    for (size_t i = 0; i < N_NUMBERS; i++)
        if (NUMBERS[i].format == format && (format != TD_EXPERT_FP4G || NUMBERS[i].groups.size == g->size))
            return NUMBERS[i].name;
    return "";
}

bool td_expert_format_carries(td_expert_format format, const td_expert_groups *g, const td_coded_matrix *m) {
    bool words = td_coded_is_unsigned(m), whole_rows = m->group >= m->k, centred = m->zeros == TD_ZEROS_NONE || m->symmetric;
    bool per_row = whole_rows && centred && !m->group_of && m->scale_rows == 1 && m->factor == 1;
    td_gemm_groups own = {0};
    td_coded_tiles tiles = td_coded_exact_tiles(m, &own);
    switch (format) {
        case TD_EXPERT_INT4C: return per_row && words && m->bits == 4;
        case TD_EXPERT_INT8C: return per_row && (words || m->codes == TD_CODES_INT8) && m->bits == 8;
        case TD_EXPERT_INT4G:
            return tiles == TD_CODED_INT4G && (whole_rows || own.size == g->size) && own.scale_dtype == g->scale_dtype &&
                   (g->zero_points || !own.zero_points);
        case TD_EXPERT_FP4G: return tiles == TD_CODED_FP4G && own.size == g->size && own.scale_dtype == g->scale_dtype;
        case TD_EXPERT_BF16: break;
    }
    return false;
}

bool td_expert_exact_numbers(const td_coded_matrix *m, td_expert_numbers *out) {
    static const td_expert_format PER_ROW[] = {TD_EXPERT_INT4C, TD_EXPERT_INT8C};
    td_gemm_groups                groups = {0};
    td_coded_tiles                tiles = td_coded_exact_tiles(m, &groups);
    *out = (td_expert_numbers){.format = tiles == TD_CODED_FP4G ? TD_EXPERT_FP4G : TD_EXPERT_INT4G};
    if (tiles != TD_CODED_ROUNDED) out->groups = groups;
    for (size_t i = 0; i < sizeof PER_ROW / sizeof *PER_ROW; i++)
        if (td_expert_format_carries(PER_ROW[i], &groups, m)) *out = (td_expert_numbers){.format = PER_ROW[i]};
    out->name = td_expert_format_name(out->format, &out->groups);
    return td_expert_format_carries(out->format, &out->groups, m);
}
