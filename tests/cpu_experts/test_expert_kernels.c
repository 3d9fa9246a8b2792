/* Kernels: every one that this machine (and TD_CPU_MASK) allows, against plain sums, bit for bit; buffers end at guard
 * pages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <math.h>

#include "core/cpu.h"
#include "core/rng.h"
#include "cpu_experts/expert_gemm.h"
#include "tests/guard_page.h"

#define SEED 4242u

static bool allowed(const td_gemm_kernel *k) {
    return !(k->needs & ~td_cpu_features());
}

/* Random rows of a tile, packed; their values stay with the caller. */
typedef struct {
    guarded  tile;
    int8_t  *codes; /* int4c [nr, k] */
    td_bf16 *half;  /* bf16 [nr, k] */
    float    scale[TD_GEMM_NR_MAX];
} test_tile;

static test_tile make_tile(const td_gemm_kernel *kernel, size_t k) {
    size_t    n = kernel->nr;
    test_tile t = {.tile = guard_alloc(kernel->tile_bytes(k)), .codes = malloc(n * k), .half = malloc(n * k * 2)};
    for (size_t i = 0; i < n * k; i++) {
        t.codes[i] = (int8_t)((int)(td_rng_u64(SEED, k, i) % 15) - 7);
        t.half[i] = td_f32_to_bf16((float)td_rng_uniform(SEED, k, i) - 0.5f);
    }
    for (size_t i = 0; i < n; i++) t.scale[i] = 0.01f + (float)td_rng_uniform(SEED, 5, i);
    kernel->pack(t.tile.data, kernel->format == TD_EXPERT_INT4C ? (void *)t.codes : (void *)t.half, t.scale, k);
    return t;
}

static void free_tile(test_tile *t) {
    guard_free(&t->tile);
    free(t->codes);
    free(t->half);
}

static float expected(const td_gemm_kernel *kernel, const test_tile *t, size_t n, size_t k, const td_gemm_row *row) {
    if (kernel->format == TD_EXPERT_INT4C) {
        int64_t acc = 0;
        for (size_t j = 0; j < k; j++) acc += (int64_t)t->codes[n * k + j] * ((const int8_t *)row->x)[j];
        return (float)(int32_t)acc * t->scale[n] * row->scale;
    }
    float acc = 0;
    for (size_t j = 0; j < k; j++) acc = fmaf(td_bf16_to_f32(t->half[n * k + j]), ((const float *)row->x)[j], acc);
    return acc;
}

static void kernels_match_plain_sums(void **state) {
    (void)state;
    static const size_t          sizes[] = {1, 2, 3, 7, 64, 129, 2048}, ms[] = {1, 2, 3, 4, 5, 7, 12, 13, 14, 15, 16, 29};
    size_t                       n_kernels;
    const td_gemm_kernel *const *list = td_gemm_list(&n_kernels);
    print_message("seed %u\n", SEED);
    for (size_t i = 0; i < n_kernels; i++) {
        const td_gemm_kernel *kernel = list[i];
        if (!allowed(kernel)) continue;
        print_message("  %s\n", kernel->name);
        size_t element = kernel->format == TD_EXPERT_INT4C ? 1 : 4;
        for (size_t z = 0; z < sizeof sizes / sizeof sizes[0]; z++) {
            size_t    k = (sizes[z] + kernel->kr - 1) / kernel->kr * kernel->kr;
            test_tile t = make_tile(kernel, k);
            for (size_t q = 0; q < sizeof ms / sizeof ms[0]; q++) {
                size_t      m = ms[q];
                guarded     x[32], out = guard_alloc(m * kernel->nr * 4);
                td_gemm_row rows[32];
                for (size_t r = 0; r < m; r++) {
                    x[r] = guard_alloc(k * element);
                    rows[r] = (td_gemm_row){.x = x[r].data, .scale = 0.5f + (float)r};
                    for (size_t j = 0; j < k; j++)
                        if (element == 1) {
                            int8_t v = (int8_t)((int)(td_rng_u64(SEED, 100 + r, j) % 255) - 127);
                            ((int8_t *)x[r].data)[j] = v;
                            rows[r].sum += v;
                        } else {
                            ((float *)x[r].data)[j] = (float)td_rng_uniform(SEED, 100 + r, j) - 0.5f;
                        }
                }
                kernel->run(&(td_gemm_args){.tile = t.tile.data, .k = k, .m = m, .rows = rows, .out = out.data});
                for (size_t r = 0; r < m; r++)
                    for (size_t n = 0; n < kernel->nr; n++) {
                        float want = expected(kernel, &t, n, k, &rows[r]), got = ((float *)out.data)[r * kernel->nr + n];
                        assert_memory_equal(&got, &want, 4);
                    }
                for (size_t r = 0; r < m; r++) guard_free(&x[r]);
                guard_free(&out);
            }
            free_tile(&t);
        }
    }
}

static void extremes_do_not_saturate(void **state) {
    (void)state;
    size_t                       n_kernels;
    const td_gemm_kernel *const *list = td_gemm_list(&n_kernels);
    for (size_t i = 0; i < n_kernels; i++) {
        const td_gemm_kernel *kernel = list[i];
        if (!allowed(kernel) || kernel->format != TD_EXPERT_INT4C) continue;
        size_t  k = TD_GEMM_K_MAX;
        int8_t *codes = malloc(kernel->nr * k), *x = malloc(k);
        float   scale[TD_GEMM_NR_MAX], *out = aligned_alloc(64, kernel->nr * sizeof *out);
        void   *tile = aligned_alloc(64, kernel->tile_bytes(k));
        for (size_t n = 0; n < kernel->nr; n++) scale[n] = 1;
        for (int sign = -1; sign <= 1; sign += 2) {
            memset(codes, 7, kernel->nr * k);
            memset(x, sign * 127, k);
            kernel->pack(tile, codes, scale, k);
            td_gemm_row row = {.x = x, .scale = 1, .sum = sign * 127 * (int32_t)k};
            kernel->run(&(td_gemm_args){.tile = tile, .k = k, .m = 1, .rows = &row, .out = out});
            for (size_t n = 0; n < kernel->nr; n++) assert_true(out[n] == (float)(sign * 7 * 127 * (int32_t)k));
        }
        free(codes);
        free(x);
        free(out);
        free(tile);
    }
}

static void unpack_inverts_pack(void **state) {
    (void)state;
    size_t                       n_kernels;
    const td_gemm_kernel *const *list = td_gemm_list(&n_kernels);
    for (size_t i = 0; i < n_kernels; i++) {
        const td_gemm_kernel *kernel = list[i];
        size_t                k = 96, element = kernel->format == TD_EXPERT_INT4C ? 1 : 2;
        test_tile             t = make_tile(kernel, k);
        guarded               rows = guard_alloc(kernel->nr * k * element);
        float                 scale[TD_GEMM_NR_MAX];
        assert_int_equal(kernel->tile_bytes(k) % 64, 0);
        assert_true(strlen(kernel->layout) <= 15);
        kernel->unpack(t.tile.data, rows.data, scale, k);
        assert_memory_equal(rows.data, element == 1 ? (void *)t.codes : (void *)t.half, kernel->nr * k * element);
        if (element == 1) assert_memory_equal(scale, t.scale, kernel->nr * sizeof *scale);
        assert_string_equal(td_gemm_find_layout(kernel->format, kernel->layout)->layout, kernel->layout);
        guard_free(&rows);
        free_tile(&t);
    }
}

static void silu_is_accurate_and_the_same_in_every_tier(void **state) {
    (void)state;
    enum { N = 1 << 16 };
    float *g = malloc(N * 4), *u = malloc(N * 4), *first = malloc(N * 4);
    for (uint32_t i = 0; i < N; i++) {
        g[i] = (float)(td_rng_uniform(SEED, 6, i) * 60 - 30);
        if (i % 8 == 0) g[i] = (float)(td_rng_uniform(SEED, 7, i) * 400 - 200);
        if (i % 8 == 1) g[i] *= 1e-6f;
        u[i] = 1;
    }
    g[5] = 0;
    g[6] = -0.0f;
    size_t                       n_kernels, n_seen = 0;
    const td_gemm_kernel *const *list = td_gemm_list(&n_kernels);
    for (size_t i = 0; i < n_kernels; i++) {
        if (!allowed(list[i])) continue;
        guarded out = guard_alloc(N * 4);
        list[i]->silu_mul(g, u, N, out.data);
        if (n_seen++ == 0) memcpy(first, out.data, N * 4);
        assert_memory_equal(out.data, first, N * 4);
        /* any position, any length gives the same bits */
        for (uint32_t at = 0; at < 64; at++) {
            float part[16];
            list[i]->silu_mul(g + at, u + at, 16, part);
            assert_memory_equal(part, (float *)out.data + at, sizeof part);
        }
        guard_free(&out);
    }
    double worst = 0;
    for (uint32_t i = 0; i < N; i++) {
        double want = (double)g[i] / (1 + exp(-(double)g[i]));
        if (g[i] < -86) { /* below, exp is clamped: only tiny */
            assert_true(fabs((double)first[i]) < 1e-34);
            continue;
        }
        double error = want == 0 ? fabs((double)first[i]) : fabs((double)first[i] / want - 1);
        if (error > worst) worst = error;
    }
    print_message("  worst relative error of silu %.3g\n", worst);
    assert_true(worst < 4e-7);
    g[0] = NAN;
    list[0]->silu_mul(g, u, 16, first);
    for (size_t i = 0; i < n_kernels; i++)
        if (allowed(list[i])) {
            list[i]->silu_mul(g, u, 16, first);
            assert_true(isnan(first[0]) && !isnan(first[1]));
        }
    free(g);
    free(u);
    free(first);
}

static void axpy_is_one_fma(void **state) {
    (void)state;
    size_t                       n_kernels;
    const td_gemm_kernel *const *list = td_gemm_list(&n_kernels);
    for (size_t i = 0; i < n_kernels; i++) {
        if (!allowed(list[i])) continue;
        guarded v = guard_alloc(48 * 4), y = guard_alloc(48 * 4);
        float   want[48];
        for (uint32_t j = 0; j < 48; j++) {
            ((float *)v.data)[j] = (float)td_rng_uniform(SEED, 8, j);
            ((float *)y.data)[j] = (float)td_rng_uniform(SEED, 9, j);
            want[j] = fmaf(0.3f, ((float *)v.data)[j], ((float *)y.data)[j]);
        }
        list[i]->axpy(0.3f, v.data, 48, y.data);
        assert_memory_equal(y.data, want, sizeof want);
        guard_free(&v);
        guard_free(&y);
    }
}

static void selection_takes_the_best_allowed(void **state) {
    (void)state;
    assert_string_equal(td_gemm_select(TD_EXPERT_INT4C, 0)->layout, "int4c_16x4");
    assert_int_equal(td_gemm_select(TD_EXPERT_INT4C, 0)->needs, 0);
    assert_int_equal(td_gemm_select(TD_EXPERT_BF16, 0)->needs, 0);
#if defined(__x86_64__)
    assert_int_equal(td_gemm_select(TD_EXPERT_INT4C, TD_CPU_AVX2)->needs, TD_CPU_AVX2);
    assert_int_equal(td_gemm_select(TD_EXPERT_INT4C, TD_CPU_AVX2 | TD_CPU_AVX512)->needs, TD_CPU_AVX2);
    assert_string_equal(td_gemm_select(TD_EXPERT_INT4C, UINT32_MAX)->layout, "int4c_32x4");
#endif
    assert_null(td_gemm_find_layout(TD_EXPERT_INT4C, "other"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_match_plain_sums), cmocka_unit_test(extremes_do_not_saturate),
        cmocka_unit_test(unpack_inverts_pack),      cmocka_unit_test(silu_is_accurate_and_the_same_in_every_tier),
        cmocka_unit_test(axpy_is_one_fma),          cmocka_unit_test(selection_takes_the_best_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
