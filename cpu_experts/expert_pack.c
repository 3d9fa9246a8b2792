/* Packing a layer: rows from some source, tile by tile, into every shard, by the shard's own workers. */
#include <assert.h>

#include "core/error.h"
#include "cpu_experts/expert_state.h"

#define NO_EXPERT UINT32_MAX

typedef struct {
    td_experts      *x;
    uint32_t         layer;
    expert_rows_fn   rows;
    expert_bias_fn   bias;
    const void      *ctx;
    _Atomic uint32_t refused; /* an expert whose rows were refused; relaxed: read after the run */
} pack_job;

static size_t k_max(const expert_layout *l) {
    return l->hidden_k > l->inter_k ? l->hidden_k : l->inter_k;
}

#define KR_MAX 128 /* of any kernel */

/* Rows of a tile are at most 2 bytes an element. */
static size_t tile_rows_bytes(const expert_layout *l) {
    return td_round_up(TD_GEMM_NR_MAX * (k_max(l) + KR_MAX) * 2, TD_CACHE_LINE);
}

/* Scales, and as many zeros: of groups of 16, or one a row. */
static size_t tile_scales(const expert_layout *l) {
    return TD_GEMM_NR_MAX * ((k_max(l) + KR_MAX) / 16 + 1);
}

static size_t tile_weights_bytes(const expert_layout *l) {
    return td_round_up(tile_rows_bytes(l) + tile_scales(l) * (sizeof(float) + 1) + TD_GEMM_NR_MAX * sizeof(float),
                       TD_CACHE_LINE);
}

td_gemm_weights td_expert_tile_weights(const expert_layout *l, void *mem) {
    float *scale = (float *)((char *)mem + tile_rows_bytes(l)), *factor = scale + tile_scales(l);
    return (td_gemm_weights){.rows = mem, .scale = scale, .factor = factor, .zero = (uint8_t *)(factor + TD_GEMM_NR_MAX)};
}

size_t td_expert_pack_tmp_bytes(const expert_layout *l) {
    return td_round_up(tile_weights_bytes(l) + (k_max(l) + KR_MAX) * sizeof(float), TD_CACHE_LINE);
}

size_t td_expert_pack_worker_bytes(const td_tile_layout *tiles, const expert_layout *l) {
    assert(tiles->nr <= TD_GEMM_NR_MAX && tiles->kr <= KR_MAX);
    return tile_weights_bytes(l) + td_expert_pack_tmp_bytes(l);
}

/* Of a tile, of which n rows are the matrix'. */
static void pack_bias(pack_job *job, size_t expert, td_expert_matrix m, size_t tile, size_t n) {
    const expert_layout *l = &job->x->layout;
    uint32_t             shard;
    size_t               at = td_expert_bias_offset(l, expert, m, tile, &shard);
    float               *bias = (float *)(void *)((char *)expert_shard_data(job->x, job->layer, shard) + at);
    if (!job->bias(job->ctx, expert, m, tile * l->sizes.nr, n, bias))
        atomic_store_explicit(&job->refused, (uint32_t)expert, memory_order_relaxed);
    memset(bias + n, 0, (l->sizes.nr - n) * sizeof *bias);
}

static void pack_matrix(pack_job *job, const td_worker *w, size_t expert, td_expert_matrix m, size_t tile0, size_t n_tiles) {
    const td_tile_layout *tiles = job->x->kernel->tiles;
    const expert_layout  *l = &job->x->layout;
    size_t                k = expert_matrix_k(l, m), n_rows = expert_matrix_rows(l, m),
           row_bytes = k * td_gemm_element((td_product)job->x->config.format),
           n_scales = td_expert_has_groups(job->x->config.format) ? k / l->groups.size : 1; /* of a row */
    char           *mem = expert_worker_scratch(job->x, w->index), *tmp = mem + tile_weights_bytes(l);
    td_gemm_weights weights = td_expert_tile_weights(l, mem);
    for (size_t t = tile0; t < tile0 + n_tiles; t++) {
        size_t   row = t * tiles->nr, n = n_rows - row < tiles->nr ? n_rows - row : tiles->nr;
        uint32_t shard;
        memset((char *)weights.rows + n * row_bytes, 0, (tiles->nr - n) * row_bytes);
        memset(weights.scale + n * n_scales, 0, (tiles->nr - n) * n_scales * sizeof *weights.scale);
        memset(weights.factor, 0, tiles->nr * sizeof *weights.factor);
        memset(weights.zero, 8, tiles->nr * n_scales);
        if (!job->rows(job->ctx, expert, m, row, n, k, &weights, tmp, w->index))
            atomic_store_explicit(&job->refused, (uint32_t)expert, memory_order_relaxed);
        size_t at = td_expert_tile_offset(l, expert, m, t, &shard);
        assert(shard == w->subpool);
        td_tile_pack(tiles, (char *)expert_shard_data(job->x, job->layer, shard) + at, &weights, k, &l->groups);
        if (l->sizes.bias) pack_bias(job, expert, m, t, n);
    }
}

static void pack_expert(void *ctx, uint32_t item, const td_worker *w) {
    pack_job           *job = ctx;
    const expert_shard *sh = &job->x->layout.shard[w->subpool];
    pack_matrix(job, w, item, TD_EXPERT_GATE, sh->gate_tile0, sh->expert.n_gate);
    pack_matrix(job, w, item, TD_EXPERT_UP, sh->gate_tile0, sh->expert.n_gate);
    pack_matrix(job, w, item, TD_EXPERT_DOWN, sh->down_tile0, sh->expert.n_down);
}

td_status td_expert_pack_layer(td_experts *x, uint32_t layer, expert_rows_fn rows, expert_bias_fn bias, const void *ctx,
                               td_error *err) {
    pack_job job = {.x = x, .layer = layer, .rows = rows, .bias = bias, .ctx = ctx, .refused = NO_EXPERT};
    if (x->config.bias && !bias)
        return td_fail(err, TD_ENOTSUP,
                       "the experts of this model have biases: their weights are taken as they are in the checkpoint, not "
                       "rotated or rounded elsewhere");
    TD_TRY(td_expert_layer_memory(x, layer, err));
    td_pool_run_each(x->pool, pack_expert, &job, x->config.n_experts);
    uint32_t refused = atomic_load_explicit(&job.refused, memory_order_relaxed);
    if (refused != NO_EXPERT)
        return td_fail(err, TD_EFORMAT, "the weights of expert %u in MoE layer %u hold an infinity or a NaN", refused,
                       x->config.first_layer + layer);
    x->loaded[layer] = true;
    td_expert_report_placement(x, layer);
    return TD_OK;
}
