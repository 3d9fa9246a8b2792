/* The list of backends. Each is defined in its folder; to add one, add its name here and its sources to CMakeLists.txt. */
#include "npu/npu.h"

extern const td_backend td_host_backend, td_ascend_backend, td_cuda_backend, td_apart_backend;

const td_backend *const td_backends[] = {&td_host_backend, &td_ascend_backend, &td_cuda_backend, &td_apart_backend, NULL};
