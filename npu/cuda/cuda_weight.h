/*
 * Weights as the kernels read them. All formats keep their rows in order; what differs is a row:
 *   W8A8          k codes, filled up with zeros to TD_CUDA_ROW_CODES; behind all rows a scale each
 *   INT4G, FP4G   four-bit codes in the matrix instruction's order (cuda_pack.h); then scales of the groups in their own
 *                 type, zeros where there are any, factors of FP4G
 *   BF16, F32     as they are
 */
#ifndef TD_NPU_CUDA_CUDA_WEIGHT_H
#define TD_NPU_CUDA_CUDA_WEIGHT_H

#include "npu/block_weights.h"
#include "npu/cuda/cuda_device.h"

/* Rows of codes are padded to what every format multiplies at a time, so that any two of them can read the same rows. */
#define TD_CUDA_ROW_CODES TD_CUDA_GROUP_BLOCK

struct td_npu_weight {
    td_weight_shape shape;  /* first */
    td_gemm_groups  groups; /* of INT4G and FP4G */
    char           *data;   /* device: the rows, and behind them what belongs to them */
    const char     *scale, *zero, *factor;
};

/** Bytes of a row of codes, and of a row that they are multiplied with. */
static inline size_t td_cuda_row_codes(size_t k) {
    return (k + TD_CUDA_ROW_CODES - 1) / TD_CUDA_ROW_CODES * TD_CUDA_ROW_CODES;
}

/* The table's functions, as in td_npu_ops. */
size_t                 td_cuda_weight_bytes(td_npu *d, td_weight_format format, uint32_t group, size_t n, size_t k);
TD_NODISCARD td_status td_cuda_weight_create(td_npu *d, td_weight_format format, const td_tensor_view *src,
                                             td_npu_weight **out, td_error *err);
void                   td_cuda_weight_destroy(td_npu *d, td_npu_weight *w);

#endif
