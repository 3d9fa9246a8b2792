/* The vectors of the kernels' bodies, AVX2 + FMA + F16C (docs/kernels.md has the vocabulary). What C's operators do lane by
 * lane (+ - * / & ^ << >>) has no name here. */
#ifndef TD_KERNELS_VEC_VEC_AVX2_H
#define TD_KERNELS_VEC_VEC_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES 8
typedef __m256  vf; /* [LANES] f32 */
typedef int32_t vi __attribute__((vector_size(32), may_alias));

#define VEC static inline __attribute__((always_inline))

VEC vf vf_set1(float f) {
    return _mm256_set1_ps(f);
}
VEC vf vf_load(const float *p) {
    return _mm256_loadu_ps(p);
}
VEC void vf_store(float *p, vf v) {
    _mm256_storeu_ps(p, v);
}
VEC vf vf_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
VEC vf vf_mla(vf a, vf b, vf c) {
    return vf_fma(a, b, c);
} /* fused where that is fast */
VEC vf vf_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
} /* b where one is a NaN; so vf_min */
VEC vf vf_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
VEC vf vf_rint(vf v) {
    return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VEC vf vf_of_vi(vi v) {
    return _mm256_cvtepi32_ps((__m256i)v);
}
VEC vi vi_of_vf(vf v) {
    return (vi)_mm256_cvtps_epi32(v);
}
VEC vf vf_unless_below(vf x, vf least, vf v) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, least, _CMP_LT_OQ), v);
} /* 0 where x < least */
VEC vi vi_set1(int32_t i) {
    return (vi)_mm256_set1_epi32(i);
}
VEC vi vi_load(const void *p) {
    return *(const vi *)p;
} /* aligned */
VEC vi vi_load_u8(const uint8_t *p) {
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
VEC vf vf_load_bf16(const uint16_t *p) {
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
}
VEC vf vf_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
VEC vi vi_table(const uint8_t bytes[16]) {
    return (vi)_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)bytes));
}
VEC vi vi_lookup(vi table, vi index) {
    return (vi)_mm256_shuffle_epi8((__m256i)table, (__m256i)index);
} /* bytes of index in [0, 15] */

/* The first n < LANES lanes touch memory, the others are 0. */
VEC __m256i lanes_below(size_t n) {
    static const int32_t SEEN[2 * LANES] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(SEEN + LANES - n));
}
VEC vf vf_load_n(const float *p, size_t n) {
    return _mm256_maskload_ps(p, lanes_below(n));
}
VEC void vf_store_n(float *p, vf v, size_t n) {
    _mm256_maskstore_ps(p, lanes_below(n), v);
}
VEC vf vf_load_bf16_n(const uint16_t *p, size_t n) {
    uint16_t lanes[LANES] = {0};
    memcpy(lanes, p, n * sizeof *p);
    return vf_load_bf16(lanes);
}

VEC vf vf_absmax(vf a, vf b) {
    return _mm256_max_ps(a, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), b));
} /* a >= 0 or |b| */
VEC vf vf_seen(vf v, const int32_t *seen, int32_t j, vf other) { /* v in lanes with seen[lane] > j */
    __m256i yes = _mm256_cmpgt_epi32(_mm256_loadu_si256((const __m256i *)seen), _mm256_set1_epi32(j));
    return _mm256_blendv_ps(other, v, (__m256)yes);
}
/* Over the lanes: i and i + 4 first, then i + 2, 1. */
VEC float vf_lanes_sum(vf v) {
    __m128 f = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    f = _mm_add_ps(f, _mm_movehl_ps(f, f));
    return _mm_cvtss_f32(_mm_add_ss(f, _mm_movehdup_ps(f)));
}
VEC float vf_lanes_max(vf v) {
    __m128 f = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    f = _mm_max_ps(f, _mm_movehl_ps(f, f));
    return _mm_cvtss_f32(_mm_max_ss(f, _mm_movehdup_ps(f)));
}

VEC vf vf_load_i16(const int16_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)p)));
}
VEC vi vi_loadu(const void *p) {
    return (vi)_mm256_loadu_si256((const __m256i *)p);
}
VEC void vi_storeu(void *p, vi v) {
    _mm256_storeu_si256((__m256i *)p, (__m256i)v);
}
VEC vi vi_pairs(vi low, vi high) {
    return (vi)_mm256_blend_epi16((__m256i)low, _mm256_slli_epi32((__m256i)high, 16), 0xaa);
} /* of the low halves */
VEC void vi_store_i16_two(int16_t *p, vi a, vi b) { /* the low halves; packus keeps all 16 bits of what is at most 0xffff */
    __m256i low = _mm256_set1_epi32(0xffff);
    vi_storeu(p, (vi)_mm256_permute4x64_epi64(
                     _mm256_packus_epi32(_mm256_and_si256((__m256i)a, low), _mm256_and_si256((__m256i)b, low)), 0xd8));
}

VEC vi vi_max(vi a, vi b) {
    return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
}
VEC int32_t vi_lanes_max(vi v) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}
VEC int32_t vi_lanes_sum(vi v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
VEC void vi_store_i8(int8_t *p, vi v) { /* of [-128, 127] */
    __m128i half = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(half, half));
}

/* As td_f32_to_bf16 rounds. */
VEC void vf_store_bf16(uint16_t *p, vf v) {
    __m256i bits = (__m256i)v, odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_cmpgt_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)), _mm256_set1_epi32(0x7f800000));
    __m256i high =
        _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), nan), 16);
    _mm_storeu_si128((__m128i *)p, _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)));
}

/* Exact (core/math/small_float.h); code 0 of e8m0 is a subnormal. NaN codes become infinity, and 480. */
VEC vf vf_load_e8m0(const uint8_t *p) {
    vi bits = vi_load_u8(p) << 23, least = vi_set1(1 << 22);
    return (vf)_mm256_max_epi32((__m256i)bits, (__m256i)least);
}

/* As f16, whose exponents are 8 above those of e4m3. */
VEC vf vf_load_e4m3(const uint8_t *p) {
    __m128i code = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p));
    __m128i magnitude = _mm_slli_epi16(_mm_and_si128(code, _mm_set1_epi16(0x7f)), 7),
            sign = _mm_slli_epi16(_mm_and_si128(code, _mm_set1_epi16(0x80)), 8);
    return _mm256_cvtph_ps(_mm_or_si128(magnitude, sign)) * vf_set1(256);
}

#endif
