/* What an NVIDIA card can do at most. */
#ifndef TD_NPU_CUDA_CUDA_BOUNDS_H
#define TD_NPU_CUDA_CUDA_BOUNDS_H

#include "npu/npu.h"

/* The table's function, as in td_npu_ops. */
TD_NODISCARD td_status td_cuda_bound(td_npu *d, td_npu_bound what, double *per_s, td_error *err);

#endif
