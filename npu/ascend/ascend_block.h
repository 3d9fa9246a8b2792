/* Blocks in general: made, launched, their scratch; launches of graphs. */
#ifndef TD_NPU_ASCEND_ASCEND_BLOCK_H
#define TD_NPU_ASCEND_ASCEND_BLOCK_H

#include "npu/npu.h"

/* The table's functions, as in td_npu_ops. */
size_t                 td_ascend_block_scratch_bytes(td_npu *d, const td_block_desc *desc);
TD_NODISCARD td_status td_ascend_block_create(td_npu *d, const td_block_desc *desc, td_npu_block **out, td_error *err);
void                   td_ascend_block_destroy(td_npu *d, td_npu_block *b);
TD_NODISCARD td_status td_ascend_enqueue(td_npu *d, td_npu_stream *s, td_npu_block *b, const td_step *step);
size_t                 td_ascend_kv_page_bytes(td_npu *d, td_kv_rows what, size_t n);

/* Entry of td_card_driver: brings the graph the lengths that its steps have now, and runs it. */
TD_NODISCARD td_status td_ascend_graph_launch(td_npu_stream *s, td_npu_graph *g);

#endif
