/* int4 per channel, AVX-VNNI. High nibbles stay where they are: their sums are 16 times too large, exactly, until the end.
 */
#include <immintrin.h>

#include "cpu_experts/kernels/expert_kernels.h"
#include "cpu_experts/kernels/tile_layout.h"

#define HALF 8
#define MR 5               /* 10 accumulators + two halves + mask + broadcast */
#define PREFETCH_SPAN 2048 /* bytes ahead; a tile is followed by the tile that is read next */

/* acc[i] += sum of four u8 x s8. By hand: gcc 12 keeps accumulators of the intrinsic in memory too, at a third of the speed.
 */
static inline __attribute__((always_inline)) __m256i dot(__m256i acc, __m256i codes, __m256i x) {
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(codes), "x"(x));
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

static inline void finish(const td_gemm_args *a, size_t r, __m256i low, __m256i high) {
    const float  *scale = a->tile;
    const __m256i correction = _mm256_set1_epi32(8 * a->rows[r].sum);
    const __m256  row_scale = _mm256_set1_ps(a->rows[r].scale);
    const __m256i exact[2] = {_mm256_sub_epi32(low, correction), _mm256_sub_epi32(_mm256_srai_epi32(high, 4), correction)};
    for (int h = 0; h < 2; h++) {
        __m256 y = _mm256_mul_ps(_mm256_cvtepi32_ps(exact[h]), _mm256_load_ps(scale + h * HALF));
        _mm256_store_ps(a->out + r * 2 * HALF + h * HALF, _mm256_mul_ps(y, row_scale));
    }
}

/* One row: bound by the stream of weights; four chains hide the latency of vpdpbusd. */
static void stream(const td_gemm_args *a, size_t r) {
    const uint8_t *w = (const uint8_t *)a->tile + 2 * HALF * sizeof(float);
    const int8_t  *x = a->rows[r].x;
    const __m256i  nibble = _mm256_set1_epi8(15);
    __m256i        low[4], high[4];
    for (int c = 0; c < 4; c++) low[c] = high[c] = _mm256_setzero_si256();
    for (size_t g = 0; g < a->k; g += 16, w += 16 * HALF) {
        _mm_prefetch((const char *)w + PREFETCH_SPAN, _MM_HINT_T0);
        _mm_prefetch((const char *)w + PREFETCH_SPAN + 64, _MM_HINT_T0);
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            __m256i both = _mm256_load_si256((const __m256i *)(w + c * 4 * HALF)), lo = _mm256_and_si256(both, nibble);
            __m256i v = _mm256_set1_epi32((int)tile_load32(x + g + 4 * c));
            low[c] = dot(low[c], lo, v);
            high[c] = dot(high[c], _mm256_xor_si256(both, lo), v);
        }
    }
    finish(a, r, _mm256_add_epi32(_mm256_add_epi32(low[0], low[1]), _mm256_add_epi32(low[2], low[3])),
           _mm256_add_epi32(_mm256_add_epi32(high[0], high[1]), _mm256_add_epi32(high[2], high[3])));
}

static inline __attribute__((always_inline)) void rows_times_tile(const td_gemm_args *a, size_t r0, const int m) {
    const uint8_t *w = (const uint8_t *)a->tile + 2 * HALF * sizeof(float);
    const __m256i  nibble = _mm256_set1_epi8(15);
    const int8_t  *x[MR];
    __m256i        low[MR], high[MR];
#pragma GCC unroll 16
    for (int r = 0; r < m; r++) {
        x[r] = a->rows[r0 + r].x;
        low[r] = high[r] = _mm256_setzero_si256();
    }
    for (size_t g = 0; g < a->k; g += 4, w += 4 * HALF) {
        __m256i both = _mm256_load_si256((const __m256i *)w), lo = _mm256_and_si256(both, nibble),
                hi = _mm256_xor_si256(both, lo);
#pragma GCC unroll 16
        for (int r = 0; r < m; r++) {
            __m256i v = _mm256_set1_epi32((int)tile_load32(x[r] + g));
            low[r] = dot(low[r], lo, v);
            high[r] = dot(high[r], hi, v);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < m; r++) finish(a, r0 + r, low[r], high[r]);
}

static void run(const td_gemm_args *a) {
    size_t r = 0;
    for (; r + MR <= a->m; r += MR) rows_times_tile(a, r, MR);
    switch (a->m - r) {
        case 4: rows_times_tile(a, r, 4); break;
        case 3: rows_times_tile(a, r, 3); break;
        case 2: rows_times_tile(a, r, 2); break;
        case 1: stream(a, r); break;
        default: break;
    }
}

const td_gemm_kernel td_int4c_avxvnni = {
    .name = "int4c_avxvnni_5x16",
    .layout = "int4c_16x4",
    .format = TD_EXPERT_INT4C,
    .needs = TD_CPU_AVX2 | TD_CPU_AVXVNNI,
    .mr = MR,
    .nr = 2 * HALF,
    .kr = 32,
    .tile_bytes = tile_bytes,
    .pack = pack,
    .unpack = unpack,
    .run = run,
    .silu_mul = td_silu_mul_avx2,
    .axpy = td_axpy_avx2,
};
