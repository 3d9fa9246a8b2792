/* The vectors of the kernel bodies, AVX2 + FMA. What C's operators do lane by lane (+ - * / & ^ << >>) has no name here. */
#ifndef TD_CPU_EXPERTS_KERNELS_VEC_AVX2_H
#define TD_CPU_EXPERTS_KERNELS_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define LANES 8
typedef __m256  vf; /* [LANES] f32 */
typedef int32_t vi __attribute__((vector_size(32), may_alias));

#define VEC static inline __attribute__((always_inline))

VEC vf   vf_set1(float f) { return _mm256_set1_ps(f); }
VEC vf   vf_load(const float *p) { return _mm256_loadu_ps(p); }
VEC void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
VEC vf   vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
VEC vf   vf_max(vf a, vf b) { return _mm256_max_ps(a, b); } /* b where one is a NaN; so vf_min */
VEC vf   vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
VEC vf   vf_rint(vf v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
VEC vf   vf_of_vi(vi v) { return _mm256_cvtepi32_ps((__m256i)v); }
VEC vi   vi_of_vf(vf v) { return (vi)_mm256_cvtps_epi32(v); }
VEC vi   vi_set1(int32_t i) { return (vi)_mm256_set1_epi32(i); }
VEC vi   vi_load(const void *p) { return *(const vi *)p; } /* aligned */
VEC vi   vi_load_u8(const uint8_t *p) { return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
VEC vf   vf_load_bf16(const uint16_t *p) { return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16); }
VEC vf   vf_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }

#endif
