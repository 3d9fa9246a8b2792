/*
 * Compiled kernels on disk, so that only the first start compiles them.
 *
 * DESIGN. A file for each image, named by all that the image was made from: who changes any of it looks for another file. It
 * begins with a header that has the same key and a checksum, so that a file which is cut off, damaged or somebody else's is
 * none. A new one is written beside it and renamed: two processes that compile at once leave one whole file.
 */
#ifndef TD_NPU_CUDA_CUDA_IMAGE_FILE_H
#define TD_NPU_CUDA_CUDA_IMAGE_FILE_H

#include <stdint.h>

#include "tandem.h"

#define TD_CUDA_IMAGE_BYTES_MAX ((size_t)256 << 20)
#define TD_CUDA_IMAGE_PATH_MAX 1024

/** XXH3-128 of all that the image depends on. */
typedef struct {
    uint64_t low, high;
} td_cuda_image_key;

/**
 * Where the image of a key is kept: the folder that TD_CUDA_CACHE names, else tandem in XDG_CACHE_HOME or in ~/.cache. Makes
 * the folder.
 * @return TD_OK; TD_EIO with a sentence where there is no such folder
 */
TD_NODISCARD td_status td_cuda_image_path(char out[TD_CUDA_IMAGE_PATH_MAX], int capability, td_cuda_image_key key,
                                          td_error *err);
/**
 * @param data out: the image, with a 0 behind it; to be freed
 * @return TD_OK; TD_ENOTFOUND without a file, TD_EFORMAT for one that is not whole or not ours, TD_EIO, TD_ENOMEM
 */
TD_NODISCARD td_status td_cuda_image_read(const char *path, td_cuda_image_key key, void **data, size_t *bytes,
                                          td_error *err);
TD_NODISCARD td_status td_cuda_image_write(const char *path, td_cuda_image_key key, const void *data, size_t bytes,
                                           td_error *err);

#endif
