/* The device "cuda" on the stand-ins of the driver and of cuBLASLt, with kernels that are functions of the process. */
#ifndef TD_TESTS_USE_CUDA_STANDIN_H
#define TD_TESTS_USE_CUDA_STANDIN_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/td_test.h"

/** TD_TEST_CARD=own: tests run on the machine's own card, with its own driver and cuBLASLt; scripts/gpu_check.sh sets it. */
static inline bool on_own_card(void) {
    const char *named = getenv("TD_TEST_CARD");
    return named && strcmp(named, "own") == 0;
}

/**
 * Before anything is opened; on the machine's own card only the bells are set, and that kernels begin early. What is set in the environment already stays:
 * these two and the delay.
 * @param delay_us TD_STANDIN_DELAY_US
 * @param bells    TD_CUDA_BELLS; NULL: what is faster
 */
static inline void use_cuda_standin(const char *delay_us, const char *bells) {
    if (bells) setenv("TD_CUDA_BELLS", bells, 0);
    setenv("TD_CUDA_EARLY", "1", 0);
    if (on_own_card()) return;
    setenv("TD_CUDA_KERNELS", TD_CUDA_STANDIN "/kernels.image", 1);
    setenv("TD_CUBLASLT", TD_CUDA_STANDIN, 1);
    setenv("TD_STANDIN_DELAY_US", delay_us, 0);
    /* The dynamic linker finds a library that is open already by its name: so it is this one, whatever the machine has. */
    if (!dlopen(TD_CUDA_STANDIN "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
}

#endif
