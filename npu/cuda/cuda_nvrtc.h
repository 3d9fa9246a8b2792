/*
 * NVRTC, NVIDIA's compiler of CUDA C++ as a library: found and opened at run time, and only when there is something to
 * compile.
 *
 * DESIGN. Where it is looked for is in cuda_library.h. Declarations are written from the "NVRTC" manual; test_cuda_types
 * holds them against nvrtc.h.
 */
#ifndef TD_NPU_CUDA_CUDA_NVRTC_H
#define TD_NPU_CUDA_CUDA_NVRTC_H

#include <stddef.h>
#include <stdint.h>

#include "npu/cuda/cuda_library.h"
#include "tandem.h"

typedef uint32_t              td_nvrtc_status; /* nvrtcResult */
typedef struct _nvrtcProgram *td_nvrtc_program;

enum { TD_NVRTC_SUCCESS = 0, TD_NVRTC_ERROR_COMPILATION = 6 };

/* X(what it returns, function, (parameters)) */
/* clang-format off */
#define TD_NVRTC(X) \
    X(td_nvrtc_status, nvrtcVersion, (int *major, int *minor)) \
    X(td_nvrtc_status, nvrtcGetNumSupportedArchs, (int *n)) \
    X(td_nvrtc_status, nvrtcGetSupportedArchs, (int *out)) \
    X(const char *, nvrtcGetErrorString, (td_nvrtc_status status)) \
    X(td_nvrtc_status, nvrtcCreateProgram, \
      (td_nvrtc_program *out, const char *source, const char *name, int n_headers, const char *const *headers, \
       const char *const *names)) \
    X(td_nvrtc_status, nvrtcDestroyProgram, (td_nvrtc_program *program)) \
    X(td_nvrtc_status, nvrtcCompileProgram, (td_nvrtc_program program, int n_options, const char *const *options)) \
    X(td_nvrtc_status, nvrtcGetCUBINSize, (td_nvrtc_program program, size_t *bytes)) \
    X(td_nvrtc_status, nvrtcGetCUBIN, (td_nvrtc_program program, char *out)) \
    X(td_nvrtc_status, nvrtcGetPTXSize, (td_nvrtc_program program, size_t *bytes)) \
    X(td_nvrtc_status, nvrtcGetPTX, (td_nvrtc_program program, char *out)) \
    X(td_nvrtc_status, nvrtcGetProgramLogSize, (td_nvrtc_program program, size_t *bytes)) \
    X(td_nvrtc_status, nvrtcGetProgramLog, (td_nvrtc_program program, char *out))
/* clang-format on */

/** The functions that were found. */
typedef struct {
#define TD_NVRTC_MEMBER(type, function, parameters) type(*function) parameters;
    TD_NVRTC(TD_NVRTC_MEMBER)
#undef TD_NVRTC_MEMBER
} td_nvrtc;

typedef struct {
    td_nvrtc api;
    int      version; /* 1000 * major + 10 * minor, as cuDriverGetVersion has it */
    char     path[TD_CUDA_LIBRARY_PATH_MAX];
    void    *library, *builtins; /* as dlopen gave them */
} td_nvrtc_library;

/**
 * Search and open. The environment's TD_NVRTC, the folder that has it, is the only place searched where it is set. Any
 * thread.
 * @param driver_version the newest CUDA that the driver serves (td_cuda_driver)
 * @param out zeroed by the call; to be given to td_nvrtc_unload
 * @return TD_OK; TD_ENOTFOUND with what to install, TD_ENOTSUP for a library that is none; out is empty then
 */
TD_NODISCARD td_status td_nvrtc_load(td_nvrtc_library *out, int driver_version, td_error *err);
void                   td_nvrtc_unload(td_nvrtc_library *l);

#endif
