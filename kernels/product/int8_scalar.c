/* int8 products in plain C: the reference, one multiply-add at a time. */
#include "kernels/vec/vec_scalar.h"

#include "kernels/product/gemm_end.inc"

#define TILES td_int8c_16x4
#define NR 16

static __attribute__((noinline)) void run_tile(const td_gemm_args *a) {
    const float *scale = a->tile;
    for (size_t r = 0; r < a->m; r++) {
        const uint8_t *w = (const uint8_t *)(scale + NR);
        const int8_t  *x = a->rows[r].x;
        int32_t        acc[NR] = {0};
        float          values[NR];
        for (size_t g = 0; g < a->k; g += 4)
            for (size_t j = 0; j < NR; j++)
                for (size_t b = 0; b < 4; b++) acc[j] += (*w++ - 128) * x[g + b];
        for (size_t j = 0; j < NR; j++) values[j] = (float)acc[j] * scale[j] * a->rows[r].scale;
        end_rows(a, r, 1, NR, values);
    }
}

static void run(const td_gemm_args *a) {
    each_tile(a, &TILES, run_tile);
}

const td_gemm_kernel td_int8c_scalar = {.name = "int8c_scalar_1x16", .tiles = &TILES, .mr = 1, .run = run};
