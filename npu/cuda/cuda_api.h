/*
 * The functions of the CUDA driver, libcuda, that the CUDA backend calls.
 *
 * DESIGN. One list of X(function, symbol, module of the manual, (parameters)). A function has the name that the manual gives
 * it; its symbol in the library has a version behind it where the function has changed since. All return td_cu_status. The
 * list makes the table td_cuda, declarations for the stand-in in tests/, the check against the vendor's header
 * (test_cuda_types) and the loader's search. Every symbol is there since CUDA 12.0.
 */
#ifndef TD_NPU_CUDA_CUDA_API_H
#define TD_NPU_CUDA_CUDA_API_H

#include "npu/cuda/cuda_types.h"

/* clang-format off */
#define TD_CUDA_DRIVER(X) \
    X(cuInit, cuInit, "Initialization", (unsigned flags)) \
    X(cuDriverGetVersion, cuDriverGetVersion, "Version Management", (int *version)) \
    X(cuGetErrorName, cuGetErrorName, "Error Handling", (td_cu_status status, const char **name)) \
    X(cuGetErrorString, cuGetErrorString, "Error Handling", (td_cu_status status, const char **text)) \
    X(cuDeviceGetCount, cuDeviceGetCount, "Device Management", (int *count)) \
    X(cuDeviceGet, cuDeviceGet, "Device Management", (td_cu_device *device, int ordinal)) \
    X(cuDeviceGetName, cuDeviceGetName, "Device Management", (char *name, int bytes, td_cu_device device)) \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute, "Device Management", (int *value, td_cu_device_fact fact, td_cu_device device)) \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, "Device Management", (size_t *bytes, td_cu_device device)) \
    X(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, "Memory Management", (char *id, int bytes, td_cu_device device)) \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, "Primary Context Management", (td_cu_context *context, td_cu_device device)) \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, "Primary Context Management", (td_cu_device device)) \
    X(cuCtxSetCurrent, cuCtxSetCurrent, "Context Management", (td_cu_context context)) \
    X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, "Peer Context Memory Access", (int *can, td_cu_device device, td_cu_device peer)) \
    X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, "Peer Context Memory Access", (td_cu_context peer, unsigned flags)) \
    X(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, "Peer Context Memory Access", (td_cu_context peer)) \
    X(cuMemGetInfo, cuMemGetInfo_v2, "Memory Management", (size_t *free_bytes, size_t *total_bytes)) \
    X(cuMemAlloc, cuMemAlloc_v2, "Memory Management", (td_cu_address *out, size_t bytes)) \
    X(cuMemFree, cuMemFree_v2, "Memory Management", (td_cu_address at)) \
    X(cuMemHostAlloc, cuMemHostAlloc, "Memory Management", (void **out, size_t bytes, unsigned flags)) \
    X(cuMemFreeHost, cuMemFreeHost, "Memory Management", (void *at)) \
    X(cuMemHostRegister, cuMemHostRegister_v2, "Memory Management", (void *at, size_t bytes, unsigned flags)) \
    X(cuMemHostUnregister, cuMemHostUnregister, "Memory Management", (void *at)) \
    X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, "Memory Management", (td_cu_address *out, void *at, unsigned flags)) \
    X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, "Memory Management", (td_cu_address dst, const void *src, size_t bytes, td_cu_stream stream)) \
    X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, "Memory Management", (void *dst, td_cu_address src, size_t bytes, td_cu_stream stream)) \
    X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, "Memory Management", (td_cu_address dst, td_cu_address src, size_t bytes, td_cu_stream stream)) \
    X(cuMemsetD8Async, cuMemsetD8Async, "Memory Management", (td_cu_address dst, unsigned char value, size_t bytes, td_cu_stream stream)) \
    X(cuStreamCreate, cuStreamCreate, "Stream Management", (td_cu_stream *stream, unsigned flags)) \
    X(cuStreamDestroy, cuStreamDestroy_v2, "Stream Management", (td_cu_stream stream)) \
    X(cuStreamSynchronize, cuStreamSynchronize, "Stream Management", (td_cu_stream stream)) \
    X(cuStreamWaitEvent, cuStreamWaitEvent, "Stream Management", (td_cu_stream stream, td_cu_event event, unsigned flags)) \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2, "Stream Management", (td_cu_stream stream, td_cu_capture_mode mode)) \
    X(cuStreamEndCapture, cuStreamEndCapture, "Stream Management", (td_cu_stream stream, td_cu_graph *graph)) \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, "Stream Management", (td_cu_capture_mode *mode)) \
    X(cuStreamIsCapturing, cuStreamIsCapturing, "Stream Management", (td_cu_stream stream, td_cu_capture_state *state)) \
    X(cuStreamWaitValue32, cuStreamWaitValue32_v2, "Stream Memory Operations", (td_cu_stream stream, td_cu_address at, uint32_t value, unsigned flags)) \
    X(cuStreamWaitValue64, cuStreamWaitValue64_v2, "Stream Memory Operations", (td_cu_stream stream, td_cu_address at, uint64_t value, unsigned flags)) \
    X(cuStreamWriteValue32, cuStreamWriteValue32_v2, "Stream Memory Operations", (td_cu_stream stream, td_cu_address at, uint32_t value, unsigned flags)) \
    X(cuStreamWriteValue64, cuStreamWriteValue64_v2, "Stream Memory Operations", (td_cu_stream stream, td_cu_address at, uint64_t value, unsigned flags)) \
    X(cuEventCreate, cuEventCreate, "Event Management", (td_cu_event *event, unsigned flags)) \
    X(cuEventDestroy, cuEventDestroy_v2, "Event Management", (td_cu_event event)) \
    X(cuEventRecord, cuEventRecord, "Event Management", (td_cu_event event, td_cu_stream stream)) \
    X(cuEventQuery, cuEventQuery, "Event Management", (td_cu_event event)) \
    X(cuEventSynchronize, cuEventSynchronize, "Event Management", (td_cu_event event)) \
    X(cuLaunchHostFunc, cuLaunchHostFunc, "Execution Control", (td_cu_stream stream, td_cu_host_fn fn, void *arg)) \
    X(cuLaunchKernel, cuLaunchKernel, "Execution Control", \
      (td_cu_kernel kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, \
       unsigned shared_bytes, td_cu_stream stream, void **args, void **extra)) \
    X(cuLaunchKernelEx, cuLaunchKernelEx, "Execution Control", \
      (const td_cu_launch_config *config, td_cu_kernel kernel, void **args, void **extra)) \
    X(cuFuncGetAttribute, cuFuncGetAttribute, "Execution Control", (int *value, td_cu_kernel_fact fact, td_cu_kernel kernel)) \
    X(cuFuncSetAttribute, cuFuncSetAttribute, "Execution Control", (td_cu_kernel kernel, td_cu_kernel_fact fact, int value)) \
    X(cuModuleLoadData, cuModuleLoadData, "Module Management", (td_cu_module *module, const void *image)) \
    X(cuModuleUnload, cuModuleUnload, "Module Management", (td_cu_module module)) \
    X(cuModuleGetFunction, cuModuleGetFunction, "Module Management", (td_cu_kernel *kernel, td_cu_module module, const char *name)) \
    X(cuGraphInstantiate, cuGraphInstantiateWithFlags, "Graph Management", (td_cu_graph_exec *exec, td_cu_graph graph, unsigned long long flags)) \
    X(cuGraphLaunch, cuGraphLaunch, "Graph Management", (td_cu_graph_exec exec, td_cu_stream stream)) \
    X(cuGraphExecUpdate, cuGraphExecUpdate_v2, "Graph Management", (td_cu_graph_exec exec, td_cu_graph graph, td_cu_update_result *result)) \
    X(cuGraphExecDestroy, cuGraphExecDestroy, "Graph Management", (td_cu_graph_exec exec)) \
    X(cuGraphDestroy, cuGraphDestroy, "Graph Management", (td_cu_graph graph))
/* clang-format on */

/** The functions that were found. */
typedef struct {
#define TD_CUDA_MEMBER(function, symbol, module, parameters) td_cu_status(*function) parameters;
    TD_CUDA_DRIVER(TD_CUDA_MEMBER)
#undef TD_CUDA_MEMBER
} td_cuda;

#endif
