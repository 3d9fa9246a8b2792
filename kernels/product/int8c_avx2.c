/*
 * int8 per channel, AVX2: vpmaddubsw of |w| and x with the sign of w. Its pairs of at most 2 * 127 * 127 = 32258 do not saturate.
 */
#include "kernels/vec/vec_avx2.h"
#include "kernels/product/tile_kernels.h"

#define TILES td_int8c_16x4
#define NR 16

typedef struct {
    __m256i code, abs;
} weights;

VEC weights load_weights(const uint8_t *at) {
    weights w = {.code = (__m256i)(vi_load(at) ^ vi_set1((int32_t)0x80808080u))};
    w.abs = _mm256_abs_epi8(w.code);
    return w;
}

VEC vi dot(vi acc, weights w, vi x) {
    __m256i pairs = _mm256_maddubs_epi16(w.abs, _mm256_sign_epi8((__m256i)x, w.code));
    return acc + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

#define OFFSET 0
#define MR 4 /* 8 sums, two vectors of codes and of magnitudes, ones, broadcast */
#define ROW_CASES ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4)
#include "kernels/product/int8c_body.inc"

const td_gemm_kernel td_int8c_avx2 = {
    .name = "int8c_avx2_4x16",
    .tiles = &TILES,
    .run = run,
};
