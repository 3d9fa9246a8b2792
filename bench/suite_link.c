/* What lies between a device with memory of its own and the host: copies each way, by size, and hand-overs in both forms. */
#include "bench/bench_device.h"
#include "core/error.h"
#include "npu/handover_time.h"
#include "npu/link_time.h"

static const size_t SIZES[] = {(size_t)4 << 10, (size_t)256 << 10, (size_t)16 << 20, (size_t)64 << 20};

static const struct {
    td_copy_kind kind;
    const char  *name;
} WAYS[] = {{TD_COPY_H2D, "to the device"}, {TD_COPY_D2H, "from the device"}};

static const struct {
    td_handover form;
    const char *name;
} FORMS[] = {{TD_HANDOVER_HOST_CALL, "host call"}, {TD_HANDOVER_DOORBELL, "doorbell"}};

static td_status time_copies(td_bench *b, td_npu *d, size_t way, td_error *err) {
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        char   shape[TD_BENCH_SHAPE_BYTES];
        double seconds;
        snprintf(shape, sizeof shape, "%zu KiB %s", SIZES[i] >> 10, WAYS[way].name);
        if (!td_bench_wanted(b, shape)) continue;
        TD_TRY(td_link_time(d, WAYS[way].kind, SIZES[i], b->o->rounds, &seconds, err));
        td_bench_print_link(b, shape, "copy", seconds, (double)SIZES[i] / seconds * 1e-9);
    }
    return TD_OK;
}

static td_status time_handovers(td_bench *b, td_npu *d, td_error *err) {
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++) {
        double seconds;
        if (!td_bench_wanted(b, "hand-over")) continue;
        TD_TRY(td_handover_time(d, FORMS[i].form, b->o->rounds, &seconds, err));
        td_bench_print_link(b, "hand-over, there and back", FORMS[i].name, seconds, 0);
    }
    return TD_OK;
}

td_status td_bench_link(td_bench *b, td_error *err) {
    td_bench_device d;
    td_status       st = td_bench_device_open(&d, b, true, err);
    for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS && st == TD_OK; i++) st = time_copies(b, d.npu, i, err);
    if (st == TD_OK) st = time_handovers(b, d.npu, err);
    td_bench_device_close(&d);
    return st == TD_OK ? st : td_fail_within(err, "--device %s", b->o->device ? b->o->device : "host");
}
