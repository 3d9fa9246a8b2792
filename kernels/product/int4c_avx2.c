/* int4 per channel, AVX2. A block's int32 sums rest in memory between the passes over it, and become values there. */
#include "kernels/vec/vec_avx2.h"

#include "kernels/product/gemm_end.inc"
#include "kernels/product/ymm_rows.h"

#define TILES td_int4c_16x4
#define HALF 8

static void multiply_packed(const td_ymm_product *p, size_t m, float *sums) {
    switch (m) { TD_YMM_CASES(NIBBLES, 32, p, sums) }
}

static void multiply_bytes(const td_ymm_product *p, size_t m, float *sums) {
    switch (m) { TD_YMM_CASES(BYTES, 32, p, sums) }
}

static void finish(const td_gemm_args *a, float *sums) {
    const float *scale = a->tile;
    for (size_t r = 0; r < a->m; r++)
        for (size_t h = 0; h < 2; h++) {
            float *values = sums + r * 2 * HALF + h * HALF;
            vf     y = vf_of_vi(vi_load(values) - vi_set1(8 * a->rows[r].sum)) * vf_load(scale + h * HALF);
            vf_store(values, y * vf_set1(a->rows[r].scale));
        }
    end_rows(a, 0, a->m, 2 * HALF, sums);
}

static void run_block(const td_gemm_args *a) {
    uint8_t      bytes[2 * HALF * TD_YMM_BLOCK_K] __attribute__((aligned(64)));
    float        sums[TD_YMM_BLOCK_ROWS * 2 * HALF] __attribute__((aligned(64)));
    const bool   packed = a->m < TD_YMM_UNPACK_M;
    const size_t n_passes = (a->m + TD_YMM_ROWS_MAX - 1) / TD_YMM_ROWS_MAX, block = packed ? a->k : TD_YMM_BLOCK_K,
                 size = td_tile_bytes(&TILES, a->k, NULL);
    const uint8_t *w = (const uint8_t *)a->tile + 2 * HALF * sizeof(float), *next = a->next ? a->next : a->tile;
    td_ymm_product p = td_ymm_rows(a);
    memset(sums, 0, a->m * 2 * HALF * sizeof *sums);
    for (size_t k0 = 0, k; k0 < a->k; k0 += k, w += k * HALF, next += k * HALF) {
        k = a->k - k0 < block ? a->k - k0 : block;
        p.chunks = k / 32;
        p.w = packed ? w : bytes;
        if (!packed) td_ymm_unpack(&p, w, k / 4, false, bytes);
        for (size_t r = 0, pass = 0, m; pass < n_passes; pass++, r += m) {
            m = td_ymm_pass_rows(a->m - r, n_passes - pass);
            p.x = (const int8_t *)a->rows[r].x + k0;
            /* The first of several passes fetches the next tile; with bytes the first few passes do. */
            p.far = n_passes == 1 ? PREFETCH_FAR : pass == 0 ? size : PREFETCH_NEAR;
            p.ahead = td_ymm_share(bytes, next, k * HALF, pass * p.chunks);
            (packed ? multiply_packed : multiply_bytes)(&p, m, sums + r * 2 * HALF);
        }
    }
    finish(a, sums);
}

static __attribute__((noinline)) void run_tile(const td_gemm_args *a) {
    td_ymm_each_block(a, run_block);
}

static void run(const td_gemm_args *a) {
    each_tile(a, &TILES, run_tile);
}

const td_gemm_kernel td_int4c_avx2 = {
    .name = "int4c_avx2_6x16",
    .tiles = &TILES,
    .mr = TD_YMM_ROWS_MAX,
    .run = run,
};
