/* A block on an Ascend card, and what a kind of blocks is. */
#ifndef TD_NPU_ASCEND_ASCEND_KIND_H
#define TD_NPU_ASCEND_ASCEND_KIND_H

#include "npu/ascend/ascend_op.h"

typedef struct td_ascend_matrix td_ascend_matrix; /* ascend_weight.h */
typedef struct td_ascend_stack  td_ascend_stack;

/** Where a block's arrays lie in its scratch, in bytes; those that its kind uses. */
typedef struct {
    size_t rows, rstd;                                    /* bf16 rows; what norms leave besides */
    size_t codes, scale;                                  /* int8 rows */
    size_t wide, low, q, q_rope, k, k_rope, v, ctx, gate; /* what lies between two operations */
    size_t f32, order, values;                            /* routers, heads */
    size_t sent, sent_scale, mid, mid_scale;              /* routed experts: rows in the experts' order, step by step */
    size_t unread;                                        /* outputs that nobody reads */
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
    const void             *rope_both; /* where one operation rotates query and keys: [positions, cos half | sin half] */
    uint32_t                heads_to, latent_to, rope_to; /* heads and sizes that the operation computes */
    td_ascend_cut_key       cut;                          /* most 0: no attention */
    uint64_t                n_tokens, n_positions;        /* of its tables; 0: it has none */
};

typedef struct td_ascend_block_kind {
    /** Where its arrays go: reads sizes only, weights may be NULL. @return bytes of the scratch. */
    size_t (*place)(const td_block_desc *desc, td_ascend_places *at);
    /** What the card alone wants of the sizes of a descriptor that td_block_check has passed; NULL: nothing. */
    td_status (*check)(const td_ascend_npu *d, const td_block_desc *desc, td_error *err);
    /** Lay weights out; NULL: it has none. */
    td_status (*prepare)(td_ascend_npu *d, td_npu_block *b, td_error *err);
    /** Launch its operations; failures stay in r. */
    void (*launch)(td_ascend_run *r, const td_npu_block *b);
    /** Of kinds with attention, the one operation that has lengths of the host: launch has it by td_ascend_attend. */
    void (*attend)(td_ascend_run *r, const td_npu_block *b);
} td_ascend_block_kind;

extern const td_ascend_block_kind td_ascend_embed, td_ascend_norm, td_ascend_combine, td_ascend_head, td_ascend_top,
    td_ascend_linear, td_ascend_mlp, td_ascend_router, td_ascend_experts, td_ascend_mla, td_ascend_gqa, td_ascend_all_reduce;

/** Rows of a step that go through the experts together, at most. */
#define TD_ASCEND_EXPERT_ROWS 2048

#endif
