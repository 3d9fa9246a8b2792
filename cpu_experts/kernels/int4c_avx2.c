/*
 * int4 per channel, AVX2: vpmaddubsw pairs reach at most 15*127*2 = 3810, so eight of them (30480) are added in int16 before
 * vpmaddwd widens them.
 */
#include <immintrin.h>

#include "cpu_experts/kernels/expert_kernels.h"

#define HALF 8
#define MR 4 /* 8 int16 accumulators, the codes and the broadcast; the int32 sums rest in memory */
#define GROUPS 8           /* of 4 k, added in int16; kr = 4 * GROUPS */
#include "cpu_experts/kernels/int4c_layout.inc"

/* m is a constant after inlining. far: how far ahead of a pass memory is brought to L2. */
static inline __attribute__((always_inline)) void rows_times_tile(const td_gemm_args *a, size_t r0, size_t far, const int m) {
    const float   *scale = a->tile;
    const uint8_t *w = (const uint8_t *)a->tile + 2 * HALF * sizeof *scale;
    const int8_t  *x[MR];
    __m256i        acc[MR][2];
    const __m256i  nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
#pragma GCC unroll 16
    for (int r = 0; r < m; r++) {
        x[r] = a->rows[r0 + r].x;
        acc[r][0] = acc[r][1] = _mm256_setzero_si256();
    }
    for (size_t g = 0; g < a->k; g += 4 * GROUPS) {
        __m256i acc16[MR][2];
#pragma GCC unroll 16
        for (int r = 0; r < m; r++) acc16[r][0] = acc16[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (size_t i = 0; i < GROUPS; i++) {
            const uint8_t *at = w + (g + 4 * i) * HALF;
            if (i % 2 == 0) {
                _mm_prefetch((const char *)at + far, _MM_HINT_T1);
                _mm_prefetch((const char *)at + PREFETCH_NEAR, _MM_HINT_T0);
            }
            __m256i both = _mm256_load_si256((const __m256i *)at);
            __m256i low = _mm256_and_si256(both, nibble), high = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
#pragma GCC unroll 16
            for (int r = 0; r < m; r++) {
                __m256i v = _mm256_set1_epi32((int)load32(x[r] + g + 4 * i));
                acc16[r][0] = _mm256_add_epi16(acc16[r][0], _mm256_maddubs_epi16(low, v));
                acc16[r][1] = _mm256_add_epi16(acc16[r][1], _mm256_maddubs_epi16(high, v));
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < m; r++)
            for (int h = 0; h < 2; h++) acc[r][h] = _mm256_add_epi32(acc[r][h], _mm256_madd_epi16(acc16[r][h], ones));
    }
#pragma GCC unroll 16
    for (int r = 0; r < m; r++)
        for (int h = 0; h < 2; h++) {
            __m256i exact = _mm256_sub_epi32(acc[r][h], _mm256_set1_epi32(8 * a->rows[r0 + r].sum));
            __m256  y = _mm256_mul_ps(_mm256_cvtepi32_ps(exact), _mm256_load_ps(scale + h * HALF));
            _mm256_store_ps(a->out + (r0 + r) * 2 * HALF + h * HALF,
                            _mm256_mul_ps(y, _mm256_set1_ps(a->rows[r0 + r].scale)));
        }
}

#define TILE_BYTES(a) tile_bytes((a)->k, NULL)
#define ROW_CASES ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4)
#include "quant/kernels/row_tiles.inc"

const td_gemm_kernel td_int4c_avx2 = {
    INT4C_LAYOUT,
    .name = "int4c_avx2_4x16",
    .layout = "int4c_16x4",
    .needs = TD_CPU_AVX2,
    .run = run,
};
