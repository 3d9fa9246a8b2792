/*
 * Linear and MLP blocks at real sizes, compared with OpenBLAS: the float kernels within rounding, W8A8 within the error that
 * its two quantisations allow.
 */
#include <cblas.h>

#include "npu_test_util.h"
#include "tests/td_test.h"

#define N_SHAPES 4
static const struct {
    size_t m, n, k;
} SHAPES[N_SHAPES] = {{1, 1536, 2048}, {7, 576, 2048}, {65, 2048, 1408}, {33, 333, 777}};

/* y [m, n] = x [m, k] w[n, k]^T */
static void blas_linear(const float *x, const float *w, size_t m, size_t n, size_t k, float *y) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, 1, x, (int)k, w, (int)k, 0, y, (int)n);
}

static void round_to_bf16(float *w, size_t n) {
    for (size_t i = 0; i < n; i++) w[i] = td_bf16_to_f32(td_f32_to_bf16(w[i]));
}

/* Largest |y - want| over the root mean square of want. */
static double worst_error(td_dtype act, const void *y, const float *want, size_t n) {
    double worst = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs(act_get(act, y, i) - want[i]));
        square += (double)want[i] * want[i];
    }
    return worst / sqrt(square / (double)n);
}

static void check_linear(td_weight_format format, td_dtype act, double tolerance) {
    rnd                   r = rnd_open("linear against OpenBLAS");
    AT_END(rig_close) rig g = rig_open(2, act, false);
    for (int s = 0; s < N_SHAPES; s++) {
        size_t       m = SHAPES[s].m, n = SHAPES[s].n, k = SHAPES[s].k;
        FREED float *w = rnd_array(&r, n * k, 1), *x = rnd_array(&r, m * k, 1), *want = rnd_array(&r, m * n, 0);
        round_to_bf16(w, n * k);
        round_to_bf16(x, m * k);
        FREED void    *in = act_array(act, x, m * k), *out = act_array(act, NULL, m * n);
        td_npu_weight *weight = make_weight(&g, format, w, n, k);
        td_npu_block  *b = make_block(
             &g, &(td_block_desc){.kind = TD_BLOCK_LINEAR,
                                  .max_tok = (uint32_t)m,
                                  .linear = {.n = (uint32_t)n, .k = (uint32_t)k, .w = weight, .in = in, .out = out}});
        run_rows(&g, b, m);
        blas_linear(x, w, m, n, k, want);
        double error = worst_error(act, out, want, m * n);
        print_message("    [%zu, %zu] x [%zu, %zu]: largest error %.2e of the rms\n", m, k, k, n, error);
        assert_true(error <= tolerance);
    }
}

/* Two f32 sums of 2048 products in different orders: sqrt(2048) x 2^-24 of the terms' scale, times a few. */
TEST(bf16_weights_to_rounding) {
    check_linear(TD_WEIGHT_BF16, TD_DT_F32, 2e-5);
}

TEST(f32_weights_to_rounding) {
    check_linear(TD_WEIGHT_F32, TD_DT_F32, 2e-5);
}

/* With uniform numbers in (-1, 1), each int8 rounding errs by 1/254 / sqrt(3) of the largest, which is 0.4 % of the rms of a
 * product's factors. With two factors, and the extremes of 130 000 outputs (5 sigma), that is 4 %. A bf16 output adds 0.4 %
 * of a value of up to 5 rms. */
TEST(w8a8_to_its_quantisation) {
    check_linear(TD_WEIGHT_W8A8, TD_DT_BF16, 0.06);
}

int main(void) {
    openblas_set_num_threads(1);
    return tests_run();
}
