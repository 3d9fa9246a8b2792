/* Conversions, AVX2 + F16C. Tails go through the scalar tier, which gives the same bits. */
#include <immintrin.h>

#include "quant/convert.h"

void td_to_f32_avx2(td_dtype dtype, const void *src, size_t n, float *dst) {
    const uint16_t *s = src;
    size_t          i = 0;
    if (dtype == TD_DT_BF16)
        for (; i + 8 <= n; i += 8) {
            __m256i v = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(s + i))), 16);
            _mm256_storeu_ps(dst + i, _mm256_castsi256_ps(v));
        }
    else
        for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(s + i))));
    td_to_f32_scalar(dtype, s + i, n - i, dst + i);
}

void td_f32_to_bf16_n_avx2(const float *src, size_t n, td_bf16 *dst) {
    const __m256i abs_mask = _mm256_set1_epi32(0x7fffffff), inf = _mm256_set1_epi32(0x7f800000),
                  half = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1), quiet = _mm256_set1_epi32(0x40);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i bits = _mm256_loadu_si256((const __m256i *)(src + i));
        __m256i high = _mm256_srli_epi32(bits, 16);
        __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, half), _mm256_and_si256(high, one)), 16);
        __m256i nan = _mm256_cmpgt_epi32(_mm256_and_si256(bits, abs_mask), inf);
        __m256i v = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, quiet), nan);
        __m128i lo = _mm256_castsi256_si128(v), hi = _mm256_extracti128_si256(v, 1);
        _mm_storeu_si128((__m128i *)(dst + i), _mm_packus_epi32(lo, hi));
    }
    td_f32_to_bf16_n_scalar(src + i, n - i, dst + i);
}
