/* The devices by name. */
#include <string.h>

#include "core/error.h"
#include "npu/host/host_device.h"
#include "npu/npu.h"

td_status td_npu_open(const char *name, const td_npu_config *config, td_npu **out, td_error *err) {
    *out = NULL;
    if (!strcmp(name, "host")) return td_host_npu_open(config, out, err);
    if (!strcmp(name, "ascend") || !strcmp(name, "npu") || !strcmp(name, "cuda"))
        return td_fail(err, TD_ENOTSUP, "this build has no backend for the device \"%s\"; \"host\" computes on CPU cores", name);
    return td_fail(err, TD_EINVAL, "there is no device \"%s\"; this build has \"host\"", name);
}
