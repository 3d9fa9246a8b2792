/*
 * The types and constants of AscendCL, aclnn and HCCL that the Ascend backend uses, declared by ourselves.
 *
 * DESIGN. No header of the vendor is needed to build, and none is in this repository. Every line is written from the public
 * documents: "runtime" below is docs/zh/api_ref of github.com/hicann/runtime, "opbase" docs/zh/api/nnopbase/aclnn of
 * hicann/opbase, "hccl" docs/zh/api_ref of hicann/hccl (and hicann/hcomm for its types). The vendor's enumerations are
 * integers here, of the width and signedness that a C compiler gives them, so that a function type of ours is compatible
 * with the vendor's. The test test_ascend_types holds each constant, type and function against the headers in the PyPI wheel
 * torch-npu.
 */
#ifndef TD_NPU_ASCEND_ACL_TYPES_H
#define TD_NPU_ASCEND_ACL_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* runtime 25-01, 25-02, 25-05; opbase aclnn return codes; hccl types: integers that the functions take and give */
typedef int      td_acl_status;        /* aclError */
typedef int32_t  td_aclnn_status;      /* aclnnStatus */
typedef uint32_t td_hccl_status;       /* HcclResult */
typedef int32_t  td_acl_dtype;         /* aclDataType: has a negative value */
typedef int32_t  td_acl_format;        /* aclFormat: has a negative value */
typedef uint32_t td_acl_malloc_how;    /* aclrtMemMallocPolicy */
typedef uint32_t td_acl_copy_kind;     /* aclrtMemcpyKind */
typedef uint32_t td_acl_memory_kind;   /* aclrtMemAttr */
typedef uint32_t td_acl_blocking;      /* aclrtCallbackBlockType */
typedef uint32_t td_acl_capture_mode;  /* aclmdlRICaptureMode */
typedef uint32_t td_acl_capture_state; /* aclmdlRICaptureStatus */
typedef uint32_t td_acl_event_state;   /* aclrtEventRecordedStatus */
typedef uint32_t td_acl_package;       /* aclCANNPackageName */
typedef uint32_t td_hccl_dtype;        /* HcclDataType */
typedef uint32_t td_hccl_reduce;       /* HcclReduceOp */

/* runtime 25-05, hccl types: handles */
typedef void *td_acl_stream;
typedef void *td_acl_event;
typedef void *td_acl_context;
typedef void *td_acl_graph;      /* aclmdlRI */
typedef void *td_acl_task_group; /* aclrtTaskGrp */
typedef void *td_hccl_comm;
typedef void (*td_acl_callback)(void *arg);

/* opbase 0_aclnn_meta_api: what operations take. The struct tags are the vendor's, as its documents declare them. */
typedef struct aclTensor     td_acl_tensor;
typedef struct aclTensorList td_acl_tensor_list;
typedef struct aclScalar     td_acl_scalar;
typedef struct aclIntArray   td_acl_int_array;
typedef struct aclOpExecutor td_acl_executor;

#define TD_ACL_VERSION_CHARS 128 /* ACL_PKG_VERSION_MAX_SIZE */
#define TD_HCCL_ROOT_BYTES 4108  /* HCCL_ROOT_INFO_BYTES */

/** aclCANNPackageVersion (runtime 25-04). */
typedef struct {
    char version[TD_ACL_VERSION_CHARS]; /* "8.2.RC1" */
    char major[64], minor[64], release[64], patch[64];
    char reserved[TD_ACL_VERSION_CHARS];
} td_acl_package_version;

/** HcclRootInfo: what one rank makes and hands to the others. */
typedef struct {
    char bytes[TD_HCCL_ROOT_BYTES];
} td_hccl_root;

/* X(name of the vendor's, value): each becomes the constant TD_name. */
/* clang-format off */
#define TD_ACL_CONSTANTS(X) \
    /* runtime 25-01 aclError */ \
    X(ACL_SUCCESS, 0) X(ACL_ERROR_INVALID_PARAM, 100000) X(ACL_ERROR_UNINITIALIZE, 100001) \
    X(ACL_ERROR_REPEAT_INITIALIZE, 100002) X(ACL_ERROR_REPEAT_SUBSCRIBE, 100033) \
    X(ACL_ERROR_STREAM_NOT_SUBSCRIBE, 100034) X(ACL_ERROR_THREAD_NOT_SUBSCRIBE, 100035) \
    X(ACL_ERROR_WAIT_CALLBACK_TIMEOUT, 100036) X(ACL_ERROR_RT_PARAM_INVALID, 107000) \
    X(ACL_ERROR_RT_INVALID_DEVICEID, 107001) X(ACL_ERROR_RT_CONTEXT_NULL, 107002) \
    X(ACL_ERROR_RT_STREAM_CONTEXT, 107003) X(ACL_ERROR_RT_STREAM_ABORT, 107023) X(ACL_ERROR_RT_MEMORY_ALLOCATION, 207001) \
    X(ACL_ERROR_RT_NO_DEVICE, 207004) X(ACL_ERROR_RT_NO_PERMISSION, 207006) X(ACL_ERROR_RT_DEVICE_OOM, 207018) \
    X(ACL_ERROR_RT_LOST_HEARTBEAT, 507010) X(ACL_ERROR_RT_REPORT_TIMEOUT, 507012) \
    X(ACL_ERROR_RT_AICORE_EXCEPTION, 507015) X(ACL_ERROR_RT_DEV_SETUP_ERROR, 507033) \
    X(ACL_ERROR_RT_DEVICE_MEM_ERROR, 507053) X(ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR, 507054) \
    X(ACL_ERROR_RT_DRV_INTERNAL_ERROR, 507899) \
    X(ACL_ERROR_RT_SOCKET_CLOSE, 507901) \
    /* runtime 25-02: aclDataType, aclFormat */ \
    X(ACL_FLOAT, 0) X(ACL_FLOAT16, 1) X(ACL_INT8, 2) X(ACL_INT32, 3) X(ACL_UINT8, 4) X(ACL_INT16, 6) X(ACL_UINT32, 8) \
    X(ACL_INT64, 9) X(ACL_UINT64, 10) X(ACL_BOOL, 12) X(ACL_BF16, 27) X(ACL_INT4, 29) X(ACL_FORMAT_ND, 2) \
    X(ACL_FORMAT_FRACTAL_NZ, 29) \
    /* runtime 25-02: aclrtMemMallocPolicy, aclrtMemcpyKind, aclrtMemAttr, aclrtCallbackBlockType */ \
    X(ACL_MEM_MALLOC_HUGE_FIRST, 0) X(ACL_MEMCPY_HOST_TO_HOST, 0) X(ACL_MEMCPY_HOST_TO_DEVICE, 1) \
    X(ACL_MEMCPY_DEVICE_TO_HOST, 2) X(ACL_MEMCPY_DEVICE_TO_DEVICE, 3) X(ACL_HBM_MEM, 1) \
    X(ACL_CALLBACK_NO_BLOCK, 0) X(ACL_CALLBACK_BLOCK, 1) \
    /* runtime 06, 07, 11-09: flags of streams, events and waits */ \
    X(ACL_STREAM_FAST_LAUNCH, 1) X(ACL_STREAM_FAST_SYNC, 2) X(ACL_EVENT_SYNC, 1) X(ACL_EVENT_TIME_LINE, 8) \
    X(ACL_EVENT_EXTERNAL, 32) \
    X(ACL_STREAM_WAIT_VALUE_GEQ, 0) X(ACL_STREAM_WAIT_VALUE_EQ, 1) X(ACL_EVENT_RECORDED_STATUS_NOT_READY, 0) \
    X(ACL_EVENT_RECORDED_STATUS_COMPLETE, 1) \
    /* runtime 25-02: aclmdlRICaptureMode, aclmdlRICaptureStatus, aclCANNPackageName */ \
    X(ACL_MODEL_RI_CAPTURE_MODE_GLOBAL, 0) X(ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL, 1) \
    X(ACL_MODEL_RI_CAPTURE_MODE_RELAXED, 2) X(ACL_MODEL_RI_CAPTURE_STATUS_NONE, 0) \
    X(ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE, 1) X(ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED, 2) X(ACL_PKG_NAME_CANN, 0) \
    X(ACL_PKG_NAME_RUNTIME, 1) X(ACL_PKG_NAME_DRIVER, 7) \
    /* hccl: HcclResult, HcclDataType, HcclReduceOp */ \
    X(HCCL_SUCCESS, 0) X(HCCL_E_INTERNAL, 4) X(HCCL_E_TIMEOUT, 9) X(HCCL_DATA_TYPE_INT8, 0) X(HCCL_DATA_TYPE_INT32, 2) X(HCCL_DATA_TYPE_FP16, 3) \
    X(HCCL_DATA_TYPE_FP32, 4) X(HCCL_DATA_TYPE_BFP16, 11) X(HCCL_REDUCE_SUM, 0) \
    X(ACL_PKG_VERSION_MAX_SIZE, TD_ACL_VERSION_CHARS) X(HCCL_ROOT_INFO_BYTES, TD_HCCL_ROOT_BYTES)
/* clang-format on */

/* docs/zh/context/aclnn_return_code.md of the op repositories; in none of the wheel's headers */
enum {
    TD_ACLNN_OK = 0,
    TD_ACLNN_ERR_NULL = 161001,    /* a required argument is missing */
    TD_ACLNN_ERR_INVALID = 161002, /* dtype, format or shape that the operation does not take */
};

enum {
#define TD_ACL_CONSTANT(name, value) TD_##name = (value),
    TD_ACL_CONSTANTS(TD_ACL_CONSTANT)
#undef TD_ACL_CONSTANT
};

/* X(ours, vendor's): structures whose size and fields are compared; X(ours, vendor's): integers that stand for its
 * enumerations. */
#define TD_ACL_STRUCTS(X)                            \
    X(td_acl_package_version, aclCANNPackageVersion) \
    X(td_hccl_root, HcclRootInfo)
#define TD_ACL_INTEGERS(X)                          \
    X(td_acl_status, aclError)                      \
    X(td_hccl_status, HcclResult)                   \
    X(td_acl_dtype, aclDataType)                    \
    X(td_acl_format, aclFormat)                     \
    X(td_acl_malloc_how, aclrtMemMallocPolicy)      \
    X(td_acl_copy_kind, aclrtMemcpyKind)            \
    X(td_acl_memory_kind, aclrtMemAttr)             \
    X(td_acl_blocking, aclrtCallbackBlockType)      \
    X(td_acl_capture_mode, aclmdlRICaptureMode)     \
    X(td_acl_capture_state, aclmdlRICaptureStatus)  \
    X(td_acl_event_state, aclrtEventRecordedStatus) \
    X(td_acl_package, aclCANNPackageName)           \
    X(td_hccl_dtype, HcclDataType)                  \
    X(td_hccl_reduce, HcclReduceOp)

#endif
