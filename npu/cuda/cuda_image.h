/*
 * The kernels as a card takes them: compiled for its generation, kept on disk, loaded into a context.
 *
 * DESIGN. All files of npu/cuda/kernels become one program and one module. A generation that the compiler does not know yet
 * gets PTX, the portable form, of the newest one before it, which the driver translates. A build with TD_CUDA_AHEAD has
 * images of its own, and needs no compiler for the cards that they are for.
 */
#ifndef TD_NPU_CUDA_CUDA_IMAGE_H
#define TD_NPU_CUDA_CUDA_IMAGE_H

#include "npu/cuda/cuda_image_file.h"
#include "npu/cuda/cuda_loader.h"

#define TD_CUDA_CAPABILITY_OLDEST 80 /* 10 * major + minor, of the copies and matrix instructions that the kernels use */

typedef struct {
    void  *data; /* what cuModuleLoadData takes: a cubin, PTX and a 0, or nvcc's fatbin of several cubins */
    size_t bytes;
    int    version;                      /* of the compiler, 1000 * major + 10 * minor */
    char   path[TD_CUDA_IMAGE_PATH_MAX]; /* where it is kept; "": nowhere */
} td_cuda_image;

/**
 * All kernels for a card: as the build or an earlier start has left them, or compiled now, which takes up to a minute and is
 * said in the log. Any thread; processes may do it at the same time.
 * @param capability of the card, 10 * major + minor
 * @param driver_version the newest CUDA that the driver serves (td_cuda_driver)
 * @param out to be given to td_cuda_image_free
 * @return TD_OK; TD_ENOTSUP for a card or a compiler that is too old, TD_ENOTFOUND without a compiler, TD_EDEVICE where it
 * fails, TD_ENOMEM, each with a sentence; out is empty then. A folder where nothing can be kept is a warning.
 */
TD_NODISCARD td_status td_cuda_image_get(td_cuda_image *out, int capability, int driver_version, td_error *err);
void                   td_cuda_image_free(td_cuda_image *image);

/**
 * The kernels, got as above, as a module in the calling thread's context.
 * @param card whose context it is
 * @param out the caller's, to be given to cuModuleUnload
 * @return as td_cuda_image_get; TD_ENOTSUP where the driver does not take what the compiler makes, else as td_cuda_fail
 */
TD_NODISCARD td_status td_cuda_module_load(const td_cuda *cu, td_cu_device card, td_cu_module *out, td_error *err);

#endif
