/* A block on an NVIDIA card, and what a kind of blocks is. */
#ifndef TD_NPU_CUDA_CUDA_KIND_H
#define TD_NPU_CUDA_CUDA_KIND_H

#include "npu/cuda/cuda_product.h"

/** Where a block's arrays lie in its scratch, in bytes; those that its kind uses. Rows are those of the bucket. */
typedef struct {
    td_cuda_rows_places in, mid, out;            /* rows that the first, the middle and the last products read */
    size_t              rows;                    /* bf16 rows */
    size_t              wide, up;                /* f32: what a first product gave; the other half of a gated one */
    size_t              gate;                    /* f32 [rows] */
    size_t              q, k, v;                 /* f32: heads before norm and rope; k of MLA: latents and rope parts */
    size_t              q_placed;                /* bf16: queries, rotated */
    size_t              ctx;                     /* f32: what attention gave */
    size_t              partial;                 /* f32: spans of some rows */
    size_t              row_at, place_of, tiles; /* of experts: rows by expert (experts.cu) */
    size_t              count, list; /* rows of attention's pieces, and of experts' places; decode's rows (cuda_decode.h) */
    size_t              q_latent, ctx_latent; /* of one piece's rows, bf16 */
    size_t              q_piece, ctx_piece; /* the same where its rows are listed: queries, bf16; what attention gave, f32 */
    size_t              expanded;           /* of MLA, bf16: keys and values of some heads, for all slots */
} td_cuda_places;

struct td_npu_block {
    td_block_desc                    desc;
    const struct td_cuda_block_kind *kind;
    td_cuda_places                   at;
    size_t                           library;      /* where the scratch for cuBLASLt's products begins */
    bool                             uses_library; /* it has such a scratch */
    void                            *tables;       /* device memory of its own, or NULL */
    td_packed_expert                 packed;       /* of resident experts */
};

typedef struct td_cuda_block_kind {
    /** Where its arrays go: reads sizes only, weights may be NULL. @return bytes of the scratch. */
    size_t (*place)(const td_block_desc *desc, td_cuda_places *at);
    /** What the card alone wants of the sizes of a descriptor that td_block_check has passed; NULL: nothing. */
    td_status (*check)(const td_cuda_npu *d, const td_block_desc *desc, td_error *err);
    /** Launch its kernels; failures stay in r. */
    void (*launch)(td_cuda_run *r, const td_npu_block *b);
    /** What the card alone wants of its weights, and its tables; NULL: nothing. */
    td_status (*prepare)(td_cuda_npu *d, td_npu_block *b, td_error *err);
} td_cuda_block_kind;

extern const td_cuda_block_kind td_cuda_embed, td_cuda_norm, td_cuda_combine, td_cuda_head, td_cuda_top, td_cuda_linear,
    td_cuda_mlp, td_cuda_router, td_cuda_experts, td_cuda_resident, td_cuda_join, td_cuda_gqa, td_cuda_mla,
    td_cuda_all_reduce;

/** Blocks of rows that prefill needs for a step of this bucket. */
static inline size_t td_cuda_prefill_blocks(const td_step *step) {
    return step->max_tok / TD_CUDA_PREFILL_ROWS + (step->max_seq < step->max_tok ? step->max_seq : step->max_tok);
}

#endif
