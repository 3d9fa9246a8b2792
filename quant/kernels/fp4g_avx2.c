/* fp4 in groups, AVX2: 16 k of vpmaddubsw pairs are added in int16 (at most 4 * 28*127*2 = 28448), then widened by vpmaddwd. */
#include "quant/kernels/vec_avx2.h"
#include "quant/kernels/tile_kernels.h"

#define HALF LANES
#include "quant/kernels/group_layout.inc"
#include "quant/kernels/fp4g_codes.inc"

#define HIGH_SHIFT 0
#define MR         4 /* 8 int16 sums, two halves, mask, table, broadcast; the int32 sums rest in memory */

VEC void add_chunk(const uint8_t *w, const int8_t *const *x, size_t k0, size_t far, vi *low, vi *high, const int m) {
    const vi      nibble = vi_set1(0x0f0f0f0f), table = vi_table(CODES);
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i       low16[MR], high16[MR];
#pragma GCC unroll 16
    for (int r = 0; r < m; r++) low16[r] = high16[r] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (size_t i = 0; i < CHUNK / 4; i++) {
        const uint8_t *at = w + i * 4 * HALF;
        if (i % 2 == 0) {
            _mm_prefetch((const char *)at + far, _MM_HINT_T1);
            _mm_prefetch((const char *)at + PREFETCH_NEAR, _MM_HINT_T0);
        }
        vi both = vi_load(at), lo = vi_lookup(table, both & nibble), hi = vi_lookup(table, both >> 4 & nibble);
#pragma GCC unroll 16
        for (int r = 0; r < m; r++) {
            __m256i v = _mm256_set1_epi32((int32_t)load32(x[r] + k0 + 4 * i));
            low16[r] = _mm256_add_epi16(low16[r], _mm256_maddubs_epi16((__m256i)lo, v));
            high16[r] = _mm256_add_epi16(high16[r], _mm256_maddubs_epi16((__m256i)hi, v));
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

const td_gemm_kernel td_fp4g_avx2 = {
    GROUP_LAYOUT,
    .name = "fp4g_avx2_4x16",
    .layout = "fp4g_16x4",
    .needs = TD_CPU_AVX2,
    .run = run,
};
