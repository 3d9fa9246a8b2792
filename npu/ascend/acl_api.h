/*
 * The functions of AscendCL's runtime, of aclnn's base and of HCCL that the Ascend backend calls.
 *
 * DESIGN. Four lists, one a library, of X(symbol, without, since, document, result, (parameters)):
 *   without   what is done where the library has no such symbol, for a person; NULL: the backend cannot do without it
 *   since     the oldest CANN, 100 * major + minor, whose headers are known to have it (801: those of torch-npu 2.5.1, the
 *             wheel for CANN 8.1); 0: known from documents only
 *   document  where its signature was read; acl_types.h names the repositories
 * The lists make the table td_acl here, declarations for the stand-in in tests/, the checks against the vendor's headers
 * (test_ascend_types) and the loader's search. What operations there are is in aclnn_api.h.
 */
#ifndef TD_NPU_ASCEND_ACL_API_H
#define TD_NPU_ASCEND_ACL_API_H

#include "npu/ascend/acl_types.h"

#define TD_ACL_UPDATES_BEFORE "attention's lengths are updated before a captured step, while the card waits"

/* libacl_rt.so (CANN 9), libascendcl.so */
#define TD_ACL_RUNTIME(X)                                                                                                   \
    X(aclInit, NULL, 801, "runtime 02", td_acl_status, (const char *config_path))                                           \
    X(aclFinalize, NULL, 801, "runtime 02", td_acl_status, (void))                                                          \
    X(aclGetRecentErrMsg, NULL, 801, "runtime 13", const char *, (void))                                                    \
    X(aclrtGetSocName, NULL, 801, "runtime 24", const char *, (void))                                                       \
    X(aclsysGetVersionStr, "the version is asked of aclsysGetCANNVersion", 0, "runtime 24", td_acl_status,                  \
      (char *package, char *version))                                                                                       \
    X(aclsysGetCANNVersion, "the version stays unknown", 801, "runtime 24", td_acl_status,                                  \
      (td_acl_package package, td_acl_package_version * version))                                                           \
    X(aclrtGetDeviceCount, NULL, 801, "runtime 04", td_acl_status, (uint32_t * count))                                      \
    X(aclrtGetLogicDevIdByUserDevId, "no temperature where ASCEND_RT_VISIBLE_DEVICES is set", 0, "runtime 04",              \
      td_acl_status, (const int32_t device, int32_t *const driver_device))                                                  \
    X(aclrtSetDevice, NULL, 801, "runtime 04", td_acl_status, (int32_t device))                                             \
    X(aclrtResetDevice, NULL, 801, "runtime 04", td_acl_status, (int32_t device))                                           \
    X(aclrtCreateContext, NULL, 801, "runtime 05", td_acl_status, (td_acl_context * context, int32_t device))               \
    X(aclrtDestroyContext, NULL, 801, "runtime 05", td_acl_status, (td_acl_context context))                                \
    X(aclrtSetCurrentContext, NULL, 801, "runtime 05", td_acl_status, (td_acl_context context))                             \
    X(aclrtCreateStreamWithConfig, NULL, 801, "runtime 06", td_acl_status,                                                  \
      (td_acl_stream * stream, uint32_t priority, uint32_t flags))                                                          \
    X(aclrtDestroyStream, NULL, 801, "runtime 06", td_acl_status, (td_acl_stream stream))                                   \
    X(aclrtStreamAbort, "a sum over cards that one card does not come to ends by HCCL's own timeout", 0, "runtime 06",      \
      td_acl_status, (td_acl_stream stream))                                                                                \
    X(aclrtSynchronizeStream, NULL, 801, "runtime 06", td_acl_status, (td_acl_stream stream))                               \
    X(aclrtCreateEventExWithFlag, NULL, 801, "runtime 07", td_acl_status, (td_acl_event * event, uint32_t flags))           \
    X(aclrtCreateEventWithFlag, TD_ACL_UPDATES_BEFORE, 801, "runtime 07", td_acl_status,                                    \
      (td_acl_event * event, uint32_t flags))                                                                               \
    X(aclrtResetEvent, TD_ACL_UPDATES_BEFORE, 801, "runtime 07", td_acl_status, (td_acl_event event, td_acl_stream stream)) \
    X(aclrtDestroyEvent, NULL, 801, "runtime 07", td_acl_status, (td_acl_event event))                                      \
    X(aclrtRecordEvent, NULL, 801, "runtime 07", td_acl_status, (td_acl_event event, td_acl_stream stream))                 \
    X(aclrtStreamWaitEvent, NULL, 801, "runtime 07", td_acl_status, (td_acl_stream stream, td_acl_event event))             \
    X(aclrtSynchronizeEvent, NULL, 801, "runtime 07", td_acl_status, (td_acl_event event))                                  \
    X(aclrtQueryEventStatus, NULL, 801, "runtime 07", td_acl_status, (td_acl_event event, td_acl_event_state * state))      \
    X(aclrtMalloc, NULL, 801, "runtime 11-01", td_acl_status, (void **out, size_t bytes, td_acl_malloc_how how))            \
    X(aclrtFree, NULL, 801, "runtime 11-01", td_acl_status, (void *p))                                                      \
    X(aclrtGetMemInfo, NULL, 801, "runtime 11-01", td_acl_status,                                                           \
      (td_acl_memory_kind kind, size_t * free_bytes, size_t * total_bytes))                                                 \
    X(aclrtMallocHost, NULL, 801, "runtime 11-02", td_acl_status, (void **out, size_t bytes))                               \
    X(aclrtFreeHost, NULL, 801, "runtime 11-02", td_acl_status, (void *p))                                                  \
    X(aclrtMemcpy, NULL, 801, "runtime 11-03", td_acl_status,                                                               \
      (void *dst, size_t dst_bytes, const void *src, size_t bytes, td_acl_copy_kind kind))                                  \
    X(aclrtMemcpyAsync, NULL, 801, "runtime 11-03", td_acl_status,                                                          \
      (void *dst, size_t dst_bytes, const void *src, size_t bytes, td_acl_copy_kind kind, td_acl_stream stream))            \
    X(aclrtMemsetAsync, NULL, 801, "runtime 11-03", td_acl_status,                                                          \
      (void *p, size_t p_bytes, int32_t value, size_t bytes, td_acl_stream stream))                                         \
    X(aclrtValueWrite, "a doorbell has no value to wait for, host calls hand over", 0, "runtime 11-09", td_acl_status,      \
      (void *device_word, uint64_t value, uint32_t flags, td_acl_stream stream))                                            \
    X(aclrtValueWait, "a doorbell has no value to wait for, host calls hand over", 0, "runtime 11-09", td_acl_status,       \
      (void *device_word, uint64_t value, uint32_t how, td_acl_stream stream))                                              \
    X(aclrtSubscribeReport, NULL, 801, "runtime 12", td_acl_status, (uint64_t thread, td_acl_stream stream))                \
    X(aclrtUnSubscribeReport, NULL, 801, "runtime 12", td_acl_status, (uint64_t thread, td_acl_stream stream))              \
    X(aclrtProcessReport, NULL, 801, "runtime 12", td_acl_status, (int32_t timeout_ms))                                     \
    X(aclrtLaunchCallback, NULL, 801, "runtime 12", td_acl_status,                                                          \
      (td_acl_callback fn, void *arg, td_acl_blocking blocking, td_acl_stream stream))                                      \
    X(aclmdlRICaptureBegin, NULL, 801, "runtime 15", td_acl_status, (td_acl_stream stream, td_acl_capture_mode mode))       \
    X(aclmdlRICaptureGetInfo, NULL, 801, "runtime 15", td_acl_status,                                                       \
      (td_acl_stream stream, td_acl_capture_state * state, td_acl_graph * graph))                                           \
    X(aclmdlRICaptureEnd, NULL, 801, "runtime 15", td_acl_status, (td_acl_stream stream, td_acl_graph * graph))             \
    X(aclmdlRICaptureTaskGrpBegin, NULL, 801, "runtime 15", td_acl_status, (td_acl_stream stream))                          \
    X(aclmdlRICaptureTaskGrpEnd, NULL, 801, "runtime 15", td_acl_status, (td_acl_stream stream, td_acl_task_group * group)) \
    X(aclmdlRICaptureTaskUpdateBegin, NULL, 801, "runtime 15", td_acl_status,                                               \
      (td_acl_stream stream, td_acl_task_group group))                                                                      \
    X(aclmdlRICaptureTaskUpdateEnd, NULL, 801, "runtime 15", td_acl_status, (td_acl_stream stream))                         \
    X(aclmdlRIExecuteAsync, NULL, 801, "runtime 15", td_acl_status, (td_acl_graph graph, td_acl_stream stream))             \
    X(aclmdlRIDestroy, NULL, 801, "runtime 15", td_acl_status, (td_acl_graph graph))

/* libnnopbase.so */
#define TD_ACL_META(X)                                                                                                   \
    X(aclCreateTensor, NULL, 0, "opbase aclCreateTensor", td_acl_tensor *,                                               \
      (const int64_t *view, uint64_t n_view, td_acl_dtype dtype, const int64_t *strides, int64_t offset,                 \
       td_acl_format format, const int64_t *storage, uint64_t n_storage, void *data))                                    \
    X(aclDestroyTensor, NULL, 0, "opbase aclDestroyTensor", td_aclnn_status, (const td_acl_tensor *tensor))              \
    X(aclCreateTensorList, NULL, 0, "opbase aclCreateTensorList", td_acl_tensor_list *,                                  \
      (const td_acl_tensor *const *tensors, uint64_t n))                                                                 \
    X(aclDestroyTensorList, NULL, 0, "opbase aclDestroyTensorList", td_aclnn_status, (const td_acl_tensor_list *list))   \
    X(aclCreateScalar, NULL, 0, "opbase aclCreateScalar", td_acl_scalar *, (void *value, td_acl_dtype dtype))            \
    X(aclDestroyScalar, NULL, 0, "opbase aclDestroyScalar", td_aclnn_status, (const td_acl_scalar *scalar))              \
    X(aclCreateIntArray, NULL, 0, "opbase aclCreateIntArray", td_acl_int_array *, (const int64_t *values, uint64_t n))   \
    X(aclDestroyIntArray, NULL, 0, "opbase aclDestroyIntArray", td_aclnn_status, (const td_acl_int_array *array))        \
    X(aclSetAclOpExecutorRepeatable, NULL, 0, "opbase aclSetAclOpExecutorRepeatable", td_aclnn_status,                   \
      (td_acl_executor * executor))                                                                                      \
    X(aclDestroyAclOpExecutor, NULL, 0, "opbase aclDestroyAclOpExecutor", td_aclnn_status, (td_acl_executor * executor)) \
    X(aclSetInputTensorAddr, NULL, 0, "opbase aclSetInputTensorAddr", td_aclnn_status,                                   \
      (td_acl_executor * executor, const size_t index, td_acl_tensor *tensor, void *data))                               \
    X(aclSetOutputTensorAddr, NULL, 0, "opbase aclSetOutputTensorAddr", td_aclnn_status,                                 \
      (td_acl_executor * executor, const size_t index, td_acl_tensor *tensor, void *data))

/* libhccl.so: only several cards need it */
#define TD_ACL_HCCL(X)                                                                                            \
    X(HcclGetRootInfo, NULL, 801, "hccl comm_mgr_c", td_hccl_status, (td_hccl_root * root))                       \
    X(HcclCommInitRootInfo, NULL, 801, "hccl comm_mgr_c", td_hccl_status,                                         \
      (uint32_t n_ranks, const td_hccl_root *root, uint32_t rank, td_hccl_comm *comm))                            \
    X(HcclCommDestroy, NULL, 801, "hccl comm_mgr_c", td_hccl_status, (td_hccl_comm comm))                         \
    X(HcclGetErrorString, "a failure of HCCL is shown by its number", 0, "hccl comm_mgr_c", const char *,         \
      (td_hccl_status code))                                                                                      \
    X(HcclAllReduce, NULL, 801, "hccl comm_op_interface/HcclAllReduce", td_hccl_status,                           \
      (void *send, void *receive, uint64_t n, td_hccl_dtype dtype, td_hccl_reduce op, td_hccl_comm comm,          \
       td_acl_stream stream))                                                                                     \
    X(HcclAllGather, NULL, 801, "hccl comm_op_interface/HcclAllGather", td_hccl_status,                           \
      (void *send, void *receive, uint64_t n_send, td_hccl_dtype dtype, td_hccl_comm comm, td_acl_stream stream)) \
    X(HcclBroadcast, NULL, 801, "hccl comm_op_interface/HcclBroadcast", td_hccl_status,                           \
      (void *at, uint64_t n, td_hccl_dtype dtype, uint32_t root, td_hccl_comm comm, td_acl_stream stream))

/** The functions that were found; those that may be missing are NULL where they are. */
typedef struct {
#define TD_ACL_MEMBER(symbol, without, since, document, result, parameters) result(*symbol) parameters;
    TD_ACL_RUNTIME(TD_ACL_MEMBER)
    TD_ACL_META(TD_ACL_MEMBER)
    TD_ACL_HCCL(TD_ACL_MEMBER)
#undef TD_ACL_MEMBER
} td_acl;

#endif
