/* Rope, pages and attention over them: what mla and gqa share. */
#ifndef TD_NPU_ASCEND_ASCEND_ATTENTION_H
#define TD_NPU_ASCEND_ASCEND_ATTENTION_H

#include "npu/ascend/ascend_kind.h"

/** A cache: pages of TD_KV_PAGE rows of `width` bf16, those of rows beyond the counts behind the others. */
td_ascend_view td_ascend_cache(const td_npu_block *b, const void *data, size_t width);

/**
 * Check and set what all attention has: pages, positions; rows of a piece.
 * @param in_pieces whether the operation takes several rows of a sequence for these sizes; else each row is a piece.
 * @param most rows of a piece then.
 * @param both whether td_ascend_op_rope_both rotates query and keys; else td_ascend_op_rope, or another operation.
 */
TD_NODISCARD td_status td_ascend_attention_prepare(td_ascend_npu *d, td_npu_block *b, uint32_t kv_pages,
                                                   uint32_t kv_spare_pages, const td_npu_weight *rope, size_t dim,
                                                   bool in_pieces, uint32_t most, bool both, td_error *err);

/** cos, or sin, of the step's rows, [rows, rope_to] of bf16, once they are there. */
td_ascend_view td_ascend_rope_view(const td_ascend_run *r, const td_npu_block *b, bool sin);
/** Cos and sin of the step's rows into the card's rope rows, once in a capture. */
void td_ascend_rope_rows(td_ascend_run *r, const td_npu_block *b);
/** out = x [rows, heads, dim] rotated by the step's positions. */
void td_ascend_op_rope(td_ascend_run *r, const td_npu_block *b, td_ascend_view x, td_ascend_view out);

/** Query and keys, rows [., heads * dim] each, rotated by the step's positions in one operation. */
void td_ascend_op_rope_both(td_ascend_run *r, const td_npu_block *b, td_ascend_view q, td_ascend_view k,
                            td_ascend_view q_out, td_ascend_view k_out);

/** keys [rows, heads, size] and values into their pages' slots. */
void td_ascend_op_write(td_ascend_run *r, td_ascend_view keys, td_ascend_view key_cache, td_ascend_view values,
                        td_ascend_view value_cache, size_t heads);

/** softmax(q k^T scale) v over the pages of each piece's sequence; contiguous. */
typedef struct {
    td_ascend_view q, q_rope, out; /* [rows, heads, size]; q_rope.rank 0: none */
    td_ascend_view k, v, k_rope;   /* caches */
    size_t         heads, kv_heads;
    float          scale;
} td_ascend_attention_args;
/** Launch a block's attention, which is all that its kind's attend does; in a capture as a task group, which
 * later launches of the graph update. */
void td_ascend_attend(td_ascend_run *r, const td_npu_block *b);
void td_ascend_op_attention(td_ascend_run *r, const td_ascend_attention_args *a);

#endif
