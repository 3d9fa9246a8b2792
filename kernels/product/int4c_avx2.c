/* int4 per channel, AVX2. The int32 sums rest where the outputs will be. */
#include "kernels/product/tile_kernels.h"
#include "kernels/product/ymm_rows.h"

#define TILES td_int4c_16x4
#define HALF 8

static void multiply_packed(const td_ymm_product *p, size_t m, float *sums) {
    switch (m) { TD_YMM_CASES(NIBBLES, 32, p, sums) }
}

static void multiply_bytes(const td_ymm_product *p, size_t m, float *sums) {
    switch (m) { TD_YMM_CASES(BYTES, 32, p, sums) }
}

static void finish(const td_gemm_args *a) {
    const float *scale = a->tile;
    for (size_t r = 0; r < a->m; r++)
        for (size_t h = 0; h < 2; h++) {
            float  *out = a->out + r * 2 * HALF + h * HALF;
            __m256i exact = _mm256_sub_epi32(_mm256_load_si256((const __m256i *)out), _mm256_set1_epi32(8 * a->rows[r].sum));
            __m256  y = _mm256_mul_ps(_mm256_cvtepi32_ps(exact), _mm256_load_ps(scale + h * HALF));
            _mm256_store_ps(out, _mm256_mul_ps(y, _mm256_set1_ps(a->rows[r].scale)));
        }
}

static void run(const td_gemm_args *a) {
    uint8_t      bytes[2 * HALF * TD_YMM_BLOCK_K] __attribute__((aligned(64)));
    const bool   packed = a->m < TD_YMM_UNPACK_M;
    const size_t n_passes = (a->m + TD_YMM_ROWS_MAX - 1) / TD_YMM_ROWS_MAX, block = packed ? a->k : TD_YMM_BLOCK_K,
                 size = td_tile_bytes(&TILES, a->k, NULL);
    const uint8_t *w = (const uint8_t *)a->tile + 2 * HALF * sizeof(float), *next = a->next ? a->next : a->tile;
    td_ymm_product p = td_ymm_rows(a);
    for (size_t i = 0; i < a->m * 2 * HALF; i += HALF) _mm256_store_ps(a->out + i, _mm256_setzero_ps());
    for (size_t k0 = 0, k; k0 < a->k; k0 += k, w += k * HALF, next += k * HALF) {
        k = a->k - k0 < block ? a->k - k0 : block;
        p.chunks = k / 32;
        p.w = packed ? w : bytes;
        if (!packed) td_ymm_unpack(&p, w, k / 4, false, bytes);
        for (size_t r = 0, pass = 0, m; pass < n_passes; pass++, r += m) {
            m = td_ymm_pass_rows(a->m - r, n_passes - pass);
            p.x = (const int8_t *)a->rows[r].x + k0;
            p.far = n_passes == 1 ? PREFETCH_FAR
                    : pass == 0   ? size
                                  : PREFETCH_NEAR; /* the first of several passes fetches the next tile, */
            p.ahead = td_ymm_share(bytes, next, k * HALF, pass * p.chunks); /* with bytes the first few */
            (packed ? multiply_packed : multiply_bytes)(&p, m, a->out + r * 2 * HALF);
        }
    }
    finish(a);
}

const td_gemm_kernel td_int4c_avx2 = {
    .name = "int4c_avx2_6x16",
    .tiles = &TILES,
    .run = run,
};
