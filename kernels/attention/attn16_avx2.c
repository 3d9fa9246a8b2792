/* 16-bit attention with AVX2. */
/* Multiplications first: the additions may go to any of four units, and Zen 3 gives them those of the multiplications
 * otherwise. */
#define DOT2(s, t)                                                                 \
    "vpmaddwd %%ymm12, %%ymm14, %%ymm15\n\tvpmaddwd %%ymm13, %%ymm14, %%ymm14\n\t" \
    "vpaddd %%ymm15, " s ", " s "\n\tvpaddd %%ymm14, " t ", " t "\n\t"
#define DOT3(s, t, u)                                                                                                    \
    "vpmaddwd %%ymm12, %%ymm13, %%ymm13\n\tvpmaddwd %%ymm12, %%ymm14, %%ymm14\n\tvpmaddwd %%ymm12, %%ymm15, %%ymm15\n\t" \
    "vpaddd %%ymm13, " s ", " s "\n\tvpaddd %%ymm14, " t ", " t "\n\tvpaddd %%ymm15, " u ", " u "\n\t"
#include "kernels/attention/attn16_ymm.inc"

const td_attn16 td_attn16_avx2 = {.name = "attn16_avx2", ATTN16_MEMBERS};
