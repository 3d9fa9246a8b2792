/*
 * An Ascend card as the contract of npu/npu.h has it.
 *
 * DESIGN. The card is a td_card (npu/card/card.h), and most functions of its table are those of npu/card. It has a context
 * of its own: AscendCL knows a card by the calling thread's context (runtime 05). A stream has a host thread that fetches
 * its callbacks (runtime 12): a host call may block, so no two streams share one. The process has the libraries, and calls
 * aclInit once.
 *
 * Hand-over. A host call is a blocking callback, in captures too. No documented operation of a 910B lets a stream wait for a
 * word of pinned memory (aclrtValueWait takes device memory, runtime 11-09). So a wait for a bell is a host call that polls
 * it, and the form that suits the card is host calls.
 *
 * Blocks. A block is a list of the vendor's operations; its kind (td_ascend_block_kind) checks a descriptor, lays its
 * weights out and launches the list (ascend_op.h). Shapes are those of the step's bucket, so what is launched while a stream
 * is captured serves every step of the bucket. Two things do not lie in the device's arrays as operations want them, and are
 * made of step->host before each launch (ascend_step.h). They are rows beyond the counts, which operations compute like all
 * others, and the lengths of sequences, which an attention takes from the host when it is prepared.
 *
 *   ascend_device  the card: its failures, its memory    ascend_group   several cards: HCCL
 *   ascend_step    a step as operations want it: rows, pieces of sequences
 *   ascend_stream  streams, captures
 *   ascend_op      an operation and its tensors: what blocks are written in
 *   ascend_kind    a block, and what a kind of blocks is
 *   ascend_weight  weights and their layouts              ascend_kept     their rows before
 *   ascend_stack   routed experts' weights, int8 or of 4-bit codes
 *   ascend_rows    embed, norm, combine, head, top       ascend_linear  linear, mlp       ascend_router
 *   ascend_experts    routed experts on the card         ascend_sum     the sum over cards
 *   ascend_attention  pages and attention over them      ascend_mla     ascend_gqa
 *   ascend_block   blocks in general: made, launched, their scratch; launches of graphs
 *   ascend_temperature  its temperature
 *   ascend_open    opening a card, and its table of functions
 *   ascend_loader  the libraries, opened at run time      ascend_backend  the backend as a value, and its installation
 */
#ifndef TD_NPU_ASCEND_ASCEND_DEVICE_H
#define TD_NPU_ASCEND_ASCEND_DEVICE_H

#include "npu/ascend/ascend_loader.h"
#include "npu/card/card.h"

#define TD_ASCEND_MLA_LATENT 512 /* what MLA's attention takes: latent, rope part, heads at most */
#define TD_ASCEND_MLA_ROPE 64
#define TD_ASCEND_MLA_HEADS_MAX 128
#define TD_ASCEND_FRONT_Q_LORA 1536 /* of the operation for an MLA's front */

/** How attention cuts a step into pieces (ascend_step.h); blocks that agree share a cut. */
typedef struct {
    uint32_t most; /* rows of a piece; 0: no attention */
    uint32_t kv_pages, kv_spare_pages;
} td_ascend_cut_key;

#define TD_ASCEND_CUTS_MAX 4 /* that the arrays of a step have */

typedef struct {
    td_card                    base; /* first */
    const td_ascend_libraries *l;
    const td_acl              *acl;
    int32_t                    card;
    td_acl_context             context;
    td_acl_stream              setup; /* zeroes memory */
    /* of blocks; all are of the thread that calls */
    size_t        rope_bytes, block_bytes; /* that the blocks want of the scratch: rope rows of a step, then a block's own */
    td_card_arena workspace;               /* what operations ask for, one at a time */
    void         *mask;                    /* causal, as attention wants it; NULL until a block does */
    void         *ones;                    /* [TD_ASCEND_FRONT_Q_LORA] f32, 1 each; NULL until an MLA's front wants them */
    bool          is_a2;                   /* 910B; else 910C */
    struct {
        td_ascend_cut_key key;
        size_t            refs; /* blocks that have it; 0: none */
    } cuts[TD_ASCEND_CUTS_MAX]; /* of attentions; of more kinds, those that came first */
    bool told_rounded;          /* experts' 4-bit codes are rounded to int8, and the log has it */
} td_ascend_npu;

/** A call of the runtime has failed: status, code and the runtime's words as a sentence, in err where there is one, else in
 * the log. */
td_status td_ascend_failed(td_ascend_npu *d, const char *call, td_acl_status code, td_error *err);

/** What a call that gives a stream something has returned: TD_OK, or TD_EDEVICE and a line in the log. */
TD_NODISCARD td_status td_ascend_queued(td_ascend_npu *d, const char *call, td_acl_status code);
/** What any other call has returned: TD_OK, or what td_ascend_failed says. */
static inline td_status td_ascend_done(td_ascend_npu *d, const char *call, td_acl_status code, td_error *err) {
    return code == TD_ACL_SUCCESS ? TD_OK : td_ascend_failed(d, call, code, err);
}
/** Start the runtime for the process, once. @return TD_EDEVICE and a sentence. */
TD_NODISCARD td_status td_ascend_init(const td_acl *acl, td_error *err);

/** Whether the libraries let a graph run while its lengths are updated: events outside of captures that a capture waits for.
 * The abort is for a run that waits for one that could not be recorded. */
static inline bool td_ascend_updates_beside(const td_ascend_npu *d) {
    return d->acl->aclrtCreateEventWithFlag && d->acl->aclrtResetEvent && d->acl->aclrtStreamAbort;
}

/** Copy to host memory; done when it returns, not in captures. The context is bound. */
TD_NODISCARD td_status td_ascend_download(td_ascend_npu *d, void *host, const void *dev, size_t bytes, td_error *err);

/* Entries of td_card_driver. */
TD_NODISCARD td_status td_ascend_enter(td_card *c);
void                   td_ascend_memory(td_card *c, uint64_t *free_bytes, uint64_t *total_bytes);
TD_NODISCARD td_status td_ascend_take(td_card *c, size_t bytes, void **out, td_error *err);
void                   td_ascend_give(td_card *c, void *p);
TD_NODISCARD td_status td_ascend_zero(td_card *c, void *p, size_t bytes, td_error *err);
TD_NODISCARD td_status td_ascend_upload(td_card *c, void *dev, const void *host, size_t bytes, td_error *err);
TD_NODISCARD td_status td_ascend_pin(td_card *c, size_t bytes, void **out, td_error *err);
void                   td_ascend_unpin(td_card *c, void *p, size_t bytes);

#endif
