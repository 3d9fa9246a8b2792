/*
 * The tile instructions of AMX-INT8 that kernels use, by hand: compilers do not take tile loads for reads of memory. With
 * TD_AMX_EMULATED they are plain C on thread-local tiles, which checks what the processor would: so a kernel's logic can be
 * tested on machines without them (Intel SDM volume 2, "Intel AMX instruction set reference").
 *
 * A tile is up to 16 rows of up to 64 bytes; the numbers of tiles are constants, 0 .. 7. The kernel releases the tiles at
 * its end, so that the system has nothing to save.
 */
#ifndef TD_KERNELS_VEC_AMX_H
#define TD_KERNELS_VEC_AMX_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What a kernel of tiles needs of the processor beyond the vectors around them (core/machine/cpu.h). */
#if TD_AMX_EMULATED
#define TD_CPU_AMX_NEEDED 0
#else
#define TD_CPU_AMX_NEEDED TD_CPU_AMXINT8
#endif

#define TD_AMX_ROWS 16
#define TD_AMX_BYTES 64

/** Palette 1: the shape of each tile. */
typedef struct {
    uint8_t  palette, start_row, zero[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t  rows[16];
} td_amx_config;

_Static_assert(sizeof(td_amx_config) == 64, "the operand of ldtilecfg");

#if TD_AMX_EMULATED

static _Thread_local struct {
    bool          configured;
    td_amx_config config;
    uint8_t       tile[8][TD_AMX_ROWS][TD_AMX_BYTES];
} td_amx_state;

static inline void td_amx_configure(const td_amx_config *c) {
    assert(c->palette == 1 && c->start_row == 0);
    for (int t = 0; t < 8; t++)
        assert(c->rows[t] <= TD_AMX_ROWS && c->bytes[t] <= TD_AMX_BYTES && !c->rows[t] == !c->bytes[t]);
    memset(&td_amx_state, 0, sizeof td_amx_state);
    td_amx_state.config = *c;
    td_amx_state.configured = true;
}

static inline void td_amx_release(void) {
    td_amx_state.configured = false;
}

static inline void td_amx_zero(int t) {
    assert(td_amx_state.configured && td_amx_state.config.rows[t]);
    memset(td_amx_state.tile[t], 0, sizeof td_amx_state.tile[t]);
}

static inline void td_amx_load(int t, const void *base, size_t stride) {
    td_amx_zero(t); /* what lies outside the shape becomes zero */
    for (size_t r = 0; r < td_amx_state.config.rows[t]; r++)
        memcpy(td_amx_state.tile[t][r], (const char *)base + r * stride, td_amx_state.config.bytes[t]);
}

static inline void td_amx_load_t1(int t, const void *base, size_t stride) {
    td_amx_load(t, base, stride);
}

static inline void td_amx_store(int t, void *base, size_t stride) {
    assert(td_amx_state.configured && td_amx_state.config.rows[t]);
    for (size_t r = 0; r < td_amx_state.config.rows[t]; r++)
        memcpy((char *)base + r * stride, td_amx_state.tile[t][r], td_amx_state.config.bytes[t]);
}

static inline void td_amx_multiply(int c, int a, int w, bool a_signed, bool w_signed) {
    const td_amx_config *g = &td_amx_state.config;
    assert(td_amx_state.configured && c != a && a != w && c != w);
    assert(g->rows[c] && g->rows[c] == g->rows[a] && g->bytes[c] == g->bytes[w] && g->bytes[a] == 4 * g->rows[w] &&
           g->bytes[c] % 4 == 0);
    for (size_t m = 0; m < g->rows[c]; m++)
        for (size_t n = 0; n < g->bytes[c] / 4u; n++) {
            uint32_t sum; /* which wraps, as the processor's does */
            memcpy(&sum, &td_amx_state.tile[c][m][4 * n], sizeof sum);
            for (size_t k = 0; k < g->rows[w]; k++)
                for (size_t b = 0; b < 4; b++) {
                    uint8_t x = td_amx_state.tile[a][m][4 * k + b], y = td_amx_state.tile[w][k][4 * n + b];
                    sum += (uint32_t)((a_signed ? (int8_t)x : x) * (w_signed ? (int8_t)y : y));
                }
            memcpy(&td_amx_state.tile[c][m][4 * n], &sum, sizeof sum);
        }
}

static inline void td_amx_dot_ss(int c, int a, int w) {
    td_amx_multiply(c, a, w, true, true);
}

static inline void td_amx_dot_su(int c, int a, int w) {
    td_amx_multiply(c, a, w, true, false);
}

static inline void td_amx_dot_us(int c, int a, int w) {
    td_amx_multiply(c, a, w, false, true);
}

static inline void td_amx_dot_uu(int c, int a, int w) {
    td_amx_multiply(c, a, w, false, false);
}

#else

#define td_amx_configure(config) __asm__ volatile("ldtilecfg %0" : : "m"(*(config)))
#define td_amx_release() __asm__ volatile("tilerelease")
#define td_amx_zero(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
/** Rows of a tile are `stride` bytes apart in memory. */
#define td_amx_load(tile, base, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"((const void *)(base)), "r"((size_t)(stride)) : "memory")
/** The same past the L1, for what is read again only after much else. */
#define td_amx_load_t1(tile, base, stride) \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #tile : : "r"((const void *)(base)), "r"((size_t)(stride)) : "memory")
#define td_amx_store(tile, base, stride) \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"((void *)(base)), "r"((size_t)(stride)) : "memory")
/** c[m, n] += sum over k and b < 4 of a[m, 4 k + b] * w[k, 4 n + b], in int32; s: signed bytes, u: unsigned ones, a's first.
 */
#define td_amx_dot_ss(c, a, w) __asm__ volatile("tdpbssd %%tmm" #w ", %%tmm" #a ", %%tmm" #c : :)
#define td_amx_dot_su(c, a, w) __asm__ volatile("tdpbsud %%tmm" #w ", %%tmm" #a ", %%tmm" #c : :)
#define td_amx_dot_us(c, a, w) __asm__ volatile("tdpbusd %%tmm" #w ", %%tmm" #a ", %%tmm" #c : :)
#define td_amx_dot_uu(c, a, w) __asm__ volatile("tdpbuud %%tmm" #w ", %%tmm" #a ", %%tmm" #c : :)

#endif
#endif
