/*
 * W8A8 with AVX512-VNNI. vpdpbusd multiplies unsigned by signed bytes: the weights are stored as w + 128, so a sum is too
 * large by 128 * sum(x), which is known per row of x. Products of four are added without saturation.
 */
#include <immintrin.h>
#include <stdbool.h>

#include "core/cpu.h"
#include "npu/host/kernels/w8a8_common.h"

#define MR     14
#define NR     32
#define OFFSET 128
#define AHEAD  8192 /* bytes ahead of a single pass that are brought to L2 */
#define NEAR   2048 /* and from there to L1 */

static void pack(void *panel, const int8_t *q, size_t ldq, size_t nr_valid, size_t k) {
    w8a8_pack(panel, q, ldq, nr_valid, k, NR, 0x80);
}

/*
 * acc += w0, w1 times four of a row, broadcast. By hand: gcc 12 keeps some of the intrinsic's accumulators in memory. Half of the rows
 * are broadcast by the multiplications themselves: one instruction less and one load more, so that neither is the narrow place.
 */
TD_INLINE void dot(__m512i *acc, __m512i w0, __m512i w1, const int8_t *x, bool embedded) {
    if (embedded) {
        __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc[0]) : "v"(w0), "m"(*(const int8_t(*)[4])x));
        __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc[1]) : "v"(w1), "m"(*(const int8_t(*)[4])x));
    } else {
        int32_t four;
        memcpy(&four, x, 4);
        __m512i b = _mm512_set1_epi32(four);
        __asm__("vpdpbusd %2, %1, %0" : "+v"(acc[0]) : "v"(w0), "v"(b));
        __asm__("vpdpbusd %2, %1, %0" : "+v"(acc[1]) : "v"(w1), "v"(b));
    }
}

/* 28 sums, two weight vectors and the broadcast fill 31 registers. */
TD_INLINE void tile(int32_t *out, const uint8_t *w, size_t k4, const int8_t *x, size_t ldx, int rows,
                    const uint8_t *ahead, size_t step) {
    __m512i       acc[MR][2];
    const int8_t *x3[5] = {x, x + 3 * ldx, x + 6 * ldx, x + 9 * ldx, x + 12 * ldx}; /* row i is x3[i / 3] + (i % 3) * ldx: an address each */
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++) acc[i][0] = acc[i][1] = _mm512_setzero_si512();
    for (size_t kk = 0; kk < k4; kk++, w += 4 * NR, ahead += step) {
        __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);
        _mm_prefetch((const char *)ahead, _MM_HINT_T1);
        _mm_prefetch((const char *)ahead + step / 2, _MM_HINT_T1); /* at full step: two lines */
        _mm_prefetch((const char *)w + NEAR, _MM_HINT_T0);
        _mm_prefetch((const char *)w + NEAR + 64, _MM_HINT_T0);
#pragma GCC unroll 14
        for (int i = 0; i < rows; i++) dot(acc[i], w0, w1, x3[i / 3] + (size_t)(i % 3) * ldx + kk * 4, i % 2 == 1);
    }
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++) {
        _mm512_store_si512(out + i * NR, acc[i][0]);
        _mm512_store_si512(out + i * NR + 16, acc[i][1]);
    }
}

#define TILE_CASES                                                                                              \
    TILE_CASE(1) TILE_CASE(2) TILE_CASE(3) TILE_CASE(4) TILE_CASE(5) TILE_CASE(6) TILE_CASE(7) TILE_CASE(8)     \
    TILE_CASE(9) TILE_CASE(10) TILE_CASE(11) TILE_CASE(12)            \
    TILE_CASE(13) TILE_CASE(14)
#include "npu/host/kernels/w8a8_tiles.inc"

const td_w8a8_kernel td_w8a8_avx512vnni = {
    .name = "w8a8_avx512vnni_14x32", .needs = TD_CPU_AVX512 | TD_CPU_AVX512VNNI, .mr = MR, .nr = NR, .pack = pack, .run = run,
};
