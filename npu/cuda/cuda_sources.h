/* The sources of the kernels, which are part of the program: it compiles them for the card that it finds. */
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

#endif
