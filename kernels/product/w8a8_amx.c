/*
 * W8A8 with AMX-INT8, on the panels of AVX512-VNNI, which are tiles of weights as they lie (kernels/product/amx_tile_product.inc says how). Rows go in blocks
 * that stay in L2 while all panels pass; fewer than AMX_ROWS_MIN are AVX512-VNNI's.
 */
#include "core/cpu.h"
#include "kernels/product/w8a8_common.h"

#define INT4     false
#define ROWS_MAX 512
#define ARGS     panel_args

typedef struct {
    const td_w8a8_args *a;
    size_t              row, column; /* of the block, of the panel */
} panel_args;

TD_INLINE void finish_row(const panel_args *p, size_t row, const int32_t *sums);

#include "kernels/product/amx_tile_product.inc"

#define AMX_ROWS_MIN 12

TD_INLINE void finish_row(const panel_args *p, size_t row, const int32_t *sums) {
    _Alignas(64) int32_t whole[NR];
    *(vi *)whole = vi_load(sums);
    *(vi *)(whole + LANES) = vi_load(sums + TILE / sizeof *sums);
    w8a8_store(p->a, whole, p->row + row, 1, p->column, NR, 128);
}

static void pack(void *panel, const int8_t *q, size_t ldq, size_t nr_valid, size_t k) {
    w8a8_pack(panel, q, ldq, nr_valid, k, NR, 0x80);
}

static void run(const td_w8a8_args *a) {
    amx_scratch  s;
    const size_t k = (a->k + 3) / 4 * 4, blocks = (a->m + ROWS_MAX - 1) / ROWS_MAX;
    if (a->m < AMX_ROWS_MIN) {
        td_w8a8_avx512vnni.run(a);
        return;
    }
    configure(a->m);
    for (size_t i = 0; i < blocks; i++) {
        const size_t row = block_begin(a->m, i, blocks), m = block_begin(a->m, i + 1, blocks) - row;
        for (size_t p = a->panel_begin; p < a->panel_end; p++) {
            const uint8_t *w = (const uint8_t *)a->w + p * k * NR;
            const uint8_t *next = p + 1 < a->panel_end ? w + k * NR : (const uint8_t *)a->w + a->panel_begin * k * NR;
            multiply(&(amx_job){.x = a->x + row * a->ldx, .ldx = a->ldx, .m = m, .k = k, .codes = w, .next = next},
                     &(panel_args){a, row, p * NR}, &s);
        }
    }
    td_amx_release();
}

const td_w8a8_kernel td_w8a8_amx = {
    .name = "w8a8_amx_32x32", .mr = PAIR, .nr = NR, .pack = pack, .run = run,
};
