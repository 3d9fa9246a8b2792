/* 16-bit attention with AVX-VNNI. */
#include <immintrin.h>

static inline __attribute__((always_inline)) __m256i dot2(__m256i sum, __m256i a, const void *b) {
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(a), "m"(*(const __m256i_u *)b));
    return sum;
}
#include "npu/host/kernels/attn16_ymm.inc"

const td_attn16 td_attn16_avxvnni = {.name = "attn16_avxvnni", .needs = TD_CPU_AVX2 | TD_CPU_AVXVNNI, ATTN16_MEMBERS};
