/*
 * The CPU tier: every routed expert of every MoE layer, and their FFN.
 *
 * DESIGN. The store holds each layer as shards, one per subpool (NUMA node). Of every expert, shard s has a contiguous part
 * of the gate and up rows (intermediate dimension) and a contiguous part of the down rows (hidden dimension). So every node
 * works on every expert and no weight is kept twice. The FFN is two sharded phases with the quantised intermediate between
 * them:
 *   gate+up rows -> silu(g) * u, or another unit -> int8 per (token, expert) row | all shards meet |
 *   down rows -> exact sum, times their weights, over experts (kernels/exact_sum.h)
 * Each output element of an expert is computed whole by one shard, and the sum over experts is exact. So results are
 * identical for every thread count, subpool count and batch, and wherever else some of a token's experts are computed.
 */
#ifndef TD_CPU_EXPERTS_CPU_EXPERTS_H
#define TD_CPU_EXPERTS_CPU_EXPERTS_H

#include "core/dtype.h"
#include "core/expert_id.h"
#include "core/memory/mem.h"
#include "core/threads/pool.h"
#include "kernels/product/packed_expert.h"
#include "tandem.h"

typedef struct td_experts td_experts;

typedef enum {
    /* int4 in [-8, 7], one f32 scale per output row; activations int8 per token; one multiply at the end */
    TD_EXPERT_INT4C = TD_PRODUCT_INT4C,
    TD_EXPERT_BF16 = TD_PRODUCT_BF16,   /* bf16 weights, f32 arithmetic: the reference */
    TD_EXPERT_INT8C = TD_PRODUCT_INT8C, /* int8 in [-127, 127], the rest as int4c */
    /* weight = (code - zero) * scale of its group along k, code in [0, 15]; int32 within a group, f32 over groups */
    TD_EXPERT_INT4G = TD_PRODUCT_INT4G,
    /* weight = e2m1 code * scale of its group along k * factor of its row; arithmetic as int4g */
    TD_EXPERT_FP4G = TD_PRODUCT_FP4G,
} td_expert_format;
#define TD_EXPERT_FORMATS 5
_Static_assert(TD_EXPERT_FORMATS == TD_PRODUCTS, "a format of experts is a product of the kernels");

static inline bool td_expert_has_groups(td_expert_format f) {
    return f == TD_EXPERT_INT4G || f == TD_EXPERT_FP4G;
}

typedef td_gemm_groups td_expert_groups; /* of int4g and fp4g */

/** What people choose by name. */
typedef struct {
    /** "none", "int4", "int8", "int4-g32", "int4-g64", "int4-g128" (groups symmetric with bf16 scales), "mxfp4", "nvfp4". */
    const char      *name;
    td_expert_format format;
    td_expert_groups groups;
} td_expert_numbers;

/** "int4-channel" is int4 too. @return NULL for any other name. */
const td_expert_numbers *td_expert_numbers_find(const char *name);

/** What people call a format: a name above, or that with scales and zeros, "int4-g32 (f16 scales, zeros)". Static. */
const char *td_expert_format_name(td_expert_format format, const td_expert_groups *groups);

/** All of them, by index. @return NULL behind the last. */
const td_expert_numbers *td_expert_numbers_at(size_t i);

/** The most pairs that the FFN takes through a product at a time, when their rows have k codes. It is what the kernel
 * prefers. If their bytes limit it, it is a multiple of 32, so that tiles of rows are full. */
uint32_t td_expert_block_rows(const td_gemm_kernel *kernel, size_t k);

/**
 * Whether a format holds a coded matrix with not one bit changed. Formats per row want int4 or int8 with zeros of half the
 * range. int4g wants int4 in groups of its size, or with one scale for a row, and scales of its type. fp4g wants e2m1 with
 * its groups and scales. Columns in another order than their groups' and other codes fit none.
 */
bool td_expert_format_carries(td_expert_format format, const td_expert_groups *groups, const struct td_coded_matrix *m);

/** Whether the format multiplies activations quantised to int8 per row. */
bool td_expert_takes_int8(td_expert_format format);

/** The format that carries the matrix, one per row if there is. @return false: there is none. */
bool td_expert_exact_numbers(const struct td_coded_matrix *m, td_expert_numbers *out);

typedef struct {
    uint32_t         n_layers;    /* MoE layers, the MTP layer included */
    uint32_t         first_layer; /* of the model's MoE layers: files say which one they hold */
    uint32_t         n_experts, hidden, inter, top_k;
    td_expert_format format;
    td_expert_groups groups;       /* of int4g and fp4g; else unused */
    td_glu           glu;          /* between gate, up and down; all 0: silu(gate) * up */
    bool             bias;         /* gate, up and down have one */
    td_dtype         act_dtype;    /* of x and y */
    uint32_t         max_tok;      /* largest n_tok of a call */
    uint32_t         max_deferred; /* largest number of deferred experts per token */
    bool copy_files; /* packed files are read into memory; else they are mapped where no shard is bound to a node */
    bool droppable;  /* packed files are read into memory and stay open: for td_experts_drop */
} td_experts_config;

/** Weights of one expert as the checkpoint has them: BF16, F16 or F32 views, or coded ones. */
typedef struct {
    td_tensor_view gate, up;                      /* [inter, hidden] */
    td_tensor_view down;                          /* [hidden, inter] */
    td_tensor_view gate_bias, up_bias, down_bias; /* [inter] x 2, [hidden], where the config has bias; else no data */
} td_expert_weights;

static inline const td_tensor_view *td_expert_view(const td_expert_weights *e, td_expert_matrix m) {
    return m == TD_EXPERT_GATE ? &e->gate : m == TD_EXPERT_UP ? &e->up : &e->down;
}

static inline const td_tensor_view *td_expert_bias_view(const td_expert_weights *e, td_expert_matrix m) {
    return m == TD_EXPERT_GATE ? &e->gate_bias : m == TD_EXPERT_UP ? &e->up_bias : &e->down_bias;
}

/**
 * Memory that a store of this shape takes with a pool of so many subpools and workers: weights, and scratch for max_tok and
 * for each worker.
 * @return TD_EINVAL, TD_ENOTSUP as create: for shapes outside the limits.
 */
TD_NODISCARD td_status td_experts_measure(const td_experts_config *c, uint32_t n_subpools, uint32_t n_workers,
                                          uint64_t *weight_bytes, uint64_t *scratch_bytes, td_error *err);

/** @param pool borrowed until destroy; its subpools are the shards. No layer has weights yet. */
TD_NODISCARD td_status td_experts_create(const td_experts_config *c, td_pool *pool, td_experts **out, td_error *err);
void                   td_experts_destroy(td_experts *x);

const char *td_experts_kernel_name(const td_experts *x); /* "int4c_avx512vnni_…" */

/**
 * Where the weights of a layer's experts come from: a matrix at a time, when a worker comes to pack it. A worker has one
 * matrix; each subpool's workers pack a part of every matrix, and so each takes it.
 */
typedef struct {
    /* The matrix, BF16, F16 or F32 or coded, until this worker leaves it. buffer is the worker's, aligned to TD_FILE_BLOCK;
     * NULL without buffer_bytes. Thread-safe. */
    td_status (*take)(const void *ctx, size_t expert, td_expert_matrix m, void *buffer, td_tensor_view *out, td_error *err);
    /* The worker has packed it. NULL: nothing is to be done then. Thread-safe. */
    void (*leave)(const void *ctx, size_t expert, td_expert_matrix m);
    /* The bias [n] of a matrix, without data where it has none; called often. NULL: the source has none. Thread-safe. */
    td_tensor_view (*bias)(const void *ctx, size_t expert, td_expert_matrix m);
    size_t      buffer_bytes;
    const void *ctx;
} td_expert_source;

/**
 * Pack one layer: matrices that the format carries (td_expert_format_carries) code by code, others quantised to nearest
 * (int4g with zeros of 8, fp4g as quant/weight_quant.h says). Uses the pool.
 * @return what take returns; TD_EINVAL or TD_ENOTSUP for a matrix or bias of another shape or type, and for a source without
 * the biases that the experts have. TD_EFORMAT for weights or scales that are not finite.
 */
TD_NODISCARD td_status td_experts_load(td_experts *x, uint32_t layer, const td_expert_source *source, td_error *err);

/** Rounded weights of one expert, by td_expert_matrix: weight = code * scale. */
typedef struct {
    const int8_t *codes[3]; /* [n, k], one a byte, within the format's range; int4g: in [-8, 7] */
    const float  *scale[3]; /* [n], or of int4g [n, ceil(k / groups.size)], numbers that its scale_dtype holds */
} td_expert_codes;

/** Pack one layer of weights that were rounded elsewhere, to int4c, int8c or int4g; experts with biases are refused. @param
 * experts [n_experts], only read during the call. Uses the pool. */
TD_NODISCARD td_status td_experts_load_codes(td_experts *x, uint32_t layer, const td_expert_codes *experts, td_error *err);

/** How a store of this shape packs an expert; all of its experts are alike. @return as td_experts_measure. */
TD_NODISCARD td_status td_experts_packed(const td_experts_config *c, uint32_t n_subpools, td_packed_expert *out,
                                         td_error *err);

/** A stretch of the store's memory. */
typedef struct {
    void  *at;
    size_t bytes;
} td_expert_stretch;

/** Where the bytes of one expert of a loaded layer lie: a piece for each subpool, which one after the other are
 * td_packed_expert.bytes. @return how many. */
uint32_t td_experts_pieces(const td_experts *x, uint32_t layer, uint32_t expert,
                           td_expert_stretch out[TD_POOL_SUBPOOLS_MAX]);
/** The same of all experts of a layer. They stay there as long as the store has the layer. */
uint32_t td_experts_layer_pieces(const td_experts *x, uint32_t layer, td_expert_stretch out[TD_POOL_SUBPOOLS_MAX]);

/** Copy the bytes of one expert of a loaded layer, td_packed_expert.bytes of them. May be called from several threads, and
 * while the store is used. */
void td_experts_copy_packed(const td_experts *x, uint32_t layer, uint32_t expert, void *out);

/**
 * Give back the memory of an expert that is somewhere else too: of a store with droppable, in a layer from a packed file.
 * Until td_experts_read_again nobody may read it. These two are for one thread at a time, beside those that use other
 * experts.
 */
void td_experts_drop(td_experts *x, uint32_t layer, uint32_t expert);
/**
 * Read an expert that was dropped from its file, and compare it with what was given back.
 * @return TD_EIO (the file is shorter, or cannot be read), TD_EFORMAT (it has other bytes): the expert stays dropped.
 */
TD_NODISCARD td_status td_experts_read_again(td_experts *x, uint32_t layer, uint32_t expert, td_error *err);
/** What td_experts_drop gives back at least: whole pages. */
uint64_t td_packed_drop_bytes(const td_packed_expert *p);

/** Fill one layer with random weights of a plausible scale, for benchmarks of shapes. */
TD_NODISCARD td_status td_experts_fill_layer(td_experts *x, uint32_t layer, uint64_t seed, td_error *err);

/**
 * Weights back from a loaded layer, as numbers. May be called from several threads, and while the store is used.
 * @param values [n, k] f32 of rows row .. row + n - 1 of a matrix [rows, k]: what the kernels multiply with.
 * @return TD_ENOMEM.
 */
TD_NODISCARD td_status td_experts_get_values(const td_experts *x, uint32_t layer, uint32_t expert, td_expert_matrix m,
                                             size_t row, size_t n, float *values, td_error *err);

/**
 * The same as stored, of integers: weight = code * scale. int4c, int8c: scale [n]; int4g: less the zeros, scale
 * [n, ceil(k / size)].
 * @param codes [n, k].
 * @return TD_ENOTSUP for other formats, TD_ENOMEM.
 */
TD_NODISCARD td_status td_experts_get_codes(const td_experts *x, uint32_t layer, uint32_t expert, td_expert_matrix m,
                                            size_t row, size_t n, int8_t *codes, float *scale, td_error *err);

/**
 * Packed files, one per layer ("experts-00003.tdx"): a header page (magic, version, kernel, shapes, shards, source hash,
 * checksum), then each shard page-aligned exactly as the kernels read it. save writes to a temporary name, syncs and
 * renames; it leaves the pool alone, so that another store can be packed meanwhile.
 * @param source_hash identifies the checkpoint; checked on load unless 0.
 * load takes the file as it is when kernel and shard count match, else repacks it in memory and writes the repacked file
 * next to it where the folder is writable. As it is: mapped in place, or, with copy_files or shards on NUMA nodes, read into
 * the shards' memory. Every byte is read and compared with the checksum before the layer can be used. A mapped file must not
 * change until the store is destroyed.
 * @return TD_ENOTFOUND, TD_EFORMAT (truncated, checksum, other shape) with the file's name.
 */
TD_NODISCARD td_status td_experts_save_file(const td_experts *x, uint32_t layer, const char *path, uint64_t source_hash,
                                            td_error *err);
TD_NODISCARD td_status td_experts_load_file(td_experts *x, uint32_t layer, const char *path, uint64_t source_hash,
                                            td_error *err);
/** The format of the experts in a packed file. @return TD_ENOTFOUND, TD_EFORMAT, TD_ENOTSUP with the file's name. */
TD_NODISCARD td_status td_experts_file_format(const char *path, td_expert_numbers *out, td_error *err);
/** TD_OK when path is a complete packed file of this shape and source (whatever its kernel). */
TD_NODISCARD td_status td_experts_check_file(const td_experts_config *c, uint32_t layer, const char *path,
                                             uint64_t source_hash, td_error *err);

/* With deferral, calls of so many tokens at most compute what no token needs now after immediate_done. Beyond it, hardly any
 * expert has deferred pairs only. */
#define TD_EXPERTS_HELD_TOK 256

typedef struct {
    uint32_t    n_tok, top_k;
    const void *x; /* [n_tok, hidden] act_dtype; NULL with x_i8 */
    /** For formats that take int8, the same rows quantised before (kernels/rows/row_quant.h); else NULL. */
    const int8_t *x_i8;    /* [n_tok, hidden] */
    const float  *x_scale; /* [n_tok] */
    /** [n_tok, top_k] expert ids, distinct within a token, in descending order of weight; with
     * TD_ID_RESIDENT (core/expert_id.h) where the device computes the expert */
    const uint16_t *ids;
    const float    *weights;     /* [n_tok, top_k] */
    uint32_t        n_immediate; /* 1..top_k: the first n_immediate of a token go to y, the others to y_deferred */
    void           *y;           /* [n_tok, hidden] act_dtype, written */
    void           *y_deferred;  /* [n_tok, hidden] act_dtype, written when n_immediate < top_k */
    /** y and y_deferred are rows of td_exact_words(hidden) words instead, sums to which others add their experts. */
    bool in_parts;
    /** Called once when y is complete, before experts that only deferred pairs need are computed. May be NULL. */
    void (*immediate_done)(void *user);
    void *user;
} td_ffn_args;

/**
 * The FFN of one layer for a batch of tokens. With e = ids[t,j] and
 *   f(t,j) = weights[t,j] * down_e(glu(gate_e(x[t,:]), up_e(x[t,:])))
 * as an exact sum (kernels/exact_sum.h) over the experts that are not resident on the device, rounded once:
 *   y[t,:]          = sum of f(t,j) over j <  n_immediate
 *   y_deferred[t,:] = sum of f(t,j) over j >= n_immediate
 * Each matrix adds its bias, where there is one, before anything else is done with its values.
 * The caller's thread is worker 0 of the pool. One call at a time. Ids are trusted (the bridge checks them).
 */
void td_experts_ffn(td_experts *x, uint32_t layer, const td_ffn_args *a);

/**
 * The work of a batch of tokens in one layer: the weights of the n_active distinct experts chosen are read once; each of
 * n_pairs (token, expert) pairs is 6 * hidden * inter operations.
 * @param layer_bytes of all experts' weights of a layer, td_experts_measure's weight_bytes / n_layers.
 */
td_tier_work td_experts_batch_work(const td_experts_config *c, uint64_t layer_bytes, uint64_t n_active, uint64_t n_pairs);

/** What was computed since creation: (token, expert) pairs, and the work of all batches (a call is one unless it is very
 * long). */
void td_experts_counters(const td_experts *x, uint64_t *pairs, td_tier_work *work);
/** Where the shards lie, those of one node together: what a node reads is its share of the bytes counted above.
 * @param out [TD_EXPERT_NODES_MAX]. @return how many. */
uint32_t td_experts_nodes(const td_experts *x, td_expert_node *out);
/** The layer that td_experts_ffn is in. @return false: none. Any thread. */
bool td_experts_doing(const td_experts *x, uint32_t *layer);

#endif
