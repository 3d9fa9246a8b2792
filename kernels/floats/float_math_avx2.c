/* The float table with AVX2 and FMA. */
#include <immintrin.h>

#include "core/cpu.h"
#include "kernels/floats/float_math.h"

typedef __m256 vec;
#define VW      8
#define MR      6
#define NV      2
#define MR_WIDE 2
#define NV_WIDE 4

static const int32_t LANES[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

static inline __m256i lane_mask(size_t n) { return _mm256_loadu_si256((const __m256i *)(LANES + 8 - n)); }
static inline vec     v_zero(void) { return _mm256_setzero_ps(); }
static inline vec     v_set1(float f) { return _mm256_set1_ps(f); }
static inline vec     v_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec     v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline vec     v_load_bf16(const td_bf16 *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline void v_store(float *p, vec v) { _mm256_storeu_ps(p, v); }
static inline vec  v_load_n(const float *p, size_t n) { return _mm256_maskload_ps(p, lane_mask(n)); }
static inline vec  v_load_bf16_n(const td_bf16 *p, size_t n) {
    td_bf16 lanes[8] = {0};
    memcpy(lanes, p, n * sizeof *p);
    return v_load_bf16(lanes);
}
static inline void v_store_n(float *p, vec v, size_t n) { _mm256_maskstore_ps(p, lane_mask(n), v); }

#define BF16_PAIRS 0
#define ROW_CASES  FGEMM_CASE(1) FGEMM_CASE(2) FGEMM_CASE(3) FGEMM_CASE(4) FGEMM_CASE(5) FGEMM_CASE(6)
#include "kernels/floats/fgemm_body.inc"

static inline vec load_row(td_dtype dtype, const void *src, size_t at, size_t n) {
    if (dtype == TD_DT_BF16) return n >= VW ? v_load_bf16((const td_bf16 *)src + at) : v_load_bf16_n((const td_bf16 *)src + at, n);
    return n >= VW ? v_load((const float *)src + at) : v_load_n((const float *)src + at, n);
}

static void transpose(float *dst, size_t panel_stride, td_dtype dtype, const void *src, size_t ld, size_t rows, size_t cols) {
    for (size_t r0 = 0; r0 < rows; r0 += 8)
        for (size_t c0 = 0; c0 < cols; c0 += 8) {
            float *to = dst + r0 / TD_ATTN_PANEL * panel_stride + c0 * TD_ATTN_PANEL + r0 % TD_ATTN_PANEL;
            vec x[8], y[8];
            for (size_t r = 0; r < 8; r++) x[r] = r0 + r < rows ? load_row(dtype, src, (r0 + r) * ld + c0, cols - c0) : v_zero();
            for (int i = 0; i < 4; i++) { /* pairs of rows */
                y[2 * i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]);
                y[2 * i + 1] = _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
            }
            for (int i = 0; i < 8; i += 4) { /* fours */
                x[i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
                x[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xee);
                x[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0x44);
                x[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0xee);
            }
            for (int i = 0; i < 4; i++) { /* halves */
                y[i] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20);
                y[i + 4] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
            }
            for (size_t c = 0; c < 8 && c0 + c < cols; c++) v_store(to + c * TD_ATTN_PANEL, y[c]);
        }
}

/* The multiply-add of the elementwise part: two halves of 16 lanes. */
#define FMA16(a, b, c) fma16(a, b, c)
typedef float v16f __attribute__((vector_size(64)));
static inline __attribute__((always_inline)) v16f fma16(v16f a, v16f b, v16f c) {
    vec x[2], y[2], z[2];
    memcpy(x, &a, sizeof a);
    memcpy(y, &b, sizeof b);
    memcpy(z, &c, sizeof c);
    for (int i = 0; i < 2; i++) z[i] = v_fma(x[i], y[i], z[i]);
    memcpy(&c, z, sizeof c);
    return c;
}
#include "kernels/floats/float_math_body.inc"

const td_float_math td_float_math_avx2 = {.name = "avx2", FLOAT_MATH_MEMBERS};
