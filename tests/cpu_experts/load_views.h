/* A layer of experts from matrices that are all in memory. */
#ifndef TD_TESTS_LOAD_VIEWS_H
#define TD_TESTS_LOAD_VIEWS_H

#include "cpu_experts/cpu_experts.h"

static inline td_status take_view(const void *ctx, size_t expert, td_expert_matrix m, void *buffer, td_tensor_view *out,
                                  td_error *err) {
    (void)buffer;
    (void)err;
    *out = *td_expert_view((const td_expert_weights *)ctx + expert, m);
    return TD_OK;
}

static inline td_tensor_view bias_view(const void *ctx, size_t expert, td_expert_matrix m) {
    return *td_expert_bias_view((const td_expert_weights *)ctx + expert, m);
}

/** @param experts [n_experts] views, only read during the call. @return as td_experts_load. */
static inline td_status load_views(td_experts *x, uint32_t layer, const td_expert_weights *experts, td_error *err) {
    return td_experts_load(x, layer, &(td_expert_source){.take = take_view, .bias = bias_view, .ctx = experts}, err);
}

#endif
