/*
 * The types and constants of the CUDA driver API that the CUDA backend uses, declared by ourselves.
 *
 * DESIGN. No header of the vendor is needed to build, and none is in this repository: every line is written from the "CUDA
 * Driver API" reference manual (docs.nvidia.com/cuda/cuda-driver-api), whose modules are named below. The vendor's
 * enumerations are integers here, of the width and signedness that a C compiler gives them, so that a function type of ours
 * is compatible with the vendor's. test_cuda_types holds each constant, type and function against cuda.h of the PyPI wheels
 * nvidia-cuda-runtime.
 */
#ifndef TD_NPU_CUDA_CUDA_TYPES_H
#define TD_NPU_CUDA_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* "Data types used by CUDA driver": integers that the functions take and give */
typedef uint32_t           td_cu_status;           /* CUresult */
typedef int                td_cu_device;           /* CUdevice */
typedef unsigned long long td_cu_address;          /* CUdeviceptr */
typedef uint32_t           td_cu_device_fact;      /* CUdevice_attribute */
typedef uint32_t           td_cu_kernel_fact;      /* CUfunction_attribute */
typedef uint32_t           td_cu_capture_mode;     /* CUstreamCaptureMode */
typedef uint32_t           td_cu_capture_state;    /* CUstreamCaptureStatus */
typedef uint32_t           td_cu_graph_difference; /* CUgraphExecUpdateResult */
typedef uint32_t           td_cu_launch_wish;      /* CUlaunchAttributeID */

/* Handles; the struct tags are the vendor's, as its manual declares them. */
typedef struct CUctx_st       *td_cu_context;
typedef struct CUstream_st    *td_cu_stream;
typedef struct CUevent_st     *td_cu_event;
typedef struct CUmod_st       *td_cu_module;
typedef struct CUfunc_st      *td_cu_kernel;
typedef struct CUgraph_st     *td_cu_graph;
typedef struct CUgraphExec_st *td_cu_graph_exec;
typedef struct CUgraphNode_st *td_cu_graph_node;
typedef void (*td_cu_host_fn)(void *arg);

/** CUgraphExecUpdateResultInfo: what keeps an executable graph from becoming like another. */
typedef struct {
    td_cu_graph_difference result;
    td_cu_graph_node       node, from;
} td_cu_update_result;

/** CUlaunchAttribute; of CUlaunchAttributeValue, a union of 64 bytes, the one member that is used. */
typedef struct {
    td_cu_launch_wish id;
    char              pad[4];
    union {
        char space[64];
        int  programmaticStreamSerializationAllowed;
    } value;
} td_cu_launch_attribute;

/** CUlaunchConfig */
typedef struct {
    unsigned                grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    td_cu_stream            stream;
    td_cu_launch_attribute *attributes;
    unsigned                n_attributes;
} td_cu_launch_config;

/* X(name of the vendor's, value): each becomes the constant TD_name. */
/* clang-format off */
#define TD_CUDA_CONSTANTS(X) \
    /* CUresult */ \
    X(CUDA_SUCCESS, 0) X(CUDA_ERROR_INVALID_VALUE, 1) X(CUDA_ERROR_OUT_OF_MEMORY, 2) X(CUDA_ERROR_STUB_LIBRARY, 34) \
    X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46) X(CUDA_ERROR_NO_DEVICE, 100) X(CUDA_ERROR_INVALID_DEVICE, 101) \
    X(CUDA_ERROR_INVALID_IMAGE, 200) X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209) X(CUDA_ERROR_ECC_UNCORRECTABLE, 214) \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217) X(CUDA_ERROR_INVALID_PTX, 218) \
    X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220) X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222) \
    X(CUDA_ERROR_NOT_FOUND, 500) X(CUDA_ERROR_NOT_READY, 600) X(CUDA_ERROR_ILLEGAL_ADDRESS, 700) X(CUDA_ERROR_LAUNCH_TIMEOUT, 702) \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704) X(CUDA_ERROR_ASSERT, 710) X(CUDA_ERROR_TOO_MANY_PEERS, 711) \
    X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714) X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715) X(CUDA_ERROR_MISALIGNED_ADDRESS, 716) \
    X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717) X(CUDA_ERROR_INVALID_PC, 718) X(CUDA_ERROR_LAUNCH_FAILED, 719) \
    X(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810) \
    X(CUDA_ERROR_NOT_SUPPORTED, 801) X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803) X(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910) X(CUDA_ERROR_UNKNOWN, 999) \
    /* CUdevice_attribute */ \
    X(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1) X(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 8) \
    X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16) X(CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT, 17) X(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 38) \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75) X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76) X(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 97) \
    X(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 99) X(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 122) \
    /* CUfunction_attribute */ \
    X(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0) X(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8) \
    /* CUstream_flags, CUevent_flags, CU_MEMHOSTALLOC_…, CU_MEMHOSTREGISTER_… */ \
    X(CU_STREAM_NON_BLOCKING, 1) X(CU_EVENT_BLOCKING_SYNC, 1) X(CU_EVENT_DISABLE_TIMING, 2) \
    X(CU_MEMHOSTALLOC_PORTABLE, 1) X(CU_MEMHOSTALLOC_DEVICEMAP, 2) \
    X(CU_MEMHOSTREGISTER_PORTABLE, 1) X(CU_MEMHOSTREGISTER_DEVICEMAP, 2) \
    /* CUstreamWaitValue_flags, CUstreamWriteValue_flags */ \
    X(CU_STREAM_WAIT_VALUE_GEQ, 0) X(CU_STREAM_WAIT_VALUE_EQ, 1) X(CU_STREAM_WAIT_VALUE_AND, 2) \
    X(CU_STREAM_WRITE_VALUE_DEFAULT, 0) \
    /* CUstreamCaptureMode, CUstreamCaptureStatus, CUgraphExecUpdateResult */ \
    X(CU_STREAM_CAPTURE_MODE_GLOBAL, 0) X(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 1) X(CU_STREAM_CAPTURE_MODE_RELAXED, 2) \
    X(CU_STREAM_CAPTURE_STATUS_NONE, 0) X(CU_STREAM_CAPTURE_STATUS_ACTIVE, 1) \
    X(CU_GRAPH_EXEC_UPDATE_SUCCESS, 0) X(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, 2) \
    X(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, 3) \
    /* CUlaunchAttributeID */ \
    X(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 6)
/* clang-format on */

enum {
#define TD_CUDA_CONSTANT(name, value) TD_##name = (value),
    TD_CUDA_CONSTANTS(TD_CUDA_CONSTANT)
#undef TD_CUDA_CONSTANT
};

/* X(ours, vendor's): integers and handles that stand for its types. */
#define TD_CUDA_TYPES(X)                               \
    X(td_cu_status, CUresult)                          \
    X(td_cu_device, CUdevice)                          \
    X(td_cu_address, CUdeviceptr)                      \
    X(td_cu_device_fact, CUdevice_attribute)           \
    X(td_cu_kernel_fact, CUfunction_attribute)         \
    X(td_cu_capture_mode, CUstreamCaptureMode)         \
    X(td_cu_capture_state, CUstreamCaptureStatus)      \
    X(td_cu_graph_difference, CUgraphExecUpdateResult) \
    X(td_cu_launch_wish, CUlaunchAttributeID)          \
    X(td_cu_context, CUcontext)                        \
    X(td_cu_stream, CUstream)                          \
    X(td_cu_event, CUevent)                            \
    X(td_cu_module, CUmodule)                          \
    X(td_cu_kernel, CUfunction)                        \
    X(td_cu_graph, CUgraph)                            \
    X(td_cu_graph_exec, CUgraphExec)                   \
    X(td_cu_graph_node, CUgraphNode)                   \
    X(td_cu_host_fn, CUhostFn)

#endif
