/* int8 per channel, reference: the tile layout of the 256-bit kernels, one multiply-add at a time. */
#include "kernels/product/tile_kernels.h"

#define TILES td_int8c_16x4
#define NR 16

static void run(const td_gemm_args *a) {
    const float   *scale = a->tile;
    const uint8_t *w = (const uint8_t *)a->tile + NR * sizeof *scale;
    for (size_t r = 0; r < a->m; r++) {
        const int8_t *x = a->rows[r].x;
        int32_t       acc[NR] = {0};
        for (size_t g = 0; g < a->k; g += 4)
            for (size_t i = 0; i < NR; i++)
                for (size_t b = 0; b < 4; b++) acc[i] += (w[g * NR + i * 4 + b] - 128) * x[g + b];
        for (size_t i = 0; i < NR; i++) a->out[r * NR + i] = (float)acc[i] * scale[i] * a->rows[r].scale;
    }
}

const td_gemm_kernel td_int8c_scalar = {
    .name = "int8c_scalar_1x16",
    .tiles = &TILES,
    .run = run,
};
