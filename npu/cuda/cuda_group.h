/* Several NVIDIA cards as one tensor-parallel device: the sum over cards. */
#ifndef TD_NPU_CUDA_CUDA_GROUP_H
#define TD_NPU_CUDA_CUDA_GROUP_H

#include "npu/cuda/cuda_block.h"

/* The table's functions, as in td_npu_ops. */
TD_NODISCARD td_status td_cuda_group_create(td_npu *const *cards, uint32_t n, td_npu_group **out, td_error *err);
void                   td_cuda_group_destroy(td_npu_group *g);
void                   td_cuda_group_abort(td_npu_group *g);
void                   td_cuda_group_reset(td_npu_group *g);

/** Whether the card has given up a sum since the group was reset. After its stream was synchronised. */
bool td_cuda_group_gave_up(const td_cuda_npu *d);

extern const td_cuda_block_kind td_cuda_all_reduce;

#endif
