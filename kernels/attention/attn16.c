/* 16-bit attention: the tables of all instruction sets. Those that have most of their own have a file of it, too. */
#include "kernels/vec/vec.h"

#include <stdbool.h>

#include "core/memory/mem.h"
#include "kernels/attention/attn16.h"

#if TD_FOR_SCALAR

/* The reference, and what runs where no better tier is compiled. */
static void pair(const int16_t *a, const int16_t *b, size_t n, int16_t *out, size_t panel_stride) {
    for (size_t c = 0; c < td_round_up(n, 32); c++) {
        int16_t *to = out + (c / 32 * 2 + c / 4 % 2) * panel_stride + (c % 32 / 8 * 4 + c % 4) * 2;
        to[0] = a[c];
        to[1] = b ? b[c] : 0;
    }
}

static void transpose(int32_t *dst, size_t ld_dst, const int32_t *src, size_t ld_src, size_t rows, size_t cols) {
    for (size_t c = 0; c < cols; c++)
        for (size_t r = 0; r < td_round_up(rows, 16); r++) dst[c * ld_dst + r] = r < rows ? src[r * ld_src + c] : 0;
}

static void gemm(const td_attn16_gemm *g) {
    for (size_t i = 0; i < g->m; i++)
        for (size_t j = 0; j < g->n; j++) {
            const int16_t *a = g->a + i * g->lda, *b = g->b + j;
            size_t         panel = j / 16, lane = j % 16, next = g->ldb,
                   step = 2 * g->ldb; /* to the other of a pair; to the next pair */
            int32_t sum = 0;
            if (g->ldb == 0) {
                if (g->crossed) panel = j / 32 * 2 + j / 4 % 2, lane = j % 32 / 8 * 4 + j % 4;
                b = g->b + panel * g->panel_stride + lane * 2, next = 1, step = 32;
            }
            for (size_t k = 0; k < g->pairs; k++) sum += a[2 * k] * b[k * step] + a[2 * k + 1] * b[k * step + next];
            float *c = g->c + i * g->ldc + j, scale = g->column ? g->scale[i] * g->column[j] : g->scale[i];
            *c = g->keep ? fmaf((float)sum, scale, *c * g->keep[i]) : (float)sum * scale;
        }
}

#include "kernels/attention/attn16_body.inc"

const td_attn16 td_attn16_scalar = {.name = "attn16_scalar", ATTN16_MEMBERS};

#elif TD_FOR_AVX2

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

#elif TD_FOR_AVXVNNI

#define DOT2(s, t) "%{vex%} vpdpwssd %%ymm12, %%ymm14, " s "\n\t%{vex%} vpdpwssd %%ymm13, %%ymm14, " t "\n\t"
#define DOT3(s, t, u)                                                                   \
    "%{vex%} vpdpwssd %%ymm12, %%ymm13, " s "\n\t%{vex%} vpdpwssd %%ymm12, %%ymm14, " t \
    "\n\t"                                                                              \
    "%{vex%} vpdpwssd %%ymm12, %%ymm15, " u "\n\t"
#include "kernels/attention/attn16_ymm.inc"

const td_attn16 td_attn16_avxvnni = {.name = "attn16_avxvnni", ATTN16_MEMBERS};

#elif TD_FOR_AVX512VNNI
#include "kernels/attention/attn16_avx512vnni.inc"
#elif TD_FOR_AMX
#include "kernels/attention/attn16_amx.inc"
#else
#include "kernels/attention/attn16_neon.inc"
#endif
