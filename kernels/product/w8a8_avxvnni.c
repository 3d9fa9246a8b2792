/* W8A8 with AVX-VNNI: as the AVX512 kernel (weights stored as w + 128), with 256-bit vectors. */
#include <immintrin.h>

#include "core/cpu.h"
#include "kernels/product/w8a8_common.h"

#define MR     6
#define NR     16
#define OFFSET 128
#define AHEAD  4096 /* bytes ahead that are brought to L2 */
#define NEAR   1024 /* and from there to L1 */

static void pack(void *panel, const int8_t *q, size_t ldq, size_t nr_valid, size_t k) {
    w8a8_pack(panel, q, ldq, nr_valid, k, NR, 0x80);
}

TD_INLINE void tile(int32_t *out, const uint8_t *w, size_t k4, const int8_t *x, size_t ldx, int rows,
                    const uint8_t *ahead, size_t step) {
    __m256i       acc[MR][2];
    const int8_t *x3[2] = {x, x + 3 * ldx};
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) acc[i][0] = acc[i][1] = _mm256_setzero_si256();
    for (size_t kk = 0; kk < k4; kk++, w += 4 * NR, ahead += step) {
        __m256i w0 = _mm256_loadu_si256((const __m256i *)w), w1 = _mm256_loadu_si256((const __m256i *)(w + 32));
        _mm_prefetch((const char *)ahead, _MM_HINT_T1);
        _mm_prefetch((const char *)w + NEAR, _MM_HINT_T0);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            int32_t four;
            memcpy(&four, x3[i / 3] + (size_t)(i % 3) * ldx + kk * 4, 4);
            __m256i b = _mm256_set1_epi32(four);
            acc[i][0] = _mm256_dpbusd_avx_epi32(acc[i][0], w0, b);
            acc[i][1] = _mm256_dpbusd_avx_epi32(acc[i][1], w1, b);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        _mm256_store_si256((__m256i *)(out + i * NR), acc[i][0]);
        _mm256_store_si256((__m256i *)(out + i * NR + 8), acc[i][1]);
    }
}

#define ROWS_TILE(rows) switch (rows) { TILE_CASE(1) TILE_CASE(2) TILE_CASE(3) TILE_CASE(4) TILE_CASE(5) TILE_CASE(6) }
#include "kernels/product/w8a8_tiles.inc"

const td_w8a8_kernel td_w8a8_avxvnni = {
    .name = "w8a8_avxvnni_6x16", .mr = MR, .nr = NR, .pack = pack, .run = run_tiles,
};
