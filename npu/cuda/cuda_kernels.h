/*
 * The kernels of npu/cuda/kernels as a card runs them: loaded, and found by name.
 *
 * DESIGN. One list of X(ID, name, arguments, threads of a block): a launch names ID, and is held to the number of arguments
 * (cuda_op.h). Where a module's image comes from is td_cuda_kernels_open's business alone.
 */
#ifndef TD_NPU_CUDA_CUDA_KERNELS_H
#define TD_NPU_CUDA_CUDA_KERNELS_H

#include "npu/cuda/cuda_api.h"
#include "npu/cuda/kernels/cuda_shapes.h"
#include "tandem.h"

/* clang-format off */
#define TD_CUDA_KERNELS(X) \
    X(EMBED, td_embed, 6, TD_CUDA_EMBED_THREADS) \
    X(NORM, td_norm, 12, TD_CUDA_ROW_THREADS) \
    X(NORM_MIDDLE, td_norm_middle, 12, TD_CUDA_MIDDLE_THREADS) \
    X(NORM_SHORT, td_norm_short, 12, TD_CUDA_SHORT_THREADS) \
    X(NORM_F32, td_norm_f32, 9, TD_CUDA_SHORT_THREADS) \
    X(QUANTIZE_BF16, td_quantize_bf16, 7, TD_CUDA_ROW_THREADS) \
    X(QUANTIZE_BF16_SHORT, td_quantize_bf16_short, 7, TD_CUDA_SHORT_THREADS) \
    X(QUANTIZE_F32, td_quantize_f32, 7, TD_CUDA_ROW_THREADS) \
    X(QUANTIZE_F32_SHORT, td_quantize_f32_short, 7, TD_CUDA_SHORT_THREADS) \
    X(PLACE_CODES, td_place_codes, 5, TD_CUDA_SHORT_THREADS) \
    X(GLU_QUANTIZE, td_glu_quantize, 10, TD_CUDA_ROW_THREADS) \
    X(GLU_QUANTIZE_SHORT, td_glu_quantize_short, 10, TD_CUDA_SHORT_THREADS) \
    X(SWIGLU, td_swiglu, 5, TD_CUDA_EACH_THREADS) \
    X(GLU_F32, td_glu_f32, 7, TD_CUDA_EACH_THREADS) \
    X(ROUND, td_round, 4, TD_CUDA_EACH_THREADS) \
    X(W8A8_8, td_w8a8_8, 20, TD_CUDA_LINEAR_THREADS) \
    X(W8A8_16, td_w8a8_16, 20, TD_CUDA_LINEAR_THREADS) \
    X(W8A8_32, td_w8a8_32, 20, TD_CUDA_LINEAR_THREADS) \
    X(W8A8_64, td_w8a8_64, 20, TD_CUDA_LINEAR_THREADS) \
    X(W8A8_SWIGLU_8, td_w8a8_swiglu_8, 10, TD_CUDA_LINEAR_THREADS) \
    X(W8A8_SWIGLU_16, td_w8a8_swiglu_16, 10, TD_CUDA_LINEAR_THREADS) \
    X(W8A8_SWIGLU_32, td_w8a8_swiglu_32, 10, TD_CUDA_LINEAR_THREADS) \
    X(W8A8_SWIGLU_64, td_w8a8_swiglu_64, 10, TD_CUDA_LINEAR_THREADS) \
    X(W8A8_EPILOGUE, td_w8a8_epilogue, 11, 256) \
    X(INT4_LINEAR_8, td_int4_linear_8, 14, TD_CUDA_LINEAR_THREADS) \
    X(INT4_LINEAR_16, td_int4_linear_16, 14, TD_CUDA_LINEAR_THREADS) \
    X(FP4_LINEAR_8, td_fp4_linear_8, 14, TD_CUDA_LINEAR_THREADS) \
    X(FP4_LINEAR_16, td_fp4_linear_16, 14, TD_CUDA_LINEAR_THREADS) \
    X(BF16_LINEAR_8, td_bf16_linear_8, 13, TD_CUDA_LINEAR_THREADS) \
    X(BF16_LINEAR_32, td_bf16_linear_32, 13, TD_CUDA_LINEAR_THREADS) \
    X(BF16_COLUMNS_8, td_bf16_columns_8, 11, TD_CUDA_LINEAR_THREADS) \
    X(BF16_COLUMNS_32, td_bf16_columns_32, 11, TD_CUDA_LINEAR_THREADS) \
    X(F32_LINEAR_1, td_f32_linear_1, 6, TD_CUDA_F32_THREADS) \
    X(F32_LINEAR_8, td_f32_linear_8, 6, TD_CUDA_F32_THREADS) \
    X(GQA_PLACE, td_gqa_place, 18, 128) \
    X(GQA_DECODE_64, td_gqa_decode_64, 17, TD_CUDA_ATTN_THREADS) \
    X(GQA_DECODE_128, td_gqa_decode_128, 17, TD_CUDA_ATTN_THREADS) \
    X(GQA_PREFILL_64, td_gqa_prefill_64, 17, TD_CUDA_ATTN_THREADS) \
    X(GQA_PREFILL_128, td_gqa_prefill_128, 17, TD_CUDA_ATTN_THREADS) \
    X(LIST_ROWS, td_list_rows, 8, 32) \
    X(MERGE_SPANS, td_merge_spans, 13, TD_CUDA_MERGE_THREADS) \
    X(MLA_PLACE, td_mla_place, 15, TD_CUDA_LATENT_PLACE_THREADS) \
    X(COPY_LISTED, td_copy_listed, 6, 128) \
    X(MLA_ABSORBED_16, td_mla_absorbed_16, 18, TD_CUDA_LATENT_THREADS) \
    X(MLA_ABSORBED_64, td_mla_absorbed_64, 18, TD_CUDA_LATENT_THREADS) \
    X(MLA_EXPAND, td_mla_expand, 11, TD_CUDA_ATTN_THREADS) \
    X(MLA_PREFILL, td_mla_prefill, 17, TD_CUDA_ATTN_THREADS) \
    X(ROUTE, td_route, 15, TD_CUDA_ROUTE_THREADS) \
    X(COMBINE, td_combine, 6, 256) \
    X(GATE_ROWS, td_gate_rows, 5, 256) \
    X(EXPERTS_PLACE, td_experts_place, 15, TD_CUDA_PLACE_THREADS) \
    X(EXPERTS_W8A8_8, td_experts_w8a8_8, 10, TD_CUDA_LINEAR_THREADS) \
    X(EXPERTS_W8A8_64, td_experts_w8a8_64, 10, TD_CUDA_LINEAR_THREADS) \
    X(EXPERTS_SWIGLU_8, td_experts_swiglu_8, 10, TD_CUDA_LINEAR_THREADS) \
    X(EXPERTS_SWIGLU_64, td_experts_swiglu_64, 10, TD_CUDA_LINEAR_THREADS) \
    X(EXPERTS_INT4_8, td_experts_int4_8, 12, TD_CUDA_LINEAR_THREADS) \
    X(EXPERTS_INT4_16, td_experts_int4_16, 12, TD_CUDA_LINEAR_THREADS) \
    X(EXPERTS_FP4_8, td_experts_fp4_8, 12, TD_CUDA_LINEAR_THREADS) \
    X(EXPERTS_FP4_16, td_experts_fp4_16, 12, TD_CUDA_LINEAR_THREADS) \
    X(EXPERTS_SUM, td_experts_sum, 10, 256) \
    X(PACKED_INT8_8, td_packed_int8_8, 12, TD_CUDA_LINEAR_THREADS) \
    X(PACKED_INT8_64, td_packed_int8_64, 12, TD_CUDA_LINEAR_THREADS) \
    X(PACKED_INT4_8, td_packed_int4_8, 12, TD_CUDA_LINEAR_THREADS) \
    X(PACKED_INT4_64, td_packed_int4_64, 12, TD_CUDA_LINEAR_THREADS) \
    X(PACKED_INT4_GROUPS_8, td_packed_int4_groups_8, 12, TD_CUDA_LINEAR_THREADS) \
    X(PACKED_INT4_GROUPS_16, td_packed_int4_groups_16, 12, TD_CUDA_LINEAR_THREADS) \
    X(PACKED_FP4_GROUPS_8, td_packed_fp4_groups_8, 12, TD_CUDA_LINEAR_THREADS) \
    X(PACKED_FP4_GROUPS_16, td_packed_fp4_groups_16, 12, TD_CUDA_LINEAR_THREADS) \
    X(PACKED_BF16, td_packed_bf16, 10, TD_CUDA_LINEAR_THREADS) \
    X(PACKED_BF16_F32, td_packed_bf16_f32, 10, TD_CUDA_LINEAR_THREADS) \
    X(EXPERTS_PART, td_experts_part, 13, 256) \
    X(JOIN, td_join, 5, 256) \
    X(CARDS_PART, td_cards_part, 11, TD_CUDA_SUM_THREADS) \
    X(CARDS_MEET, td_cards_meet, 14, 32) \
    X(CARDS_SUM, td_cards_sum, 19, TD_CUDA_SUM_THREADS) \
    X(CARDS_GATHER, td_cards_gather, 16, TD_CUDA_SUM_THREADS) \
    X(RING_ROWS, td_ring_rows, 15, TD_CUDA_CARRY_THREADS) \
    X(AWAIT_ROWS, td_await_rows, 15, TD_CUDA_CARRY_THREADS) \
    X(TOP_PARTS, td_top_parts, 6, TD_CUDA_TOP_THREADS) \
    X(TOP, td_top, 9, TD_CUDA_TOP_MERGE_THREADS) \
    X(BOUND_READ, td_bound_read, 3, TD_CUDA_BOUND_THREADS) \
    X(BOUND_INT8, td_bound_int8, 2, TD_CUDA_BOUND_THREADS) \
    X(BOUND_BF16, td_bound_bf16, 2, TD_CUDA_BOUND_THREADS)

/* Those that may begin before the kernel before them has ended (td_take_turn, kernels/kernel.cuh). */
#define TD_CUDA_EARLY(X) \
    X(NORM) X(NORM_MIDDLE) X(NORM_SHORT) X(NORM_F32) X(QUANTIZE_BF16) X(QUANTIZE_BF16_SHORT) X(QUANTIZE_F32) \
    X(QUANTIZE_F32_SHORT) X(GLU_QUANTIZE) X(GLU_QUANTIZE_SHORT) X(W8A8_8) X(W8A8_16) X(W8A8_32) X(W8A8_64) \
    X(W8A8_SWIGLU_8) X(W8A8_SWIGLU_16) X(W8A8_SWIGLU_32) X(W8A8_SWIGLU_64) X(BF16_LINEAR_8) X(BF16_LINEAR_32) \
    X(BF16_COLUMNS_8) X(BF16_COLUMNS_32) X(F32_LINEAR_1) X(F32_LINEAR_8) X(ROUTE) X(COMBINE)
/* clang-format on */

typedef enum {
#define TD_CUDA_KERNEL_ID(id, name, args, threads) TD_CUDA_KERNEL_##id,
    TD_CUDA_KERNELS(TD_CUDA_KERNEL_ID)
#undef TD_CUDA_KERNEL_ID
        TD_CUDA_KERNEL_COUNT,
} td_cuda_kernel_id;

typedef struct {
    const char *name;
    unsigned    n_args, threads;
} td_cuda_kernel_facts;

extern const td_cuda_kernel_facts TD_CUDA_KERNEL_FACTS[TD_CUDA_KERNEL_COUNT];
extern const bool                 TD_CUDA_KERNEL_IS_EARLY[TD_CUDA_KERNEL_COUNT];

typedef struct {
    td_cu_module module;
    td_cu_kernel at[TD_CUDA_KERNEL_COUNT];
} td_cuda_kernels;

/**
 * Load the kernels into the calling thread's context and find all of them.
 * @param card whose context it is.
 * @param out  to be given to td_cuda_kernels_close while that context is current.
 * @return TD_OK; TD_ENOTFOUND where there are none for this card, TD_EDEVICE or TD_ENOMEM when the driver does not take
 * them, each with a sentence; out is empty then.
 */
TD_NODISCARD td_status td_cuda_kernels_open(const td_cuda *cu, td_cu_device card, td_cuda_kernels *out, td_error *err);
void                   td_cuda_kernels_close(const td_cuda *cu, td_cuda_kernels *k);

#endif
