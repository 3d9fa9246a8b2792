/*
 * The experts' matrix products, kernel by kernel: a matrix of an expert times rows, in blocks of rows as the FFN takes them.
 * Matrices are rotated over a buffer that exceeds the last cache level.
 */
#include "bench/bench.h"

#include <string.h>

#include "core/error.h"
#include "core/machine/cpu.h"
#include "core/memory/mem.h"
#include "kernels/kernels.h"
#include "kernels/rows/row_quant.h"

#define BUFFER_BYTES ((size_t)640 << 20)
#define ROWS_MAX 512
#define TILES_PER_ITEM 4 /* at least */
#define ITEMS_PER_WORKER 4

static const struct {
    const char *name;
    size_t      n, k;
} MATRICES[] = {
    {"v2-lite gate 1408x2048", 1408, 2048},
    {"v2-lite down 2048x1408", 2048, 1408},
    {"v3 gate 2048x7168", 2048, 7168},
    {"v3 down 7168x2048", 7168, 2048},
};

static const uint32_t ROWS[] = {1, 4, 12, 16, 64, 128, 256, ROWS_MAX};

typedef struct {
    td_bench             *b;
    td_expert_format      format;
    const td_gemm_kernel *kernel;
    td_expert_groups      groups;
    char                 *tiles, *x, *out; /* [BUFFER_BYTES], [ROWS_MAX, x_stride], [workers, ROWS_MAX, nr] */
    size_t                x_stride, k, n_tiles, per_item, tile_bytes, n_copies, round;
    uint32_t              m, block;
    td_gemm_row           rows[ROWS_MAX];
} gemm;

static void gemm_item(void *ctx, uint32_t item, const td_worker *w) {
    gemm       *g = ctx;
    size_t      begin = item * g->per_item, left = g->n_tiles - begin, n = left < g->per_item ? left : g->per_item;
    const char *first = g->tiles + (g->round * g->n_tiles + begin) * g->tile_bytes;
    float      *out = (float *)g->out + w->index * ROWS_MAX * TD_GEMM_NR_MAX;
    for (size_t r = 0; r < g->m; r += g->block)
        for (size_t t = 0; t < n; t++) {
            const char *tile = first + t * g->tile_bytes;
            bool        again = t + 1 == n && r + g->block < g->m; /* the first tile, for the next block of rows */
            g->kernel->run(&(td_gemm_args){
                .tile = tile,
                .n_tiles = 1,
                .next = again ? first : tile + g->tile_bytes,
                .k = g->k,
                .m = g->m - r < g->block ? g->m - r : g->block,
                .rows = g->rows + r,
                .groups = g->groups,
                .end = {.n = g->kernel->tiles->nr, .out = out, .ld = g->kernel->tiles->nr, .dtype = TD_DT_F32}});
        }
}

static td_status run(void *ctx, td_error *err) {
    gemm *g = ctx;
    (void)err;
    g->round = (g->round + 1) % g->n_copies;
    td_pool_run(g->b->pool, gemm_item, g, (uint32_t)((g->n_tiles + g->per_item - 1) / g->per_item));
    return TD_OK;
}

/* Rows of made-up activations; of int8 codes followed by the sums of their groups. */
static void make_rows(gemm *g) {
    bool bf16 = g->format == TD_EXPERT_BF16;
    for (size_t r = 0; r < ROWS_MAX; r++) {
        char    *x = g->x + r * g->x_stride;
        int32_t *sums = (int32_t *)(x + g->k);
        g->rows[r] = (td_gemm_row){.x = x, .scale = 0.01f, .group_sum = sums};
        for (size_t i = 0; i < g->k; i++)
            if (bf16)
                ((float *)x)[i] = (float)(i % 255) * 0.01f - 1;
            else
                ((int8_t *)x)[i] = (int8_t)((r + i) % 255 - 127), g->rows[r].sum += ((int8_t *)x)[i];
        if (g->groups.size) td_group_sums_i8((int8_t *)x, g->k, g->groups.size, sums);
    }
}

static td_status time_matrix(gemm *g, size_t which, const char *shape, td_error *err) {
    size_t n = MATRICES[which].n, k = MATRICES[which].k;
    g->k = td_round_up(k, g->kernel->tiles->kr);
    g->n_tiles = (n + g->kernel->tiles->nr - 1) / g->kernel->tiles->nr;
    g->per_item = g->n_tiles / (ITEMS_PER_WORKER * td_pool_workers(g->b->pool));
    if (g->per_item < TILES_PER_ITEM) g->per_item = TILES_PER_ITEM;
    g->tile_bytes = td_tile_bytes(g->kernel->tiles, g->k, &g->groups);
    g->n_copies = BUFFER_BYTES / (g->n_tiles * g->tile_bytes);
    g->round = 0;
    g->block = td_expert_block_rows(g->kernel, g->k);
    make_rows(g);
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        bool          fast = g->kernel != td_kernels_scalar.product[g->format];
        uint32_t      m = g->m = ROWS[i];
        td_bench_case row = {.m = m,
                             .kernel = g->kernel->name,
                             .calls = fast ? (uint32_t)(m <= 16 ? g->n_copies / (m < 4 ? 1 : 4) : 2) : 1,
                             .run = run,
                             .ctx = g,
                             .bytes = (double)(g->n_tiles * g->tile_bytes),
                             .int8_ops = 2.0 * (double)(n * k) * m};
        snprintf(row.shape, sizeof row.shape, "%s", shape);
        if (!fast && m > 4) break; /* the reference: slow, and the same at any number of rows */
        TD_TRY(td_bench_time(g->b, &row, err));
    }
    return TD_OK;
}

/* What a kernel is timed with: every name of its format (mxfp4, int4-g32, ...). */
static td_status time_kernel(gemm *g, td_error *err) {
    const td_expert_numbers *numbers;
    for (size_t j = 0; (numbers = td_expert_numbers_at(j)); j++) {
        if (numbers->format != g->format) continue;
        g->groups = numbers->groups;
        for (size_t i = 0; i < sizeof MATRICES / sizeof *MATRICES; i++) {
            char shape[TD_BENCH_SHAPE_BYTES];
            snprintf(shape, sizeof shape, g->groups.size ? "%s %s" : "%s", MATRICES[i].name, numbers->name);
            if (td_bench_wanted(g->b, shape) || td_bench_wanted(g->b, g->kernel->name))
                TD_TRY(time_matrix(g, i, shape, err));
        }
    }
    return TD_OK;
}

/* Whether it is worth taking the memory. */
static bool any_wanted(const td_bench *b) {
    for (size_t i = 0; i < sizeof MATRICES / sizeof *MATRICES; i++) {
        char all[TD_BENCH_SHAPE_BYTES];
        snprintf(all, sizeof all, "%s int4-g32 int4-g64 int4-g128 mxfp4 nvfp4", MATRICES[i].name);
        if (td_bench_wanted(b, all)) return true;
    }
    for (int f = 0; f < TD_EXPERT_FORMATS; f++)
        for (const td_kernels *const *t = td_kernels_all; *t; t++)
            if (td_bench_wanted(b, (*t)->product[f]->name)) return true;
    return false;
}

static void fill(void *ctx, uint32_t item, const td_worker *w) {
    (void)w;
    memset((char *)ctx + ((size_t)item << 20), 0x3c,
           (size_t)1 << 20); /* codes, and in every float type a scale of common size */
}

td_status td_bench_expert_kernels(td_bench *b, td_error *err) {
    static gemm g;
    size_t      x_bytes, out_bytes = (size_t)td_pool_workers(b->pool) * ROWS_MAX * TD_GEMM_NR_MAX * sizeof(float);
    void       *tiles = NULL, *x = NULL, *out = NULL;
    if (!any_wanted(b)) return TD_OK;
    g = (gemm){.b = b, .x_stride = 7168 * sizeof(float) + TD_CACHE_LINE};
    x_bytes = td_round_up(ROWS_MAX * g.x_stride, td_page_bytes());
    out_bytes = td_round_up(out_bytes, td_page_bytes());
    td_status st = td_mem_map(BUFFER_BYTES, TD_NODE_ANY, &tiles, err);
    if (st == TD_OK) st = td_mem_map(x_bytes, TD_NODE_ANY, &x, err);
    if (st == TD_OK) st = td_mem_map(out_bytes, TD_NODE_ANY, &out, err);
    if (st == TD_OK) td_pool_run(b->pool, fill, tiles, BUFFER_BYTES >> 20);
    g.tiles = tiles, g.x = x, g.out = out;
    for (g.format = 0; g.format < TD_EXPERT_FORMATS; g.format++)
        for (const td_kernels *const *t = td_kernels_all; *t && st == TD_OK; t++) {
            if ((*t)->needs & ~td_cpu_features() || !td_kernels_own(*t, &(*t)->product[g.format])) continue;
            g.kernel = (*t)->product[g.format];
            st = time_kernel(&g, err);
        }
    td_mem_unmap(tiles, BUFFER_BYTES);
    td_mem_unmap(x, x_bytes);
    td_mem_unmap(out, out_bytes);
    return st;
}
