/* int4 group-wise, reference: the tile layout of the 256-bit kernels, one multiply-add at a time. */
#include "kernels/vec/vec_scalar.h"

#include "kernels/product/gemm_end.inc"
#include "kernels/product/group_layout.h"

#define HALF 8
#define TILES td_int4g_16x4

static __attribute__((noinline)) void run_tile(const td_gemm_args *a) {
    const td_gemm_groups *groups = &a->groups;
    for (size_t r = 0; r < a->m; r++) {
        const int8_t  *x = a->rows[r].x;
        const uint8_t *zero = a->tile, *in = zero + head_bytes(2 * HALF, a->k, groups);
        float          acc[2 * HALF] = {0};
        for (size_t g = 0; g < a->k / groups->size; g++, zero += HALF) {
            const uint8_t *scales = in;
            int32_t        sum[2 * HALF];
            for (size_t i = 0; i < HALF; i++) { /* group_sum is -8 times the sum of the codes of x */
                sum[i] = (groups->zero_points ? zero[i] & 15 : 8) * (a->rows[r].group_sum[g] / 8);
                sum[HALF + i] = (groups->zero_points ? zero[i] >> 4 : 8) * (a->rows[r].group_sum[g] / 8);
            }
            in += 2 * HALF * td_dtype_bytes(groups->scale_dtype);
            for (size_t j = g * groups->size; j < (g + 1) * groups->size; j += 4)
                for (size_t i = 0; i < HALF; i++)
                    for (size_t b = 0; b < 4; b++, in++) {
                        sum[i] += (*in & 15) * x[j + b];
                        sum[HALF + i] += (*in >> 4) * x[j + b];
                    }
            for (size_t i = 0; i < 2 * HALF; i++)
                acc[i] = fmaf((float)sum[i], scale_at(scales, i, groups->scale_dtype), acc[i]);
        }
        for (size_t i = 0; i < 2 * HALF; i++) acc[i] = acc[i] * a->rows[r].scale;
        end_rows(a, r, 1, 2 * HALF, acc);
    }
}

static void run(const td_gemm_args *a) {
    each_tile(a, &TILES, run_tile);
}

const td_gemm_kernel td_int4g_scalar = {
    .name = "int4g_scalar_1x16",
    .tiles = &TILES,
    .mr = 1,
    .run = run,
};
