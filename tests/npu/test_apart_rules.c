/*
 * A program that breaks a rule of the device "apart" is ended. Each rule is broken in a process of its own, which must end
 * by the expected signal and with the expected sentence. So tests that pass on this device keep its rules.
 */
#include "npu/host/host_npu.h"

#define BYTES 4096

typedef struct {
    td_npu           *npu;
    const td_npu_ops *ops;
    td_npu_stream    *stream;
    char             *device, *pinned; /* [BYTES] each */
} device_rig;

typedef device_rig rule_rig;
#include "tests/standins/rules.h"

/* The calls' statuses do not matter: whoever comes back has not been stopped. */
static void ignore(td_status st) {
    (void)st;
}

FAULTS(read_device) {
    fputc(*(volatile char *)r->device, stderr);
}
FAULTS(write_device) {
    *(volatile char *)(r->device + BYTES - 1) = 1;
}
BREAKS(copy_unpinned, "is not pinned memory") {
    char here[64] = {0};
    ignore(r->ops->copy(r->npu, r->stream, r->device, here, sizeof here, TD_COPY_H2D));
}
BREAKS(copy_backwards, "is not in its memory") {
    ignore(r->ops->copy(r->npu, r->stream, r->pinned, r->device, 64, TD_COPY_H2D));
}
BREAKS(copy_too_much, "is not in its memory") {
    ignore(r->ops->copy(r->npu, r->stream, r->device + 1, r->pinned, BYTES, TD_COPY_H2D));
}
BREAKS(ring_unpinned, "is not in pinned memory") {
    td_bell bell = 0;
    ignore(r->ops->bell_ring(r->npu, r->stream, &bell, NULL));
}
BREAKS(alloc_in_capture, "device memory is allocated while a stream is captured") {
    void *p;
    ignore(r->ops->graph_begin(r->npu, r->stream));
    ignore(r->ops->alloc(r->npu, 64, &p, NULL));
}
BREAKS(free_in_capture, "device memory is freed while a stream is captured") {
    ignore(r->ops->graph_begin(r->npu, r->stream));
    r->ops->free(r->npu, r->device, BYTES);
}
BREAKS(sync_in_capture, "a stream is synchronised while a stream is captured") {
    ignore(r->ops->graph_begin(r->npu, r->stream));
    ignore(r->ops->stream_sync(r->npu, r->stream));
}
BREAKS(keep_memory, "4096 bytes of its memory were not given back") {
    r->ops->stream_destroy(r->npu, r->stream);
    r->ops->host_free(r->npu, r->pinned, BYTES);
    r->ops->close(r->npu);
}
LIVES(obey) {
    ignore(r->ops->copy(r->npu, r->stream, r->device, r->pinned, BYTES, TD_COPY_H2D));
    ignore(r->ops->stream_sync(r->npu, r->stream));
    r->ops->stream_destroy(r->npu, r->stream);
    r->ops->free(r->npu, r->device, BYTES);
    r->ops->host_free(r->npu, r->pinned, BYTES);
    r->ops->close(r->npu);
}

static void act(const void *broken) {
    td_worker_place    place = {.cpu = TD_CPU_ANY, .node = UINT32_MAX};
    td_host_npu_config host = {.own_threads = true};
    device_rig         r = {0};
    td_npu_config      config = {.act_dtype = TD_DT_F32, .host = &host};
    td_status          st = td_pool_create(&place, 1, &host.pool, NULL);
    if (st == TD_OK) st = td_npu_open("apart", &config, &r.npu, NULL);
    if (st != TD_OK) _exit(1);
    r.ops = r.npu->ops;
    st = r.ops->stream_create(r.npu, &r.stream, NULL);
    if (st == TD_OK) st = r.ops->alloc(r.npu, BYTES, (void **)&r.device, NULL);
    if (st == TD_OK) st = r.ops->host_alloc(r.npu, BYTES, (void **)&r.pinned, NULL);
    if (st != TD_OK) _exit(1);
    rule_break(broken, &r);
}

int main(void) {
    return rules_run("apart: ", act);
}
