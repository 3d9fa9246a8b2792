/* Weights that a loaded layer gives back are those that rounding gave, whatever the format, the shards, and the rows that
 * are asked for. */
#include <math.h>

#include <stdatomic.h>

#include "core/error.h"
#include "core/math/small_float.h"
#include "kernels/rows/convert.h"
#include "quant/weight_quant.h"
#include "tests/cpu_experts/expert_fixture.h"
#include "tests/cpu_experts/load_views.h"
#include "tests/td_test.h"

AT_END_OF(end_experts, td_experts, td_experts_destroy)
AT_END_OF(end_pool, td_pool, td_pool_destroy)

#define SEED 31337u
enum { N_EXPERTS = 3, HIDDEN = 200, INTER = 90, MOST = HIDDEN * INTER };

static td_experts *loaded(td_expert_format format, td_pool *pool, const fixture_weights *w) {
    td_experts_config c =
        WITH(td_experts_config, .n_layers = 2, .n_experts = N_EXPERTS, .hidden = HIDDEN, .inter = INTER, .top_k = 1,
             .format = format, .groups = fixture_groups(format), .act_dtype = TD_DT_F32, .max_tok = 1);
    td_experts *x;
    td_error    err = {0};
    OK(td_experts_create(&c, pool, &x, &err));
    OK(load_views(x, 1, w->experts, &err));
    return x;
}

/* One row by the functions of quant/. */
static void expected_row(td_expert_format format, const float *w, size_t k, float factor, float *out) {
    static int8_t  q[HIDDEN + 64];
    static uint8_t u[HIDDEN + 64];
    float          scale[HIDDEN / 16 + 2], tmp[HIDDEN];
    switch (format) {
        case TD_EXPERT_BF16:
            for (size_t i = 0; i < k; i++) out[i] = td_bf16_to_f32(td_f32_to_bf16(w[i]));
            break;
        case TD_EXPERT_INT4C:
        case TD_EXPERT_INT8C:
            assert_true((format == TD_EXPERT_INT4C ? td_quantize_weight_i4 : td_quantize_weight_i8)(TD_DT_F32, w, 1, k, q, k,
                                                                                                    scale));
            for (size_t i = 0; i < k; i++) out[i] = (float)q[i] * scale[0];
            break;
        case TD_EXPERT_INT4G:
            assert_true(td_quantize_weight_i4_groups(TD_DT_F32, w, 1, k, 32, TD_DT_BF16, u, (k + 31) / 32 * 32, scale, tmp));
            for (size_t i = 0; i < k; i++) out[i] = (float)((int)u[i] - 8) * scale[i / 32];
            break;
        case TD_EXPERT_FP4G:
            assert_true(td_quantize_weight_fp4_groups(TD_DT_F32, w, 1, k, 16, TD_DT_F8_E4M3, factor, u, (k + 15) / 16 * 16,
                                                      scale, tmp));
            for (size_t i = 0; i < k; i++) out[i] = (float)td_e2m1_twice(u[i]) / 2 * scale[i / 16] * factor;
            break;
    }
}

static void check(td_expert_format format, uint32_t n_shards) {
    AT_END(end_pool) td_pool                    *pool = fixture_pool(n_shards + 1, n_shards);
    AT_END(fixture_weights_free) fixture_weights w = fixture_weights_new(SEED, N_EXPERTS, HIDDEN, INTER);
    AT_END(end_experts) td_experts              *x = loaded(format, pool, &w);
    float                                       *got = malloc(MOST * sizeof *got), want[HIDDEN];
    FREED int8_t                                *codes = malloc(MOST);
    float                                        scale[HIDDEN * (HIDDEN / 32 + 1)];
    td_error                                     err = {0};
    bool                integers = format == TD_EXPERT_INT4C || format == TD_EXPERT_INT8C || format == TD_EXPERT_INT4G;
    static const size_t RANGES[][2] = {
        {0, SIZE_MAX}, {0, 1}, {31, 2}, {33, 40}, {INTER - 1, 1}}; /* first row, rows; SIZE_MAX: all */
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        for (td_expert_matrix m = TD_EXPERT_GATE; m <= TD_EXPERT_DOWN; m++)
            for (size_t i = 0; i < sizeof RANGES / sizeof *RANGES; i++) {
                const td_tensor_view *view = td_expert_view(&w.experts[e], m);
                size_t k = view->shape[1], row = RANGES[i][0], n = RANGES[i][1] == SIZE_MAX ? view->shape[0] : RANGES[i][1];
                size_t size = format == TD_EXPERT_INT4G ? 32 : k, in_row = (k + size - 1) / size; /* scales */
                float  factor = td_fp4_factor(td_amax(TD_DT_F32, view->data, view->shape[0] * k));
                OK(td_experts_get_values(x, 1, e, m, row, n, got, &err));
                assert_int_equal(td_experts_get_codes(x, 1, e, m, row, n, codes, scale, &err),
                                 integers ? TD_OK : TD_ENOTSUP);
                for (size_t r = 0; r < n; r++) {
                    expected_row(format, (const float *)view->data + (row + r) * k, k, factor, want);
                    assert_memory_equal(got + r * k, want, k * sizeof *want);
                    for (size_t j = 0; integers && j < k; j++)
                        assert_true((float)codes[r * k + j] * scale[r * in_row + j / size] == want[j]);
                }
            }
    free(got);
}

TEST(every_format_gives_what_rounding_gave) {
    for (td_expert_format f = 0; f < TD_EXPERT_FORMATS; f++) {
        check(f, 1);
        check(f, 3);
    }
}

/* Weights rounded outside the store give the layer that rounding inside it gives. */
TEST(codes_from_outside_give_the_same_layer) {
    static const td_expert_format FORMATS[] = {TD_EXPERT_INT4C, TD_EXPERT_INT8C, TD_EXPERT_INT4G};
    for (size_t f = 0; f < sizeof FORMATS / sizeof *FORMATS; f++) {
        AT_END(end_pool) td_pool                    *pool = fixture_pool(3, 2);
        AT_END(fixture_weights_free) fixture_weights w = fixture_weights_new(SEED, N_EXPERTS, HIDDEN, INTER);
        AT_END(end_experts) td_experts *want = loaded(FORMATS[f], pool, &w), *got = loaded(FORMATS[f], pool, &w);
        td_expert_codes                 codes[N_EXPERTS];
        td_error                        err = {0};
        float                           a[HIDDEN], b[HIDDEN], tmp[HIDDEN];
        for (uint32_t e = 0; e < N_EXPERTS; e++)
            for (td_expert_matrix m = TD_EXPERT_GATE; m <= TD_EXPERT_DOWN; m++) {
                const td_tensor_view *view = td_expert_view(&w.experts[e], m);
                size_t                n = view->shape[0], k = view->shape[1], groups = (k + 31) / 32, padded = groups * 32;
                bool                  grouped = FORMATS[f] == TD_EXPERT_INT4G;
                int8_t               *q = malloc(n * padded);
                float                *scale = malloc(n * groups * sizeof *scale);
                if (grouped) {
                    assert_true(td_quantize_weight_i4_groups(TD_DT_F32, view->data, n, k, 32, TD_DT_BF16, (uint8_t *)q,
                                                             padded, scale, tmp));
                    for (size_t r = 0; r < n; r++)
                        for (size_t i = 0; i < k; i++) q[r * k + i] = (int8_t)(q[r * padded + i] - 8);
                } else {
                    assert_true((FORMATS[f] == TD_EXPERT_INT4C ? td_quantize_weight_i4 : td_quantize_weight_i8)(
                        TD_DT_F32, view->data, n, k, q, k, scale));
                }
                codes[e].codes[m] = q;
                codes[e].scale[m] = scale;
            }
        OK(td_experts_load_codes(got, 0, codes, &err));
        for (uint32_t e = 0; e < N_EXPERTS; e++)
            for (td_expert_matrix m = TD_EXPERT_GATE; m <= TD_EXPERT_DOWN; m++)
                for (size_t row = 0; row < td_expert_view(&w.experts[e], m)->shape[0]; row++) {
                    size_t k = td_expert_view(&w.experts[e], m)->shape[1];
                    OK(td_experts_get_values(want, 1, e, m, row, 1, a, &err));
                    OK(td_experts_get_values(got, 0, e, m, row, 1, b, &err));
                    assert_memory_equal(a, b, k * sizeof *a);
                }
        for (size_t i = 0; i < INTER; i++) ((float *)codes[1].scale[TD_EXPERT_GATE])[i] = NAN;
        assert_int_equal(td_experts_load_codes(got, 0, codes, &err), TD_EFORMAT);
        for (uint32_t e = 0; e < N_EXPERTS; e++)
            for (td_expert_matrix m = TD_EXPERT_GATE; m <= TD_EXPERT_DOWN; m++) {
                free((void *)codes[e].codes[m]);
                free((void *)codes[e].scale[m]);
            }
    }
}

/* Of a store whose layer 1 is known to be right. */
static void assert_same_layers(const td_experts *x, const td_expert_weights *shapes) {
    FREED float *want = malloc(MOST * sizeof *want), *got = malloc(MOST * sizeof *got);
    td_error     err = {0};
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        for (td_expert_matrix m = TD_EXPERT_GATE; m <= TD_EXPERT_DOWN; m++) {
            size_t rows = td_expert_view(&shapes[e], m)->shape[0];
            OK(td_experts_get_values(x, 1, e, m, 0, rows, want, &err));
            OK(td_experts_get_values(x, 0, e, m, 0, rows, got, &err));
            assert_memory_equal(got, want, MOST * sizeof *got);
        }
}

/* Matrices that are made in the worker's buffer. */
typedef struct {
    const fixture_weights *w;
    size_t                 fails_at; /* an expert that cannot be made */
    _Atomic uint32_t       n_taken, n_left;
} workshop;

static td_status take(const void *ctx, size_t expert, td_expert_matrix m, void *buffer, td_tensor_view *out, td_error *err) {
    workshop *s = (workshop *)ctx;
    *out = *td_expert_view(&s->w->experts[expert], m);
    s->n_taken++;
    if (expert == s->fails_at) return td_fail(err, TD_ENOMEM, "nothing left");
    td_to_f32(out->dtype, out->data, out->shape[0] * out->shape[1], buffer);
    out->dtype = TD_DT_F32;
    out->data = buffer;
    return TD_OK;
}

static void leave(const void *ctx, size_t expert, td_expert_matrix m) {
    workshop *s = (workshop *)ctx;
    (void)m;
    s->n_left++;
    assert_true(expert < N_EXPERTS);
}

TEST(made_matrices_give_the_same_layer) {
    for (uint32_t n_shards = 1; n_shards <= 2; n_shards++)
        for (td_expert_format format = 0; format < TD_EXPERT_FORMATS; format++) {
            AT_END(end_pool) td_pool                    *pool = fixture_pool(n_shards + 1, n_shards);
            AT_END(fixture_weights_free) fixture_weights w = fixture_weights_new(SEED, N_EXPERTS, HIDDEN, INTER);
            AT_END(end_experts) td_experts              *x = loaded(format, pool, &w);
            workshop         shop = {.w = &w, .fails_at = SIZE_MAX}, broken = {.w = &w, .fails_at = 1};
            td_expert_source good = {take, leave, NULL, MOST * sizeof(float), &shop}, bad = good;
            td_error         err = {0};
            bad.ctx = &broken;
            assert_int_equal(td_experts_load(x, 0, &bad, &err), TD_ENOMEM);
            assert_string_equal(err.text, "nothing left");
            assert_int_equal(td_experts_load(x, 2, &good, &err), TD_EINVAL);
            OK(td_experts_load(x, 0, &good, &err));
            assert_int_equal(shop.n_taken, 3 * N_EXPERTS * n_shards);
            assert_int_equal(shop.n_left, 3 * N_EXPERTS * n_shards);
            assert_same_layers(x, w.experts);
        }
}
