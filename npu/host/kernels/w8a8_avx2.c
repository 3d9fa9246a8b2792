/*
 * W8A8 with AVX2. vpmaddubsw saturates its sums of two at int16, but |w| * (x with the sign of w) cannot reach that:
 * |w| <= 128 and |x| <= 127, so a pair is at most 2 * 128 * 127 = 32512. The activations are never -128, so their sign can be
 * changed exactly.
 */
#include <immintrin.h>

#include "core/cpu.h"
#include "npu/host/kernels/w8a8_common.h"

#define MR     4
#define NR     16
#define OFFSET 0
#define AHEAD  4096 /* bytes ahead that are brought to L2 */
#define NEAR   1024 /* and from there to L1 */

static void pack(void *panel, const int8_t *q, size_t ldq, size_t nr_valid, size_t k) {
    w8a8_pack(panel, q, ldq, nr_valid, k, NR, 0);
}

TD_INLINE __m256i dot4(__m256i acc, __m256i w_abs, __m256i w, __m256i x) {
    __m256i pairs = _mm256_maddubs_epi16(w_abs, _mm256_sign_epi8(x, w));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

TD_INLINE void tile(int32_t *out, const uint8_t *w, size_t k4, const int8_t *x, size_t ldx, int rows,
                    const uint8_t *ahead, size_t step) {
    __m256i acc[MR][2];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) acc[i][0] = acc[i][1] = _mm256_setzero_si256();
    for (size_t kk = 0; kk < k4; kk++, w += 4 * NR, ahead += step) {
        __m256i w0 = _mm256_loadu_si256((const __m256i *)w), w1 = _mm256_loadu_si256((const __m256i *)(w + 32));
        _mm_prefetch((const char *)ahead, _MM_HINT_T1);
        _mm_prefetch((const char *)w + NEAR, _MM_HINT_T0);
        __m256i w0_abs = _mm256_abs_epi8(w0), w1_abs = _mm256_abs_epi8(w1); /* -128 becomes 128, unsigned */
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
            int32_t four;
            memcpy(&four, x + (size_t)i * ldx + kk * 4, 4);
            __m256i b = _mm256_set1_epi32(four);
            acc[i][0] = dot4(acc[i][0], w0_abs, w0, b);
            acc[i][1] = dot4(acc[i][1], w1_abs, w1, b);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        _mm256_store_si256((__m256i *)(out + i * NR), acc[i][0]);
        _mm256_store_si256((__m256i *)(out + i * NR + 8), acc[i][1]);
    }
}

#define ROWS_TILE(rows) switch (rows) { TILE_CASE(1) TILE_CASE(2) TILE_CASE(3) TILE_CASE(4) }
#include "npu/host/kernels/w8a8_tiles.inc"

const td_w8a8_kernel td_w8a8_avx2 = {
    .name = "w8a8_avx2_4x16", .needs = TD_CPU_AVX2, .mr = MR, .nr = NR, .pack = pack, .run = run,
};
