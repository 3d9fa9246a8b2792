/* The device "cuda" on the stand-ins of the driver and of cuBLASLt, with kernels that are functions of the process. */
#ifndef TD_TESTS_USE_CUDA_STANDIN_H
#define TD_TESTS_USE_CUDA_STANDIN_H

#include <dlfcn.h>

#include "tests/td_test.h"

/**
 * Before anything is opened. What is set in the environment already stays: the delay and the bells.
 * @param delay_us TD_STANDIN_DELAY_US
 * @param bells    TD_CUDA_BELLS; NULL: what is faster
 */
static inline void use_cuda_standin(const char *delay_us, const char *bells) {
    setenv("TD_CUDA_KERNELS", TD_CUDA_STANDIN "/kernels.image", 1);
    setenv("TD_CUBLASLT", TD_CUDA_STANDIN, 1);
    setenv("TD_STANDIN_DELAY_US", delay_us, 0);
    if (bells) setenv("TD_CUDA_BELLS", bells, 0);
    /* The dynamic linker finds a library that is open already by its name: so it is this one, whatever the machine has. */
    if (!dlopen(TD_CUDA_STANDIN "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
}

#endif
