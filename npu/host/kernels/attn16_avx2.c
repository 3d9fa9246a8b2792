/* 16-bit attention with AVX2. */
#include <immintrin.h>

#define DOT2(s, t)                                                                       \
    "vpmaddwd %%ymm12, %%ymm14, %%ymm15\n\tvpaddd %%ymm15, " s ", " s "\n\t"            \
    "vpmaddwd %%ymm13, %%ymm14, %%ymm14\n\tvpaddd %%ymm14, " t ", " t "\n\t"
#include "npu/host/kernels/attn16_ymm.inc"

const td_attn16 td_attn16_avx2 = {.name = "attn16_avx2", .needs = TD_CPU_AVX2, ATTN16_MEMBERS};
