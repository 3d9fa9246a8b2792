/*
 * int8 products, AMX-INT8, on the tiles and panels of AVX512-VNNI, which are tiles of weights as they lie. W8A8's rows go in
 * blocks that stay in L2 while all panels pass.
 */
#define TILES td_int8c_32x4
#define INT4 false
#define ROWS_MAX 512
#define OFFSET 128
#define FEWER td_int8c_avx512vnni
#include "kernels/product/channel_amx_body.inc"

/* Where a block's product with a panel goes. */
typedef struct {
    const td_w8a8_args *a;
    size_t              row, column; /* of the block, of the panel */
} panel_block;

VEC void end_of_panel_row(const void *args, size_t row, const int32_t *sums) {
    const panel_block *b = args;
    store_panel_rows(b->a, sums, b->row + row, 1, b->column, NR, OFFSET);
}

static void run_panels(const td_w8a8_args *a) {
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
                     &(panel_block){a, row, p * NR}, end_of_panel_row, &s);
        }
    }
    td_amx_release();
}

const td_w8a8_kernel td_w8a8_amx = {.name = "w8a8_amx_32x32", .mr = PAIR, .nr = NR, .run = run_panels};
const td_gemm_kernel td_int8c_amx = {.name = "int8c_amx_32x32", .tiles = &TILES, .rows = TILE_ROWS_BEST, .run = run};
