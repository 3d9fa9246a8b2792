/*
 * A router's choice as a device with td_npu_caps.raw_choice gives it: ids as int32, in an order of the device's own. The
 * experts of the CPU take ids as uint16, by descending weight (td_router_desc).
 */
#ifndef TD_NPU_RAW_CHOICE_H
#define TD_NPU_RAW_CHOICE_H

#include "npu/npu.h"

/** Bytes of an id as the device's routers give it. */
static inline size_t td_npu_id_bytes(const td_npu_caps *caps) {
    return caps->raw_choice ? sizeof(int32_t) : sizeof(uint16_t);
}

/**
 * The same choices by descending weight, ties by ascending id. A NaN among the weights leaves the order open.
 *
 * @param raw_ids, raw_weights [rows, top_k], those of a row distinct; the others do not overlap them.
 * @param ids, weights         [rows, top_k], written.
 * @return false: an id is not below n_experts. What is written then is not to be read.
 */
bool td_raw_choice_sort(const int32_t *raw_ids, const float *raw_weights, size_t rows, uint32_t top_k, uint32_t n_experts,
                        uint16_t *ids, float *weights);

#endif
