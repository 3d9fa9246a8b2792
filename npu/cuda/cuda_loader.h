/*
 * The CUDA driver, found and opened at run time: Tandem neither links with it nor needs it to start.
 *
 * DESIGN. libcuda.so.1 comes with the driver of the machine's kernel, so the dynamic linker's own search is the right one:
 * there is no other place to look, and a copy of another version would not work.
 */
#ifndef TD_NPU_CUDA_CUDA_LOADER_H
#define TD_NPU_CUDA_CUDA_LOADER_H

#include "npu/cuda/cuda_api.h"
#include "tandem.h"

#define TD_CUDA_VERSION_OLDEST 12000 /* 1000 * major + 10 * minor, as cuDriverGetVersion has it: driver 525 */

typedef struct {
    td_cuda api;
    int     version; /* the newest CUDA that the driver serves: 1000 * major + 10 * minor */
    int     n_cards;
    void   *library; /* as dlopen gave it */
} td_cuda_driver;

/**
 * Open the driver, find every function of cuda_api.h, start it and count its cards. Any thread, but not two at once.
 * @param out zeroed by the call; to be given to td_cuda_unload when no card is open any more.
 * @return TD_OK; TD_ENOTFOUND without a driver or without a card, TD_ENOTSUP for a driver that is too old or is none,
 * TD_EDEVICE for one that does not start, each with a sentence; out is empty then.
 */
TD_NODISCARD td_status td_cuda_load(td_cuda_driver *out, td_error *err);
void                   td_cuda_unload(td_cuda_driver *d);

/** td_fail with what the driver says of a status: "WHAT: out of memory (CUDA_ERROR_OUT_OF_MEMORY)". @return TD_ENOMEM for no
 * memory, else TD_EDEVICE */
td_status td_cuda_fail(const td_cuda *api, td_error *err, const char *what, td_cu_status status);

#endif
