/* Rows, AVX2 + FMA + F16C. Tails are quantised from a zeroed buffer, so that every element takes the same path. */
#include "kernels/vec/vec_avx2.h"

#include "kernels/rows/convert_body.inc"
#include "kernels/rows/row_scale.h"
#include "kernels/rows/rows.h"
#include "kernels/rows/silu_body.inc"

static inline __attribute__((always_inline)) __m256 load8(td_dtype dtype, const void *x, size_t i) {
    if (dtype == TD_DT_F32) return _mm256_loadu_ps((const float *)x + i);
    __m128i h = _mm_loadu_si128((const __m128i *)((const uint16_t *)x + i));
    if (dtype == TD_DT_BF16) return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    return _mm256_cvtph_ps(h);
}

static inline __attribute__((always_inline)) int32_t quantize_as(td_dtype dtype, const void *x, size_t k, float qmax, int8_t *q,
                                                              float *scale) {
    const __m256i     abs_mask = _mm256_set1_epi32(0x7fffffff);
    _Alignas(32) char tail[32] = {0};
    size_t            element = td_dtype_bytes(dtype), body = k & ~(size_t)7, rest = k - body;
    memcpy(tail, (const char *)x + body * element, rest * element);

    __m256i m = _mm256_setzero_si256();
    for (size_t i = 0; i < body; i += 8)
        m = _mm256_max_epu32(m, _mm256_and_si256(_mm256_castps_si256(load8(dtype, x, i)), abs_mask));
    m = _mm256_max_epu32(m, _mm256_and_si256(_mm256_castps_si256(load8(dtype, tail, 0)), abs_mask));
    __m128i m4 = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    m4 = _mm_max_epu32(m4, _mm_shuffle_epi32(m4, 0x4e));
    m4 = _mm_max_epu32(m4, _mm_shuffle_epi32(m4, 0xb1));
    float inv = row_inverse_scale((uint32_t)_mm_cvtsi128_si32(m4), qmax, scale);
    if (inv == 0) {
        memset(q, 0, k);
        return 0;
    }
    const __m256 vinv = _mm256_set1_ps(inv);
    __m256i      sum = _mm256_setzero_si256();
    for (size_t i = 0; i < k; i += 8) {
        __m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(i < body ? load8(dtype, x, i) : load8(dtype, tail, 0), vinv));
        sum = _mm256_add_epi32(sum, c);
        __m128i c16 = _mm_packs_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
        __m128i c8 = _mm_packs_epi16(c16, c16);
        if (i < body)
            _mm_storel_epi64((__m128i *)(q + i), c8);
        else
            memcpy(q + i, &c8, rest);
    }
    __m128i s4 = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s4 = _mm_add_epi32(s4, _mm_shuffle_epi32(s4, 0x4e));
    s4 = _mm_add_epi32(s4, _mm_shuffle_epi32(s4, 0xb1));
    return _mm_cvtsi128_si32(s4);
}

static int32_t quantize(td_dtype dtype, const void *x, size_t k, float qmax, int8_t *q, float *scale) {
    if (dtype == TD_DT_F32) return quantize_as(TD_DT_F32, x, k, qmax, q, scale);
    if (dtype == TD_DT_BF16) return quantize_as(TD_DT_BF16, x, k, qmax, q, scale);
    return quantize_as(TD_DT_F16, x, k, qmax, q, scale);
}

const td_rows td_rows_avx2 = {.to_f32 = to_f32, .to_bf16 = to_bf16, .quantize = quantize, .silu_mul = silu_mul, .axpy = axpy};
