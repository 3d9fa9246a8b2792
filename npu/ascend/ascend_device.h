/*
 * An Ascend card as the contract of npu/npu.h has it.
 *
 * DESIGN. A card has a context of its own, which every function makes the calling thread's first: threads come and go, and
 * AscendCL knows the card by its thread's context (runtime 05). A stream has a host thread that fetches its callbacks
 * (runtime 12): a host call may block, so no two streams share one. The libraries and aclInit are the process's.
 *
 * Hand-over. A host call is a blocking callback, in captures too. A ring is a copy of a word to pinned memory, in stream
 * order. No documented operation of a 910B lets a stream wait for a word of pinned memory (aclrtValueWait takes device
 * memory, runtime 11-09), so a wait for a bell is a host call that polls it: the form that suits the card is host calls.
 *
 * Blocks. A block is a list of the vendor's operations; its kind (td_ascend_block_kind) checks a descriptor, lays its
 * weights out and launches the list (ascend_op.h). Shapes are those of the step's bucket, so what is launched while a
 * stream is captured serves every step of the bucket. Two things do not lie in the device's arrays as operations want them,
 * and are made of step->host before each launch (ascend_step.h): rows beyond the counts, which operations compute like all
 * others, and the lengths of sequences, which an attention takes from the host when it is prepared.
 *
 *   ascend_open    the card, its memory        ascend_op      an operation and its tensors: what blocks are written in
 *   ascend_stream  streams, captures           ascend_step    a step as operations want it: rows, pieces of sequences
 *   ascend_weight  weights and their layouts   ascend_block   blocks in general: made, launched, their scratch
 *   ascend_rows    embed, norm, combine, head, top            ascend_linear  linear, mlp        ascend_router
 *   ascend_experts    routed experts that lie on the card     ascend_group       several cards
 *   ascend_attention  pages and attention over them           ascend_mla, ascend_gqa
 */
#ifndef TD_NPU_ASCEND_ASCEND_DEVICE_H
#define TD_NPU_ASCEND_ASCEND_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "npu/ascend/ascend_loader.h"
#include "npu/card_loss.h"
#include "npu/card_meter.h"
#include "npu/npu.h"

#define TD_ASCEND_RETIRED_MAX 64
#define TD_ASCEND_MLA_LATENT 512 /* what MLA's attention takes: latent, rope part, heads at most */
#define TD_ASCEND_MLA_ROPE 64
#define TD_ASCEND_MLA_HEADS_MAX 128
#define TD_ASCEND_FRONT_Q_LORA 1536 /* of the operation for an MLA's front */

/** A piece of device memory that grows. What it was before stays until the card is closed: captures hold its address. */
typedef struct {
    char  *at;
    size_t bytes;
    void  *retired[TD_ASCEND_RETIRED_MAX];
    size_t n_retired;
} td_ascend_arena;

typedef struct {
    td_npu                     base; /* first */
    const td_ascend_libraries *l;
    const td_acl              *acl;
    td_npu_config              config;
    int32_t                    card;
    td_acl_context             context;
    td_acl_stream              setup;                /* zeroes memory */
    uint32_t                  *one;                  /* device memory: the word that a ring copies, 1 */
    _Atomic uint64_t           down_bytes, up_bytes; /* over the link, of what was enqueued */
    td_card_meter              given;
    td_card_loss               loss;
    /* of blocks; all are of the thread that calls */
    size_t rope_bytes, block_bytes;     /* that the blocks want of the scratch: rope rows of a step, then a block's own */
    td_ascend_arena scratch, workspace; /* workspace: what operations ask for, one at a time */
    td_ascend_arena order, chosen; /* of routers: places and ids of experts, valid ones even where an operation failed */
    void           *mask;          /* causal, as attention wants it; NULL until a block does */
    void           *ones;          /* [TD_ASCEND_FRONT_Q_LORA] f32, 1 each; NULL until an MLA's front wants them */
    bool            is_a2;         /* 910B; else 910C */
} td_ascend_npu;

/**
 * Open a card.
 * @param config act_dtype must be TD_DT_BF16; card [0, number of cards).
 * @return TD_OK; what td_ascend_load returns; TD_EINVAL for a card that there is not; TD_EDEVICE when it cannot be opened;
 * each with a sentence.
 */
TD_NODISCARD td_status td_ascend_npu_open(const td_npu_config *config, td_npu **out, td_error *err);

/** The vendor's libraries: loaded by the first call, the process's, never unloaded. Any thread. @return as td_ascend_load.
 */
TD_NODISCARD td_status td_ascend_libraries_get(const td_ascend_libraries **out, td_error *err);

/** What is installed: libraries, versions, functions, device files (ascend_facts.c). Opens no card. */
void td_ascend_facts(td_npu_fact_fn tell, void *user);

/** Make the card the calling thread's. */
TD_NODISCARD td_status td_ascend_enter(td_ascend_npu *d);
/** A call of the runtime has failed: status, code and the runtime's words as a sentence, in err where there is one, else in
 * the log. */
td_status td_ascend_failed(td_ascend_npu *d, const char *call, td_acl_status code, td_error *err);

/** Make an arena at least so large, its contents undefined. Allowed in captures. */
TD_NODISCARD td_status td_ascend_arena_grow(td_ascend_npu *d, td_ascend_arena *a, size_t bytes, td_error *err);
/** Device memory that is not zeroed; waits for nothing, so captures allow it. */
TD_NODISCARD td_status td_ascend_take(td_ascend_npu *d, size_t bytes, void **out, td_error *err);
void                   td_ascend_give(td_ascend_npu *d, void *p); /* NULL is fine */
/** Copies that are done when they return; not in captures. */
TD_NODISCARD td_status td_ascend_upload(td_ascend_npu *d, void *dev, const void *host, size_t bytes, td_error *err);
TD_NODISCARD td_status td_ascend_download(td_ascend_npu *d, void *host, const void *dev, size_t bytes, td_error *err);

/* ---- blocks ---------------------------------------------------------------------------------- */

/** How attention cuts a step into pieces (ascend_step.h); blocks that agree share a cut. */
typedef struct {
    uint32_t most; /* rows of a piece */
    uint32_t kv_pages, kv_spare_pages;
} td_ascend_cut_key;

typedef struct td_ascend_run    td_ascend_run;    /* ascend_op.h */
typedef struct td_ascend_matrix td_ascend_matrix; /* ascend_weight.h */
typedef struct td_ascend_stack  td_ascend_stack;

/** Where a block's arrays lie in its scratch, in bytes; those that its kind uses. */
typedef struct {
    size_t rows, rstd;                                    /* bf16 rows; what norms leave besides */
    size_t codes, scale;                                  /* int8 rows */
    size_t wide, low, q, q_rope, k, k_rope, v, ctx, gate; /* what lies between two operations */
    size_t f32, order, values;                            /* routers, heads */
    size_t sent, sent_scale, mid, mid_scale;              /* routed experts: rows in the experts' order, step by step */
    size_t unread;                                        /* td_ascend_unread_bytes: outputs that nobody reads */
} td_ascend_places;

struct td_npu_block {
    td_block_desc                      desc;
    const struct td_ascend_block_kind *kind;
    td_ascend_places                   at;
    /* what the kind laid out, those that it uses; the weights own them */
    const td_ascend_matrix *in, *mid, *out; /* products in their order */
    const td_ascend_stack  *gate_up, *down; /* of routed experts */
    const void             *gamma[2], *w_uk, *w_uv, *bias;
    const void             *gamma16[2];      /* gamma in bf16, where that is the same; NULL: it is not */
    bool                    front, kv_front; /* what is ahead of attention is one operation; of an MLA: the latent's part */
    const void             *cos, *sin;       /* of attention: tables [positions, rope_to] bf16; or, */
    const void             *rope_both;       /* where one operation turns query and keys: [positions, cos half | sin half] */
    uint32_t                heads_to, latent_to, rope_to; /* heads and sizes that the operation computes */
    td_ascend_cut_key       cut;                          /* most 0: no attention */
    uint64_t                n_tokens, n_positions;        /* of its tables; 0: it has none */
};

typedef struct td_ascend_block_kind {
    /** Where its arrays go: reads sizes only, weights may be NULL. @return bytes of the scratch. */
    size_t (*plan)(const td_block_desc *desc, td_ascend_places *at);
    /** Check the descriptor, lay weights out. */
    td_status (*prepare)(td_ascend_npu *d, td_npu_block *b, td_error *err);
    /** Launch its operations; failures stay in r. */
    void (*launch)(td_ascend_run *r, const td_npu_block *b);
    /** Of kinds with attention, the one operation that has lengths of the host: launch has it by td_ascend_attend. */
    void (*attend)(td_ascend_run *r, const td_npu_block *b);
} td_ascend_block_kind;

extern const td_ascend_block_kind td_ascend_embed, td_ascend_norm, td_ascend_combine, td_ascend_head, td_ascend_top,
    td_ascend_linear, td_ascend_mlp, td_ascend_router, td_ascend_experts, td_ascend_mla, td_ascend_gqa;

/** Whether the libraries have what routed experts on the card need. */
bool td_ascend_has_experts(const td_ascend_npu *d);
/** Rows of a step that go through the experts together, at most. */
#define TD_ASCEND_EXPERT_ROWS 2048

/* The table's functions, as in td_npu_ops: of ascend_block.c, */
size_t                 td_ascend_block_scratch_bytes(td_npu *d, const td_block_desc *desc);
TD_NODISCARD td_status td_ascend_block_create(td_npu *d, const td_block_desc *desc, td_npu_block **out, td_error *err);
void                   td_ascend_block_destroy(td_npu *d, td_npu_block *b);
TD_NODISCARD td_status td_ascend_enqueue(td_npu *d, td_npu_stream *s, td_npu_block *b, const td_step *step);
size_t                 td_ascend_kv_page_bytes(td_npu *d, td_kv_rows what, size_t n);

/* of ascend_weight.c, */
size_t                 td_ascend_weight_bytes(td_npu *d, td_weight_format format, size_t n, size_t k);
TD_NODISCARD td_status td_ascend_weight_create(td_npu *d, td_weight_format format, const td_tensor_view *src,
                                               td_npu_weight **out, td_error *err);
void                   td_ascend_weight_destroy(td_npu *d, td_npu_weight *w);

/* and of ascend_stream.c. */
TD_NODISCARD td_status td_ascend_stream_create(td_npu *d, td_npu_stream **out, td_error *err);
void                   td_ascend_stream_destroy(td_npu *d, td_npu_stream *s);
TD_NODISCARD td_status td_ascend_stream_sync(td_npu *d, td_npu_stream *s);
TD_NODISCARD td_status td_ascend_copy(td_npu *d, td_npu_stream *s, void *dst, const void *src, size_t bytes,
                                      td_copy_kind kind);
TD_NODISCARD td_status td_ascend_host_call(td_npu *d, td_npu_stream *s, td_host_fn fn, void *arg);
TD_NODISCARD td_status td_ascend_bell_ring(td_npu *d, td_npu_stream *s, td_bell *bell);
TD_NODISCARD td_status td_ascend_bell_wait(td_npu *d, td_npu_stream *s, td_bell *bell);
TD_NODISCARD td_status td_ascend_graph_begin(td_npu *d, td_npu_stream *s);
TD_NODISCARD td_status td_ascend_graph_end(td_npu *d, td_npu_stream *s, td_npu_graph **out, td_error *err);
TD_NODISCARD td_status td_ascend_graph_launch(td_npu *d, td_npu_stream *s, td_npu_graph *g);
void                   td_ascend_graph_destroy(td_npu *d, td_npu_graph *g);

#endif
