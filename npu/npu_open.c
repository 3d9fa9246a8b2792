/* The devices by name: a backend is a folder and a line here. */
#include <string.h>

#include "core/error.h"
#include "npu/apart/apart_npu.h"
#include "npu/ascend/ascend_device.h"
#include "npu/host/host_npu.h"
#include "npu/npu.h"

typedef td_status (*opener)(const td_npu_config *config, td_npu **out, td_error *err);

static const struct {
    const char *name;
    opener      open;
    uint32_t    alone, in_group; /* threads of its own that a card cannot do without, alone and among several */
} BACKENDS[] = {
    {"host", td_host_npu_open, 0, 1},
    {"apart", td_apart_npu_open, 1, 1},
    {"npu", td_ascend_npu_open, 0, 0},
    {"ascend", td_ascend_npu_open, 0, 0},
};

uint32_t td_npu_threads_needed(const char *name, uint32_t n_cards) {
    for (size_t i = 0; i < sizeof BACKENDS / sizeof *BACKENDS; i++)
        if (!strcmp(name ? name : "host", BACKENDS[i].name))
            return n_cards > 1 ? n_cards * BACKENDS[i].in_group : BACKENDS[i].alone;
    return 0;
}

td_status td_npu_open(const char *name, const td_npu_config *config, td_npu **out, td_error *err) {
    *out = NULL;
    for (size_t i = 0; i < sizeof BACKENDS / sizeof *BACKENDS; i++)
        if (!strcmp(name, BACKENDS[i].name)) return BACKENDS[i].open(config, out, err);
    if (!strcmp(name, "cuda"))
        return td_fail(err, TD_ENOTSUP, "this build has no backend for the device \"cuda\"; \"host\" computes on CPU cores");
    return td_fail(err, TD_EINVAL, "there is no device \"%s\"; this build has \"host\", \"npu\", and \"apart\" for tests",
                   name);
}
