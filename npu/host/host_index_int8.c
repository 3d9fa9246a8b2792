/*
 * An indexer's scores in integers of 8 bits: what devices with bf16 activations compute with.
 *
 * Queries and keys are rotated by Hadamard's matrix, as the programs published with DeepSeek-V3.2 and V4 do before they
 * round to FP8 or FP4: their products stay, and no value stands out. Then each row is quantised (kernels/rows/row_quant.h).
 * A row's queries are packed as the weights of a product of int8 (int8c in kernels/product/tile_gemm.h), whose activations
 * are the keys where they lie. Integer sums are exact, so a score depends on its row and its key alone.
 *
 * A page of keys: [rows][ld] codes, 0 behind the last; [rows] f32 scales; [rows] int32 sums of the codes.
 */
#include <math.h>

#include "npu/host/host_index.h"

typedef struct {
    td_gemm_row *keys;     /* [TD_INDEX_TILE] */
    float       *products; /* [TD_KV_PAGE][heads] */
    int8_t      *codes;    /* [nr][ld] queries on their way into a tile */
    float       *scale;    /* [nr] */
} scratch;

static const td_gemm_kernel *kernel_of(const td_host_npu *d) {
    return d->kernels->product[TD_PRODUCT_INT8C];
}

/* Codes of a row of dim values. */
static size_t padded(const td_host_npu *d, size_t dim) {
    return td_round_up(dim, kernel_of(d)->tiles->kr);
}

static size_t lay(const td_host_npu *d, size_t heads, size_t dim, char *at, scratch *b) {
    const size_t nr = kernel_of(d)->tiles->nr;
    size_t       used = 0;
    const size_t offset[] = {td_host_place(&used, TD_INDEX_TILE * sizeof(td_gemm_row)),
                             td_host_place(&used, TD_KV_PAGE * heads * sizeof(float)),
                             td_host_place(&used, nr * padded(d, dim)), td_host_place(&used, nr * sizeof(float))};
    if (b)
        *b = (scratch){.keys = (td_gemm_row *)(void *)(at + offset[0]),
                       .products = (float *)(void *)(at + offset[1]),
                       .codes = (int8_t *)(at + offset[2]),
                       .scale = (float *)(void *)(at + offset[3])};
    return used;
}

static scratch open_scratch(const td_host_index *x, void *mem) {
    scratch b;
    lay(x->d, x->heads, x->dim, mem, &b);
    return b;
}

/* ---- keys -------------------------------------------------------------------------------------- */

static size_t page_bytes(const td_host_npu *d, size_t rows, size_t dim) {
    return rows * (padded(d, dim) + sizeof(float) + sizeof(int32_t));
}

static void store(const td_host_npu *d, void *page, size_t rows, size_t offset, float *key, size_t dim) {
    const size_t ld = padded(d, dim);
    int8_t      *codes = (int8_t *)page + offset * ld;
    float       *scale = (float *)(void *)((int8_t *)page + rows * ld);
    int32_t     *sum = (int32_t *)(void *)(scale + rows);
    d->kernels->math->hadamard(key, dim);
    sum[offset] = d->kernels->rows->quantize(TD_DT_F32, key, dim, 127, codes, &scale[offset]);
    memset(codes + dim, 0, ld - dim);
}

static void load(const td_host_index *x, void *mem, size_t at, const void *page, size_t n) {
    const size_t   ld = padded(x->d, x->dim), rows = td_host_index_per_page(x);
    const int8_t  *codes = page;
    const float   *scale = (const float *)(const void *)(codes + rows * ld);
    const int32_t *sum = (const int32_t *)(const void *)(scale + rows);
    td_gemm_row   *keys = open_scratch(x, mem).keys + at;
    for (size_t k = 0; k < n; k++) keys[k] = (td_gemm_row){.x = codes + k * ld, .scale = scale[k], .sum = sum[k]};
}

/* ---- queries ----------------------------------------------------------------------------------- */

static size_t query_tiles(const td_host_npu *d, size_t heads) {
    return td_div_up(heads, (size_t)kernel_of(d)->tiles->nr);
}

static size_t query_bytes(const td_host_npu *d, size_t heads, size_t dim) {
    return query_tiles(d, heads) * td_tile_bytes(kernel_of(d)->tiles, padded(d, dim), NULL);
}

static size_t bytes(const td_host_npu *d, size_t heads, size_t dim) {
    return lay(d, heads, dim, NULL, NULL);
}

static void take(const td_host_index *x, void *mem, size_t i) {
    const td_tile_layout *tiles = kernel_of(x->d)->tiles;
    const scratch         b = open_scratch(x, mem);
    const size_t          ld = padded(x->d, x->dim), nr = tiles->nr;
    const float           unit = 1 / sqrtf((float)x->dim * (float)x->heads);
    char                 *tile = x->queries + i * query_bytes(x->d, x->heads, x->dim);
    for (size_t first = 0; first < x->heads; first += nr, tile += td_tile_bytes(tiles, ld, NULL)) {
        memset(b.codes, 0, nr * ld);
        memset(b.scale, 0, nr * sizeof *b.scale);
        for (size_t h = 0; h < nr && first + h < x->heads; h++) {
            float *q = x->q + (i * x->heads + first + h) * x->dim;
            x->d->kernels->math->hadamard(q, x->dim);
            x->d->kernels->rows->quantize(TD_DT_F32, q, x->dim, 127, b.codes + h * ld, &b.scale[h]);
            b.scale[h] *= unit;
        }
        td_tile_pack(tiles, tile, &(td_gemm_weights){.rows = b.codes, .scale = b.scale}, ld, NULL);
    }
}

/* ---- scores ------------------------------------------------------------------------------------ */

static void score(const td_host_index *x, void *mem, size_t i, size_t n, float *scores) {
    const scratch b = open_scratch(x, mem);
    const size_t  heads = x->heads, per_page = td_host_index_per_page(x);
    for (size_t at = 0; at < n; at += per_page) { /* keys of a page lie at equal distances */
        const size_t some = n - at < per_page ? n - at : per_page;
        kernel_of(x->d)->run(&(td_gemm_args){.tile = x->queries + i * query_bytes(x->d, heads, x->dim),
                                             .n_tiles = query_tiles(x->d, heads),
                                             .k = padded(x->d, x->dim),
                                             .m = some,
                                             .rows = b.keys + at,
                                             .end = {.n = heads, .out = b.products, .ld = heads, .dtype = TD_DT_F32}});
        x->d->kernels->math->relu_dot(b.products, heads, some, x->weights + i * heads, heads, scores + at);
    }
}

const td_index_path td_index_int8 = {.page_bytes = page_bytes,
                                     .store = store,
                                     .query_bytes = query_bytes,
                                     .bytes = bytes,
                                     .take = take,
                                     .load = load,
                                     .score = score};
