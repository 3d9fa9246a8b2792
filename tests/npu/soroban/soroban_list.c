/* What npu/backends.c is for the program: here with the made-up backend in it. */
#include "npu/npu.h"

extern const td_backend td_host_backend, td_soroban_backend;

const td_backend *const td_backends[] = {&td_host_backend, &td_soroban_backend, NULL};
