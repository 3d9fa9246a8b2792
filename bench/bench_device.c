#include "bench/bench_device.h"

#include "npu/host/host_npu.h"

#include <stdlib.h>

#include "core/error.h"
#include "core/rng.h"

td_status td_bench_device_open(td_bench_device *d, td_bench *b, td_error *err) {
    *d = (td_bench_device){0};
    TD_TRY(td_npu_open("host", &(td_npu_config){.act_dtype = TD_DT_BF16, .host = &(td_host_npu_config){.pool = b->pool}},
                       &d->npu, err));
    return d->npu->ops->stream_create(d->npu, &d->stream, err);
}

void td_bench_device_close(td_bench_device *d) {
    if (d->stream) d->npu->ops->stream_destroy(d->npu, d->stream);
    if (d->npu) d->npu->ops->close(d->npu);
}

td_status td_bench_device_activations(const td_bench_device *d, size_t n, void **out, td_error *err) {
    TD_TRY(d->npu->ops->alloc(d->npu, n * sizeof(td_bf16), out, err));
    for (size_t i = 0; i < n; i++) ((td_bf16 *)*out)[i] = td_f32_to_bf16((float)(i * 2654435761u % 2001) / 1000 - 1);
    return TD_OK;
}

td_status td_bench_device_weight(const td_bench_device *d, td_weight_format format, uint32_t rank, size_t n, size_t k,
                                 td_npu_weight **out, td_error *err) {
    size_t   count = rank == 1 ? k : n * k;
    td_bf16 *values = malloc(count * sizeof *values);
    if (!values) return td_fail(err, TD_ENOMEM, "out of memory for a weight of %zu values", count);
    for (size_t i = 0; i < count; i++)
        values[i] = td_f32_to_bf16(((float)(td_rng_u64(1, 2, i / 8) >> i % 8 * 8 & 255) / 128 - 1) * 0.05f);
    td_tensor_view v = {.dtype = TD_DT_BF16, .rank = rank, .shape = {rank == 1 ? k : n, k}, .data = values};
    td_status      st = d->npu->ops->weight_create(d->npu, format, &v, out, err);
    free(values);
    return st;
}

td_status td_bench_device_run(const td_bench_device *d, td_npu_block *block, const td_step *step, td_error *err) {
    td_status st = d->npu->ops->enqueue(d->npu, d->stream, block, step);
    if (st == TD_OK) st = d->npu->ops->stream_sync(d->npu, d->stream);
    return st == TD_OK ? st : td_fail(err, st, "a block of the device failed: %s", td_status_text(st));
}
