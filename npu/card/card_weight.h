/* Weights as cards keep them, made on the host: what is the same for all vendors. */
#ifndef TD_NPU_CARD_CARD_WEIGHT_H
#define TD_NPU_CARD_CARD_WEIGHT_H

#include "npu/block_weights.h"

/**
 * A W8A8 weight as int8 with a scale for each row: quantised, or int8 with scales as it is.
 * @param src   as td_weight_check_source has passed it.
 * @param q     [n, stride]; what lies behind the k values of a row is left alone.
 * @param scale [n]
 * @return TD_EFORMAT: it holds an infinity or a NaN.
 */
TD_NODISCARD td_status td_card_weight_int8(const td_weight_shape *shape, const td_tensor_view *src, int8_t *q, size_t stride,
                                           float *scale, td_error *err);

/** A weight of F32 or BF16. @param out [n, k] of that type. @return as above. */
TD_NODISCARD td_status td_card_weight_floats(const td_weight_shape *shape, const td_tensor_view *src, void *out,
                                             td_error *err);

#endif
