/* The rounding methods, compared with those in numpy (scripts/golden/make_rounding.py), and with exhaustive search where
 * that is possible; and what each method promises. */

#include <math.h>
#include <pthread.h>

#include "core/math/rng.h"
#include "kernels/rows/convert.h"
#include "quant/hessian.h"
#include "quant/matrix_round.h"
#include "quant/weight_quant.h"
#include "tests/guard_page.h"
#include "tests/td_test.h"

#define SEED 20260111u
#define N 48
#define K 96
#define TOKENS 160

static td_blas blas;

static void read_golden(const char *name, void *to, size_t bytes) {
    char path[512];
    snprintf(path, sizeof path, TD_SOURCE_DIR "/tests/data/rounding/%s", name);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s cannot be opened", path);
    assert_int_equal(fread(to, 1, bytes, f), bytes);
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
}

BEFORE_ALL {
    td_error err = {0};
    if (td_blas_open(&blas, &err) != TD_OK) fail_msg("%s", err.text);
}

static double normal(uint64_t stream, uint64_t i) {
    return sqrt(-2 * log(1 - td_rng_uniform(SEED, stream, 2 * i))) *
           cos(6.283185307179586 * td_rng_uniform(SEED, stream, 2 * i + 1));
}

/* A layer of any size: weights, and the Hessian of inputs that depend on each other. Column `dead`, if below k, is always 0.
 */
typedef struct {
    size_t n, k;
    float *w, *h;
} layer;

static layer make_layer(size_t n, size_t k, size_t dead) {
    enum { ROWS = 400, LATENTS = 12 };
    layer        l = {n, k, malloc(n * k * sizeof(float)), calloc(k * k, sizeof(float))};
    FREED float *x = malloc(ROWS * k * sizeof *x);
    FREED float *z = malloc(ROWS * LATENTS * sizeof *z), *a = malloc(LATENTS * k * sizeof *a);
    assert_true(l.w && l.h && x && z && a);
    for (size_t i = 0; i < ROWS * LATENTS; i++) z[i] = (float)(normal(3, i) / (double)(1 + i % LATENTS));
    for (size_t i = 0; i < LATENTS * k; i++) a[i] = (float)normal(4, i);
    for (size_t i = 0; i < n * k; i++) {
        double v = normal(1, i);
        l.w[i] = (float)(0.03 * v * (1 + 0.3 * v * v)); /* tails */
    }
    for (size_t t = 0; t < ROWS; t++)
        for (size_t j = 0; j < k; j++) {
            double v = 0.1 * normal(2, t * k + j);
            for (size_t i = 0; i < LATENTS; i++) v += z[t * LATENTS + i] * a[i * k + j];
            x[t * k + j] = j == dead ? 0 : (float)v * (j % 29 ? 1 : 8);
        }
    td_hessian_add(&blas, x, ROWS, k, k, l.h);
    assert_true(td_hessian_mirror(l.h, k));
    return l;
}

static void free_layer(layer *l) {
    free(l->w);
    free(l->h);
}

/* sum of e h e over the weights' errors e, by the definition. */
static double error_of(const layer *l, const float *h, const td_round_options *o, const int8_t *q, const float *scale,
                       double *of_w) {
    size_t n_scales = td_round_scales(o, l->k), group = o->group ? o->group : l->k;
    double sum = 0, whole = 0;
    for (size_t r = 0; r < l->n; r++)
        for (size_t i = 0; i < l->k; i++) {
            double eh = 0, wh = 0;
            for (size_t j = 0; j < l->k; j++) {
                double w = l->w[r * l->k + j], v = (double)scale[r * n_scales + j / group] * q[r * l->k + j];
                eh += (w - v) * h[j * l->k + i];
                wh += w * h[j * l->k + i];
            }
            double w = l->w[r * l->k + i], v = (double)scale[r * n_scales + i / group] * q[r * l->k + i];
            sum += (w - v) * eh;
            whole += w * wh;
        }
    if (of_w) *of_w = whole;
    return sum;
}

static void round_layer(const layer *l, const float *h, const td_round_options *o, int8_t *q, float *scale) {
    td_error  err = {0};
    td_status st = td_round_matrix(&blas, l->w, l->n, l->k, h, o, q, scale, &err);
    if (st != TD_OK) fail_msg("%s", err.text);
    size_t n_scales = td_round_scales(o, l->k);
    for (size_t i = 0; i < l->n * l->k; i++) {
        assert_true(q[i] >= (o->bits == 8 ? -127 : -8));
        assert_true(q[i] <= (o->bits == 8 ? 127 : 7));
    }
    for (size_t i = 0; i < l->n * n_scales; i++) assert_true(isfinite(scale[i]) && (o->bits == 4 || scale[i] > 0));
}

TEST(hessian_is_the_sum_of_products) {
    static float x[TOKENS * K], h[K * K];
    read_golden("x.f32", x, sizeof x);
    memset(h, 0, sizeof h);
    td_hessian_add(&blas, x, 100, K, K, h); /* in two pieces */
    td_hessian_add(&blas, x + 100 * K, TOKENS - 100, K, K, h);
    assert_true(td_hessian_mirror(h, K));
    for (size_t i = 0; i < K; i++)
        for (size_t j = 0; j < K; j++) {
            double want = 0, size = 0;
            for (size_t t = 0; t < TOKENS; t++) {
                want += (double)x[t * K + i] * x[t * K + j];
                size += fabs((double)x[t * K + i] * x[t * K + j]);
            }
            assert_true(fabs(h[i * K + j] - want) <= 1e-5 * size);
            assert_true(h[i * K + j] == h[j * K + i]);
        }
    h[5 * K + 3] = NAN;
    assert_false(td_hessian_mirror(h, K));
}

TEST(gptq_is_numpys) {
    static const struct {
        const char *name;
        uint32_t    bits;
        size_t      group;
        bool        act_order;
    } cases[] = {{"int4", 4, 0, false}, {"int4_act", 4, 0, true}, {"int4_g32", 4, 32, true}, {"int8", 8, 0, true}};
    static float  x[TOKENS * K], w[N * K], scale[N * 3], want_scale[N * 3], errors[4];
    static int8_t q[N * K], want[N * K];
    layer         l = {N, K, w, calloc(K * K, sizeof(float))};
    read_golden("x.f32", x, sizeof x);
    read_golden("w.f32", w, sizeof w);
    read_golden("errors.f32", errors, sizeof errors);
    td_hessian_add(&blas, x, TOKENS, K, K, l.h);
    assert_true(td_hessian_mirror(l.h, K));
    for (size_t c = 0; c < 4; c++) {
        td_round_options o = td_round_options_of(TD_ROUND_GPTQ, cases[c].bits, cases[c].group);
        o.scale_dtype = TD_DT_F32;
        o.damping = 0.01f;
        o.act_order = cases[c].act_order;
        o.scale_trials = 1;
        o.sweeps = 0;
        char   name[32];
        double relative;
        size_t n_scales = td_round_scales(&o, K), same = 0;
        snprintf(name, sizeof name, "q_%s.i8", cases[c].name);
        read_golden(name, want, sizeof want);
        snprintf(name, sizeof name, "s_%s.f32", cases[c].name);
        read_golden(name, want_scale, N * n_scales * sizeof(float));
        round_layer(&l, l.h, &o, q, scale);
        assert_memory_equal(scale, want_scale, N * n_scales * sizeof(float));
        for (size_t r = 0; r < N; r++) same += memcmp(q + r * K, want + r * K, K) == 0;
        OK(td_round_error(&blas, w, N, K, l.h, &o, q, scale, &relative, NULL));
        print_message("%s: %zu of %d rows have numpy's codes, error %.7f, numpy's %.7f\n", cases[c].name, same, N, relative,
                      (double)errors[c]);
        assert_true(same >= N - 2); /* where a target lies halfway between codes, float32 may take the other, and the row
                                       goes on from there */
        assert_true(fabs(relative - errors[c]) <= (same == N ? 1e-5 : 0.02) * errors[c]);
    }
    free(l.h);
}

static const struct {
    uint32_t bits;
    size_t   group;
} FORMATS[] = {{4, 0}, {8, 0}, {4, 32}, {4, 64}, {4, 128}};
#define N_FORMATS (sizeof FORMATS / sizeof FORMATS[0])

TEST(nearest_is_that_of_weight_quant) {
    AT_END(free_layer) layer l = make_layer(37, 300, SIZE_MAX);
    float                   *tmp = malloc(300 * sizeof *tmp), scale[37 * 10], want_scale[37 * 10];
    int8_t                   q[37 * 300], want[37 * 384];
    for (size_t i = 0; i < 300; i++) l.w[5 * 300 + i] = 0;
    for (size_t i = 0; i < N_FORMATS; i++) {
        td_round_options o = td_round_options_of(TD_ROUND_NEAREST, FORMATS[i].bits, FORMATS[i].group);
        size_t           n_scales = td_round_scales(&o, 300), stride = o.group ? n_scales * o.group : 300;
        round_layer(&l, NULL, &o, q, scale);
        if (o.bits == 8)
            td_quantize_weight_i8(TD_DT_F32, l.w, 37, 300, want, stride, want_scale);
        else if (!o.group)
            td_quantize_weight_i4(TD_DT_F32, l.w, 37, 300, want, stride, want_scale);
        else
            td_quantize_weight_i4_groups(TD_DT_F32, l.w, 37, 300, o.group, o.scale_dtype, (uint8_t *)want, stride,
                                         want_scale, tmp);
        for (size_t r = 0; r < 37; r++)
            for (size_t j = 0; j < 300; j++) assert_int_equal(q[r * 300 + j], want[r * stride + j] - (o.group ? 8 : 0));
        assert_memory_equal(scale, want_scale, 37 * n_scales * sizeof *scale);
    }
    free(tmp);
}

/* The 16 codes of a group reach all its weights with the least step that can: that of the wider end's 8, or of the
 * other's 7. */
TEST(steps_of_groups_are_the_least_that_reach_all_weights) {
    enum { GROUPS = 500, SIZE = 32 };
    static float w[GROUPS * SIZE], scale[GROUPS], tmp[SIZE];
    uint8_t      code[SIZE];
    size_t       below_zero = 0;
    for (size_t g = 0; g < GROUPS; g++) {
        float *x = w + g * SIZE, least = 0, most = 0;
        for (size_t i = 0; i < SIZE; i++) {
            x[i] = (float)(normal(7, g * SIZE + i) + (double)(g % 7) - 3);
            least = fminf(least, x[i]);
            most = fmaxf(most, x[i]);
        }
        assert_true(td_quantize_weight_i4_groups(TD_DT_F32, x, 1, SIZE, SIZE, TD_DT_F32, code, SIZE, &scale[g], tmp));
        below_zero += scale[g] < 0;
        double by_sign[2] = {fmax(-least / 8, most / 7), fmax(-least / 7, most / 8)}, best = fmin(by_sign[0], by_sign[1]);
        assert_true(fabs(fabs((double)scale[g]) - best) <= 1e-6 * best);
        for (size_t i = 0; i < SIZE; i++)
            assert_true(fabs((double)x[i] - (code[i] - 8) * (double)scale[g]) <= 0.50001 * best);
    }
    assert_in_range(below_zero, GROUPS / 4, GROUPS * 3 / 4);
    float zeros[SIZE] = {0};
    assert_true(td_quantize_weight_i4_groups(TD_DT_F32, zeros, 1, SIZE, SIZE, TD_DT_BF16, code, SIZE, scale, tmp));
    assert_true(scale[0] == 0 && code[0] == 8);
}

/* clip against every scale of a fine grid, by the definition. */
TEST(clip_finds_the_best_scale) {
    AT_END(free_layer) layer l = make_layer(19, 200, SIZE_MAX);
    float                    scale[19], diagonal[200 * 200] = {0};
    int8_t                   q[19 * 200];
    for (size_t j = 0; j < 200; j++) diagonal[j * 200 + j] = l.h[j * 200 + j];
    for (size_t bits = 4; bits <= 8; bits += 4)
        for (int with_h = 0; with_h < 2; with_h++) {
            td_round_options o = td_round_options_of(TD_ROUND_CLIP, (uint32_t)bits, 0);
            o.damping = 1e-6f;
            round_layer(&l, with_h ? diagonal : NULL, &o, q, scale);
            float qmax = bits == 8 ? 127 : 7;
            for (size_t r = 0; r < 19; r++) {
                const float *w = l.w + r * 200;
                double       amax = 0, best = INFINITY, nearest = 0, got = 0;
                for (size_t j = 0; j < 200; j++) amax = fabsf(w[j]) > amax ? fabsf(w[j]) : amax;
                for (int i = 0; i <= 4000; i++) {
                    double s = amax / qmax * (1 - 0.7 / 4000 * i), e = 0;
                    for (size_t j = 0; j < 200; j++) {
                        double d = w[j] - s * fmax(-qmax, fmin(qmax, nearbyint(w[j] / s)));
                        e += (with_h ? diagonal[j * 201] : 1) * d * d;
                    }
                    best = fmin(best, e);
                    if (i == 0) nearest = e;
                }
                for (size_t j = 0; j < 200; j++) {
                    double d = w[j] - (double)scale[r] * q[r * 200 + j];
                    got += (with_h ? diagonal[j * 201] : 1) * d * d;
                }
                assert_true(got <= nearest * 1.0001);
                assert_true(got <= best * 1.05);
            }
        }
}

/* On inputs that depend on each other every method is at least as good as the one before; a row more or less does not
 * matter. */
TEST(each_method_beats_the_one_before) {
    static const size_t shapes[][2] = {{40, 160}, {5, 33}, {530, 130}, {3, 257}};
    print_message("seed %u\n", SEED);
    for (size_t z = 0; z < 4; z++)
        for (size_t i = 0; i < N_FORMATS; i++) {
            AT_END(free_layer) layer l = make_layer(shapes[z][0], shapes[z][1], 7);
            AT_END(guard_free)
            guarded q = guard_alloc(l.n * l.k),
                    scale = guard_alloc(l.n * sizeof(float) *
                                        (FORMATS[i].group ? (l.k + FORMATS[i].group - 1) / FORMATS[i].group : 1));
            double before = INFINITY, of_w;
            static const struct {
                td_round_method method;
                bool            act_order;
                uint32_t        trials, sweeps;
            } steps[] = {{TD_ROUND_NEAREST, false, 0, 0}, {TD_ROUND_GPTQ, false, 1, 0}, {TD_ROUND_GPTQ, true, 1, 0},
                         {TD_ROUND_GPTQ, true, 3, 0},     {TD_ROUND_GPTQ, true, 7, 0},  {TD_ROUND_GPTQ, true, 7, 1},
                         {TD_ROUND_GPTQ, true, 7, 8}};
            for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
                td_round_options o = td_round_options_of(steps[s].method, FORMATS[i].bits, FORMATS[i].group);
                o.damping = 1e-4f;
                o.act_order = steps[s].act_order;
                o.scale_trials = steps[s].trials;
                o.sweeps = steps[s].sweeps;
                round_layer(&l, l.h, &o, q.data, scale.data);
                double error = error_of(&l, l.h, &o, q.data, scale.data, &of_w), relative;
                OK(td_round_error(&blas, l.w, l.n, l.k, l.h, &o, q.data, scale.data, &relative, NULL));
                double apart = l.n > TD_ROUND_ERROR_ROWS ? 0.05 : 1e-3; /* some rows are not looked at */
                assert_true(fabs(relative * of_w - error) <= apart * error + 1e-7 * of_w);
                /* act-order and its like win in the sum over a matrix, not always in a small one */
                if (error > before * (s >= 5 ? 1.0001 : s >= 2 ? 1.15 : 1))
                    print_message("%zu x %zu, format %zu, step %zu: %g, before %g\n", l.n, l.k, i, s, error, before);
                assert_true(error <= before * (s >= 5 ? 1.0001 : s >= 2 ? 1.15 : 1));
                before = error;
            }
        }
}

/* After many sweeps no single code could be better where it is alone to change. */
TEST(descent_ends_in_a_minimum) {
    AT_END(free_layer) layer l = make_layer(6, 40, SIZE_MAX);
    td_round_options         o = td_round_options_of(TD_ROUND_GPTQ, 4, 0);
    int8_t                   q[6 * 40];
    float                    scale[6];
    double                   of_w;
    o.sweeps = 100;
    o.damping = 1e-7f;
    round_layer(&l, l.h, &o, q, scale);
    double best = error_of(&l, l.h, &o, q, scale, &of_w);
    for (size_t i = 0; i < 6 * 40; i++)
        for (int d = -1; d <= 1; d += 2) {
            if (q[i] + d < -7 || q[i] + d > 7) continue;
            q[i] = (int8_t)(q[i] + d);
            assert_true(error_of(&l, l.h, &o, q, scale, &of_w) >= best * (1 - 1e-3));
            q[i] = (int8_t)(q[i] - d);
        }
    for (size_t r = 0; r < 6; r++)
        for (int d = -1; d <= 1; d += 2) {
            float keep = scale[r];
            scale[r] *= 1 + 0.01f * (float)d;
            assert_true(error_of(&l, l.h, &o, q, scale, &of_w) >= best * (1 - 1e-3));
            scale[r] = keep;
        }
}

TEST(group_scales_have_their_type) {
    AT_END(free_layer) layer l = make_layer(20, 96, 7);
    int8_t                   q[20 * 96];
    float                    scale[20 * 3];
    for (size_t j = 32; j < 64; j++) l.w[3 * 96 + j] = 0; /* a group of zeros */
    for (int f16 = 0; f16 < 2; f16++)
        for (int m = TD_ROUND_NEAREST; m <= TD_ROUND_GPTQ; m++) {
            td_round_options o = td_round_options_of((td_round_method)m, 4, 32);
            o.scale_dtype = f16 ? TD_DT_F16 : TD_DT_BF16;
            round_layer(&l, l.h, &o, q, scale);
            for (size_t i = 0; i < 60; i++)
                assert_true(scale[i] ==
                            (f16 ? td_f16_to_f32(td_f32_to_f16(scale[i])) : td_bf16_to_f32(td_f32_to_bf16(scale[i]))));
            assert_true(scale[3 * 3 + 1] == 0);
            for (size_t j = 32; j < 64; j++) assert_int_equal(q[3 * 96 + j], 0);
        }
}

TEST(corner_rows) {
    AT_END(free_layer) layer l = make_layer(4, 64, SIZE_MAX);
    int8_t                   q[4 * 64], zero[64] = {0};
    float                    scale[4 * 2], *none = calloc(64 * 64, sizeof *none);
    td_error                 err = {0};
    for (size_t j = 0; j < 64; j++) {
        l.w[64 + j] = 0;
        l.w[128 + j] = j % 5 ? 0 : 1e-44f; /* no scale can be inverted */
    }
    for (int m = TD_ROUND_CLIP; m <= TD_ROUND_GPTQ; m++) {
        td_round_options o = td_round_options_of((td_round_method)m, 4, 0);
        round_layer(&l, l.h, &o, q, scale);
        for (size_t r = 1; r < 3; r++) {
            assert_true(scale[r] == 1);
            assert_memory_equal(q + r * 64, zero, 64);
        }
        round_layer(&l, none, &o, q, scale); /* a layer that saw no inputs: all weights count alike */
        double plain = 0;
        for (size_t j = 0; j < 64; j++) plain += pow(l.w[j] - (double)scale[0] * q[j], 2) / pow(0.5 * scale[0], 2) / 64;
        assert_true(plain < 1);
        static const float bad[] = {NAN, INFINITY, -INFINITY};
        for (size_t i = 0; i < 3; i++) {
            float keep = l.w[3 * 64 + 17];
            l.w[3 * 64 + 17] = bad[i];
            assert_int_equal(td_round_matrix(&blas, l.w, 4, 64, l.h, &o, q, scale, &err), TD_EFORMAT);
            assert_non_null(strstr(err.text, "row 3"));
            l.w[3 * 64 + 17] = keep;
        }
        float keep = l.h[5 * 65];
        l.h[5 * 65] = -1e9f;
        assert_int_equal(td_round_matrix(&blas, l.w, 4, 64, l.h, &o, q, scale, &err), TD_EINVAL);
        l.h[5 * 65] = keep;
    }
    td_round_options nearest = td_round_options_of(TD_ROUND_NEAREST, 4, 0), gptq = td_round_options_of(TD_ROUND_GPTQ, 4, 0);
    l.w[2 * 64] = NAN;
    assert_int_equal(td_round_matrix(NULL, l.w, 4, 64, NULL, &nearest, q, scale, &err), TD_EFORMAT);
    assert_non_null(strstr(err.text, "row 2"));
    l.w[2 * 64] = 0;
    assert_int_equal(td_round_matrix(&blas, l.w, 4, 64, NULL, &gptq, q, scale, &err), TD_EINVAL);
    gptq.bits = 3;
    assert_int_equal(td_round_matrix(&blas, l.w, 4, 64, l.h, &gptq, q, scale, &err), TD_EINVAL);
    gptq.bits = 8;
    gptq.group = 32;
    assert_int_equal(td_round_matrix(&blas, l.w, 4, 64, l.h, &gptq, q, scale, &err), TD_EINVAL);
    l.h[7 * 64 + 9] = NAN;
    gptq.group = 0;
    assert_int_equal(td_round_matrix(&blas, l.w, 4, 64, l.h, &gptq, q, scale, &err), TD_EINVAL);
    free(none);
}

typedef struct {
    layer *l;
    int8_t q[100 * 192];
    float  scale[100];
} job;

static void *run_job(void *arg) {
    job             *j = arg;
    td_round_options o = td_round_options_of(TD_ROUND_GPTQ, 4, 0);
    td_error         err = {0};
    for (int i = 0; i < 4; i++)
        if (td_round_matrix(&blas, j->l->w, 100, 192, j->l->h, &o, j->q, j->scale, &err) != TD_OK)
            memset(j->q, 0x55, sizeof j->q);
    return NULL;
}

/* Alone and in company the same bits. */
TEST(threads_do_not_disturb_each_other) {
    AT_END(free_layer) layer l = make_layer(100, 192, 3);
    static job               alone, together[4];
    pthread_t                threads[4];
    alone.l = &l;
    run_job(&alone);
    for (size_t i = 0; i < 4; i++) {
        together[i].l = &l;
        assert_int_equal(pthread_create(&threads[i], NULL, run_job, &together[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (size_t i = 0; i < 4; i++) {
        assert_memory_equal(together[i].q, alone.q, sizeof alone.q);
        assert_memory_equal(together[i].scale, alone.scale, sizeof alone.scale);
    }
}
