#include "npu/raw_choice.h"

/* Put the n + 1st choice among n that are in order. */
static void insert(uint16_t *ids, float *weights, uint32_t n, uint16_t id, float weight) {
    for (; n && (weight > weights[n - 1] || (weight >= weights[n - 1] && id < ids[n - 1])); n--) {
        ids[n] = ids[n - 1];
        weights[n] = weights[n - 1];
    }
    ids[n] = id;
    weights[n] = weight;
}

bool td_raw_choice_sort(const int32_t *raw_ids, const float *raw_weights, size_t rows, uint32_t top_k, uint32_t n_experts,
                        uint16_t *ids, float *weights) {
    for (size_t at = 0; at < rows * top_k; at += top_k)
        for (uint32_t j = 0; j < top_k; j++) {
            if ((uint32_t)raw_ids[at + j] >= n_experts) return false;
            insert(ids + at, weights + at, j, (uint16_t)raw_ids[at + j], raw_weights[at + j]);
        }
    return true;
}
