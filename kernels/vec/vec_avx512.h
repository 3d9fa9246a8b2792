/* The vectors of the kernels' bodies, AVX-512 (docs/kernels.md has the vocabulary). What C's operators do lane by lane (+ -
 * * / & ^ << >>) has no name here. */
#ifndef TD_KERNELS_VEC_VEC_AVX512_H
#define TD_KERNELS_VEC_VEC_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define LANES 16
typedef __m512  vf; /* [LANES] f32 */
typedef int32_t vi __attribute__((vector_size(64), may_alias));

#define VEC static inline __attribute__((always_inline))

VEC vf vf_set1(float f) {
    return _mm512_set1_ps(f);
}
VEC vf vf_load(const float *p) {
    return _mm512_loadu_ps(p);
}
VEC void vf_store(float *p, vf v) {
    _mm512_storeu_ps(p, v);
}
VEC vf vf_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
VEC vf vf_mla(vf a, vf b, vf c) {
    return vf_fma(a, b, c);
} /* fused where that is fast */
VEC vf vf_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
} /* b where one is a NaN; so vf_min */
VEC vf vf_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
VEC vf vf_rint(vf v) {
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VEC vf vf_of_vi(vi v) {
    return _mm512_cvtepi32_ps((__m512i)v);
}
VEC vi vi_of_vf(vf v) {
    return (vi)_mm512_cvtps_epi32(v);
}
VEC vf vf_unless_below(vf x, vf least, vf v) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ), v);
} /* 0 where x < least */
VEC vi vi_set1(int32_t i) {
    return (vi)_mm512_set1_epi32(i);
}
VEC vi vi_load(const void *p) {
    return *(const vi *)p;
} /* aligned */
VEC vi vi_load_u8(const uint8_t *p) {
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
VEC vf vf_load_bf16(const uint16_t *p) {
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
}
VEC vf vf_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
VEC vi vi_table(const uint8_t bytes[16]) {
    return (vi)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)bytes));
}
VEC vi vi_lookup(vi table, vi index) {
    return (vi)_mm512_shuffle_epi8((__m512i)table, (__m512i)index);
} /* bytes of index in [0, 15] */

/* The first n < LANES lanes touch memory, the others are 0. */
VEC __mmask16 lanes_below(size_t n) {
    return (__mmask16)((1u << n) - 1);
}
VEC vf vf_load_n(const float *p, size_t n) {
    return _mm512_maskz_loadu_ps(lanes_below(n), p);
}
VEC void vf_store_n(float *p, vf v, size_t n) {
    _mm512_mask_storeu_ps(p, lanes_below(n), v);
}
VEC vf vf_load_bf16_n(const uint16_t *p, size_t n) {
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes_below(n), p)), 16);
}

VEC vf vf_absmax(vf a, vf b) {
    return _mm512_range_ps(a, b, 11);
} /* a >= 0 or |b| */
VEC vf vf_seen(vf v, const int32_t *seen, int32_t j, vf other) { /* v in lanes with seen[lane] > j */
    return _mm512_mask_mov_ps(other, _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(seen), _mm512_set1_epi32(j)), v);
}
/* Over the lanes: i and i + 8 first, then i + 4, 2, 1. */
VEC float vf_lanes_sum(vf v) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 f = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    f = _mm_add_ps(f, _mm_movehl_ps(f, f));
    return _mm_cvtss_f32(_mm_add_ss(f, _mm_movehdup_ps(f)));
}
VEC float vf_lanes_max(vf v) {
    return _mm512_reduce_max_ps(v);
}

VEC vf vf_load_i16(const int16_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)p)));
}
VEC vi vi_loadu(const void *p) {
    return (vi)_mm512_loadu_si512(p);
}
VEC void vi_storeu(void *p, vi v) {
    _mm512_storeu_si512(p, (__m512i)v);
}
VEC vi vi_pairs(vi low, vi high) {
    return (vi)_mm512_mask_blend_epi16(0xaaaaaaaau, (__m512i)low, _mm512_slli_epi32((__m512i)high, 16));
} /* of the low halves */
VEC void vi_store_i16_two(int16_t *p, vi a, vi b) { /* the low halves */
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16((__m512i)a));
    _mm256_storeu_si256((__m256i *)(p + LANES), _mm512_cvtepi32_epi16((__m512i)b));
}

VEC vi vi_max(vi a, vi b) {
    return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
}
VEC int32_t vi_lanes_max(vi v) {
    return _mm512_reduce_max_epi32((__m512i)v);
}
VEC int32_t vi_lanes_sum(vi v) {
    return _mm512_reduce_add_epi32((__m512i)v);
}
VEC void vi_store_i8(int8_t *p, vi v) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)v));
} /* of [-128, 127] */

/* As td_f32_to_bf16 rounds; not vcvtneps2bf16, which flushes subnormals. */
VEC void vf_store_bf16(uint16_t *p, vf v) {
    __m512i   bits = (__m512i)v, odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i   rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan =
        _mm512_cmpgt_epi32_mask(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)), _mm512_set1_epi32(0x7f800000));
    __m512i high = _mm512_srli_epi32(_mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000)), 16);
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(high));
}

/* Exact (core/math/small_float.h); code 0 of e8m0 is a subnormal. NaN codes become infinity, and 480. */
VEC vf vf_load_e8m0(const uint8_t *p) {
    vi bits = vi_load_u8(p) << 23, least = vi_set1(1 << 22);
    return (vf)_mm512_max_epi32((__m512i)bits, (__m512i)least);
}

/* As f16, whose exponents are 8 above those of e4m3. */
VEC vf vf_load_e4m3(const uint8_t *p) {
    __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x7f)), 7),
            sign = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x80)), 8);
    return _mm512_cvtph_ps(_mm256_or_si256(magnitude, sign)) * vf_set1(256);
}

#endif
