#include "npu/cuda/cuda_op.h"

#include <stdio.h>

#include "core/error.h"
#include "core/log/log.h"

#define SHARED_WITHOUT_ASKING (48 << 10)
#define SHARED_STATIC_MOST 2048 /* of kernels that have dynamic shared memory, too */

td_status td_cuda_need_shared(const td_cuda_npu *d, size_t bytes, const char *what, td_error *err) {
    if (bytes + SHARED_STATIC_MOST <= d->shared_most) return TD_OK;
    return td_fail(err, TD_ENOTSUP, "%s needs %zu bytes of shared memory, and a block of threads of this card has %u", what,
                   bytes + SHARED_STATIC_MOST, d->shared_most);
}

td_status td_cuda_check_norm(size_t values, size_t most, const char *what, td_error *err) {
    if (values <= most) return TD_OK;
    return td_fail(err, TD_ENOTSUP, "%s of %zu values is wanted; the card's take up to %zu", what, values, most);
}

/* A kernel may have more than 48 KiB of dynamic shared memory where it was asked for. */
static td_status allow_shared(td_cuda_npu *d, td_cuda_kernel_id id, size_t bytes) {
    if (bytes <= SHARED_WITHOUT_ASKING || bytes <= d->shared_of[id]) return TD_OK;
    td_cu_status said =
        d->cu->cuFuncSetAttribute(d->kernels.at[id], TD_CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)bytes);
    if (said != TD_CUDA_SUCCESS) return td_cuda_failed(d, "cuFuncSetAttribute", said, NULL);
    d->shared_of[id] = (unsigned)bytes;
    return TD_OK;
}

/* A kernel that may begin early waits by itself for those before it. */
static td_cu_status enqueue(td_cuda_run *r, td_cuda_kernel_id id, td_cuda_grid grid, size_t shared, void *const *args) {
    td_cu_launch_attribute early = {.id = TD_CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                    .value.programmaticStreamSerializationAllowed = 1};
    td_cu_launch_config    config = {.grid_x = (unsigned)grid.x,
                                     .grid_y = (unsigned)grid.y,
                                     .grid_z = (unsigned)grid.z,
                                     .block_x = TD_CUDA_KERNEL_FACTS[id].threads,
                                     .block_y = 1,
                                     .block_z = 1,
                                     .shared_bytes = (unsigned)shared,
                                     .stream = r->stream,
                                     .attributes = &early,
                                     .n_attributes = r->d->starts_early && TD_CUDA_KERNEL_IS_EARLY[id]};
    return r->d->cu->cuLaunchKernelEx(&config, r->d->kernels.at[id], (void **)(uintptr_t)args, NULL);
}

void td_cuda_launch(td_cuda_run *r, td_cuda_kernel_id id, td_cuda_grid grid, size_t shared, void *const *args,
                    size_t n_args) {
    const td_cuda_kernel_facts *k = &TD_CUDA_KERNEL_FACTS[id];
    if (r->status != TD_OK || !grid.x || !grid.y || !grid.z) return;
    if (n_args != k->n_args || grid.x > INT32_MAX || grid.y > TD_CUDA_GRID_MAX || grid.z > TD_CUDA_GRID_MAX) {
        td_err("%s cannot be launched with %zu arguments and %zu x %zu x %zu blocks", k->name, n_args, grid.x, grid.y,
               grid.z);
        r->status = TD_EINVAL;
        return;
    }
    r->status = allow_shared(r->d, id, shared);
    if (r->status != TD_OK) return;
    td_cu_status said = enqueue(r, id, grid, shared, args);
    if (said == TD_CUDA_SUCCESS) {
        r->launches++;
        return;
    }
    char what[96];
    snprintf(what, sizeof what, "the launch of %s (cuLaunchKernelEx)", k->name);
    (void)td_cuda_failed(r->d, what, said, NULL);
    r->status = TD_EDEVICE;
}
