/*
 * The expert store, as its own files see it.
 *
 * A shard (one per subpool) of a layer is memory on the subpool's node, or a stretch of the layer's mapped file. It has its
 * piece of each expert (kernels/product/packed_expert.h), exactly as the kernels read it and as a packed file holds it: a
 * part of the intermediate dimension, and one of the hidden dimension.
 */
#ifndef TD_CPU_EXPERTS_EXPERT_STATE_H
#define TD_CPU_EXPERTS_EXPERT_STATE_H

#include <stdatomic.h>

#include "core/log/tier_meter.h"
#include "core/memory/mem.h"
#include "cpu_experts/cpu_experts.h"
#include "kernels/kernels.h"

/** What a shard holds of every expert. */
typedef struct {
    td_expert_piece expert;                 /* of each */
    size_t          gate_tile0, down_tile0; /* its first tiles, of the whole matrices' */
    size_t          bytes;                  /* of all experts, whole pages */
} expert_shard;

/** Where everything lies: a function of the shapes, the kernel's layout and the number of shards. */
typedef struct {
    size_t           n_experts, hidden, inter;
    td_expert_groups groups;
    td_expert_sizes  sizes;
    size_t           hidden_k, inter_k; /* k of gate and up, k of down: padded to kr */
    size_t           n_gate, n_down;    /* tiles of the whole matrices */
    uint32_t         n_shards;
    expert_shard     shard[TD_POOL_SUBPOOLS_MAX];
    uint64_t         layer_bytes;
} expert_layout;

/** Sizes and offsets of the scratch of td_experts_ffn; expert_ffn.c has what the arrays hold. */
typedef struct {
    uint32_t batch_tok; /* tokens computed at a time */
    uint32_t defer_tok; /* up to so many tokens, deferred outputs can be held back */
    uint32_t max_pairs, max_blocks;
    uint32_t up_rows, down_rows; /* pairs of a block, at most */
    size_t   x_stride, h_stride; /* bytes of an activation row, of an intermediate row */
    size_t   code_stride;        /* of an intermediate row's codes alone */
    size_t   y_stride;           /* floats of an accumulator row: hidden rounded to whole tiles */
    size_t   worker_bytes;       /* for each worker, to compute and to pack */
    uint64_t bytes;              /* of all but the workers' */
} expert_scratch_places;

/** An expert whose memory may be given back. */
typedef struct {
    uint64_t hash; /* of its bytes, when they were first given back */
    bool     hashed, dropped;
} droppable_expert;

/** Where the experts of a layer come from again. */
typedef struct {
    int               fd; /* of the layer's packed file */
    char             *path;
    droppable_expert *expert; /* [n_experts]; NULL: the layer has no file, and keeps its memory */
} expert_origin;

typedef struct expert_ffn expert_ffn;

struct td_experts {
    td_experts_config     config;
    td_pool              *pool;
    const td_gemm_kernel *kernel;
    const td_rows        *rows;
    expert_layout         layout;
    void                **shard_data; /* [n_layers, n_shards]; NULL: no memory yet */
    td_file_map   *files;  /* [n_layers] what the shards of a layer are a part of; not open: they are memory of their own */
    bool          *loaded; /* [n_layers] */
    expert_origin *origin; /* [n_layers] with config.droppable */
    char          *worker_scratch; /* [workers, scratch.worker_bytes] */
    td_arena       arena;          /* the scratch */
    expert_scratch_places scratch;
    expert_ffn           *ffn;
    _Atomic uint64_t      n_pairs; /* relaxed: only a count */
    td_tier_meter         meter;
};

/* ---- layout (expert_layout.c) ---------------------------------------------------------------- */

/** @return TD_EINVAL for shapes outside the limits. */
TD_NODISCARD td_status td_expert_layout_init(expert_layout *l, const td_experts_config *c, const td_tile_layout *tiles,
                                             uint32_t n_shards, td_error *err);

/** Offset in its shard of a tile of an expert; *shard is where it lies. tile counts over the whole matrix. */
size_t td_expert_tile_offset(const expert_layout *l, size_t expert, td_expert_matrix m, size_t tile, uint32_t *shard);

/** The same of the biases of a tile's rows, [nr] f32, 0 beyond the matrix. */
size_t td_expert_bias_offset(const expert_layout *l, size_t expert, td_expert_matrix m, size_t tile, uint32_t *shard);

static inline size_t expert_matrix_rows(const expert_layout *l, td_expert_matrix m) {
    return m == TD_EXPERT_DOWN ? l->hidden : l->inter;
}
static inline size_t expert_matrix_k(const expert_layout *l, td_expert_matrix m) {
    return m == TD_EXPERT_DOWN ? l->inter_k : l->hidden_k;
}
static inline size_t expert_matrix_cols(const expert_layout *l, td_expert_matrix m) {
    return m == TD_EXPERT_DOWN ? l->inter : l->hidden;
}

/* ---- memory (expert_memory.c) ------------------------------------------------------------------ */

/** Give a layer memory of its own, to be written, where it has none; what was mapped is let go. The layer is no longer
 * loaded. */
TD_NODISCARD td_status td_expert_layer_memory(td_experts *x, uint32_t layer, td_error *err);

/** Let a layer's memory or mapping go. */
void td_expert_layer_release(td_experts *x, uint32_t layer);

/** Keep a layer's packed file open: its shards lie in memory as they lie there. @return TD_EIO, TD_ENOMEM. */
TD_NODISCARD td_status td_expert_origin_open(td_experts *x, uint32_t layer, const char *path, td_error *err);
void                   td_expert_origin_close(td_experts *x, uint32_t layer);

/** On machines of several nodes, log how much of a layer lies on the nodes of its shards. */
void td_expert_report_placement(const td_experts *x, uint32_t layer);

/* ---- packing (expert_pack.c) ----------------------------------------------------------------- */

/**
 * Give n rows of a matrix of one expert, from row `row`, with k columns; weights are 0 from the true columns on.
 * @param out room for the rows of a tile.
 * @param tmp scratch of td_expert_pack_tmp_bytes.
 * @param worker which packs, one matrix from its first tile to its last before the next.
 * @return false when the rows cannot be represented (an infinity or a NaN).
 */
typedef bool (*expert_rows_fn)(const void *ctx, size_t expert, td_expert_matrix m, size_t row, size_t n, size_t k,
                               const td_gemm_weights *out, void *tmp, uint32_t worker);

/** Give the biases of n rows. @return false where one is no number. */
typedef bool (*expert_bias_fn)(const void *ctx, size_t expert, td_expert_matrix m, size_t row, size_t n, float *out);

/** Pack every shard of a layer from a source of rows, on the pool. @param bias called where experts have biases; NULL: the
 * source has none, and such experts are refused with TD_ENOTSUP. @return TD_EFORMAT when rows were refused; names the
 * expert. */
TD_NODISCARD td_status td_expert_pack_layer(td_experts *x, uint32_t layer, expert_rows_fn rows, expert_bias_fn bias,
                                            const void *ctx, td_error *err);

/** Worker scratch that packing needs. */
size_t td_expert_pack_worker_bytes(const td_tile_layout *tiles, const expert_layout *l);
size_t td_expert_pack_tmp_bytes(
    const expert_layout *l); /* f32 row of the wider matrix, and a tile of any kernel, not packed */

/** Room for the weights of a tile of any kernel, in td_expert_pack_tmp_bytes of memory. */
td_gemm_weights td_expert_tile_weights(const expert_layout *l, void *mem);

/* ---- scratch (expert_ffn.c) ------------------------------------------------------------------ */

void td_expert_scratch_init(expert_scratch_places *p, const td_experts_config *c, const td_gemm_kernel *kernel,
                            const expert_layout *l);
TD_NODISCARD td_status td_expert_ffn_open(td_experts *x, td_error *err); /* takes its arrays from x->arena */
void                   td_expert_ffn_close(td_experts *x);

static inline void *expert_shard_data(const td_experts *x, uint32_t layer, uint32_t shard) {
    return x->shard_data[(size_t)layer * x->layout.n_shards + shard];
}

static inline bool expert_is_dropped(const td_experts *x, uint32_t layer, uint32_t expert) {
    return x->origin[layer].expert && x->origin[layer].expert[expert].dropped;
}

static inline void *expert_worker_scratch(const td_experts *x, uint32_t worker) {
    return x->worker_scratch + worker * x->scratch.worker_bytes;
}

#endif
