/* An NVIDIA card from the outside: opening one. */
#ifndef TD_NPU_CUDA_CUDA_OPEN_H
#define TD_NPU_CUDA_CUDA_OPEN_H

#include "npu/npu.h"

/**
 * Open a card.
 * @param config act_dtype must be TD_DT_BF16; card [0, number of cards).
 * @return TD_OK; what td_cuda_load and td_cuda_kernels_open return; TD_EINVAL for a card that there is not; TD_ENOTSUP for
 * one that is too old; TD_EDEVICE when it cannot be opened; each with a sentence.
 */
TD_NODISCARD td_status td_cuda_npu_open(const td_npu_config *config, td_npu **out, td_error *err);

#endif
