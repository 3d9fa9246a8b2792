/* bf16 weights times f32 activations, AVX-512: acc = fma(w, x, acc) in the order of k, one chain per output. */
#include <immintrin.h>

#include "cpu_experts/kernels/expert_kernels.h"
#include "cpu_experts/kernels/tile_layout.h"

#define HALF 16
#define MR 12
#define PREFETCH_SPAN 2048 /* bytes ahead; a tile is followed by the tile that is read next */

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

static inline __attribute__((always_inline)) void rows_times_tile(const td_gemm_args *a, size_t r0, const int m) {
    const uint32_t *w = a->tile;
    const __m512i   upper = _mm512_set1_epi32((int)0xffff0000u);
    const float    *x[MR];
    __m512          low[MR], high[MR];
#pragma GCC unroll 16
    for (int r = 0; r < m; r++) {
        x[r] = a->rows[r0 + r].x;
        low[r] = high[r] = _mm512_setzero_ps();
    }
    for (size_t j = 0; j < a->k; j++, w += HALF) {
        if (m <= 2) _mm_prefetch((const char *)w + PREFETCH_SPAN, _MM_HINT_T0);
        __m512i both = _mm512_load_si512((const __m512i *)w);
        __m512  w0 = _mm512_castsi512_ps(_mm512_and_si512(both, upper)),
               w1 = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
#pragma GCC unroll 16
        for (int r = 0; r < m; r++) {
            __m512 v = _mm512_set1_ps(x[r][j]);
            low[r] = _mm512_fmadd_ps(w0, v, low[r]);
            high[r] = _mm512_fmadd_ps(w1, v, high[r]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < m; r++) {
        _mm512_store_ps(a->out + (r0 + r) * 2 * HALF, low[r]);
        _mm512_store_ps(a->out + (r0 + r) * 2 * HALF + HALF, high[r]);
    }
}

static void run(const td_gemm_args *a) {
    for (size_t r = 0, tiles = (a->m + MR - 1) / MR; tiles > 0; tiles--) {
        size_t m = (a->m - r + tiles - 1) / tiles;
        switch (m) {
#define CASE(n) \
    case n: rows_times_tile(a, r, n); break
            CASE(1);
            CASE(2);
            CASE(3);
            CASE(4);
            CASE(5);
            CASE(6);
            CASE(7);
            CASE(8);
            CASE(9);
            CASE(10);
            CASE(11);
            CASE(12);
#undef CASE
            default: break;
        }
        r += m;
    }
}

const td_gemm_kernel td_bf16_avx512 = {
    .name = "bf16_avx512_12x32",
    .layout = "bf16_32",
    .format = TD_EXPERT_BF16,
    .needs = TD_CPU_AVX2 | TD_CPU_AVX512,
    .mr = MR,
    .nr = 2 * HALF,
    .kr = 1,
    .tile_bytes = tile_bytes,
    .pack = pack,
    .unpack = unpack,
    .run = run,
    .silu_mul = td_silu_mul_avx512,
    .axpy = td_axpy_avx512,
};
