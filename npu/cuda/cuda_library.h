/*
 * A library of NVIDIA's toolkit, found and opened at run time, and only when it is wanted.
 *
 * DESIGN. Unlike the driver it can be anywhere: in the system's folders, in a toolkit, or in a Python environment, whose
 * wheels have one library each. A list of places is searched in order. Its major version must not be newer than what the
 * driver serves: the driver takes kernels of its own major version and of older ones ("CUDA Compatibility", Minor Version
 * Compatibility).
 */
#ifndef TD_NPU_CUDA_CUDA_LIBRARY_H
#define TD_NPU_CUDA_CUDA_LIBRARY_H

#include <stdbool.h>

#define TD_CUDA_MAJOR_OLDEST 12
#define TD_CUDA_MAJOR_NEWEST 13
#define TD_CUDA_LIBRARY_PATH_MAX 1024

typedef struct {
    const char *file;     /* without its version: "libnvrtc.so" */
    const char *wheel;    /* the folder that CUDA 12's wheel has for it */
    const char *variable; /* of the environment: the only folder that is searched, where it is set */
} td_cuda_library_name;

typedef struct {
    char  path[TD_CUDA_LIBRARY_PATH_MAX];
    void *library; /* as dlopen gave it */
    int   major;
    char  broken[256]; /* why a library that is there did not open, or "" */
} td_cuda_library;

/** The folder that the environment names, or NULL. */
const char *td_cuda_library_given(const td_cuda_library_name *name);
/** The newest major version that a driver serves of those that we know. */
int td_cuda_library_newest(int driver_version);

/**
 * Search in every place for one of some major versions, the newest first. Any thread.
 * @param out zeroed by the call; the caller closes out->library.
 * @return whether it was found
 */
bool td_cuda_library_open(const td_cuda_library_name *name, int oldest, int newest, td_cuda_library *out);

#endif
