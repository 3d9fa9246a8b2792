/* A block's description, and a step for one run of it. */
#ifndef TD_TESTS_UNIFIED_STEP_H
#define TD_TESTS_UNIFIED_STEP_H

#include "npu/npu.h"
#include "tests/forms.h"

/** BLOCK_OF(TD_BLOCK_NORM, max_tok, norm, .hidden = 64, …): the kind's name, rows at most, its member and that one's
 * fields. */
#define BLOCK_OF(kind_, max_tok_, member_, ...) \
    WITH(td_block_desc, .kind = kind_, .max_tok = max_tok_, .member_ = {__VA_ARGS__})
#define ATTENTION_OF(kind_, max_tok_, max_kv_, member_, ...) \
    WITH(td_block_desc, .kind = kind_, .max_tok = max_tok_, .max_kv = max_kv_, .member_ = {__VA_ARGS__})

/** A step that fills its bucket, over arrays that the host and the device both reach. */
static inline td_step td_step_unified(const td_step_arrays *a, uint32_t block_stride) {
    const td_step_counts *c = a->counts;
    return (td_step){
        .max_tok = c->n_tok, .max_seq = c->n_seq, .max_out = c->n_out, .block_stride = block_stride, .host = *a, .dev = *a};
}

#endif
