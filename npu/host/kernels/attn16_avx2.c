/* 16-bit attention with AVX2. */
#include <immintrin.h>

static inline __attribute__((always_inline)) __m256i dot2(__m256i sum, __m256i a, const void *b) {
    __m256i product;
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(a), "m"(*(const __m256i_u *)b));
    return sum;
}
#include "npu/host/kernels/attn16_ymm.inc"

const td_attn16 td_attn16_avx2 = {.name = "attn16_avx2", .needs = TD_CPU_AVX2, ATTN16_MEMBERS};
