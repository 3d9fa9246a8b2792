/* Matrices in the codes of a checkpoint for tests, of every kind of group that devices take, beside the values that they
 * were packed from. */
#ifndef TD_TESTS_CODED_MATRICES_H
#define TD_TESTS_CODED_MATRICES_H

#include "npu_test_util.h"

#include "quant/coded_matrix.h"

typedef struct {
    td_coded_matrix  m;
    td_weight_format format;
    size_t           groups;
    uint8_t         *codes, *zeros; /* [n, k], [n, groups] */
    float           *scales;        /* [n, groups] */
    void            *memory[3];     /* as a checkpoint has them */
} coded;

static const struct {
    td_dtype         dtype;
    uint16_t         size;
    bool             zeros;
    td_weight_format format;
} KINDS[] = {{TD_DT_BF16, 32, false, TD_WEIGHT_INT4G},   {TD_DT_F16, 64, true, TD_WEIGHT_INT4G},
             {TD_DT_F32, 128, true, TD_WEIGHT_INT4G},    {TD_DT_BF16, 0, false, TD_WEIGHT_INT4G},
             {TD_DT_F8_E8M0, 32, false, TD_WEIGHT_FP4G}, {TD_DT_F8_E4M3, 16, false, TD_WEIGHT_FP4G}};
enum { N_KINDS = sizeof KINDS / sizeof *KINDS };

/* Size 0: one scale for a row. Scales are powers of two times 1, 1.25, 1.5 or 1.75: exact in every type but e8m0. */
static inline coded make_coded(rnd *r, size_t kind, size_t n, size_t k) {
    bool      fp4 = KINDS[kind].format == TD_WEIGHT_FP4G;
    size_t    size = KINDS[kind].size ? KINDS[kind].size : k;
    coded     c = {.format = KINDS[kind].format, .groups = (k + size - 1) / size, .codes = malloc(n * k)};
    size_t    n_scales = n * c.groups, words = fp4 ? k / 2 : (k + 7) / 8 * 4, element = td_dtype_bytes(KINDS[kind].dtype);
    uint8_t  *data = calloc(n, words), *scale = calloc(n_scales, element);
    uint32_t *zero = calloc((n + 7) / 8 * c.groups, sizeof *zero);
    c.zeros = malloc(n_scales), c.scales = malloc(n_scales * sizeof *c.scales);
    for (size_t i = 0; i < n * k; i++) {
        c.codes[i] = rnd_u64(r) & 15;
        data[i / k * words + i % k / 2] |= (uint8_t)(c.codes[i] << 4 * (i % k & 1));
    }
    for (size_t i = 0; i < n_scales; i++) {
        int   e = (int)rnd_range(r, 0, 5) - 6, quarters = KINDS[kind].dtype == TD_DT_F8_E8M0 ? 0 : (int)rnd_range(r, 0, 3);
        float f = ldexpf(4 + (float)quarters, e - 2);
        uint32_t    f32 = (uint32_t)(e + 127) << 23 | (uint32_t)quarters << 21;
        uint16_t    bf16 = (uint16_t)(f32 >> 16), f16 = (uint16_t)((e + 15) << 10 | quarters << 8);
        uint8_t     e8m0 = (uint8_t)(e + 127), e4m3 = (uint8_t)((e + 7) << 3 | quarters << 1);
        const void *bits = KINDS[kind].dtype == TD_DT_F32       ? (void *)&f32
                           : KINDS[kind].dtype == TD_DT_BF16    ? (void *)&bf16
                           : KINDS[kind].dtype == TD_DT_F16     ? (void *)&f16
                           : KINDS[kind].dtype == TD_DT_F8_E8M0 ? (void *)&e8m0
                                                                : (void *)&e4m3;
        memcpy(scale + i * element, bits, element);
        c.scales[i] = f;
        c.zeros[i] = KINDS[kind].zeros ? rnd_u64(r) & 15 : 8;
        size_t row = i / c.groups, g = i % c.groups;
        zero[row / 8 * c.groups + g] |= (uint32_t)c.zeros[i] << row % 8 * 4;
    }
    c.m = WITH(td_coded_matrix, .codes = fp4 ? TD_CODES_E2M1 : TD_CODES_ROW_WORDS, .bits = 4, .n = n, .k = k, .stored_n = n,
               .stored_k = k, .data = data, .scale_dtype = KINDS[kind].dtype, .scale = scale, .scale_rows = 1,
               .scale_row_step = c.groups, .scale_group_step = 1, .group = size,
               .zeros = KINDS[kind].zeros ? TD_ZEROS_ROW_WORDS : TD_ZEROS_NONE, .zero = zero,
               .factor = KINDS[kind].dtype == TD_DT_F8_E4M3 ? 0.3f : 1);
    c.memory[0] = data, c.memory[1] = scale, c.memory[2] = zero;
    return c;
}

static inline void free_coded(coded *c) {
    free(c->codes), free(c->zeros), free(c->scales);
    for (size_t i = 0; i < 3; i++) free(c->memory[i]);
}

static inline td_tensor_view view_of(const coded *c) {
    return (td_tensor_view){.dtype = TD_DT_F32, .rank = 2, .shape = {c->m.n, c->m.k}, .coded = &c->m};
}

static const int TWICE_E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Twice the value of a code, before its scale. */
static inline int twice(const coded *c, size_t row, size_t col) {
    int code = c->codes[row * c->m.k + col];
    return c->format == TD_WEIGHT_FP4G ? TWICE_E2M1[code] : 2 * (code - c->zeros[row * c->groups + col / c->m.group]);
}

/* [n, k] */
static inline float *values_of(const coded *c) {
    float *w = malloc(c->m.n * c->m.k * sizeof *w);
    for (size_t i = 0; i < c->m.n * c->m.k; i++)
        w[i] = 0.5f * (float)twice(c, i / c->m.k, i % c->m.k) * c->scales[i / c->m.k * c->groups + i % c->m.k / c->m.group] *
               c->m.factor;
    return w;
}

#endif
