#include "npu/cuda/cuda_loader.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

#define LIBRARY "libcuda.so.1"

static const struct {
    const char *function, *symbol;
    size_t      at; /* in td_cuda */
} WANTED[] = {
#define WANT(function, symbol, module, parameters) {#function, #symbol, offsetof(td_cuda, function)},
    TD_CUDA_DRIVER(WANT)
#undef WANT
};
#define N_WANTED (sizeof WANTED / sizeof *WANTED)

/* POSIX has a function's address come as void *; a copy of the bytes is what ISO C leaves. */
static void *find(td_cuda_driver *d, size_t i) {
    void *at = dlsym(d->library, WANTED[i].symbol);
    memcpy((char *)&d->api + WANTED[i].at, &at, sizeof at);
    return at;
}

static td_status find_all(td_cuda_driver *d, td_error *err) {
    const char *missing = NULL;
    for (size_t i = 0; i < N_WANTED; i++)
        if (!find(d, i) && !missing) missing = WANTED[i].symbol;
    if (!d->api.cuDriverGetVersion || d->api.cuDriverGetVersion(&d->version) != TD_CUDA_SUCCESS)
        return td_fail(err, TD_ENOTSUP, LIBRARY " does not tell its version: it is no driver of NVIDIA's");
    if (d->version < TD_CUDA_VERSION_OLDEST)
        return td_fail(
            err, TD_ENOTSUP, "NVIDIA's driver serves CUDA %d.%d and is too old: CUDA %d.%d (driver 525) or later is needed",
            d->version / 1000, d->version % 1000 / 10, TD_CUDA_VERSION_OLDEST / 1000, TD_CUDA_VERSION_OLDEST % 1000 / 10);
    if (missing)
        return td_fail(err, TD_ENOTSUP,
                       LIBRARY " of CUDA %d.%d has no %s, which every driver since 525 has: install the driver anew",
                       d->version / 1000, d->version % 1000 / 10, missing);
    return TD_OK;
}

static td_status start(td_cuda_driver *d, td_error *err) {
    td_cu_status st = d->api.cuInit(0);
    if (st == TD_CUDA_ERROR_NO_DEVICE) return td_fail(err, TD_ENOTFOUND, "NVIDIA's driver is there and finds no card");
    if (st == TD_CUDA_ERROR_STUB_LIBRARY)
        return td_fail(err, TD_ENOTSUP,
                       LIBRARY " is the toolkit's stub to link with, not a driver: take its folder out of LD_LIBRARY_PATH");
    if (st == TD_CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
        return td_fail(err, TD_EDEVICE,
                       LIBRARY " is not of the version of the kernel's NVIDIA module: restart the machine after an update");
    if (st != TD_CUDA_SUCCESS) return td_cuda_fail(&d->api, err, "NVIDIA's driver does not start (cuInit)", st);
    st = d->api.cuDeviceGetCount(&d->n_cards);
    if (st != TD_CUDA_SUCCESS)
        return td_cuda_fail(&d->api, err, "NVIDIA's driver does not count its cards (cuDeviceGetCount)", st);
    if (d->n_cards < 1) return td_fail(err, TD_ENOTFOUND, "NVIDIA's driver is there and finds no card");
    return TD_OK;
}

td_status td_cuda_load(td_cuda_driver *out, td_error *err) {
    *out = (td_cuda_driver){0};
    out->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!out->library) return td_fail(err, TD_ENOTFOUND, "NVIDIA's driver is not installed: %s", dlerror());
    td_status st = find_all(out, err);
    if (st == TD_OK) st = start(out, err);
    if (st != TD_OK) td_cuda_unload(out);
    return st;
}

void td_cuda_unload(td_cuda_driver *d) {
    if (d->library) dlclose(d->library);
    *d = (td_cuda_driver){0};
}

td_status td_cuda_fail(const td_cuda *api, td_error *err, const char *what, td_cu_status status) {
    const char *name = NULL, *text = NULL;
    if (api->cuGetErrorName(status, &name) != TD_CUDA_SUCCESS || !name) name = "of a newer driver";
    if (api->cuGetErrorString(status, &text) != TD_CUDA_SUCCESS || !text) text = "unknown error";
    return td_fail(err, status == TD_CUDA_ERROR_OUT_OF_MEMORY ? TD_ENOMEM : TD_EDEVICE, "%s: %s (%s, %u)", what, text, name,
                   status);
}
