/* An indexer's keys that stand for several tokens each (td_index_desc): made from rows of this step and of open blocks. */
#ifndef TD_NPU_HOST_HOST_POOL_H
#define TD_NPU_HOST_HOST_POOL_H

#include "npu/host/host_device.h"

/** A chunk of a step's rows. */
typedef struct {
    td_host_npu          *d;
    const td_index_desc  *x; /* with a pool of several tokens; its open slots are read and written */
    const td_step_arrays *s;
    uint32_t              n_seq, block_stride;
    size_t                row0, rows;   /* of the chunk in the step */
    const float          *keys, *gates; /* [rows][dim] layer_norm(k x) and gate x */
    char                 *workers;      /* td_host_pool_bytes for each worker: scratch */
} td_host_pool;

/** Store the keys whose last token is in the chunk, in the cache, and keep the chunk's rows in open blocks. */
void td_host_pool_keys(const td_host_pool *p);

size_t td_host_pool_bytes(const td_index_desc *x);

#endif
