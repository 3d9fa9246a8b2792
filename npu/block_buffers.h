/* The buffers that a block's descriptor points to, as a list: for backends that shift or translate them. */
#ifndef TD_NPU_BLOCK_BUFFERS_H
#define TD_NPU_BLOCK_BUFFERS_H

#include "npu/npu.h"

#define TD_BLOCK_BUFFERS_MAX 10

typedef struct {
    void **at;        /* the descriptor's pointer; *at may be NULL */
    size_t row_bytes; /* of a row of the step; 0: not by rows (KV caches, logits) */
} td_block_buffer;

/** @return how many there are. */
size_t td_block_buffers(td_block_desc *desc, td_dtype act_dtype, td_block_buffer list[TD_BLOCK_BUFFERS_MAX]);

#endif
