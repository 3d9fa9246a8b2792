/* bf16 weights times f32 activations, reference: acc = fma(w, x, acc) in the order of k. */
#include "kernels/vec/vec_scalar.h"

#include "kernels/product/gemm_end.inc"

#define TILES td_bf16_16
#define HALF 8

static __attribute__((noinline)) void run_tile(const td_gemm_args *a) {
    for (size_t r = 0; r < a->m; r++) {
        const uint32_t *w = a->tile;
        const float    *x = a->rows[r].x;
        float           acc[2 * HALF] = {0};
        for (size_t j = 0; j < a->k; j++)
            for (size_t i = 0; i < HALF; i++, w++) {
                acc[i] = fmaf(td_bf16_to_f32((td_bf16)(*w >> 16)), x[j], acc[i]);
                acc[HALF + i] = fmaf(td_bf16_to_f32((td_bf16)*w), x[j], acc[HALF + i]);
            }
        end_rows(a, r, 1, 2 * HALF, acc);
    }
}

static void run(const td_gemm_args *a) {
    each_tile(a, &TILES, run_tile);
}

const td_gemm_kernel td_bf16_scalar = {
    .name = "bf16_scalar_1x16",
    .tiles = &TILES,
    .mr = 1,
    .run = run,
};
