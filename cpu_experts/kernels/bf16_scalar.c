/* bf16 weights times f32 activations, reference: acc = fma(w, x, acc) in the order of k. */
#include <math.h>

#include "cpu_experts/kernels/expert_kernels.h"
#include "cpu_experts/kernels/tile_layout.h"

#define HALF 8

static size_t tile_bytes(size_t k) {
    return bf16_tile_bytes(HALF, k);
}

static void pack(void *tile, const void *rows, const float *scale, size_t k) {
    (void)scale;
    bf16_pack(HALF, tile, rows, k);
}

static void unpack(const void *tile, void *rows, float *scale, size_t k) {
    (void)scale;
    bf16_unpack(HALF, tile, rows, k);
}

static void run(const td_gemm_args *a) {
    for (size_t r = 0; r < a->m; r++) {
        const uint32_t *w = a->tile;
        const float    *x = a->rows[r].x;
        float           acc[2 * HALF] = {0};
        for (size_t j = 0; j < a->k; j++)
            for (size_t i = 0; i < HALF; i++, w++) {
                acc[i] = fmaf(td_bf16_to_f32((td_bf16)(*w >> 16)), x[j], acc[i]);
                acc[HALF + i] = fmaf(td_bf16_to_f32((td_bf16)*w), x[j], acc[HALF + i]);
            }
        memcpy(a->out + r * 2 * HALF, acc, sizeof acc);
    }
}

const td_gemm_kernel td_bf16_scalar = {
    .name = "bf16_scalar_1x16",
    .layout = "bf16_16",
    .format = TD_EXPERT_BF16,
    .needs = 0,
    .mr = 1,
    .nr = 2 * HALF,
    .kr = 1,
    .tile_bytes = tile_bytes,
    .pack = pack,
    .unpack = unpack,
    .run = run,
    .silu_mul = td_silu_mul_scalar,
    .axpy = td_axpy_scalar,
};
