/* 16-bit attention with AVX-VNNI. */
#define DOT2(s, t) "%{vex%} vpdpwssd %%ymm12, %%ymm14, " s "\n\t%{vex%} vpdpwssd %%ymm13, %%ymm14, " t "\n\t"
#define DOT3(s, t, u)                                                                   \
    "%{vex%} vpdpwssd %%ymm12, %%ymm13, " s "\n\t%{vex%} vpdpwssd %%ymm12, %%ymm14, " t \
    "\n\t"                                                                              \
    "%{vex%} vpdpwssd %%ymm12, %%ymm15, " u "\n\t"
#include "kernels/attention/attn16_ymm.inc"

const td_attn16 td_attn16_avxvnni = {.name = "attn16_avxvnni", ATTN16_MEMBERS};
