/* A step for one run of a block. */
#ifndef TD_TESTS_UNIFIED_STEP_H
#define TD_TESTS_UNIFIED_STEP_H

#include "npu/npu.h"

/** A step that fills its bucket, over arrays that the host and the device both reach. */
static inline td_step td_step_unified(const td_step_arrays *a, uint32_t block_stride) {
    const td_step_counts *c = a->counts;
    return (td_step){
        .max_tok = c->n_tok, .max_seq = c->n_seq, .max_out = c->n_out, .block_stride = block_stride, .host = *a, .dev = *a};
}

#endif
