/* int4 per channel, reference: the tile layout of the 256-bit kernels, one multiply-add at a time. */
#include "kernels/vec/vec_scalar.h"

#include "kernels/product/gemm_end.inc"

#define TILES td_int4c_16x4
#define HALF 8

static __attribute__((noinline)) void run_tile(const td_gemm_args *a) {
    const float   *scale = a->tile;
    const uint8_t *w = (const uint8_t *)a->tile + 2 * HALF * sizeof *scale;
    for (size_t r = 0; r < a->m; r++) {
        const int8_t *x = a->rows[r].x;
        int32_t       acc[2 * HALF] = {0};
        for (size_t g = 0; g < a->k; g += 4)
            for (size_t i = 0; i < HALF; i++)
                for (size_t b = 0; b < 4; b++) {
                    uint8_t both = w[g * HALF + i * 4 + b];
                    acc[i] += (both & 15) * x[g + b];
                    acc[HALF + i] += (both >> 4) * x[g + b];
                }
        float values[2 * HALF];
        for (size_t i = 0; i < 2 * HALF; i++) values[i] = (float)(acc[i] - 8 * a->rows[r].sum) * scale[i] * a->rows[r].scale;
        end_rows(a, r, 1, 2 * HALF, values);
    }
}

static void run(const td_gemm_args *a) {
    each_tile(a, &TILES, run_tile);
}

const td_gemm_kernel td_int4c_scalar = {
    .name = "int4c_scalar_1x16",
    .tiles = &TILES,
    .mr = 1,
    .run = run,
};
