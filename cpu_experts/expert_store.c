/* The store itself; what fills it is in expert_source.c, expert_codes.c, expert_random.c and expert_file.c. */
#include "cpu_experts/expert_state.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/machine/cpu.h"

static td_status check_config(const td_experts_config *c, td_error *err) {
    if (c->top_k == 0 || c->top_k > c->n_experts || c->max_tok == 0 || c->max_deferred >= c->top_k)
        return td_fail(err, TD_EINVAL, "experts with top_k %u of %u, %u tokens, %u deferred", c->top_k, c->n_experts,
                       c->max_tok, c->max_deferred);
    if (c->act_dtype != TD_DT_F32 && c->act_dtype != TD_DT_BF16)
        return td_fail(err, TD_EINVAL, "activations of the experts are f32 or bf16");
    if (!isfinite(c->glu.alpha) || !isfinite(c->glu.up_add) || !(c->glu.limit >= 0) || !isfinite(c->glu.limit))
        return td_fail(err, TD_EINVAL, "the experts' gated unit has a limit of %g, alpha %g and %g to add",
                       (double)c->glu.limit, (double)c->glu.alpha, (double)c->glu.up_add);
    return TD_OK;
}

td_status td_experts_measure(const td_experts_config *c, uint32_t n_subpools, uint32_t n_workers, uint64_t *weight_bytes,
                             uint64_t *scratch_bytes, td_error *err) {
    const td_gemm_kernel *kernel = td_kernels_here()->product[c->format];
    expert_layout         l;
    expert_scratch_places scratch;
    *weight_bytes = *scratch_bytes = 0;
    TD_TRY(check_config(c, err));
    TD_TRY(td_expert_layout_init(&l, c, kernel->tiles, n_subpools, err));
    td_expert_scratch_init(&scratch, c, kernel, &l);
    *weight_bytes = l.layer_bytes * c->n_layers;
    *scratch_bytes = scratch.bytes + n_workers * scratch.worker_bytes;
    return TD_OK;
}

_Static_assert(TD_EXPERT_PIECES_MAX == TD_POOL_SUBPOOLS_MAX, "an expert has a piece of each shard");

td_status td_experts_packed(const td_experts_config *c, uint32_t n_subpools, td_packed_expert *out, td_error *err) {
    const td_tile_layout *tiles = td_kernels_here()->product[c->format]->tiles;
    expert_layout         l;
    TD_TRY(check_config(c, err));
    TD_TRY(td_expert_layout_init(&l, c, tiles, n_subpools, err));
    *out = (td_packed_expert){.product = (td_product)c->format,
                              .groups = l.groups,
                              .glu = c->glu,
                              .tiles = tiles,
                              .hidden = c->hidden,
                              .inter = c->inter,
                              .hidden_k = l.hidden_k,
                              .inter_k = l.inter_k,
                              .sizes = l.sizes,
                              .n_pieces = n_subpools};
    for (uint32_t s = 0; s < n_subpools; s++) {
        out->piece[s] = l.shard[s].expert;
        out->bytes += out->piece[s].bytes;
    }
    return TD_OK;
}

static td_status open_store(td_experts *x, td_error *err) {
    const td_experts_config *c = &x->config;
    TD_TRY(check_config(c, err));
    TD_TRY(td_expert_layout_init(&x->layout, c, x->kernel->tiles, td_pool_subpools(x->pool), err));
    td_expert_scratch_init(&x->scratch, c, x->kernel, &x->layout);
    x->shard_data = calloc((size_t)c->n_layers * x->layout.n_shards, sizeof *x->shard_data);
    x->files = calloc(c->n_layers, sizeof *x->files);
    x->loaded = calloc(c->n_layers, sizeof *x->loaded);
    x->origin = calloc(c->n_layers, sizeof *x->origin);
    x->worker_scratch = aligned_alloc(td_page_bytes(), td_pool_workers(x->pool) * x->scratch.worker_bytes);
    if (!x->shard_data || !x->files || !x->loaded || !x->origin || !x->worker_scratch)
        return td_fail(err, TD_ENOMEM, "out of memory for the expert store");
    TD_TRY(td_arena_open(&x->arena, x->scratch.bytes, td_pool_home(x->pool), err));
    return td_expert_ffn_open(x, err);
}

td_status td_experts_create(const td_experts_config *c, td_pool *pool, td_experts **out, td_error *err) {
    *out = NULL;
    td_experts *x = calloc(1, sizeof *x);
    if (!x) return td_fail(err, TD_ENOMEM, "out of memory for the expert store");
    x->config = *c;
    x->pool = pool;
    x->kernel = td_kernels_here()->product[c->format];
    x->rows = td_kernels_here()->rows;
    td_status status = open_store(x, err);
    if (status != TD_OK) {
        td_experts_destroy(x);
        return status;
    }
    *out = x;
    return TD_OK;
}

void td_experts_destroy(td_experts *x) {
    if (!x) return;
    td_expert_ffn_close(x);
    td_arena_close(&x->arena);
    for (uint32_t layer = 0; x->loaded && x->origin && x->files && x->shard_data && layer < x->config.n_layers; layer++)
        td_expert_layer_release(x, layer);
    free(x->shard_data);
    free(x->files);
    free(x->loaded);
    free(x->origin);
    free(x->worker_scratch);
    free(x);
}

const char *td_experts_kernel_name(const td_experts *x) {
    return x->kernel->name;
}

void td_experts_counters(const td_experts *x, uint64_t *pairs, td_tier_work *work) {
    *pairs = atomic_load_explicit(&x->n_pairs, memory_order_relaxed);
    *work = td_tier_read(&x->meter);
}

_Static_assert(TD_EXPERT_NODES_MAX >= TD_POOL_SUBPOOLS_MAX, "every shard may have a node of its own");

uint32_t td_experts_nodes(const td_experts *x, td_expert_node *out) {
    uint32_t n = 0;
    for (uint32_t s = 0; s < x->layout.n_shards; s++) {
        uint32_t node = td_pool_node(x->pool, s), i = 0;
        if (node == TD_NODE_SPREAD) node = TD_NODE_ANY;
        while (i < n && out[i].node != node) i++;
        if (i == n) out[n++] = (td_expert_node){.node = node};
        out[i].share += (double)x->layout.shard[s].bytes / (double)x->layout.layer_bytes;
    }
    return n;
}

bool td_experts_doing(const td_experts *x, uint32_t *layer) {
    return td_tier_doing(&x->meter, layer) != NULL;
}
