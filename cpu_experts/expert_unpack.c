/* Weights of a loaded layer for others: as numbers again, for measuring and for other file formats; as they lie, for a
 * device. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/math/small_float.h"
#include "cpu_experts/expert_state.h"
#include "kernels/rows/convert.h"

/* Rows of one matrix, as a tile holds them. */
typedef struct {
    const td_gemm_weights *tile;
    size_t                 in_tile, n; /* the first, and how many */
    size_t                 k, cols;    /* elements of a row in the tile, and of those that count */
} tile_rows;

typedef void (*rows_fn)(const td_experts *x, const tile_rows *rows, size_t done, void *ctx);

/* Unpack the tiles that hold rows row .. row + n - 1, and give each one's part to fn; done counts the rows before. */
static td_status each_tile(const td_experts *x, uint32_t layer, uint32_t expert, td_expert_matrix m, size_t row, size_t n,
                           rows_fn fn, void *ctx, td_error *err) {
    const expert_layout *l = &x->layout;
    size_t               nr = x->kernel->tiles->nr, k = expert_matrix_k(l, m);
    assert(layer < x->config.n_layers && x->loaded[layer] && expert < l->n_experts && row + n <= expert_matrix_rows(l, m));
    void *mem = aligned_alloc(TD_CACHE_LINE, td_expert_pack_tmp_bytes(l));
    if (!mem) return td_fail(err, TD_ENOMEM, "out of memory to unpack an expert");
    td_gemm_weights weights = td_expert_tile_weights(l, mem);
    for (size_t done = 0, part; done < n; done += part) {
        size_t   tile = (row + done) / nr, in_tile = (row + done) % nr;
        uint32_t shard;
        size_t   at = td_expert_tile_offset(l, expert, m, tile, &shard);
        part = nr - in_tile < n - done ? nr - in_tile : n - done;
        td_tile_unpack(x->kernel->tiles, (const char *)expert_shard_data(x, layer, shard) + at, &weights, k, &l->groups);
        fn(x, &(tile_rows){.tile = &weights, .in_tile = in_tile, .n = part, .k = k, .cols = expert_matrix_cols(l, m)}, done,
           ctx);
    }
    free(mem);
    return TD_OK;
}

static void row_values(const td_experts *x, const tile_rows *t, size_t r, float *out) {
    const td_gemm_weights *w = t->tile;
    const int8_t          *code = (const int8_t *)w->rows + r * t->k;
    switch (x->config.format) {
        case TD_EXPERT_BF16: td_to_f32(TD_DT_BF16, (const td_bf16 *)w->rows + r * t->k, t->cols, out); break;
        case TD_EXPERT_INT4C:
        case TD_EXPERT_INT8C:
            for (size_t i = 0; i < t->cols; i++) out[i] = (float)code[i] * w->scale[r];
            break;
        case TD_EXPERT_INT4G: {
            size_t size = x->layout.groups.size, first = r * (t->k / size);
            for (size_t i = 0; i < t->cols; i++)
                out[i] = (float)(code[i] - w->zero[first + i / size]) * w->scale[first + i / size];
            break;
        }
        case TD_EXPERT_FP4G: {
            size_t size = x->layout.groups.size, first = r * (t->k / size);
            for (size_t i = 0; i < t->cols; i++)
                out[i] = (float)td_e2m1_twice((uint8_t)code[i]) * 0.5f * w->scale[first + i / size] * w->factor[r];
            break;
        }
    }
}

static void give_values(const td_experts *x, const tile_rows *t, size_t done, void *ctx) {
    for (size_t r = 0; r < t->n; r++) row_values(x, t, t->in_tile + r, (float *)ctx + (done + r) * t->cols);
}

td_status td_experts_get_values(const td_experts *x, uint32_t layer, uint32_t expert, td_expert_matrix m, size_t row,
                                size_t n, float *values, td_error *err) {
    return each_tile(x, layer, expert, m, row, n, give_values, values, err);
}

typedef struct {
    int8_t *codes;
    float  *scale;
} coded;

static void give_codes(const td_experts *x, const tile_rows *t, size_t done, void *ctx) {
    const coded *out = ctx;
    bool         groups = x->config.format == TD_EXPERT_INT4G;
    size_t       size = groups ? x->layout.groups.size : t->k, in_row = t->k / size, scales = (t->cols + size - 1) / size;
    for (size_t r = 0; r < t->n; r++) {
        int8_t *codes = out->codes + (done + r) * t->cols;
        size_t  at = (t->in_tile + r) * in_row;
        memcpy(codes, (const int8_t *)t->tile->rows + (t->in_tile + r) * t->k, t->cols);
        for (size_t i = 0; groups && i < t->cols; i++) codes[i] = (int8_t)(codes[i] - t->tile->zero[at + i / size]);
        memcpy(out->scale + (done + r) * scales, t->tile->scale + at, scales * sizeof *out->scale);
    }
}

td_status td_experts_get_codes(const td_experts *x, uint32_t layer, uint32_t expert, td_expert_matrix m, size_t row,
                               size_t n, int8_t *codes, float *scale, td_error *err) {
    td_expert_format f = x->config.format;
    if (f != TD_EXPERT_INT4C && f != TD_EXPERT_INT8C && f != TD_EXPERT_INT4G)
        return td_fail(err, TD_ENOTSUP, "only integers are codes times scales");
    return each_tile(x, layer, expert, m, row, n, give_codes, &(coded){codes, scale}, err);
}

uint32_t td_experts_layer_pieces(const td_experts *x, uint32_t layer, td_expert_stretch out[TD_POOL_SUBPOOLS_MAX]) {
    assert(layer < x->config.n_layers && x->loaded[layer]);
    for (uint32_t s = 0; s < x->layout.n_shards; s++)
        out[s] = (td_expert_stretch){expert_shard_data(x, layer, s), x->layout.shard[s].bytes};
    return x->layout.n_shards;
}

uint32_t td_experts_pieces(const td_experts *x, uint32_t layer, uint32_t expert,
                           td_expert_stretch out[TD_POOL_SUBPOOLS_MAX]) {
    assert(layer < x->config.n_layers && x->loaded[layer] && expert < x->config.n_experts);
    assert(!expert_is_dropped(x, layer, expert));
    for (uint32_t s = 0; s < x->layout.n_shards; s++) {
        const size_t bytes = x->layout.shard[s].expert.bytes;
        out[s] = (td_expert_stretch){(char *)expert_shard_data(x, layer, s) + expert * bytes, bytes};
    }
    return x->layout.n_shards;
}

void td_experts_copy_packed(const td_experts *x, uint32_t layer, uint32_t expert, void *out) {
    td_expert_stretch piece[TD_POOL_SUBPOOLS_MAX];
    const uint32_t    n = td_experts_pieces(x, layer, expert, piece);
    char             *to = out;
    for (uint32_t s = 0; s < n; to += piece[s++].bytes) memcpy(to, piece[s].at, piece[s].bytes);
}
