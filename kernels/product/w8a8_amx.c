/*
 * W8A8 with AMX-INT8, on the panels of AVX512-VNNI, which are tiles of weights as they lie. 32 rows of x at a time; fewer than
 * AMX_ROWS_MIN are AVX512-VNNI's. Never run on a processor that has the instructions: tested with kernels/vec/amx.h's emulation.
 */
#include "core/cpu.h"
#include "kernels/product/w8a8_common.h"
#include "kernels/product/amx_rows.h"

static void pack(void *panel, const int8_t *q, size_t ldq, size_t nr_valid, size_t k) {
    w8a8_pack(panel, q, ldq, nr_valid, k, AMX_NR, 0x80);
}

static void run(const td_w8a8_args *a) {
    _Alignas(64) int32_t sums[AMX_PAIR * AMX_NR];
    const size_t         k = (a->k + 3) / 4 * 4;
    amx_shape            shape = {0};
    if (a->m < AMX_ROWS_MIN) {
        td_w8a8_avx512vnni.run(a);
        return;
    }
    for (size_t p = a->panel_begin; p < a->panel_end; p++) {
        const uint8_t *w = (const uint8_t *)a->w + p * k * AMX_NR;
        for (size_t t = 0; t * TD_AMX_ROWS < a->m; t += 2) {
            amx_rows r = amx_rows_of(a->x, a->ldx, a->m, t);
            amx_product(&shape, &r, 0, k, w, false, sums, true, t == 0 ? k * AMX_NR : 0);
            w8a8_store(a, sums, r.first, r.n[0] + r.n[1], p * AMX_NR, AMX_NR, 128);
        }
    }
    td_amx_release();
}

const td_w8a8_kernel td_w8a8_amx = {
    .name = "w8a8_amx_32x32", .mr = AMX_PAIR, .nr = AMX_NR, .pack = pack, .run = run,
};
