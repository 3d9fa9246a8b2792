/*
 * Stacks of experts' weights, as grouped products take them.
 *
 * DESIGN. INT8: each expert's weights in NZ, as a linear's (ascend_weight.h), one expert behind the other.
 *
 * INT4: [n_experts, k, n] without tiles, each expert's as a linear's (ascend_weight.h; ops-transformer,
 * aclnn_grouped_matmul.cpp), one behind the other, and so are scales and offsets [n_experts, groups, n].
 */
#ifndef TD_NPU_ASCEND_ASCEND_STACK_H
#define TD_NPU_ASCEND_ASCEND_STACK_H

#include "npu/ascend/ascend_kind.h"

/** Weights of experts, one behind the other: what a product of each expert's rows with its own takes. */
struct td_ascend_stack {
    size_t                n_experts, n, k; /* n: of all parts, of int8 each filled up to whole tiles */
    size_t                group;           /* of int4: inputs that share a scale; 0: it is int8 */
    void                 *data;            /* NZ of int8; or [n_experts, k, n] of int4 */
    float                *scale;           /* of int8: [n_experts, n] */
    td_bf16              *scale16;         /* the same, rounded: what the operation takes where it gives bf16;
                                            * of int4: [n_experts, k / group, n] */
    td_bf16              *offset16;        /* of int4: the same; a weight is (code + offset) * scale */
    size_t                refs, n_weights;
    const td_npu_weight **weights; /* that it was made of */
};

/** One weight an expert, all [n, k]. */
typedef struct {
    const char                 *what; /* "an expert's gate", for sentences */
    const td_npu_weight *const *w;
    size_t                      n, k;
} td_ascend_stack_part;

bool td_ascend_stack_has_int4(const td_ascend_stack_part *part); /* its first weight is of 4-bit codes */
/** Whether a stack of these parts can keep 4-bit codes: all have them, in groups of one size, which divides k_to. */
bool td_ascend_stack_takes_int4(const td_ascend_stack_part *parts, size_t n_parts, size_t n_experts, size_t k_to);
/**
 * The stack of these parts, made or found. Their rows leave the device before it comes there.
 * @param k_to inputs: beyond the parts' k they are zero.
 * @param int4 of 4-bit codes, which takes_int4 allows; else of int8.
 */
TD_NODISCARD td_status td_ascend_stack_of(td_ascend_npu *d, const td_ascend_stack_part *parts, size_t n_parts,
                                          size_t n_experts, size_t k_to, bool int4, const td_ascend_stack **out,
                                          td_error *err);
void                   td_ascend_stack_unref(td_ascend_npu *d, td_ascend_stack *s); /* NULL is fine */

#endif
