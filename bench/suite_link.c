/* What lies between a device with memory of its own and the host: copies each way, by size, and hand-overs in both forms. */
#include "bench/bench.h"
#include "core/error.h"
#include "core/mem.h"
#include "npu/handover_time.h"
#include "npu/host/host_npu.h"
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

static td_status open_device(td_bench *b, const char *name, td_pool *own, td_npu **out, td_error *err) {
    td_host_npu_config host = {.pool = own ? own : b->pool, .own_threads = own != NULL};
    return td_npu_open(
        name, &(td_npu_config){.act_dtype = TD_DT_BF16, .host = &host, .card = b->o->first_card, .bare = true}, out, err);
}

td_status td_bench_link(td_bench *b, td_error *err) {
    const char     *name = b->o->device ? b->o->device : "host";
    td_worker_place place = {.cpu = TD_CPU_ANY, .node = TD_NODE_ANY};
    td_pool        *own = NULL;
    td_npu         *d = NULL;
    if (td_npu_threads_needed(name, 1)) TD_TRY(td_pool_create(&place, 1, &own, err));
    td_status st = open_device(b, name, own, &d, err);
    for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS && st == TD_OK; i++) st = time_copies(b, d, i, err);
    if (st == TD_OK) st = time_handovers(b, d, err);
    if (d) d->ops->close(d);
    td_pool_destroy(own);
    return st == TD_OK ? st : td_fail_within(err, "--device %s", name);
}
