/*
 * int8 products, AMX-INT8, on the tiles and panels of AVX512-VNNI, which are tiles of weights as they lie. 32 rows at a time; fewer than
 * AMX_ROWS_MIN are AVX512-VNNI's. Never run on a processor that has the instructions: tested with kernels/vec/amx.h's emulation.
 */
#include "kernels/vec/vec_avx512.h"

#include "kernels/product/amx_rows.h"
#include "kernels/product/int8_store.inc"

#define TILES td_int8c_32x4

static const uint8_t *weight_bytes(uint8_t *buffer, const uint8_t *codes, size_t k0, size_t k, size_t ahead) {
    (void)buffer, (void)k, (void)ahead;
    return codes + k0 * AMX_NR;
}

#define IN_PLACE true
#define OFFSET   128
#define FEWER    td_int8c_avx512vnni
#include "kernels/product/channel_amx_body.inc"

static void run_tiles(const td_w8a8_args *a) {
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
            store_panel_rows(a, sums, r.first, r.n[0] + r.n[1], p * AMX_NR, AMX_NR, OFFSET);
        }
    }
    td_amx_release();
}

const td_w8a8_kernel td_w8a8_amx = {.name = "w8a8_amx_32x32", .mr = AMX_PAIR, .nr = AMX_NR, .run = run_tiles};
const td_gemm_kernel td_int8c_amx = {.name = "int8c_amx_32x32", .tiles = &TILES, .run = run};
