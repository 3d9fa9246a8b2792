/*
 * W8A8 with AMX-INT8, on the panels of AVX512-VNNI, which are tiles of weights as they lie: 16 rows of four k of 16 outputs. 32 rows of x
 * at a time; fewer than ROWS_MIN are AVX512-VNNI's. Never run on a processor that has the instructions: tested with core/amx.h's emulation.
 */
#include <immintrin.h>
#include <stdbool.h>

#include "core/amx.h"
#include "core/cpu.h"
#include "npu/host/kernels/w8a8_common.h"

#define NR       32
#define ROWS_MIN 16
#define STEP     64 /* k of a tile */

static void pack(void *panel, const int8_t *q, size_t ldq, size_t nr_valid, size_t k) {
    w8a8_pack(panel, q, ldq, nr_valid, k, NR, 0x80);
}

/* Tiles 0 .. 3 sums, 4 and 5 rows of x, 6 and 7 weights, for steps of k values, k a multiple of 4. */
static void configure(size_t rows0, size_t rows1, size_t k) {
    td_amx_config c = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        bool second = t == 2 || t == 3 || t == 5;
        c.rows[t] = (uint8_t)(t >= 6 ? k / 4 : second ? rows1 : rows0);
        c.bytes[t] = (uint16_t)(!c.rows[t] ? 0 : t == 4 || t == 5 ? k : TD_AMX_BYTES);
    }
    td_amx_configure(&c);
}

/* acc [rows0 + rows1, NR] = rows of x times a panel from k0 to k1 in steps of a tile, added to what is there unless fresh. */
TD_INLINE void multiply(int32_t *acc, bool fresh, const uint8_t *w, const int8_t *x, size_t ldx, size_t rows0, bool two, size_t k0, size_t k1,
                        const uint8_t *ahead) {
    const size_t  stride = NR * sizeof *acc, panel_stride = 4 * NR;
    const int8_t *x1 = x + rows0 * ldx;
    int32_t      *acc1 = acc + rows0 * NR;
    if (fresh) {
        td_amx_zero(0);
        td_amx_zero(1);
        if (two) {
            td_amx_zero(2);
            td_amx_zero(3);
        }
    } else {
        td_amx_load(0, acc, stride);
        td_amx_load(1, acc + 16, stride);
        if (two) {
            td_amx_load(2, acc1, stride);
            td_amx_load(3, acc1 + 16, stride);
        }
    }
    for (size_t k = k0; k < k1; k += STEP) {
        for (size_t line = 0; ahead && line < STEP * NR; line += 64) _mm_prefetch((const char *)ahead + k * NR + line, _MM_HINT_T1);
        td_amx_load(6, w + k * NR, panel_stride);
        td_amx_load(4, x + k, ldx);
        td_amx_dot(0, 4, 6);
        td_amx_load(7, w + k * NR + 64, panel_stride);
        td_amx_dot(1, 4, 7);
        if (two) {
            td_amx_load(5, x1 + k, ldx);
            td_amx_dot(2, 5, 6);
            td_amx_dot(3, 5, 7);
        }
    }
    td_amx_store(0, acc, stride);
    td_amx_store(1, acc + 16, stride);
    if (two) {
        td_amx_store(2, acc1, stride);
        td_amx_store(3, acc1 + 16, stride);
    }
}

static void run(const td_w8a8_args *a) {
    _Alignas(64) int32_t acc[2 * TD_AMX_ROWS * NR];
    size_t               k = (a->k + 3) / 4 * 4, whole = k / STEP * STEP, tiles = (a->m + TD_AMX_ROWS - 1) / TD_AMX_ROWS;
    if (a->m < ROWS_MIN) {
        td_w8a8_avx512vnni.run(a);
        return;
    }
    for (size_t p = a->panel_begin; p < a->panel_end; p++) {
        const uint8_t *w = (const uint8_t *)a->w + p * k * NR;
        for (size_t t = 0; t < tiles; t += 2) { /* tiles of rows, of equal height */
            size_t        i0 = a->m * t / tiles, i1 = a->m * (t + 1) / tiles, i2 = a->m * (t + 2 < tiles ? t + 2 : tiles) / tiles;
            const int8_t *x = a->x + i0 * a->ldx;
            if (whole) {
                configure(i1 - i0, i2 - i1, STEP);
                multiply(acc, true, w, x, a->ldx, i1 - i0, i2 > i1, 0, whole, t == 0 ? w + k * NR : NULL);
            }
            if (k > whole) {
                configure(i1 - i0, i2 - i1, k - whole);
                multiply(acc, !whole, w, x, a->ldx, i1 - i0, i2 > i1, whole, k, NULL);
            }
            w8a8_store(a, acc, i0, i2 - i0, p * NR, NR, 128);
        }
    }
    td_amx_release();
}

const td_w8a8_kernel td_w8a8_amx = {
    .name = "w8a8_amx_32x32", .needs = TD_CPU_AVX512 | TD_CPU_AVX512VNNI | TD_CPU_AMX_NEEDED, .mr = 32, .nr = NR, .pack = pack, .run = run,
};
