/* int4 group-wise, AVX2: 32 k of vpmaddubsw pairs are added in int16 (at most 8 * 15*127*2 = 30480), then widened by vpmaddwd. */
#include "quant/kernels/vec_avx2.h"
#include "quant/kernels/tile_kernels.h"

#define HALF LANES
#include "quant/kernels/group_layout.inc"

#define CHUNK      32
#define SUM_SHIFT  0
#define HIGH_SHIFT 0
#define UNIT       1
#define MR         4 /* 8 int16 sums, two halves, mask, broadcast; the int32 sums rest in memory */

VEC void add_chunk(const uint8_t *w, const int8_t *const *x, size_t k0, size_t far, vi *low, vi *high, const int m) {
    const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i       low16[MR], high16[MR];
#pragma GCC unroll 16
    for (int r = 0; r < m; r++) low16[r] = high16[r] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++) {
        const uint8_t *at = w + i * 4 * HALF;
        if (i % 2 == 0) {
            _mm_prefetch((const char *)at + far, _MM_HINT_T1);
            _mm_prefetch((const char *)at + PREFETCH_NEAR, _MM_HINT_T0);
        }
        __m256i both = (__m256i)vi_load(at);
        __m256i lo = _mm256_and_si256(both, nibble), hi = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
#pragma GCC unroll 16
        for (int r = 0; r < m; r++) {
            __m256i v = _mm256_set1_epi32((int32_t)load32(x[r] + k0 + 4 * i));
            low16[r] = _mm256_add_epi16(low16[r], _mm256_maddubs_epi16(lo, v));
            high16[r] = _mm256_add_epi16(high16[r], _mm256_maddubs_epi16(hi, v));
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < m; r++) {
        low[r] += (vi)_mm256_madd_epi16(low16[r], ones);
        high[r] += (vi)_mm256_madd_epi16(high16[r], ones);
    }
}

#define ROW_CASES ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4)
#include "quant/kernels/group_body.inc"

const td_gemm_kernel td_int4g_avx2 = {
    GROUP_LAYOUT,
    .name = "int4g_avx2_4x16",
    .layout = "int4g_16x4",
    .needs = TD_CPU_AVX2,
    .run = run,
};
