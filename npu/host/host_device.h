/*
 * The host device from the inside: what its files share.
 *
 * DESIGN. A block is a function over the rows of a step; it runs on the stream's thread, which is worker 0 of the pool, and
 * hands out items. Blocks compute rows in chunks so that scratch stays bounded; chunks, items and threads never change a
 * row's bits. Scratch is one mapping, as large as the hungriest block needs; the device's lock is held while a
 * block runs, so streams with threads of their own share pool and scratch in turn.
 *
 *   host_open       device, memory, table          host_attention  softmax(q K) V over paged keys: one core for three forms;
 *                                                  host_attn_f32, host_attn_int16   its two arithmetics
 *   host_stream     streams, captures              host_mla, host_gqa, host_delta, host_mlp, host_router, host_experts,
 *                                                  host_resident, host_sparse, host_streams, host_blocks     the blocks
 *                                                  host_index      an indexer's choice, for two of them
 *                                                  host_index_f32, host_index_int8   its two arithmetics
 *                                                  host_chosen     rows by expert, for both blocks of experts
 *   host_weight     conversion and layouts         host_weight_file   weights in a file of an earlier process
 *                                                  kernels/        what depends on the instruction set
 *   host_linear     quantise rows, matrix products host_work       what a block has to read and compute
 *   host_reduce     sums over cards                host_top        the best logits
 *   host_states     what recurrent layers share: parts of sequences
 */
#ifndef TD_NPU_HOST_DEVICE_H
#define TD_NPU_HOST_DEVICE_H

#include <pthread.h>

#include "core/log/tier_meter.h"
#include "core/memory/mem.h"
#include "kernels/kernels.h"
#include "npu/block_weights.h"
#include "npu/card_meter.h"
#include "npu/host/host_npu.h"
#include "npu/npu.h"

#define TD_HOST_TOK_MAX ((uint32_t)1 << 17)

/** A direction of the link: what went over it, and until when it is busy where its speed is given. */
typedef struct {
    _Atomic uint64_t bytes, busy_until_ns;
} td_host_link;

/**
 * Speeds of a card and its link, for benches of schedules; all 0: it is as fast as this machine. A copy and a block take at
 * least the time that they would on it, by the clock. Blocks with products compute nothing: their outputs stay as they are.
 */
typedef struct {
    double link_per_s, read_per_s, ops_per_s; /* bytes, bytes, operations */
} td_host_speeds;

typedef struct {
    td_npu             base; /* first */
    td_host_npu_config config;
    td_pool           *pool;
    uint32_t           n_workers;
    td_dtype           act;
    /** Where the work finds what a device pointer points to; NULL: there. Not called with NULL. */
    void *(*reach)(const void *device, const td_npu *self);
    const td_kernels *kernels;
    td_host_speeds    speeds;
    td_tier_meter     meter;   /* under the lock */
    td_card_meter     given;   /* for devices that are taken for cards */
    pthread_mutex_t   lock;    /* held while a block runs, or the scratch or a weight's layout changes */
    char             *scratch; /* 64-byte aligned */
    size_t            scratch_bytes;
} td_host_npu;

/** What opening the backend "host" does: *d is filled, for a device whose first member it is. */
TD_NODISCARD td_status td_host_npu_init(td_host_npu *d, const td_npu_ops *ops, const td_npu_config *config, td_error *err);
void                   td_host_npu_free(td_host_npu *d); /* what it holds, and itself */
/** td_backend.tell_facts: the instructions that its kernels use. */
void td_host_tell_facts(td_npu_fact_fn tell, void *user);

static inline void *td_host_reach(const td_host_npu *d, const void *device) {
    return device && d->reach ? d->reach(device, &d->base) : (void *)device;
}

/* A step as the blocks see it while they run: the device's arrays, within reach. */
typedef struct {
    uint32_t       n_tok, n_seq, n_out, block_stride;
    td_step_arrays a;
} td_host_step;

/* ---- scratch --------------------------------------------------------------------------------- */

/** Put bytes behind what is used of a scratch. @return where. */
static inline size_t td_host_place(size_t *used, size_t bytes) {
    size_t at = *used;
    *used = at + td_round_up(bytes, TD_CACHE_LINE);
    return at;
}

/* host_memory.c; as in td_npu_ops. */
TD_NODISCARD td_status td_host_alloc(td_npu *d, size_t bytes, void **out, td_error *err);
void                   td_host_free(td_npu *d, void *p, size_t bytes);
/** Grow the scratch; the caller holds the lock. */
TD_NODISCARD td_status td_host_scratch_grow(td_host_npu *d, size_t bytes, td_error *err);

/* ---- weights --------------------------------------------------------------------------------- */

/*
 * How a weight lies in memory. W8A8 is packed for its kernel when it is created, and so are weights in groups, as tiles of
 * kernels/product/tile_gemm.h. The float formats start as rows and are laid out in place by the first block that needs them
 * otherwise:
 *   PANELS  [ceil(n / nr)][k][nr], for matrix products; nr = TD_HOST_NR_BF16 or TD_HOST_NR_F32
 *   HEADS   per head W_UK [nope, kv_lora] and the transpose of W_UV, [kv_lora, v]; only the MLA block reads it
 *   TAPS    [k][n], for convolutions
 */
typedef enum { TD_HOST_ROWS, TD_HOST_PANELS, TD_HOST_HEADS, TD_HOST_TAPS } td_host_layout;

#define TD_HOST_NR_BF16 32
#define TD_HOST_NR_F32 16

struct td_npu_weight {
    td_weight_shape shape; /* first */
    td_host_layout  layout;
    uint32_t        heads, nope; /* HEADS */
    void           *data;
    size_t          bytes;   /* of the mapping */
    bool            adopted; /* data is not ours, and only read */
    td_gemm_groups  groups;  /* INT4G, FP4G */
};

size_t    td_host_tiles_bytes(const td_host_npu *d, td_weight_format format, size_t n, size_t k,
                              const td_gemm_groups *groups); /* of W8A8, INT4G, FP4G */
size_t    td_host_weight_bytes(td_npu *d, td_weight_format format, uint32_t group, size_t n, size_t k);
td_status td_host_weight_create(td_npu *d, td_weight_format format, const td_tensor_view *src, td_npu_weight **out,
                                td_error *err);
void      td_host_weight_destroy(td_npu *d, td_npu_weight *w);
void      td_host_weight_tag(td_npu *d, char tag[TD_NPU_TAG_BYTES]);
void      td_host_weight_export(td_npu *d, const td_npu_weight *w, td_npu_packed *out);
td_status td_host_weight_adopt(td_npu *d, const td_npu_packed *p, td_npu_weight **out, td_error *err);

/** The kernel of a format that takes int8 rows, whose weights lie in tiles (kernels/product/tile_gemm.h); of others NULL. */
static inline const td_gemm_kernel *td_host_tile_kernel(const td_host_npu *d, td_weight_format format) {
    return format == TD_WEIGHT_W8A8    ? d->kernels->product[TD_PRODUCT_INT8C]
           : format == TD_WEIGHT_INT4G ? d->kernels->product[TD_PRODUCT_INT4G]
           : format == TD_WEIGHT_FP4G  ? d->kernels->product[TD_PRODUCT_FP4G]
                                       : NULL;
}

static inline size_t td_host_tile_bytes(const td_tile_layout *tiles, size_t k, const td_gemm_groups *groups) {
    return td_tile_bytes(tiles, td_round_up(k, tiles->kr), groups);
}

static inline size_t td_host_nr(const td_host_npu *d, const td_npu_weight *w) {
    const td_gemm_kernel *kernel = td_host_tile_kernel(d, w->shape.format);
    return kernel ? kernel->tiles->nr : w->shape.format == TD_WEIGHT_BF16 ? TD_HOST_NR_BF16 : TD_HOST_NR_F32;
}

/** Lay out the weights of a descriptor that td_block_check has passed. @return TD_EINVAL where a weight has another layout,
 * for another block. */
TD_NODISCARD td_status td_host_lay_out(td_host_npu *d, const td_block_desc *desc, td_error *err);

/** Row `row` of a BF16 or F32 matrix as f32, whatever its layout (ROWS or PANELS). */
void td_host_weight_row(const td_npu_weight *w, size_t row, float *out);

static inline const float *td_host_vector(const td_npu_weight *w) {
    return w ? w->data : NULL;
}

/* ---- rows and linears ------------------------------------------------------------------------ */

/** Dense rows that go into matrix products; quantised or widened once, when the first product needs it. */
typedef struct {
    size_t       m, k;
    td_dtype     dtype;
    const void  *x; /* [m, k] */
    bool         has_q, has_f;
    size_t       ldq;
    int8_t      *q;         /* [m, ldq] */
    td_gemm_row *rows;      /* [m] of q */
    size_t       group;     /* that group_sum is of; 0: none yet */
    int32_t     *group_sum; /* [m, k padded / group] as td_gemm_row has them */
    const float *f;         /* [m, k]: widened, or x itself */
    float       *widened;
    td_rows_i8   given; /* quantised before, and x is not read; q NULL: not */
} td_host_rows;

typedef struct {
    const td_npu_weight *w;
    const td_npu_weight *bias;       /* or NULL */
    td_activation        activation; /* of weights in floats */
    void                *out;
    size_t               ldo;
    td_dtype             out_dtype;
    /** Of f32 without bias: out = silu(gate) * (x w^T), where the gates are x gate^T, gate of w's shape and kind; or, where
     * gated is true, what out holds. */
    const td_npu_weight *gate; /* or NULL */
    bool                 gated;
} td_host_product;

#define TD_HOST_PRODUCTS_MAX 4

size_t td_host_rows_bytes(size_t m, size_t k, td_dtype dtype); /* scratch that td_host_rows_init wants as mem */
/** Rows row .. row + m - 1 of a block's input. */
void td_host_rows_input(const td_host_npu *d, td_host_rows *r, void *mem, const void *in, td_rows_i8 in_i8, size_t row,
                        size_t m, size_t k);
void td_host_rows_init(td_host_rows *r, void *mem, const void *x, td_dtype dtype, size_t m, size_t k);

/** out = x W^T + bias for products that share their input: one hand-out of items. */
void td_host_products(td_host_npu *d, td_host_rows *x, const td_host_product *products, size_t n_products);

/** inter [m, n] = silu(x gate^T) * (x up^T), f32; n is the matrices'. */
void td_host_gate_up(td_host_npu *d, td_host_rows *x, const td_npu_weight *gate, const td_npu_weight *up, float *inter);

/** for i < n fn(ctx, i, worker): on the caller alone when the whole is small, else over the pool. cost: about elements
 * touched. */
void td_host_for(td_host_npu *d, td_pool_fn fn, void *ctx, size_t n, size_t cost);

/** Where an attention block keeps things in the scratch, and how many units it takes at a time (host_attention.h). */
typedef struct {
    size_t segments, units, workers, partials; /* offsets */
    size_t spans_max, units_max;               /* of the units that are computed together */
} td_attn_places;

/** Rows of a sequence that a recurrent layer computes together, and the slots of its state (td_delta_desc). */
typedef struct {
    uint32_t row, n, pos;    /* first row among those that are computed together, rows, position of the first */
    uint32_t from, to, open; /* slots: the state at the first row's block, the next state's, the rows' */
    bool     is_last;        /* the step has no more rows of the sequence */
} td_host_part;

/** Whether rows and slots of a step fit together. */
TD_NODISCARD td_status td_host_check_states(const td_host_step *s, uint32_t state_slots, uint32_t open_slots);
/** Whether each sequence with rows has an open block among so many. */
TD_NODISCARD td_status td_host_check_open(const td_host_step *s, uint32_t open_slots);

/** The part of sequence q in the rows [row0, row0 + rows); n 0: none. A block that ended in earlier rows of the step left
 * state_out. The first block begins from zeros whatever state_in is. */
td_host_part td_host_part_of(const td_step_arrays *a, uint32_t q, size_t row0, size_t rows);

/** Where latent attention's indexer keeps things in the scratch (host_mla.c): offsets; floats of a row of scores. */
typedef struct {
    size_t q, keys, gates, weights, seq_of, queries, scores, workers, pools;
    size_t ld_scores;
} td_index_places;

/** Where sparse attention keeps things in the scratch (host_sparse.c): offsets; floats of a row of scores. */
typedef struct {
    size_t rows_in, low, kv, gate_in, index_q, weights, main_kv, main_gate, key_kv, key_gate, queries, scores, chosen,
        seq_of, projected, index_workers;
    size_t ld_scores; /* of the indexer */
} td_sparse_places;

/** Where a recurrent layer keeps things in the scratch (host_delta.c): offsets; the rows of a strip. */
typedef struct {
    size_t strip, parts, pieces, qkv, z, b, a, low_a, low_z, qk, faded, v, met, sum, beta;
} td_delta_places;

/* ---- blocks ---------------------------------------------------------------------------------- */

struct td_npu_block {
    td_block_desc    desc;
    td_packed_expert packed; /* resident: the descriptor's */
    td_status (*run)(td_host_npu *d, const td_npu_block *b, const td_host_step *s);
    /** In place of run, of a block that may go in parts; between is within reach, and NULL where n is 1
     * or nothing lies there. */
    td_status (*run_part)(td_host_npu *d, const td_npu_block *b, const td_host_step *s, const td_block_part *part);
    /** Of such a block, as the table's block_parts. */
    size_t (*parts)(const td_host_npu *d, const td_npu_block *b, size_t n_tok, td_parts_wanted wanted);
    struct { /* the rows of a chunk; the rest are offsets into the scratch, those that the kind needs */
        size_t chunk, x, rows, f32, per_worker;
        size_t inter, up, down;                             /* mlp, experts */
        size_t first, chosen, gathered, scales, sums;       /* experts */
        size_t inter_columns;                               /* resident: floats of an intermediate row, whole tiles */
        size_t q, k, v, out;                                /* attention */
        size_t rotation, last_pos;                          /* with axes: cosines and sines of rows; full: positions */
        size_t between;                                     /* bytes of a row that lie between two parts */
        size_t q_low, q_rows, kv, q_lat, ctx;               /* latent attention; of gated attention q_rows alone */
        size_t choosing, own_pages, own_latents, own_ropes; /* rows with chosen keys: so many together, their pages */
        td_attn_places   attn;
        td_index_places  index;
        td_delta_places  delta;
        td_sparse_places sparse;
    } at;
    size_t scratch_bytes;
};

/** Per kind: give its arrays places (block->at, run, scratch_bytes), and what else its descriptor has to be. */
typedef struct {
    void (*place)(const td_host_npu *d, const td_block_desc *desc,
                  td_npu_block *b); /* reads sizes only; weights may be NULL except linear's */
    td_status (*check)(td_host_npu *d, const td_block_desc *desc, td_error *err); /* or NULL */
} td_host_block_kind;

extern const td_host_block_kind td_host_embed, td_host_norm, td_host_linear, td_host_mla, td_host_gqa, td_host_delta,
    td_host_sparse, td_host_mix, td_host_spread, td_host_mlp, td_host_router, td_host_experts, td_host_resident,
    td_host_join, td_host_combine, td_host_all_reduce, td_host_head, td_host_top;

size_t    td_host_kv_page_bytes(td_npu *d, td_kv_rows what, size_t n); /* host_open.c */
size_t    td_host_block_scratch_bytes(td_npu *d, const td_block_desc *desc);
uint32_t  td_host_block_parts(td_npu *d, const td_block_desc *desc, uint32_t n_tok, td_parts_wanted wanted,
                              size_t *between_bytes);
td_status td_host_block_create(td_npu *d, const td_block_desc *desc, td_npu_block **out, td_error *err);
void      td_host_block_destroy(td_npu *d, td_npu_block *b);

/** What a run of the block over a step has to read and compute (host_work.c); busy_ns is 0. */
td_tier_work td_host_block_work(const td_host_npu *d, const td_npu_block *b, const td_host_step *s);

/* Groups (host_reduce.c): the table's members of the same names. */
td_status td_host_group_create(td_npu *const *cards, uint32_t n, td_npu_group **out, td_error *err);
void      td_host_group_destroy(td_npu_group *g);
void      td_host_group_abort(td_npu_group *g);
void      td_host_group_reset(td_npu_group *g);

static inline size_t td_host_act_bytes(const td_host_npu *d, size_t n) {
    return n * td_dtype_bytes(d->act);
}

/** Of the rows of a block's buffers. */
static inline td_dtype td_host_rows_dtype(const td_host_npu *d, const td_block_desc *desc) {
    return desc->rows_f32 ? TD_DT_F32 : d->act;
}

/* ---- streams --------------------------------------------------------------------------------- */

/* The table's members of the same names. */
td_status td_host_stream_create(td_npu *d, td_npu_stream **out, td_error *err);
void      td_host_graph_destroy(td_npu *d, td_npu_graph *g);
void      td_host_stream_destroy(td_npu *d, td_npu_stream *s);
td_status td_host_stream_sync(td_npu *d, td_npu_stream *s);
td_status td_host_copy(td_npu *d, td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind);
/** As copy, between addresses within reach; a run of it is counted on the link, where one is given. */
td_status td_host_link_copy(td_npu *d, td_npu_stream *s, void *dst, const void *src, size_t bytes, td_host_link *link);
td_status td_host_call(td_npu *d, td_npu_stream *s, td_host_fn fn, void *arg);
td_status td_host_bell_ring(td_npu *d, td_npu_stream *s, td_bell *bell, const td_carried *rows);
td_status td_host_bell_wait(td_npu *d, td_npu_stream *s, td_bell *bell, const td_carried *rows);
td_status td_host_enqueue(td_npu *d, td_npu_stream *s, td_npu_block *b, const td_step *step);
td_status td_host_enqueue_part(td_npu *d, td_npu_stream *s, td_npu_block *b, const td_step *step, const td_block_part *part);
td_status td_host_graph_begin(td_npu *d, td_npu_stream *s);
td_status td_host_graph_end(td_npu *d, td_npu_stream *s, td_npu_graph **out, td_error *err);
td_status td_host_graph_launch(td_npu *d, td_npu_stream *s, td_npu_graph *g);
td_status td_host_graph_fork(td_npu *d, td_npu_stream *s, td_npu_stream *branch); /* with own_threads */
td_status td_host_graph_join(td_npu *d, td_npu_stream *s, td_npu_stream *branch);

#endif
