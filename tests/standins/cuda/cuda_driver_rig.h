/* The start of every test of the stand-in for the CUDA driver: the driver, two cards, a context, two streams and the kernels
 * of standin_kernels.c. */
#ifndef TD_TESTS_CUDA_DRIVER_RIG_H
#define TD_TESTS_CUDA_DRIVER_RIG_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "npu/cuda/cuda_loader.h"

#define DRIVER_IMAGE(arch) "tandem cuda stand-in image\nsm_" arch "\n" TD_CUDA_STANDIN "/libstandin_kernels.so\n"

typedef struct {
    td_cuda_driver driver;
    const td_cuda *cu;
    td_cu_context  context;
    td_cu_stream   stream, other;
    td_cu_module   module;
    td_cu_kernel   add, add_slowly;
} driver_rig;

/** A call that has to succeed. */
#define TRY(call)                                                                 \
    do {                                                                          \
        td_cu_status try_status_ = (call);                                        \
        if (try_status_ != TD_CUDA_SUCCESS) {                                     \
            fprintf(stderr, "%s: %u at line %d\n", #call, try_status_, __LINE__); \
            _exit(9);                                                             \
        }                                                                         \
    } while (0)

/** The dynamic linker finds a library that is open already by its name: so it is this one, whatever the machine has. */
static inline void driver_is(const char *path) {
    if (!dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
        fprintf(stderr, "%s\n", dlerror());
        _exit(8);
    }
}

static inline void driver_open(driver_rig *r) {
    td_error     err = {0};
    td_cu_device card;
    memset(r, 0, sizeof *r);
    driver_is(TD_CUDA_STANDIN "/libcuda.so.1");
    if (td_cuda_load(&r->driver, &err) != TD_OK) {
        fprintf(stderr, "%s\n", err.text);
        _exit(8);
    }
    r->cu = &r->driver.api;
    TRY(r->cu->cuDeviceGet(&card, 0));
    TRY(r->cu->cuDevicePrimaryCtxRetain(&r->context, card));
    TRY(r->cu->cuCtxSetCurrent(r->context));
    TRY(r->cu->cuStreamCreate(&r->stream, TD_CU_STREAM_NON_BLOCKING));
    TRY(r->cu->cuStreamCreate(&r->other, TD_CU_STREAM_NON_BLOCKING));
    TRY(r->cu->cuModuleLoadData(&r->module, DRIVER_IMAGE("90")));
    TRY(r->cu->cuModuleGetFunction(&r->add, r->module, "add"));
    TRY(r->cu->cuModuleGetFunction(&r->add_slowly, r->module, "add_slowly"));
}

/** Everything must have been given back by then. */
static inline void driver_close(driver_rig *r) {
    TRY(r->cu->cuModuleUnload(r->module));
    TRY(r->cu->cuStreamDestroy(r->stream));
    TRY(r->cu->cuStreamDestroy(r->other));
    TRY(r->cu->cuDevicePrimaryCtxRelease(0));
}

static inline td_cu_address driver_alloc(driver_rig *r, size_t bytes) {
    td_cu_address a;
    TRY(r->cu->cuMemAlloc(&a, bytes));
    return a;
}

static inline void *driver_pinned(driver_rig *r, size_t bytes) {
    void *p;
    TRY(r->cu->cuMemHostAlloc(&p, bytes, TD_CU_MEMHOSTALLOC_PORTABLE));
    memset(p, 0, bytes);
    return p;
}

static inline td_cu_event driver_event(driver_rig *r) {
    td_cu_event e;
    TRY(r->cu->cuEventCreate(&e, TD_CU_EVENT_DISABLE_TIMING));
    return e;
}

/** x[i] += value for i < n. @return as the launch does */
static inline td_cu_status driver_add(driver_rig *r, td_cu_kernel kernel, td_cu_address x, uint32_t n, uint32_t value,
                                      td_cu_stream s) {
    void *args[] = {&x, &n, &value};
    return r->cu->cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, s, args, NULL);
}

#endif
