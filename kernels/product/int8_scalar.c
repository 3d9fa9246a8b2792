/* int8 products in plain C: the reference, one multiply-add at a time. */
#include "kernels/product/tile_kernels.h"
#include "kernels/product/w8a8.h"

#define NR 16

/* acc [NR] = the sums of a row and a panel. */
static void multiply(int32_t *acc, const uint8_t *w, size_t k4, const int8_t *x) {
    memset(acc, 0, NR * sizeof *acc);
    for (size_t g = 0; g < 4 * k4; g += 4)
        for (size_t j = 0; j < NR; j++)
            for (size_t b = 0; b < 4; b++) acc[j] += (*w++ - 128) * x[g + b];
}

static void run_channel(const td_gemm_args *a) {
    const float *scale = a->tile;
    int32_t      acc[NR];
    for (size_t r = 0; r < a->m; r++) {
        multiply(acc, (const uint8_t *)(scale + NR), a->k / 4, a->rows[r].x);
        for (size_t j = 0; j < NR; j++) a->out[r * NR + j] = (float)acc[j] * scale[j] * a->rows[r].scale;
    }
}

static void run_panels(const td_w8a8_args *a) {
    const size_t k4 = (a->k + 3) / 4;
    int32_t      acc[NR];
    for (size_t p = a->panel_begin; p < a->panel_end; p++)
        for (size_t i = 0; i < a->m; i++) {
            multiply(acc, (const uint8_t *)a->w + p * k4 * 4 * NR, k4, a->x + i * a->ldx);
            for (size_t j = 0; j < NR && p * NR + j < a->n; j++) {
                size_t at = i * a->ldo + p * NR + j;
                float  y = (float)acc[j] * a->sx[i] * a->sw[p * NR + j];
                if (a->bias) y += a->bias[p * NR + j];
                if (a->out_dtype == TD_DT_F32)
                    ((float *)a->out)[at] = y;
                else
                    ((td_bf16 *)a->out)[at] = td_f32_to_bf16(y);
            }
        }
}

const td_w8a8_kernel td_w8a8_scalar = {.name = "w8a8_scalar_1x16", .mr = 1, .nr = NR, .run = run_panels};
const td_gemm_kernel td_int8c_scalar = {.name = "int8c_scalar_1x16", .tiles = &td_int8c_16x4, .run = run_channel};
