/* fp4 in groups, reference: the tile layout of the 256-bit kernels, one multiply-add at a time. */
#include "kernels/vec/vec_scalar.h"

#include "kernels/product/gemm_end.inc"
#include "kernels/product/group_layout.h"

#define HALF 8
#define TILES td_fp4g_16x4

static __attribute__((noinline)) void run_tile(const td_gemm_args *a) {
    const td_gemm_groups *groups = &a->groups;
    const size_t          size = groups->size, block = block_k(groups);
    for (size_t r = 0; r < a->m; r++) {
        const int8_t  *x = a->rows[r].x;
        const float   *factor = a->tile;
        const uint8_t *in = (const uint8_t *)a->tile + head_bytes(2 * HALF, a->k, groups);
        float          acc[2 * HALF] = {0};
        for (size_t k0 = 0; k0 < a->k;) {
            const uint8_t *scales = in;
            in += block / size * 2 * HALF;
            for (size_t block_end = k0 + block; k0 < block_end; scales += 2 * HALF) {
                int32_t sum[2 * HALF] = {0};
                for (size_t group_end = k0 + size; k0 < group_end; k0 += 4)
                    for (size_t i = 0; i < HALF; i++)
                        for (size_t b = 0; b < 4; b++, in++) {
                            sum[i] += td_e2m1_twice(*in & 15) * x[k0 + b];
                            sum[HALF + i] += td_e2m1_twice(*in >> 4) * x[k0 + b];
                        }
                for (size_t i = 0; i < 2 * HALF; i++)
                    acc[i] = fmaf((float)sum[i], scale_at(scales, i, groups->scale_dtype), acc[i]);
            }
        }
        for (size_t i = 0; i < 2 * HALF; i++) acc[i] = acc[i] * (factor[i] * 0.5f) * a->rows[r].scale;
        end_rows(a, r, 1, 2 * HALF, acc);
    }
}

static void run(const td_gemm_args *a) {
    each_tile(a, &TILES, run_tile);
}

const td_gemm_kernel td_fp4g_scalar = {
    .name = "fp4g_scalar_1x16",
    .tiles = &TILES,
    .mr = 1,
    .run = run,
};
