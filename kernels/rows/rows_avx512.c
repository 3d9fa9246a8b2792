/* Rows, AVX-512. Tails are quantised by mask. */
#include "kernels/vec/vec_avx512.h"

#include "kernels/rows/convert_body.inc"
#include "kernels/rows/row_scale.h"
#include "kernels/rows/rows.h"
#include "kernels/rows/silu_body.inc"

static inline __attribute__((always_inline)) __m512 load16(td_dtype dtype, const void *x, size_t i, __mmask16 m) {
    if (dtype == TD_DT_F32) return _mm512_maskz_loadu_ps(m, (const float *)x + i);
    __m256i h = _mm256_maskz_loadu_epi16(m, (const uint16_t *)x + i);
    if (dtype == TD_DT_BF16) return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
    return _mm512_cvtph_ps(h);
}

static inline __mmask16 lanes(size_t n) {
    return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
}

static inline __attribute__((always_inline)) int32_t quantize_as(td_dtype dtype, const void *x, size_t k, float qmax, int8_t *q,
                                                              float *scale) {
    const __m512i abs_mask = _mm512_set1_epi32(0x7fffffff);
    __m512i       m0 = _mm512_setzero_si512(), m1 = m0;
    size_t        i = 0;
    for (; i + 32 <= k; i += 32) {
        m0 = _mm512_max_epu32(m0, _mm512_and_si512(_mm512_castps_si512(load16(dtype, x, i, 0xffff)), abs_mask));
        m1 = _mm512_max_epu32(m1, _mm512_and_si512(_mm512_castps_si512(load16(dtype, x, i + 16, 0xffff)), abs_mask));
    }
    for (; i < k; i += 16)
        m0 = _mm512_max_epu32(m0, _mm512_and_si512(_mm512_castps_si512(load16(dtype, x, i, lanes(k - i))), abs_mask));
    float inv = row_inverse_scale(_mm512_reduce_max_epu32(_mm512_max_epu32(m0, m1)), qmax, scale);
    if (inv == 0) {
        memset(q, 0, k);
        return 0;
    }
    const __m512 vinv = _mm512_set1_ps(inv);
    __m512i      sum = _mm512_setzero_si512();
    for (i = 0; i < k; i += 16) {
        __mmask16 m = lanes(k - i);
        __m512i   c = _mm512_cvtps_epi32(_mm512_mul_ps(load16(dtype, x, i, m), vinv));
        sum = _mm512_add_epi32(sum, c);
        _mm_mask_storeu_epi8(q + i, m, _mm512_cvtepi32_epi8(c));
    }
    return _mm512_reduce_add_epi32(sum);
}

static int32_t quantize(td_dtype dtype, const void *x, size_t k, float qmax, int8_t *q, float *scale) {
    if (dtype == TD_DT_F32) return quantize_as(TD_DT_F32, x, k, qmax, q, scale);
    if (dtype == TD_DT_BF16) return quantize_as(TD_DT_BF16, x, k, qmax, q, scale);
    return quantize_as(TD_DT_F16, x, k, qmax, q, scale);
}

const td_rows td_rows_avx512 = {.to_f32 = to_f32, .to_bf16 = to_bf16, .quantize = quantize, .silu_mul = silu_mul, .axpy = axpy};
