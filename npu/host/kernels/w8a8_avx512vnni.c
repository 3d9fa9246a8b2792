/*
 * W8A8 with AVX512-VNNI. vpdpbusd multiplies unsigned by signed bytes: the weights are stored as w + 128, so a sum is too
 * large by 128 * sum(x), which is known per row of x. Products of four are added without saturation.
 */
#include <immintrin.h>

#include "core/cpu.h"
#include "npu/host/kernels/w8a8_common.h"

#define MR     12
#define NR     32
#define OFFSET 128

static void pack(void *panel, const int8_t *q, size_t ldq, size_t nr_valid, size_t k) {
    w8a8_pack(panel, q, ldq, nr_valid, k, NR, 0x80);
}

/* 24 sums, two weight vectors and the broadcast fill the 32 registers. */
TD_INLINE void tile(int32_t *out, const uint8_t *w, size_t k4, const int8_t *x, size_t ldx, int rows,
                    const uint8_t *ahead, size_t step) {
    __m512i       acc[MR][2];
    const int8_t *x3[4] = {x, x + 3 * ldx, x + 6 * ldx, x + 9 * ldx}; /* row i is x3[i / 3] + (i % 3) * ldx: an address each */
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) acc[i][0] = acc[i][1] = _mm512_setzero_si512();
    for (size_t kk = 0; kk < k4; kk++, w += 4 * NR, ahead += step) {
        __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);
        _mm_prefetch((const char *)ahead, _MM_HINT_T1);
        if (rows < MR) _mm_prefetch((const char *)ahead + 64, _MM_HINT_T1); /* at full step: two lines */
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            int32_t four;
            memcpy(&four, x3[i / 3] + (size_t)(i % 3) * ldx + kk * 4, 4);
            __m512i b = _mm512_set1_epi32(four);
            acc[i][0] = _mm512_dpbusd_epi32(acc[i][0], w0, b);
            acc[i][1] = _mm512_dpbusd_epi32(acc[i][1], w1, b);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        _mm512_store_si512(out + i * NR, acc[i][0]);
        _mm512_store_si512(out + i * NR + 16, acc[i][1]);
    }
}

#define TILE_CASES                                                                                              \
    TILE_CASE(1) TILE_CASE(2) TILE_CASE(3) TILE_CASE(4) TILE_CASE(5) TILE_CASE(6) TILE_CASE(7) TILE_CASE(8)     \
    TILE_CASE(9) TILE_CASE(10) TILE_CASE(11) TILE_CASE(12)
#include "npu/host/kernels/w8a8_tiles.inc"

const td_w8a8_kernel td_w8a8_avx512vnni = {
    .name = "w8a8_avx512vnni_12x32", .needs = TD_CPU_AVX512 | TD_CPU_AVX512VNNI, .mr = MR, .nr = NR, .pack = pack, .run = run,
};
