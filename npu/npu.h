/*
 * The device tier: attention, router, norms, embeddings, dense and shared MLPs, head.
 *
 * DESIGN. A *backend* is the code for one kind of hardware: a folder of npu/, which defines one value (td_backend, at the
 * end of this file). A *device* is something that a backend has opened, and a *card* is one opened device where several work
 * together. A device is a table of functions (td_npu_ops). The upper layers prepare *layer blocks* once: weights, shapes and
 * the buffers that a block reads and writes are bound then. They enqueue the blocks on a stream for every step. A backend
 * chooses what a block is made of, and how a weight lies in memory. Work on one stream runs in order.
 *
 * Beside this file
 *   backends.c      the list of backends            npu_open.c     devices by their backend's name
 *   block_buffers   which buffers a block's descriptor points to
 *   block_weights   what a weight is made from, which weights a block has, what a descriptor has to be
 *   block_work      what a block has to read and to compute: metrics, bounds, plans
 *   bell_wait       waiting for a doorbell on a host thread
 *   carried_rows    a hand-over's rows by copies, where no kernel carries them
 *   card_meter      what a card was given and has taken: for metrics
 *   card/           what cards behind a vendor's runtime have in common
 *   handover_time   how long a hand-over takes      link_time      how fast copies to the device and from it are
 *   raw_choice      a router's choice with ids of 32 bits, in a device's own order
 *
 * Conventions of all backends
 *  - Activations between blocks have the device's act_dtype: bf16, or f32 for the reference path (quantization none).
 *  - RoPE is stored de-interleaved (NeoX halves); the loader permutes the rope rows of q and k.
 *  - KV pages hold TD_KV_PAGE tokens. A slot is page * TD_KV_PAGE + offset.
 *      MLA: latent [slots, kv_lora] (after its norm) and rope [slots, rope_dim] (after rotation), two arrays.
 *      GQA: K and V, each [pages, kv_heads, TD_KV_PAGE, head_dim]; K after norm and rotation.
 *    A backend chooses how it stores TD_KV_PAGE rows of n values; they take kv_page_bytes. host: f32, or with bf16
 *    activations 16-bit integers with a scale per row, and an indexer's keys in 8 bits; where a block's descriptor says
 *    kv_int8, 8-bit integers with a scale per row (docs/quantisation.md).
 *  - int8 rule: scale = rowmax / 127, q = rint(x * (1 / scale)) (half to even), an all-zero row has scale 1.
 *  - Norms, softmax, router logits and rope are f32; the absorbed matrices W_UK, W_UV stay bf16. The products of attention:
 *    host takes f32 with f32 activations, 16-bit integers with scales per row with bf16 (docs/quantisation.md).
 *  - Every float reduction has an order fixed by indices, never by threads, batch or chunk: a token's result depends on its
 *    own row, its own KV, and its form (absorbed or expanded) only.
 */
#ifndef TD_NPU_NPU_H
#define TD_NPU_NPU_H

#include <stdatomic.h>

#include "core/dtype.h"
#include "core/expert_id.h"
#include "core/log/tier_meter.h"
#include "core/threads/thread_layout.h"
#include "kernels/glu.h"
#include "kernels/product/packed_expert.h"
#include "tandem.h"

#define TD_KV_PAGE 128 /* tokens per page */

/**
 * A recurrent layer keeps a state in the place of keys and values. It is brought up to date at the border of each block of
 * TD_STATE_BLOCK tokens, at positions that are multiples of it. The rows since then are kept one by one: the open block.
 */
#define TD_STATE_BLOCK 32
#define TD_STATE_NONE UINT32_MAX /* in the place of a state's slot: zeros, where a sequence begins */

#define TD_TOP_K_MAX 32
#define TD_EXPERTS_MAX 2048

typedef struct td_npu        td_npu;
typedef struct td_npu_ops    td_npu_ops;
typedef struct td_npu_stream td_npu_stream;
typedef struct td_npu_graph  td_npu_graph;
typedef struct td_npu_weight td_npu_weight;
typedef struct td_npu_block  td_npu_block;
typedef struct td_npu_group  td_npu_group;

/** First member of every backend's device. */
struct td_npu {
    const td_npu_ops *ops;
};

/** What the devices that compute on this machine's cores are given (npu/host/host_npu.h). */
typedef struct td_host_npu_config td_host_npu_config;

/** What a device is opened with. */
typedef struct {
    td_dtype                  act_dtype; /* of activations: TD_DT_BF16 or TD_DT_F32 */
    const td_host_npu_config *host;      /* "host" and "apart" need it, others ignore it; copied */
    uint32_t                  card;      /* number among the cards that the process sees; ignored by the host */
    /** No block will be made, only memory, link and hand-overs measured: what blocks alone need may be left out, or
     * missing. */
    bool bare;
} td_npu_config;

/**
 * How the device and the expert tier tell each other that a slot is filled.
 *   HOST_CALL  a function of ours on a host thread, in stream order;
 *   DOORBELL   words in pinned host memory: each side raises one and polls the other's. The device needs no host thread to go on.
 */
typedef enum { TD_HANDOVER_HOST_CALL, TD_HANDOVER_DOORBELL } td_handover;

/** What a device is and can do. */
typedef struct {
    char        text[128];      /* for people: "host (2 threads, avx512vnni)" */
    bool        unified_memory; /* the host can read and write device pointers: no copies are needed */
    bool        inline_work;    /* enqueuing runs the work at once, on the caller; else a stream is asynchronous */
    td_handover handover;       /* the form that suits it; it has both */
    bool        measure;        /* the faster form depends on the machine and has to be measured (npu/handover_time.h) */
    bool        experts;        /* it has TD_BLOCK_EXPERTS */
    bool        resident;       /* it has TD_BLOCK_RESIDENT and TD_BLOCK_JOIN, and its routers know slot_of */
    /** A norm gives its rows in f32, too (td_norm_desc.out_f32), and a router reads those. False: both fields are
     * ignored. */
    bool norm_f32;
    /** Rows beyond a step's counts are computed like the others. So each cache needs pages for their keys and values, behind
     * the pages of sequences (td_mla_desc.kv_spare_pages). */
    bool kv_spare;
    /** Its routers give ids as int32, those of a row in any order, each with its weight; its experts take them so. Who reads
     * them on the host sorts them (npu/raw_choice.h). It has no TD_BLOCK_RESIDENT. */
    bool raw_choice;
    bool recurrent;        /* it has TD_BLOCK_DELTA, TD_BLOCK_SPARSE and several streams */
    bool chosen_keys;      /* its TD_BLOCK_MLA may have an indexer */
    bool kv_int8;          /* its TD_BLOCK_MLA and TD_BLOCK_GQA may have caches of TD_KV_INT8 */
    bool log_sums;         /* it fills td_top_desc.sums */
    bool step_kinds;       /* what it enqueues depends on td_step.kind */
    bool groups_in_floats; /* its linears of 4-bit groups take rows of bf16; quantised rows cost them exactness */
    bool rope_axes;        /* its TD_BLOCK_GQA may have axes */
    /** It has what vision encoders are made of: layer norms, activations of linears, attention to all rows, axes, and blocks
     * whose rows are f32. Its
     * TD_BLOCK_EMBED and TD_BLOCK_COMBINE take rows of images. */
    bool     vision;
    bool     pieces;                    /* a pass over it may go in pieces (model/pass_pieces.c): that has been run there */
    uint64_t memory_total, memory_free; /* bytes; 0: it does not say */
} td_npu_caps;

/* ---- one step -------------------------------------------------------------------------------- */

/** How much of a step's bucket is used. */
typedef struct {
    uint32_t n_tok, n_seq, n_out;
} td_step_counts;

/** The arrays of a step, in one address space. Their sizes are those of its bucket; the counts say which part is used. */
typedef struct {
    const td_step_counts *counts; /* [1] */
    const uint32_t       *token;  /* [max_tok] ids */
    const uint32_t       *pos;    /* [max_tok] position in its sequence */
    const uint32_t       *slot;   /* [max_tok] where this token's KV goes */
    const uint32_t *seq_start;   /* [max_seq + 1] first row of each sequence; rows of a sequence are consecutive positions */
    const uint32_t *kv_len;      /* [max_seq] keys of the sequence including this step's rows */
    const uint8_t  *absorbed;    /* [max_seq] MLA form of these rows: 1 absorbed (generated tokens), 0 expanded (prompt) */
    const uint32_t *block_table; /* [max_seq, block_stride] pages of each sequence in order */
    const uint32_t *out_row;     /* [max_out] rows whose logits are wanted (head only) */
    /** [max_tok, 3] the positions that rope turns a row by, in time, rows and columns of images; read by blocks with axes
     * (td_gqa_desc.axes) alone. NULL: pos, three times. */
    const uint32_t *rope_pos;
    /** [max_tok] the row of images' features that a token has (td_embed_desc.images), or TD_NO_IMAGE; read by blocks with
     * such rows alone. NULL: no token has one. */
    const uint32_t *image_row;

    /* The same as slot and block_table for caches with a window, whose pages behind it are given back: their entries must
     * not be read. NULL: these caches have the same slots and pages as the others. */
    const uint32_t *window_slot, *window_table;

    /* Slots of recurrent layers' caches; NULL if the model has no such layers. What is between a state's border and the
     * first row lies in the open block. Of two parts of a sequence in a step, the second has the state_out of the first as
     * its state_in if a block ends in the first. */
    const uint32_t *state_in;   /* [max_seq] the state that the rows begin from, or TD_STATE_NONE */
    const uint32_t *state_out;  /* [max_seq] where the state goes if a block ends in the rows: state_in or another */
    const uint32_t *state_open; /* [max_seq] the sequence's open block */
} td_step_arrays;

#define TD_NO_IMAGE UINT32_MAX /* in the place of a row of images' features */

/** A sequence with fewer rows in a step is *short*: its keys are read for each row anew. */
#define TD_SHORT_ROWS 4
/** Short and absorbed rows of a mixed step at most. */
#define TD_MIXED_ROWS 64

/** What sequences a step may have, for devices that leave out what none of them needs. Each row is computed as in any other
 * step. */
typedef enum {
    TD_STEP_ANY,
    TD_STEP_GENERATED, /* all are short and absorbed */
    TD_STEP_PROMPTS,   /* none is absorbed, and none is short but where two halves share its rows */
    TD_STEP_MIXED,     /* those that are short or absorbed have TD_MIXED_ROWS rows together at most, in a half too */
    TD_STEP_KINDS,
} td_step_kind;

/**
 * A shape bucket: what a pass is enqueued with. The struct and its pointers are fixed from the first enqueue on, and a
 * graph holds them by address; `kind` alone is read when work is enqueued, and may be another one then. Between two replays
 * of a graph, or two runs of enqueued work, only the contents of the arrays may change, counts included, within the bucket.
 * The host writes the host's arrays only while nothing that was enqueued with the step is under way; copies on the stream
 * write the device's. Rows and sequences beyond the counts are padding: their contents and results are unspecified, and must
 * not affect other rows.
 */
typedef struct {
    uint32_t       max_tok, max_seq, max_out;
    uint32_t       first_row; /* row 0 of the step is this row of the blocks' buffers; logits begin at their row 0 */
    uint32_t       block_stride;
    td_step_kind   kind; /* of all steps that what is enqueued will serve */
    td_step_arrays host; /* pinned: for devices whose operations take lengths from the host */
    td_step_arrays dev;  /* the same on the device; equal to host with unified memory */
} td_step;

/** Part i of n of a block over a step: they divide its work about evenly, as far as it can be divided. Of parts that are
 * more than that allows (block_parts) some are empty, but not the last. */
typedef struct {
    uint32_t i, n;
    void    *between; /* device memory of block_parts, the block's own from its first part to its last */
} td_block_part;

/** In how many parts a block is wanted. */
typedef struct {
    uint32_t n;
    bool     at_a_cost; /* even where they take longer together than the whole block */
} td_parts_wanted;

/* ---- blocks ---------------------------------------------------------------------------------- */

/** How a device keeps a weight, and what it computes with. */
typedef enum {
    TD_WEIGHT_W8A8, /* linear [n, k]: int8 + one f32 scale per output row; activations quantised per token */
    TD_WEIGHT_BF16, /* linear [n, k]: bf16, f32 arithmetic */
    TD_WEIGHT_F32,  /* linear or vector, kept in f32 (norms, router, biases, rope tables) */
    /** linear [n, k]: int4 codes in groups, as a checkpoint has them (kernels/product/tile_gemm.h); activations as of
     * W8A8 */
    TD_WEIGHT_INT4G,
    TD_WEIGHT_FP4G, /* the same with codes of e2m1 */
} td_weight_format;
#define TD_WEIGHT_FORMATS 5

/** Whether a linear of this format takes its input in int8, quantised per token. */
static inline bool td_weight_takes_int8(td_weight_format f) {
    return f == TD_WEIGHT_W8A8 || f == TD_WEIGHT_INT4G || f == TD_WEIGHT_FP4G;
}

#define TD_NPU_TAG_BYTES 64
#define TD_NPU_LAYOUT_WORDS 4

/** A weight as it lies in the device's memory: to be written to a file, and used from there by the next start. */
typedef struct {
    td_weight_format format;
    uint32_t         rank;
    size_t           n, k;
    uint32_t         layout[TD_NPU_LAYOUT_WORDS]; /* the backend's own: how the bytes lie */
    const void      *data;                        /* 64-byte aligned */
    size_t           bytes;
} td_npu_packed;

/** Rows that are quantised already: by the int8 rule, from the row as act_dtype holds it. q NULL: there are none. */
typedef struct {
    int8_t *q;     /* [max_tok, hidden] */
    float  *scale; /* [max_tok] */
} td_rows_i8;

/** Residual streams of a token, by a descriptor's member: 0 stands for 1. */
static inline size_t td_streams_of(uint32_t streams) {
    return streams ? streams : 1;
}

typedef struct {
    const td_npu_weight *table; /* [vocab, hidden] BF16 */
    uint32_t             hidden;
    uint32_t             streams; /* each row is written so many times, side by side; 0: once */
    /** [max_tok, hidden], with caps.vision and one stream: the rows that tokens of images have in the place of the table's, by
     * td_step_arrays.image_row, which counts from row 0 of this buffer in every step. NULL: there are none. */
    const void *images;
    void       *out; /* [max_tok, streams * hidden] */
} td_embed_desc;

/** x += add (where add is given); out = x / sqrt(mean(x^2) + eps) * gamma, the mean over `hidden`. A layer norm (beta is
 * given) is that of x - mean(x), and beta is added. With streams each of a
 * token's streams is a row of its own, and x, add and out are [max_tok, streams * hidden]. */
typedef struct {
    uint32_t             hidden;
    uint32_t             streams; /* 0: 1. More than 1 without out_stride, out_i8 and out_f32 */
    float                eps;
    const td_npu_weight *gamma;      /* [hidden] F32 */
    const td_npu_weight *beta;       /* [hidden] F32, with caps.vision; NULL: an RMS norm */
    void                *x;          /* [max_tok, hidden] */
    const void          *add;        /* [max_tok, hidden] or NULL */
    void                *out;        /* [max_tok, out_stride]; NULL where out_i8 is all that is wanted */
    size_t               out_stride; /* elements; 0: hidden */
    td_rows_i8           out_i8;     /* the same rows in int8, for linears that take int8 input */
    float               *out_f32;    /* [max_tok, hidden] out before it is rounded, with caps.norm_f32; or NULL */
} td_norm_desc;

/** What a td_mix_desc gives. */
typedef enum {
    TD_MIX_SUBLAYER,
    TD_MIX_LAST,
    TD_MIX_MEAN, /* of the last streams, without a norm and out_i8 */
} td_mix_form;

/**
 * Hyper-connections (arXiv 2409.19606; with a doubly stochastic comb arXiv 2512.24880): a token has S residual streams X_i,
 * and a sublayer reads a mixture of them. Per token, in f32, with X the streams side by side:
 *   [p S | q S | C S*S] = fn X / sqrt(mean(X^2) + eps)
 *   pre   = sigmoid(p * scale[0] + base) + mix_eps
 *   post  = 2 * sigmoid(q * scale[1] + base)
 *   comb  = softmax of each row of (C * scale[2] + base), + mix_eps; then each column is divided by its sum + mix_eps; then
 *           rounds - 1 times each row, and then each column is
 *   out   = norm(sum over i of pre_i X_i)
 * The mixture of a model's last streams has pre alone, and fn, base and scale have what belongs to it; or it is their mean, and
 * these three are not read.
 */
typedef struct {
    td_mix_form          form;
    uint32_t             hidden, streams, rounds;
    float                eps, mix_eps;
    const td_npu_weight *fn;     /* [2*S + S*S, S*hidden] F32; of the last [S, S*hidden] */
    const td_npu_weight *base;   /* [rows of fn] F32 */
    const td_npu_weight *scale;  /* [3] F32; of the last [1] */
    const td_npu_weight *gamma;  /* [hidden] F32 of the norm; NULL: out is the mixture itself */
    const void          *x;      /* [max_tok, S*hidden] */
    void                *out;    /* [max_tok, hidden] */
    td_rows_i8           out_i8; /* the same rows in int8, for linears that take int8 input */
    float               *post;   /* [max_tok, S + S*S] post and comb, for td_spread_desc; not of the last */
} td_mix_desc;

/** Outputs of its fn. */
static inline size_t td_mix_rows(const td_mix_desc *m) {
    return m->streams * (m->form == TD_MIX_SUBLAYER ? 2 + (size_t)m->streams : 1);
}

/** Behind the sublayer: X_j = post_j (add[0] + add[1] + add[2]) + sum over i of comb_ij X_i, in f32. NULL entries are left
 * out. Without post each stream takes the sum as it is: X_j = X_j + (add[0] + add[1] + add[2]). */
typedef struct {
    uint32_t     hidden, streams;
    void        *x;    /* [max_tok, S*hidden] */
    const float *post; /* [max_tok, S + S*S] of the mixture that the sublayer has read, or NULL */
    const void  *add[3];
} td_spread_desc;

/** What becomes of an output x: x * Phi(x), the Gaussian error linear unit (arXiv 1606.08415), Phi of the normal distribution
 * by erf, or by its approximation with tanh there. */
typedef enum { TD_ACTIVATE_NONE, TD_ACTIVATE_GELU_TANH, TD_ACTIVATE_GELU_ERF } td_activation;
#define TD_ACTIVATIONS 3

/** out = activation(w in + bias) */
typedef struct {
    uint32_t             n, k;
    td_activation        activation; /* with caps.vision, and w in floats */
    uint32_t             streams;    /* of a token, each multiplied by itself; 0: 1 */
    const td_npu_weight *w;          /* [n, k] */
    const td_npu_weight *bias;       /* [n] F32 or NULL */
    const void          *in;         /* [max_tok, streams * k] */
    void                *out;        /* [max_tok, streams * n] */
} td_linear_desc;

/**
 * The indexer of DeepSeek Sparse Attention (DeepSeek-V3.2, arXiv 2512.02556, section 2.1): which keys a row attends to.
 *   q_h = rope(q r), r the normed q_a x;  key = rope(layer_norm(k x));  w = weights x
 *   score(s) = sum over index heads h of w_h relu(q_h . key_s) / sqrt(dim * heads)
 * A row at position p >= top attends to the `top` keys of the largest scores among positions 0 .. p, ties to the lowest
 * position. A row before that attends to all keys up to its own. Rope turns the first rope_dim values of a row, (i, i +
 * rope_dim/2) together. The layer norm has an eps of 1e-6.
 *
 * With a pool of several tokens (GLM-5.3-Flash) a key stands for the tokens w * pool .. w * pool + pool - 1, and is there when
 * the last of them is. Nothing is rotated then.
 *   key_w = per channel the sum over these tokens j of softmax(gate x_j + ape_j) layer_norm(k x_j)
 * A row that sees more than top / pool keys attends to the tokens of the top / pool best of them, and to those behind the last
 * key. What a key needs of tokens of steps before lies in the sequence's open block, whose slots have layer_norm(k x) and
 * gate x of each row. How open blocks and rows of a step belong together, and where drafts may be: td_delta_desc.
 */
typedef struct {
    uint32_t             top;        /* 0: there is no indexer, a row attends to all keys. A multiple of pool */
    uint32_t             pool;       /* tokens of a key, which divide TD_STATE_BLOCK; 0: 1 */
    uint32_t             heads, dim; /* heads 0: the layer has the choice of the last layer before it that has an indexer */
    const td_npu_weight *q, *k, *weights;      /* [heads*dim, q_lora], [dim, hidden], [heads, hidden] */
    const td_npu_weight *k_norm, *k_norm_bias; /* [dim] F32 */
    const td_npu_weight *gate, *ape;           /* of a pool: [dim, hidden], [pool, dim] F32 */
    void                *keys;                 /* this layer's cache: pages of TD_KV_INDEX, TD_KV_PAGE / pool rows each */
    void                *open;                 /* of a pool: slots of td_index_open_values f32 */
    uint32_t             open_slots;
    uint32_t *chosen; /* [max_tok, top / pool] numbers of keys, ascending, of the rows that choose; shared by layers */
} td_index_desc;

#define TD_INDEX_POOL_MAX 4 /* a page of index keys has whole panels of them */

static inline uint32_t td_index_pool(const td_index_desc *x) {
    return x->pool ? x->pool : 1;
}
/** Keys that a row chooses. */
static inline uint32_t td_index_choice(const td_index_desc *x) {
    return x->top / td_index_pool(x);
}
/** The first position whose row chooses, which is also the number of tokens that such a row attends to at most. */
static inline uint32_t td_index_first(const td_index_desc *x) {
    return x->top + td_index_pool(x) - 1;
}
/** f32 values of a slot of open blocks; 0 without a pool. */
static inline size_t td_index_open_values(const td_index_desc *x) {
    return td_index_pool(x) > 1 && x->heads ? 2 * TD_STATE_BLOCK * (size_t)x->dim : 0;
}

/**
 * Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 section 2.1), from the normed input to the output projection.
 *   q = q_b(norm(q_a(x))) or q(x), per head [nope | rope];  kv_a(x) = [latent | k_rope];  latent = norm(latent)
 *   expanded: k_nope = W_UK latent, v = W_UV latent per key;  absorbed: q_lat = W_UK^T q_nope, scores against the latent itself.
 * With an indexer (q_lora is given then) rows that choose their keys are absorbed ones, whatever the step says.
 */
typedef struct {
    uint32_t hidden, heads, q_lora, kv_lora, nope_dim, rope_dim, v_dim; /* q_lora 0: no compression; rope_dim may be 0 */
    float    eps, softmax_scale;
    const td_npu_weight *q_a, *q_a_norm, *q_b;          /* [q_lora, hidden], [q_lora] F32, [heads*(nope+rope), q_lora] */
    const td_npu_weight *q;                             /* [heads*(nope+rope), hidden] when q_lora is 0 */
    const td_npu_weight *q_a_bias, *kv_a_bias, *o_bias; /* F32 or NULL */
    const td_npu_weight *kv_a, *kv_a_norm;              /* [kv_lora + rope, hidden], [kv_lora] F32 */
    const td_npu_weight *kv_b; /* [heads*(nope+v), kv_lora] BF16: W_UK and W_UV row-interleaved per head */
    const td_npu_weight *o;    /* [hidden, heads*v] */
    const td_npu_weight *rope; /* [max_pos, rope_dim] F32: cos half | sin half, scaled; NULL: nothing is rotated */
    void                *kv_latent, *kv_rope; /* this layer's cache: pages of kv_page_bytes of latents and of rope parts,
                                                 the latter NULL where rope_dim is 0 */
    bool                 kv_int8;             /* rows of both are TD_KV_INT8; with caps.kv_int8 */
    uint32_t             kv_pages;            /* of them: what sequences may have */
    /** Pages behind those, for rows beyond the counts: as many as a bucket has of such rows at most. 0 where the device's
     * caps do not want them. */
    uint32_t      kv_spare_pages;
    td_index_desc index;
    const void   *in;    /* [max_tok, hidden]; where in_i8 is given, the indexer alone reads it */
    void         *out;   /* [max_tok, hidden] */
    td_rows_i8    in_i8; /* only where q_a or q, and kv_a take int8 */
} td_mla_desc;

/**
 * Which of a row's three positions (td_step_arrays.rope_pos) turns pair i of a head, in the interleaved rope of Qwen3-VL
 * (arXiv 2511.21631). It is the second if i % 3 == 1 and i < 3 * rows. It is the third if i % 3 == 2 and i < 3 * columns. Else
 * it is the first. With both 0, pos turns all pairs. Where a row's positions are equal, it has the bits of a row at that pos.
 * Contiguous, the last `columns` pairs turn by the third, the `rows` pairs before them by the second.
 */
typedef struct {
    uint32_t rows, columns; /* pairs */
    bool     contiguous;
} td_rope_axes;

static inline bool td_rope_has_axes(const td_rope_axes *a) {
    return a->rows || a->columns;
}

/**
 * Grouped-query attention, from the normed input to the output projection. Head h reads kv head h / (heads / kv_heads).
 * With a window, the row at position p meets the keys of positions p - window + 1 .. p. With sinks, a key's weight is
 * exp(score) / (exp(sink of the head) + the sum of exp(score) over the keys that are met). Gated attention (arXiv
 * 2505.06708) multiplies each head's sum of values by sigmoid(its gate); q gives per head [query | gate], and nothing else
 * is done to the gate. A full block's rows meet all keys of their sequence, which has all of its rows in the step.
 */
typedef struct {
    uint32_t             hidden, heads, kv_heads, head_dim;
    uint32_t             rope_dim;  /* rope rotates the first rope_dim values of a head, an even number; 0: all of them */
    uint32_t             window;    /* keys that a row meets at most; 0: all up to its own */
    bool                 norm_rows; /* q_norm and k_norm are over a whole row, before it is cut into heads */
    bool                 gated;     /* q, and its bias, have heads*2*dim rows */
    bool                 full;      /* with caps.vision, axes, and without window */
    float                eps, softmax_scale;
    const td_npu_weight *q, *k, *v, *o; /* [heads*dim, hidden], [kv_heads*dim, hidden] x 2, [hidden, heads*dim] */
    const td_npu_weight *q_bias, *k_bias, *v_bias, *o_bias; /* F32 or NULL */
    /** RMS norm before rope: [head_dim], or with norm_rows [heads*dim] and [kv_heads*dim], F32; NULL: none. */
    const td_npu_weight *q_norm, *k_norm;
    const td_npu_weight *sinks;                    /* [heads] F32 or NULL */
    const td_npu_weight *rope;                     /* [max_pos, rope_dim] F32: cos half | sin half, scaled */
    td_rope_axes         axes;                     /* with caps.rope_axes */
    void                *kv_k, *kv_v;              /* this layer's cache: pages of kv_heads * kv_page_bytes of heads */
    bool                 kv_int8;                  /* rows of both are TD_KV_INT8; with caps.kv_int8 */
    uint32_t             kv_pages, kv_spare_pages; /* as in td_mla_desc */
    const void          *in;                       /* not read where in_i8 is given */
    void                *out;
    td_rows_i8           in_i8; /* only where q, k and v take int8 */
} td_gqa_desc;

/** Outputs of its q. */
static inline size_t td_gqa_q_rows(const td_gqa_desc *g) {
    return (size_t)g->heads * g->head_dim * (g->gated ? 2 : 1);
}

static inline uint32_t td_gqa_rope_dim(const td_gqa_desc *g) {
    return g->rope_dim ? g->rope_dim : g->head_dim;
}

/** What a td_delta_desc computes. */
typedef enum {
    TD_DELTA_GATED, /* gated DeltaNet */
    TD_DELTA_KIMI,  /* Kimi delta attention (KDA) */
} td_delta_form;

/**
 * Gated DeltaNet (arXiv 2412.06464, equation 10), from the normed input to the output projection. Key head i serves the
 * r = value_heads / key_heads value heads from i * r on. Of a value head, all in f32:
 *   q, k, v = silu(conv(qkv x)), a causal convolution of each row of qkv with its last conv_width inputs
 *   q, k    = q / sqrt(sum q^2 + 1e-6) / sqrt(key_dim), k / sqrt(sum k^2 + 1e-6)
 *   g       = -exp(a_log) * softplus(a x + dt_bias),  beta = sigmoid(b x)
 *   S       = exp(g) S;  S = S + k (beta * (v - S^T k))^T;  o = S^T q        S [key_dim, value_dim], zeros at first
 *   out     = W_o (o / sqrt(mean(o^2) + eps) * norm * silu(z x))
 *
 * Tokens are computed in blocks of TD_STATE_BLOCK, at positions that are multiples of it. S is that at a block's beginning
 * b; the rows since then, the open block, are kept as rows. With G_t = g_b + ... + g_t:
 *   v'_t = beta_t * (v_t - exp(G_t) S^T k_t - sum over b <= s < t of exp(G_t - G_s) (k_t . k_s) v'_s)
 *   o_t  = exp(G_t) S^T q_t + sum over b <= s <= t of exp(G_t - G_s) (q_t . k_s) v'_s
 *   S    = exp(G_e) S + sum over b <= s <= e of exp(G_e - G_s) k_s v'_s^T   behind the block's last row e
 * A row reads S and the rows before it in its block, and each of its sums has a fixed order. So its bits are the same alone,
 * in a prompt cut anywhere, and beside other sequences.
 *
 * Kimi delta attention (arXiv 2510.26692) has as many value heads as key heads, and decays of each key channel:
 *   g       = -exp(a_log) * softplus(a a_low x + dt_bias)  [key_dim], and G likewise; below -40 g is -40
 *   g       = floor * sigmoid(exp(a_log) * (a a_low x + dt_bias)) in its place where the form has a floor below 0
 *   S       = diag(exp(g)) S, and so on;  out = W_o (o / sqrt(mean(o^2) + eps) * norm * sigmoid(z z_low x))
 * exp(G) then stands at the channels of k and q: S^T (exp(G_t) k_t), and the sum over c of exp(G_tc - G_sc) k_tc k_sc. Rows
 * are taken in runs of TD_STATE_RUN. With r the first row of t's run, a sum with a row s before it is one of products of two
 * factors, neither above 1: exp(G_t - G_r) at t, and exp(G_r - G_s) at s. Within a run each pair has a factor of its own, as
 * decays need not have a floor.
 *
 * A slot of states has S and the last conv_width - 1 inputs of the convolution; a slot of open blocks has k, v', G and the
 * convolution's inputs. Both are f32, by key heads, and a device orders the values of a key head as it likes.
 *
 * Rows at positions p, p + 1, ... of a sequence read the state in slot state_in, and the rows of the open block before p in
 * slot state_open. A state slot is written where a block ends within the step's rows, and only state_out's. Sequences of a
 * step with the same state_open are computed in order.
 *
 * A row of the open block is written over by the next one at its position, and by that of the next block. So drafts, which
 * may be taken back, do not go over the end of a block that has a draft before its last row. Where a draft is a block's last
 * row, state_out is not state_in.
 */
typedef struct {
    td_delta_form        form;
    uint32_t             hidden, key_heads, value_heads, key_dim, value_dim, conv_width;
    uint32_t             low;   /* KDA: outputs of a_low and z_low */
    float                floor; /* KDA: the least log decay of a row, at least TD_DECAY_LEAST; 0: there is none */
    float                eps;   /* of the norm of o */
    const td_npu_weight *qkv; /* [rows, hidden], of each key head [q key_dim | k key_dim | v r*value_dim | z r*value_dim] */
    const td_npu_weight *z;   /* [value_heads*value_dim, hidden]; NULL: in qkv. Where it is given, qkv has no rows of z */
    const td_npu_weight *b; /* [value_heads, hidden] F32; without a: [2*value_heads, hidden], of each key head [b r | a r] */
    const td_npu_weight *a; /* [value_heads, hidden] F32; NULL: in b */
    const td_npu_weight *conv; /* [key_heads*(2*key_dim + r*value_dim), conv_width] F32, rows in the order of qkv; no bias */
    /** KDA has q, k and v apart: qkv and conv are those of q, [key_heads*key_dim, ...], k and conv_k are like them, and v and
     * conv_v have value_heads*value_dim rows. a is [key_heads*key_dim, low], z [value_heads*value_dim, low], both of any
     * linear's format, as are a_low and z_low [low, hidden]. */
    const td_npu_weight *k, *v, *conv_k, *conv_v, *a_low, *z_low;
    const td_npu_weight *a_log;        /* [value_heads] F32 */
    const td_npu_weight *dt_bias;      /* [value_heads] F32; KDA: [key_heads*key_dim] */
    const td_npu_weight *norm;         /* [value_dim] F32 */
    const td_npu_weight *o;            /* [hidden, value_heads*value_dim] */
    void                *state, *open; /* this layer's slots: key_heads * td_delta_state_values, td_delta_open_values f32 */
    uint32_t             state_slots, open_slots;
    const void          *in;    /* [max_tok, hidden]; where in_i8 is given, only b, a, a_low and z_low read it */
    void                *out;   /* [max_tok, hidden] */
    td_rows_i8           in_i8; /* only where qkv, k, v, and z of gated DeltaNet take int8 */
} td_delta_desc;

#define TD_DECAY_LEAST (-40.0) /* of KDA's log decays */
#define TD_STATE_RUN 16        /* rows of a block, from its first on, whose pairs have factors of their own */

/** Rows of the convolution that belong to a key head. */
static inline size_t td_delta_conv_rows(const td_delta_desc *d) {
    return 2 * (size_t)d->key_dim + (size_t)d->value_heads / d->key_heads * d->value_dim;
}

/** f32 values that a key head has in a slot of states, and in one of open blocks. */
static inline size_t td_delta_state_values(const td_delta_desc *d) {
    return (size_t)d->value_heads / d->key_heads * d->key_dim * d->value_dim + (d->conv_width - 1) * td_delta_conv_rows(d);
}
/** Sums of log decays, G, that a row has in a key head. */
static inline size_t td_delta_decays(const td_delta_desc *d) {
    return d->form == TD_DELTA_KIMI ? d->key_dim : (size_t)d->value_heads / d->key_heads;
}
static inline size_t td_delta_open_values(const td_delta_desc *d) {
    const size_t r = d->value_heads / d->key_heads;
    return TD_STATE_BLOCK * (d->key_dim + r * d->value_dim + td_delta_decays(d) + td_delta_conv_rows(d));
}

/** How rows of a sequence become compressed rows: td_sparse_desc. */
typedef struct {
    const td_npu_weight *kv, *gate; /* [width, hidden], width = dim, or with overlap 2*dim */
    const td_npu_weight *ape;       /* [ratio, width] F32 */
    const td_npu_weight *norm;      /* [dim] F32 */
} td_compressor;

/**
 * DeepSeek-V4's attention, from the normed input to the output projection. One key-value head of `dim` values, whose keys
 * are its values. Rope turns pairs that lie side by side among the last rope_dim values of a row.
 *   r = norm(q_a x);  q = rope(q_b r / rms of each head);  k = rope(norm(kv x))
 *   o = the sum over keys of softmax(q . key * dim^-0.5, with a sink for each head) key;  o = rope back of o
 *   out = o_b [o_a_g o_g], o_g the heads of group g and o_a_g its rows of o_a
 * The row at position p meets the keys of positions p - window + 1 .. p, and with a ratio compressed rows that end at or
 * before p:
 *   row w stands for tokens w * ratio ..; per channel it is the sum of softmax(gate x_j + ape_j) kv x_j over these tokens, then
 *   norm, then rope at position w * ratio
 *   with overlap (ratio 4) kv and gate have two halves: the sum goes over the first halves of the run of tokens before and over the
 *   second halves of the row's own
 *   with index_top of them at most: those of the largest score(w) = sum over index heads h of weights_h relu(q_h . key_w), ties to
 *   the lowest w. q_h = rope(index_q r), weights = index_weights x, and key_w are rows of a compressor of their own.
 *
 * Bits do not depend on how a sequence is cut, as those of td_delta_desc do not. A run of tokens that is longer than
 * TD_STATE_BLOCK is summed up block by block. A slot of states has what a run needs of the tokens before the block. With
 * overlap these are the first halves of the last `ratio` rows; else per channel the largest gate, the sum of weights and
 * that of values. A slot of open blocks has kv x and gate x of the block's rows. How states, open blocks and rows of a step
 * belong together, and where drafts may be: td_delta_desc. A compressed row and its key that a draft completes are written over
 * as its other rows are.
 */
typedef struct {
    uint32_t hidden, heads, dim, rope_dim, q_lora, window, groups, o_lora;
    uint32_t
         ratio; /* tokens of a compressed row; 0: there are none. Divides TD_KV_PAGE; TD_STATE_BLOCK a multiple or divisor */
    bool overlap;
    uint32_t             index_heads, index_dim, index_top; /* index_heads 0: a row meets all compressed rows */
    float                eps;
    const td_npu_weight *q_a, *q_norm, *q_b; /* [q_lora, hidden], [q_lora] F32, [heads*dim, q_lora] */
    const td_npu_weight *kv, *kv_norm;       /* [dim, hidden], [dim] F32 */
    const td_npu_weight *o_a, *o_b;          /* [groups*o_lora, heads/groups*dim] BF16 or F32, [hidden, groups*o_lora] */
    const td_npu_weight *sinks;              /* [heads] F32 */
    const td_npu_weight *rope;               /* [max_pos, rope_dim] F32: cos half | sin half */
    td_compressor        rows, index;   /* of compressed rows; of the indexer's keys, with index_dim in the place of dim */
    const td_npu_weight *index_q;       /* [index_heads*index_dim, q_lora] */
    const td_npu_weight *index_weights; /* [index_heads, hidden] */
    void                *kv_rows;       /* this layer's caches, of rows in act_dtype: pages of TD_KV_PAGE rows */
    void                *compressed, *keys; /* pages of TD_KV_PAGE / ratio rows; keys: of TD_KV_INDEX */
    void                *state, *open;      /* slots of td_sparse_state_values, td_sparse_open_values f32 */
    uint32_t             state_slots, open_slots;
    const void          *in;    /* [max_tok, hidden]; where in_i8 is given, compressors and index_weights alone read it */
    void                *out;   /* [max_tok, hidden] */
    td_rows_i8           in_i8; /* only where q_a and kv take int8 */
} td_sparse_desc;

/** Values of a row of kv x or gate x, for rows of `dim` values. */
static inline size_t td_sparse_width(const td_sparse_desc *s, size_t dim) {
    return s->overlap ? 2 * dim : dim;
}

/** f32 values of a slot of states, and of one of open blocks; 0 without compressed rows. */
static inline size_t td_sparse_state_values(const td_sparse_desc *s) {
    const size_t per_channel = s->overlap ? 2 * (size_t)s->ratio : 3;
    return s->ratio ? per_channel * ((size_t)s->dim + s->index_dim) : 0;
}
static inline size_t td_sparse_open_values(const td_sparse_desc *s) {
    return s->ratio ? 2 * TD_STATE_BLOCK * (td_sparse_width(s, s->dim) + td_sparse_width(s, s->index_dim)) : 0;
}

/** out = down(glu(gate(x), up(x))), times sigmoid(out_gate . x) where out_gate is given (Qwen2-MoE's shared expert). */
typedef struct {
    uint32_t             hidden, inter;
    td_glu               glu;              /* kernels/glu.h; all 0: silu(gate) * up */
    const td_npu_weight *gate, *up, *down; /* [inter, hidden] x 2, [hidden, inter] */
    const td_npu_weight *out_gate;         /* [1, hidden] F32 or NULL */
    const void          *in;               /* where in_i8 is given, only out_gate reads it */
    void                *out;
    td_rows_i8           in_i8; /* only where gate and up take int8 */
} td_mlp_desc;

typedef enum { TD_SCORE_SOFTMAX, TD_SCORE_SIGMOID, TD_SCORE_SOFTMAX_CHOSEN, TD_SCORE_SQRT_SOFTPLUS } td_router_score;
#define TD_ROUTER_SCORES 4
typedef enum { TD_GROUP_NONE, TD_GROUP_MAX, TD_GROUP_TOP2_SUM } td_router_group;

/**
 * s = score(W x + logit_bias);  choice = s + bias.  With groups: keep the topk_group groups of best (max | sum of two best)
 * choice. Then the top_k of the kept experts by choice, ties to the lower index;  w = s of the chosen, divided by their sum +
 * 1e-20 when normalise, times scale. Output order: descending w, ties to the lower expert index. Softmax is over all
 * experts; of the chosen (SOFTMAX_CHOSEN), s are the logits until the choice is made, and then their softmax over the
 * chosen. With by_token no choice is made: the experts of a row are its token's. With caps.raw_choice ids are int32, and
 * ties and the order of a row the device's own.
 */
typedef struct {
    uint32_t             hidden, n_experts, top_k, n_group, topk_group;
    td_router_score      score;
    td_router_group      group;
    bool                 normalise;
    float                scale;
    const td_npu_weight *w;                 /* [n_experts, hidden] F32 */
    const td_npu_weight *logit_bias, *bias; /* [n_experts] F32 or NULL */
    const td_npu_weight *by_token;          /* [vocab, top_k] F32: ids of experts, those of a row distinct; or NULL */
    const void          *in;                /* [max_tok, hidden] */
    const float         *in_f32;            /* a norm's out_f32, read in its place with caps.norm_f32; or NULL */
    void                *ids;               /* [max_tok, top_k] uint16; with TD_ID_RESIDENT where slot_of has a slot */
    float               *weights;           /* [max_tok, top_k] */
    const uint16_t      *slot_of;           /* [n_experts] as in td_resident_desc; NULL: no expert is resident */
} td_router_desc;

/**
 * Routed experts that the device keeps. out[r] = the sum over the experts e that row r chose of
 * weights[r] * down_e(silu(gate_e(x)) * up_e(x)). The sum is exact (kernels/exact_sum.h), and has the CPU tier's bits; a
 * device whose operations have an arithmetic of their own adds in f32.
 */
typedef struct {
    uint32_t hidden, inter, n_experts, top_k;
    /** [n_experts] each, of [inter, hidden] x 2 and [hidden, inter]; the lists are borrowed as the weights are. */
    const td_npu_weight *const *gate, *const *up, *const *down;
    const void *in;    /* [max_tok, hidden] */
    td_rows_i8  in_i8; /* the same rows in int8; only where gate and up take int8 */
    /** [max_tok, top_k] of a router, or zeros: those of a row are distinct. Nothing else has been in this memory, so that a
     * card may read it behind a router that failed. */
    const void  *ids;
    const float *weights; /* [max_tok, top_k] */
    void        *out;     /* [max_tok, hidden] */
    /** The cards that share the experts, or NULL. Each has a part of every expert's `inter`, and gives a part of one sum.
     * All use the same ids and weights: where their routers might differ, those of the first card. */
    td_npu_group *group;
} td_experts_desc;

#define TD_NO_SLOT UINT16_MAX
#define TD_SLOT_ELSEWHERE (TD_NO_SLOT - 1) /* one of another card of a group */

/**
 * Of the routed experts that row r chose, those with TD_ID_RESIDENT, which lie in slots of device memory as the CPU tier
 * packs them. sums[r] = their part of the exact sum (kernels/exact_sum.h) over the row's experts, of weights[r] *
 * down_e(glu(gate_e(x), up_e(x))), with the bits of the CPU tier. Which expert lies in which slot may change between two
 * replays of a graph. Experts elsewhere have no part in it. Where a marked expert has no slot, the run fails, or, on a card,
 * the row's sums are NaNs.
 */
typedef struct {
    uint32_t                hidden, inter, n_experts, top_k;
    uint32_t                first, end; /* of a row's choices: only those count; end 0: all do */
    const td_packed_expert *packed;     /* copied */
    const void             *slots;      /* [slots, packed->bytes] device memory; every slot begins with a multiple of 64 */
    const uint16_t         *slot_of; /* [n_experts] device memory: where an expert lies, TD_SLOT_ELSEWHERE or TD_NO_SLOT */
    const void             *in;      /* [max_tok, hidden] */
    td_rows_i8              in_i8;   /* the same rows in int8; only where the packed format takes int8 */
    const uint16_t         *ids;     /* [max_tok, top_k] of a router with the same slot_of */
    const float            *weights; /* [max_tok, top_k] */
    int32_t                *sums;    /* [max_tok, td_exact_words(hidden)] */
} td_resident_desc;

/** Behind the last choice of a row that counts. */
static inline uint32_t td_resident_end(const td_resident_desc *x) {
    return x->end ? x->end : x->top_k;
}

/** out = the values of the exact sums parts[0] + parts[1], rounded to act_dtype. */
typedef struct {
    uint32_t       hidden;
    const int32_t *parts[2]; /* [max_tok, td_exact_words(hidden)] */
    void          *out;      /* [max_tok, hidden] */
} td_join_desc;

/** x += (add[0] + add[1] + add[2]), summed in that order in f32; NULL entries are left out. Then tokens of images add their
 * row of `images`, in f32 too. */
typedef struct {
    uint32_t    hidden;
    void       *x; /* [max_tok, hidden] */
    const void *add[3];
    const void *images; /* [max_tok, hidden] as in td_embed_desc, or NULL */
} td_combine_desc;

/**
 * Tensor parallel: out = the sum over the cards of a group, in their order, of what each of them adds: add[0] + add[1] +
 * add[2] in f32, NULL entries left out (none: zero), rounded to act_dtype. out may be one of add. Every card of the group
 * runs it in the same place of its stream. With `exact`, rows are int32 words of exact sums (kernels/exact_sum.h): each card
 * gives add[0] alone, and out has the words of the whole.
 */
typedef struct {
    uint32_t      width; /* values, or words */
    bool          exact;
    td_npu_group *group;
    void         *out;    /* [max_tok, width] */
    const void   *add[3]; /* [max_tok, width] */
} td_all_reduce_desc;

/** logits[r, :] = W norm(x[out_row[r], :]), f32. norm as in td_norm_desc. */
typedef struct {
    uint32_t             hidden, vocab, max_out;
    float                eps;
    const td_npu_weight *gamma;  /* [hidden] F32; NULL: x has been normed */
    const td_npu_weight *w;      /* [vocab, hidden] */
    const void          *x;      /* [max_tok, hidden] */
    float               *logits; /* [max_out, vocab] f32 */
} td_head_desc;

typedef struct {
    float    value;
    uint32_t id;
} td_logit;

/** What log-softmax needs of a row: that of a logit x is x - max - log(sum). */
typedef struct {
    float max, sum; /* the largest logit; the sum of exp(logit - max) */
} td_log_sum;

/** top[r, :] = the k largest of logits[r, :], descending, ties to the lower id. Where a logit of the row is NaN or +inf,
 * top[r, 0].value is NaN, and the row's sum is not finite. */
typedef struct {
    uint32_t     vocab, k, max_out; /* k 1..vocab */
    const float *logits;            /* [max_out, vocab] */
    td_logit    *top;               /* [max_out, k] */
    td_log_sum  *sums;              /* [max_out], with caps.log_sums; or NULL */
} td_top_desc;

typedef enum {
    TD_BLOCK_EMBED,
    TD_BLOCK_NORM,
    TD_BLOCK_MIX,
    TD_BLOCK_SPREAD,
    TD_BLOCK_LINEAR,
    TD_BLOCK_MLA,
    TD_BLOCK_GQA,
    TD_BLOCK_DELTA,
    TD_BLOCK_SPARSE,
    TD_BLOCK_MLP,
    TD_BLOCK_ROUTER,
    TD_BLOCK_EXPERTS,
    TD_BLOCK_RESIDENT,
    TD_BLOCK_JOIN,
    TD_BLOCK_COMBINE,
    TD_BLOCK_ALL_REDUCE,
    TD_BLOCK_HEAD,
    TD_BLOCK_TOP,
    TD_BLOCK_COUNT,
} td_block_kind;

#define TD_NO_LAYER UINT32_MAX

/** What a block is made from: its kind, its sizes, its weights and its buffers in device memory. */
typedef struct {
    td_block_kind kind;
    uint32_t      layer;   /* of the model, or TD_NO_LAYER: for reports alone */
    uint32_t      max_tok; /* rows of its buffers: at least a step's first_row + max_tok */
    uint32_t      max_kv;  /* attention: largest kv_len */
    /** With caps.vision, of norms, linears, combines and full attention, none with int8 rows or images: rows of its buffers are
     * f32, whatever act_dtype is. What a cache holds is of act_dtype still. */
    bool rows_f32;
    union {
        td_embed_desc      embed;
        td_norm_desc       norm;
        td_mix_desc        mix;
        td_spread_desc     spread;
        td_linear_desc     linear;
        td_mla_desc        mla;
        td_gqa_desc        gqa;
        td_delta_desc      delta;
        td_sparse_desc     sparse;
        td_mlp_desc        mlp;
        td_router_desc     router;
        td_experts_desc    experts;
        td_resident_desc   resident;
        td_join_desc       join;
        td_combine_desc    combine;
        td_all_reduce_desc all_reduce;
        td_head_desc       head;
        td_top_desc        top;
    };
} td_block_desc;

/** Rows of a cache: keys or values of one head, MLA's latents, its rope parts; f32 of a recurrent layer; rows in
 * act_dtype; keys of an indexer. The last is any of the first three in 8 bits, with caps.kv_int8. */
typedef enum { TD_KV_HEAD, TD_KV_LATENT, TD_KV_ROPE, TD_KV_STATE, TD_KV_ROW, TD_KV_INDEX, TD_KV_INT8 } td_kv_rows;

/* ---- the table ------------------------------------------------------------------------------- */

typedef enum { TD_COPY_H2D, TD_COPY_D2H } td_copy_kind;

typedef void (*td_host_fn)(void *arg);

/** The rates that bound the work of a device. */
typedef enum {
    TD_BOUND_READ, /* bytes a second of its memory, read */
    TD_BOUND_COPY, /* the same of a copy within its memory: read and written */
    TD_BOUND_INT8, /* operations a second, two per multiply-add, of int8 products from registers */
    TD_BOUND_BF16, /* of bf16 products with f32 sums */
} td_npu_bound;

/** A word of pinned host memory: 0 silent, 1 rung. One side sets it to 1; the other waits for that, and sets it back to
 * 0. */
typedef _Atomic uint32_t td_bell;

#define TD_CARRIED_ARRAYS 4

/** What a hand-over takes from one memory to the other: arrays with a row for each of the step's. One side of an array is in
 * device memory, the other in memory of host_alloc. Of a device's streams, one at a time carries rows. */
typedef struct {
    const td_step *step; /* its counts are read when the rows are carried */
    uint32_t       n;    /* arrays; 0 with unified memory */
    struct {
        void       *to;
        const void *from; /* where the step's first row is */
        size_t      row_bytes;
    } arrays[TD_CARRIED_ARRAYS];
} td_carried;

/** What the device has done since it was opened, and which block it computes now. */
typedef struct {
    /** Of all runs of blocks together: weights and the KV of sequences, read once by each run, and the multiply-adds of
     * products and attention. */
    td_tier_work work;
    const char  *doing; /* "mla", …; static; NULL: no block runs */
    uint32_t     layer; /* of it, or TD_NO_LAYER */
    /** Copied to the device and from it, and carried by hand-overs, of which the bucket's rows count; 0 with unified
     * memory. */
    uint64_t link_down_bytes, link_up_bytes;
} td_npu_report;

struct td_npu_ops {
    const char *name;
    void (*close)(td_npu *d);
    void (*caps)(td_npu *d, td_npu_caps *out);
    void (*report)(td_npu *d, td_npu_report *out); /* any thread */
    void (*stats)(td_npu *d, td_card_stats *out);  /* any thread; NULL: the device is the host, with the host's memory */
    /** Whether the device has failed for good, so that this process cannot use it any more. Any thread. @param why receives
     * TD_ELOST and a sentence, if it has. NULL: it cannot fail so. */
    bool (*lost)(td_npu *d, td_error *why);

    /* memory: device memory, and host memory that the device can copy from and to at full speed; zeroed, 64-byte aligned */
    TD_NODISCARD td_status (*alloc)(td_npu *d, size_t bytes, void **out, td_error *err);
    void (*free)(td_npu *d, void *p, size_t bytes);
    TD_NODISCARD td_status (*host_alloc)(td_npu *d, size_t bytes, void **out, td_error *err);
    void (*host_free)(td_npu *d, void *p, size_t bytes);
    /** Memory of the caller's becomes such host memory, all of its pages, until it is unregistered; then it may be given
     * back. What the first card of a group has registered is good for all of them. @return TD_ENOTSUP: not on this device, or
     * not this memory. */
    TD_NODISCARD td_status (*host_register)(td_npu *d, void *p, size_t bytes, td_error *err);
    void (*host_unregister)(td_npu *d, void *p, size_t bytes);

    /* Streams. A call that enqueues returns TD_EDEVICE when the runtime fails, and then it has enqueued nothing. With
       inline_work it also returns what an operation returns, and then nothing behind that has run. An asynchronous stream runs
       everything behind a failed operation, or nothing: it never runs a wait for a bell without the ring before it. */
    TD_NODISCARD td_status (*stream_create)(td_npu *d, td_npu_stream **out, td_error *err);
    void (*stream_destroy)(td_npu *d, td_npu_stream *s); /* after what is enqueued has run */
    /** Wait for what is enqueued. @return the first failure of what ran since the last wait. */
    TD_NODISCARD td_status (*stream_sync)(td_npu *d, td_npu_stream *s);
    /** One side is in device memory, the other in memory of host_alloc or host_register. */
    TD_NODISCARD td_status (*copy)(td_npu *d, td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind);

    /* the hand-over, see td_handover */
    /** Call fn(arg) on a host thread, in stream order; the stream goes on when it returns. fn may block, and must not call
     * the device. */
    TD_NODISCARD td_status (*host_call)(td_npu *d, td_npu_stream *s, td_host_fn fn, void *arg);
    /** Carry rows to the host, then ring, in stream order. A thread that sees the bell rung (acquire) may read them, and what
     * the stream copied to the host before. Rows within the step's counts are carried; those beyond may be.
     * @param rows copied; NULL: none. @return TD_EDEVICE: no ring is enqueued, though some rows may be carried. */
    TD_NODISCARD td_status (*bell_ring)(td_npu *d, td_npu_stream *s, td_bell *bell, const td_carried *rows);
    /** Wait in stream order until the host has rung the bell (release), silence it, and carry rows to the device. @param rows
     * as of bell_ring. */
    TD_NODISCARD td_status (*bell_wait)(td_npu *d, td_npu_stream *s, td_bell *bell, const td_carried *rows);

    /* Captures. Between begin and end, what is enqueued on s is recorded and not run; a launch runs it all in order on s.
       td_step says what may change between launches. While s is captured, the caller allocates and frees nothing on the
       device, and synchronises no stream. */
    TD_NODISCARD td_status (*graph_begin)(td_npu *d, td_npu_stream *s);
    /** @param out NULL: what was recorded is thrown away. */
    TD_NODISCARD td_status (*graph_end)(td_npu *d, td_npu_stream *s, td_npu_graph **out, td_error *err);
    TD_NODISCARD td_status (*graph_launch)(td_npu *d, td_npu_stream *s, td_npu_graph *g);
    /* Branches of a capture; both functions are NULL where a capture has one stream. */
    /** While s is captured: what is enqueued on another stream, `branch`, is recorded too until it is joined. It runs behind
     * what was recorded of s before, and beside what follows there. What waits in a branch for a bell must have all that the
     * ring needs before the fork: a device may run one after the other. */
    TD_NODISCARD td_status (*graph_fork)(td_npu *d, td_npu_stream *s, td_npu_stream *branch);
    /** What follows on s runs behind the branch. Each one is joined before graph_end, unless that throws away what was
     * recorded. */
    TD_NODISCARD td_status (*graph_join)(td_npu *d, td_npu_stream *s, td_npu_stream *branch);
    void (*graph_destroy)(td_npu *d, td_npu_graph *g);

    /* Several cards of one backend as one tensor-parallel device. These functions may be taken from the table of any
     * card. */
    /** Before the blocks that use the group. */
    TD_NODISCARD td_status (*group_create)(td_npu *const *cards, uint32_t n, td_npu_group **out, td_error *err);
    void (*group_destroy)(td_npu_group *g);
    /** Let sums fail, for when a card will not come to them: those that wait now, and those that begin before the reset. Any
     * thread. Graphs with sums of the group must not be launched again, even after the reset: they are made anew. */
    void (*group_abort)(td_npu_group *g);
    void (*group_reset)(td_npu_group *g); /* while no card's stream has work */

    /* Weights. */
    /** For planning: the most device memory that weight_create and the blocks' layouts take. Of INT4G as an expert's: a
     * device may keep linears of that format as W8A8.
     * @param group of INT4G and FP4G: columns that share a scale; 0: not known. */
    size_t (*weight_bytes)(td_npu *d, td_weight_format format, uint32_t group, size_t n, size_t k);
    /** Convert, pack and copy src. @param src a BF16, F16 or F32 view of rank 1 or 2; for W8A8 also I8 [n, k] with scales.
     * For INT4G and FP4G a coded view (quant/coded_matrix.h) that td_coded_exact_tiles finds to be of that kind. */
    TD_NODISCARD td_status (*weight_create)(td_npu *d, td_weight_format format, const td_tensor_view *src,
                                            td_npu_weight **out, td_error *err);
    void (*weight_destroy)(td_npu *d, td_npu_weight *w);
    /** A word for what the bytes of an exported weight depend on besides its td_npu_packed: backend and layouts. "": nothing
     * can be exported, and the next two functions are NULL. */
    void (*weight_tag)(td_npu *d, char tag[TD_NPU_TAG_BYTES]);
    /** What *out points to is borrowed until destroy. Call it when the blocks that use the weight exist: they choose its
     * layout. */
    void (*weight_export)(td_npu *d, const td_npu_weight *w, td_npu_packed *out);
    /** Make a weight over the bytes of an exported one, which are only read, and borrowed until destroy. @return TD_EINVAL
     * for bytes that no device like this one has exported. */
    TD_NODISCARD td_status (*weight_adopt)(td_npu *d, const td_npu_packed *p, td_npu_weight **out, td_error *err);

    /* Blocks. The descriptor is copied; its weights and buffers are borrowed until destroy. */
    /** Bytes of a KV page whose rows have n values. Caches start zeroed. */
    size_t (*kv_page_bytes)(td_npu *d, td_kv_rows what, size_t n);
    /** Scratch that the block needs; all blocks of a device share the largest. Of attention it is a + b * kv_pages. */
    size_t (*block_scratch_bytes)(td_npu *d, const td_block_desc *desc);
    TD_NODISCARD td_status (*block_create)(td_npu *d, const td_block_desc *desc, td_npu_block **out, td_error *err);
    void (*block_destroy)(td_npu *d, td_npu_block *b);
    TD_NODISCARD td_status (*enqueue)(td_npu *d, td_npu_stream *s, td_npu_block *b, const td_step *step);
    /* Blocks in parts, for passes that go in pieces; NULL on devices whose blocks run whole. */
    /** In how many parts a block over n_tok rows of a sequence goes that is wanted in so many: as many or fewer, so that each
     * has work. 1: it goes whole. @param between_bytes out: device memory that they need between them; 0: none. */
    uint32_t (*block_parts)(td_npu *d, const td_block_desc *desc, uint32_t n_tok, td_parts_wanted wanted,
                            size_t *between_bytes);
    /** One part of a block; all of them, in order, do what enqueue does. Other steps may run between two parts.
     * @param part copied. */
    TD_NODISCARD td_status (*enqueue_part)(td_npu *d, td_npu_stream *s, td_npu_block *b, const td_step *step,
                                           const td_block_part *part);

    /** Measure what the device can do at most, with work made for that. It takes some ms, in which the caller gives the card
     * nothing else to do. @param per_s out. NULL: the device cannot measure; kernels/machine/roofline.h does it for the
     * host. */
    TD_NODISCARD td_status (*bound)(td_npu *d, td_npu_bound what, double *per_s, td_error *err);
};

/* ---- backends -------------------------------------------------------------------------------- */

/** Something about a backend's installation. Texts are valid during the call that tells it. */
typedef struct {
    const char *what, *found; /* "driver", "25.2.0" */
    const char *advice;       /* what to do about it; NULL: nothing */
    bool        is_wrong;     /* no card can be opened like this */
} td_npu_fact;

typedef void (*td_npu_fact_fn)(void *user, const td_npu_fact *fact);

#define TD_ACCELERATORS_MAX 64
#define TD_PCI_BYTES 16 /* domain:bus:device.function, as in /sys/bus/pci/devices */

/** What a vendor's driver and Linux say of an accelerator, which becomes a card when it is opened. */
typedef struct {
    char   name[96];
    char   pci[TD_PCI_BYTES];
    int    compute_capability; /* its generation, 10 * major + minor, as its vendor counts */
    bool   is_usable;          /* the backend computes on that generation */
    size_t memory_bytes;
    int    node; /* Linux' number of the NUMA node that it hangs on; -1 unknown */
} td_accelerator;

/**
 * A backend as a value. Its folder defines it, npu/backends.c lists it, and all else of the program goes over that list:
 * flags and their help, `--device auto`, the thread layout, topo, doctor, bench.
 */
typedef struct {
    const char        *name;    /* what --device takes: "host" */
    const char *const *aliases; /* other names for it, then NULL; NULL: it has one name */
    const char        *help;    /* what it is, after "host is" in --help: "the CPU" */
    bool               is_for_tests;
    /** Open one card. @param config borrowed during the call. @param out NULL unless TD_OK. */
    TD_NODISCARD td_status (*open)(const td_npu_config *config, td_npu **out, td_error *err);
    /** Tell what it finds out without opening a card: libraries, versions, functions. One thread at a time. */
    void (*tell_facts)(td_npu_fact_fn tell, void *user);
    /** Threads of this machine that a card computes with and cannot do without: of one card alone, of each of several. 0:
     * cards compute by themselves. */
    uint32_t threads_alone, threads_in_group;

    /* backends whose driver lists accelerators without opening one; otherwise NULL, all three */
    /** Any thread, but not two at once. @param n out: entries of out that are filled, at most TD_ACCELERATORS_MAX.
     * @return TD_OK; TD_ENOTFOUND where there is no driver or no card; else why the driver cannot be asked. */
    TD_NODISCARD td_status (*list_accelerators)(td_accelerator out[TD_ACCELERATORS_MAX], size_t *n, td_error *err);
    const char  *vendor; /* of the cards, as people know it */
    const char  *usable; /* the generations that is_usable means, in words */

    /* what only its vendor's cards have, added to what `tandem doctor` advises; NULL: nothing */
    const char *health_advice; /* what shows its cards' health */
    const char *group_advice;  /* why cards may not reach each other */
} td_backend;

/** This program's backends in the order in which --help names them, then NULL. */
extern const td_backend *const td_backends[];

/** The backend of a name or an alias; NULL is "host". @return NULL: there is none. */
const td_backend *td_backend_find(const char *name);

/**
 * Open a device.
 * @param name of a backend; NULL: "host".
 * @return as its `open`; TD_EINVAL for a name that there is not, with those that there are.
 */
TD_NODISCARD td_status td_npu_open(const char *name, const td_npu_config *config, td_npu **out, td_error *err);

/**
 * What --device auto is: the first backend that lists a usable card, else the host. Opens nothing.
 * @param why  receives, for the log, which cards there are or why none can be listed.
 * @return a name that td_npu_open takes.
 */
const char *td_npu_auto(char *why, size_t bytes);

/** How many of this machine's threads of their own so many cards cannot do without; 0 for names that there are not. */
uint32_t td_npu_threads_needed(const char *name, uint32_t n_cards);

/** Add what cards of a device, from first_card on, want of the thread layout. They want threads of their own, at least those
 * that they cannot do without, and cores for a card's driver and launches. They want the experts' first subpool on the NUMA
 * node that the first card hangs on. */
void td_npu_wish(const char *name, uint32_t first_card, uint32_t n_cards, td_thread_wishes *wishes);

#endif
