#include "npu/link_time.h"

#include <stdlib.h>

#include "core/error.h"
#include "core/log/trace.h"

#define ROUNDS_MAX 64

typedef struct {
    td_npu        *d;
    td_npu_stream *stream;
    void          *device, *pinned;
    size_t         bytes;
} ends;

static td_status copy_once(const ends *e, td_copy_kind kind, double *seconds, td_error *err) {
    const td_npu_ops *ops = e->d->ops;
    bool              down = kind == TD_COPY_H2D;
    uint64_t          begin = td_trace_now();
    td_status st = ops->copy(e->d, e->stream, down ? e->device : e->pinned, down ? e->pinned : e->device, e->bytes, kind);
    if (st == TD_OK) st = ops->stream_sync(e->d, e->stream);
    *seconds = (double)(td_trace_now() - begin) * 1e-9;
    return st == TD_OK ? TD_OK : td_fail(err, st, "a copy of %zu bytes failed", e->bytes);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static td_status run(ends *e, td_copy_kind kind, uint32_t rounds, double *seconds, td_error *err) {
    double took[ROUNDS_MAX];
    TD_TRY(e->d->ops->stream_create(e->d, &e->stream, err));
    TD_TRY(e->d->ops->alloc(e->d, e->bytes, &e->device, err));
    TD_TRY(e->d->ops->host_alloc(e->d, e->bytes, &e->pinned, err));
    TD_TRY(copy_once(e, kind, &took[0], err)); /* the first one is slower */
    for (uint32_t i = 0; i < rounds; i++) TD_TRY(copy_once(e, kind, &took[i], err));
    qsort(took, rounds, sizeof *took, by_size);
    *seconds = took[rounds / 2];
    return TD_OK;
}

td_status td_link_time(td_npu *d, td_copy_kind kind, size_t bytes, uint32_t rounds, double *seconds, td_error *err) {
    td_npu_caps caps;
    d->ops->caps(d, &caps);
    if (caps.unified_memory) return td_fail(err, TD_ENOTSUP, "the device has the host's memory: nothing is copied");
    ends      e = {.d = d, .bytes = bytes};
    td_status st = run(&e, kind, rounds < 1 ? 1 : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds, seconds, err);
    if (e.pinned) d->ops->host_free(d, e.pinned, bytes);
    if (e.device) d->ops->free(d, e.device, bytes);
    if (e.stream) d->ops->stream_destroy(d, e.stream);
    return st;
}
