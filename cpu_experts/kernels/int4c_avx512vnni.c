/*
 * int4 per channel, AVX512-VNNI: one 64-byte load of codes feeds two vpdpbusd per row of activations. High nibbles stay
 * where they are: their sums are 16 times too large, exactly, until the end.
 */
#include <immintrin.h>

#include "cpu_experts/kernels/expert_kernels.h"
#include "cpu_experts/kernels/tile_layout.h"

#define HALF 16
#define MR 14              /* 28 accumulators + two halves + mask + broadcast */
#define PREFETCH_SPAN 4096 /* bytes ahead; a tile is followed by the tile that is read next */

/* acc[i] += sum of four u8 x s8. By hand: gcc 12 keeps accumulators of the intrinsic in memory too, at a third of the speed.
 */
static inline __attribute__((always_inline)) __m512i dot(__m512i acc, __m512i codes, __m512i x) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(codes), "v"(x));
    return acc;
}

static size_t tile_bytes(size_t k) {
    return int4c_tile_bytes(HALF, k);
}
static void pack(void *tile, const void *rows, const float *scale, size_t k) {
    int4c_pack(HALF, tile, rows, scale, k);
}
static void unpack(const void *tile, void *rows, float *scale, size_t k) {
    int4c_unpack(HALF, tile, rows, scale, k);
}

static inline void finish(const td_gemm_args *a, size_t r, __m512i low, __m512i high) {
    const float  *scale = a->tile;
    const __m512i correction = _mm512_set1_epi32(8 * a->rows[r].sum);
    const __m512  row_scale = _mm512_set1_ps(a->rows[r].scale);
    __m512        y0 = _mm512_cvtepi32_ps(_mm512_sub_epi32(low, correction));
    __m512        y1 = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_srai_epi32(high, 4), correction));
    float        *out = a->out + r * 2 * HALF;
    _mm512_store_ps(out, _mm512_mul_ps(_mm512_mul_ps(y0, _mm512_load_ps(scale)), row_scale));
    _mm512_store_ps(out + HALF, _mm512_mul_ps(_mm512_mul_ps(y1, _mm512_load_ps(scale + HALF)), row_scale));
}

/* One row: bound by the stream of weights; four chains hide the latency of vpdpbusd. */
static void stream(const td_gemm_args *a, size_t r) {
    const uint8_t *w = (const uint8_t *)a->tile + 2 * HALF * sizeof(float);
    const int8_t  *x = a->rows[r].x;
    const __m512i  nibble = _mm512_set1_epi8(15);
    __m512i        low[4], high[4];
    for (int c = 0; c < 4; c++) low[c] = high[c] = _mm512_setzero_si512();
    for (size_t g = 0; g < a->k; g += 16, w += 16 * HALF) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            const uint8_t *at = w + c * 4 * HALF;
            _mm_prefetch((const char *)at + PREFETCH_SPAN, _MM_HINT_T0);
            __m512i both = _mm512_load_si512(at), lo = _mm512_and_si512(both, nibble);
            __m512i v = _mm512_set1_epi32((int)tile_load32(x + g + 4 * c));
            low[c] = dot(low[c], lo, v);
            high[c] = dot(high[c], _mm512_xor_si512(both, lo), v);
        }
    }
    finish(a, r, _mm512_add_epi32(_mm512_add_epi32(low[0], low[1]), _mm512_add_epi32(low[2], low[3])),
           _mm512_add_epi32(_mm512_add_epi32(high[0], high[1]), _mm512_add_epi32(high[2], high[3])));
}

/* ahead: what is prefetched along with this pass, `step` bytes for every 64 of the tile. */
static inline __attribute__((always_inline)) void rows_times_tile(const td_gemm_args *a, size_t r0, const char *ahead,
                                                                  size_t step, const int m) {
    const uint8_t *w = (const uint8_t *)a->tile + 2 * HALF * sizeof(float);
    const __m512i  nibble = _mm512_set1_epi8(15);
    const int8_t  *x[MR];
    __m512i        low[MR], high[MR];
#pragma GCC unroll 16
    for (int r = 0; r < m; r++) {
        x[r] = a->rows[r0 + r].x;
        low[r] = high[r] = _mm512_setzero_si512();
    }
    for (size_t g = 0; g < a->k; g += 4, w += 4 * HALF) {
        _mm_prefetch(ahead, _MM_HINT_T1);
        ahead += step;
        __m512i both = _mm512_load_si512(w), lo = _mm512_and_si512(both, nibble), hi = _mm512_xor_si512(both, lo);
#pragma GCC unroll 16
        for (int r = 0; r < m; r++) {
            __m512i v = _mm512_set1_epi32((int)tile_load32(x[r] + g));
            low[r] = dot(low[r], lo, v);
            high[r] = dot(high[r], hi, v);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < m; r++) finish(a, r0 + r, low[r], high[r]);
}

static void run(const td_gemm_args *a) {
    /* Equal register tiles: 16 rows are 8 + 8, not 14 + 2. Several passes over a tile share the fetching of the next. */
    size_t      n_passes = (a->m + MR - 1) / MR, bytes = tile_bytes(a->k), step = 4 * HALF / n_passes;
    const char *ahead = (const char *)a->tile + (n_passes == 1 ? PREFETCH_SPAN : bytes);
    for (size_t r = 0, left = n_passes; left > 0; left--, ahead += n_passes == 1 ? 0 : bytes / n_passes) {
        size_t m = (a->m - r + left - 1) / left;
        switch (m) {
#define CASE(n) \
    case n: rows_times_tile(a, r, ahead, step, n); break
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
            CASE(13);
            CASE(14);
#undef CASE
            default: stream(a, r); break;
        }
        r += m;
    }
}

const td_gemm_kernel td_int4c_avx512vnni = {
    .name = "int4c_avx512vnni_14x32",
    .layout = "int4c_32x4",
    .format = TD_EXPERT_INT4C,
    .needs = TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512VNNI,
    .mr = MR,
    .nr = 2 * HALF,
    .kr = 32,
    .tile_bytes = tile_bytes,
    .pack = pack,
    .unpack = unpack,
    .run = run,
    .silu_mul = td_silu_mul_avx512,
    .axpy = td_axpy_avx512,
};
