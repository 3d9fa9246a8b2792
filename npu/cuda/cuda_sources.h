/* The sources of the kernels, which are part of the program: it compiles them for the card that it finds. A build with
 * TD_CUDA_AHEAD has them compiled, too. */
#ifndef TD_NPU_CUDA_CUDA_SOURCES_H
#define TD_NPU_CUDA_CUDA_SOURCES_H

#include <stddef.h>

typedef struct {
    const char *name; /* by which the others include it */
    const char *text; /* ends with a 0 */
} td_cuda_source;

/** Headers, then the files with kernels (.cu), each by its name. */
extern const td_cuda_source TD_CUDA_SOURCES[];
extern const size_t         TD_CUDA_SOURCES_N;

#define TD_CUDA_AHEAD_MAX 16

typedef struct {
    const char *data, *end;                     /* what cuModuleLoadData takes, for several generations; NULL: none */
    int         version;                        /* of nvcc, 1000 * major + 10 * minor */
    int         generations[TD_CUDA_AHEAD_MAX]; /* 10 * major + minor; 0 behind the last */
} td_cuda_ahead;

extern const td_cuda_ahead TD_CUDA_AHEAD;

#endif
