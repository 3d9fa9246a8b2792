/* Memory: that of callers, and the scratch that blocks share, as they run one after the other. */
#include "core/error.h"
#include "core/memory/mem.h"
#include "core/threads/pool.h"
#include "npu/host/host_device.h"

td_status td_host_alloc(td_npu *d, size_t bytes, void **out, td_error *err) {
    return td_mem_map(bytes, td_pool_home(((td_host_npu *)d)->pool), out, err);
}

void td_host_free(td_npu *d, void *p, size_t bytes) {
    (void)d;
    td_mem_unmap(p, bytes);
}

td_status td_host_scratch_grow(td_host_npu *d, size_t bytes, td_error *err) {
    if (bytes <= d->scratch_bytes) return TD_OK;
    void *p;
    TD_TRY(td_mem_map(bytes, td_pool_home(d->pool), &p, err));
    td_mem_unmap(d->scratch, d->scratch_bytes);
    d->scratch = p;
    d->scratch_bytes = bytes;
    return TD_OK;
}
