/* A hand-over's rows by copies: where no kernel carries them. */
#ifndef TD_NPU_CARRIED_ROWS_H
#define TD_NPU_CARRIED_ROWS_H

#include "core/error.h"
#include "npu/npu.h"

/** Enqueue a copy of each array, of all the bucket's rows. @param rows NULL: none. */
static inline td_status td_carry_by_copies(td_npu *d, td_npu_stream *s, const td_carried *rows, td_copy_kind kind) {
    for (uint32_t i = 0; rows && i < rows->n; i++)
        TD_TRY(d->ops->copy(d, s, rows->arrays[i].to, rows->arrays[i].from, rows->arrays[i].row_bytes * rows->step->max_tok,
                            kind));
    return TD_OK;
}

#endif
