/* Conversions, AVX-512 (F, BW, VL). Not vcvtneps2bf16: it flushes subnormals. */
#include <immintrin.h>

#include "quant/convert.h"

void td_to_f32_avx512(td_dtype dtype, const void *src, size_t n, float *dst) {
    const uint16_t *s = src;
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        __m256i   v = _mm256_maskz_loadu_epi16(m, s + i);
        __m512    f =
            dtype == TD_DT_BF16 ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16)) : _mm512_cvtph_ps(v);
        _mm512_mask_storeu_ps(dst + i, m, f);
    }
}

void td_f32_to_bf16_n_avx512(const float *src, size_t n, td_bf16 *dst) {
    const __m512i abs_mask = _mm512_set1_epi32(0x7fffffff), inf = _mm512_set1_epi32(0x7f800000),
                  half = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1), quiet = _mm512_set1_epi32(0x40);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        __m512i   bits = _mm512_maskz_loadu_epi32(m, src + i);
        __m512i   high = _mm512_srli_epi32(bits, 16);
        __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, half), _mm512_and_si512(high, one)), 16);
        __mmask16 nan = _mm512_cmpgt_epi32_mask(_mm512_and_si512(bits, abs_mask), inf);
        __m512i   v = _mm512_mask_or_epi32(rounded, nan, high, quiet);
        _mm256_mask_storeu_epi16(dst + i, m, _mm512_cvtepi32_epi16(v));
    }
}
