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
 *   ascend_device  the card: its failures, its memory    ascend_group   several cards: HCCL
 *   ascend_step    a step as operations want it: rows, pieces of sequences
 *   ascend_stream  streams, captures
 *   ascend_op      an operation and its tensors: what blocks are written in
 *   ascend_kind    a block, and what a kind of blocks is ascend_weight  weights and their layouts
 *   ascend_attention  pages and attention over them      ascend_mla, ascend_gqa     ascend_linear  linear, mlp
 *   ascend_rows    embed, norm, combine, head, top       ascend_router   ascend_experts  routed experts that lie on the card
 *   ascend_sum     the sum over cards
 *   ascend_block   blocks in general: made, launched, their scratch; launches of captures
 *   ascend_open    opening a card, and its table of functions
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

/** Make the card the calling thread's. */
TD_NODISCARD td_status td_ascend_enter(td_ascend_npu *d);
/** A call of the runtime has failed: status, code and the runtime's words as a sentence, in err where there is one, else in
 * the log. */
td_status td_ascend_failed(td_ascend_npu *d, const char *call, td_acl_status code, td_error *err);

/** What a call that gives a stream something has returned: TD_OK, or TD_EDEVICE and a line in the log. */
TD_NODISCARD td_status td_ascend_queued(td_ascend_npu *d, const char *call, td_acl_status code);
/** Start the runtime for the process, once. @return TD_EDEVICE and a sentence. */
TD_NODISCARD td_status td_ascend_init(const td_acl *acl, td_error *err);

/** The card's memory; both 0 where the runtime does not say. */
void td_ascend_memory(td_ascend_npu *d, uint64_t *free_bytes, uint64_t *total_bytes);
/** Make an arena at least so large, its contents undefined. Allowed in captures. */
TD_NODISCARD td_status td_ascend_arena_grow(td_ascend_npu *d, td_ascend_arena *a, size_t bytes, td_error *err);
/** Device memory that is not zeroed; waits for nothing, so captures allow it. */
TD_NODISCARD td_status td_ascend_take(td_ascend_npu *d, size_t bytes, void **out, td_error *err);
void                   td_ascend_give(td_ascend_npu *d, void *p); /* NULL is fine */
/** Copies that are done when they return; not in captures. */
TD_NODISCARD td_status td_ascend_upload(td_ascend_npu *d, void *dev, const void *host, size_t bytes, td_error *err);
TD_NODISCARD td_status td_ascend_download(td_ascend_npu *d, void *host, const void *dev, size_t bytes, td_error *err);

#endif
