/*
 * The aclnn operations that the Ascend backend is to be made of, one line each, and the ladders that they are rungs of.
 *
 * DESIGN. An operation is two functions (docs/zh/context/two_phase_api.md of the op repositories):
 *   opGetWorkspaceSize(arguments…, &workspace_bytes, &executor)      checks the arguments, takes no device time
 *   op(workspace, workspace_bytes, executor, stream)                 runs it once, unless the executor was made repeatable
 * TD_ACLNN_OPS is X(op, ladder, document, arguments…). A ladder is what the backend needs. Its rungs, in the order of this
 * list, are the operations that give it. The first one that the library has and whose document names the card's generation
 * is taken. No header of the vendor that PyPI has declares them; scripts/ascend_op_docs.py compares this list with the op
 * repositories, where somebody has those.
 *
 * Documents: "nn", "math", "transformer" are github.com/hicann/ops-nn, ops-math and ops-transformer.
 */
#ifndef TD_NPU_ASCEND_ACLNN_API_H
#define TD_NPU_ASCEND_ACLNN_API_H

#include "npu/ascend/acl_types.h"

/* X(ladder, NULL or what takes its place where a library has no rung, what it is for) */
#define TD_ACLNN_LADDERS(X)                                                                                            \
    X(EMBEDDING, NULL, "rows of the embedding")                                                                        \
    X(RMS_NORM, NULL, "RMS norm")                                                                                      \
    X(ADD_RMS_NORM, "Add, then RmsNorm", "residual and RMS norm in one operation")                                     \
    X(NORM_QUANT, "RmsNorm, then DynamicQuant", "RMS norm and int8 codes in one")                                      \
    X(NORM_CAST, "RmsNorm, then Cast", "RMS norm in bf16 and in f32 in one")                                           \
    X(DYNAMIC_QUANT, NULL, "int8 codes and a scale for each token")                                                    \
    X(QUANT_MATMUL, NULL, "products of W8A8")                                                                          \
    X(INT4_MATMUL, "codes rounded to int8, then QuantMatmul", "products of rows of bf16 with 4-bit codes")             \
    X(MATMUL, NULL, "products of floats")                                                                              \
    X(BATCH_MATMUL, NULL, "products of floats, a matrix for each head")                                                \
    X(TRANSPOSE_BATCH_MATMUL, "BatchMatMul on transposed views",                                                       \
      "products a head with the heads inside, for MLA's W_UK and W_UV")                                                \
    X(SWIGLU, NULL, "silu(gate) * up")                                                                                 \
    X(SWIGLU_QUANT, "SwiGlu, then DynamicQuant", "silu(gate) * up and int8 codes in one")                              \
    X(KV_FRONT, "RmsNorm, rope, then the write", "MLA's keys into their pages")                                        \
    X(MLA_FRONT, "products, norms, rope and writes one by one",                                                        \
      "MLA from the normed rows to the query and the cache in one")                                                    \
    X(GQA_FRONT, "RmsNorm, rope, then the write", "GQA from the products to the query and the cache in one")           \
    X(ROPE_BOTH, "cos and sin by row, and two ropes", "rotary positions of query and keys in one")                     \
    X(ROPE, NULL, "rotary positions")                                                                                  \
    X(ADD, NULL, "sums")                                                                                               \
    X(ADD_IN_PLACE, NULL, "residuals and biases")                                                                      \
    X(SIGMOID, NULL, "gates of shared experts")                                                                        \
    X(MUL_IN_PLACE, NULL, "gated rows")                                                                                \
    X(CAST, NULL, "f32 to bf16 and back")                                                                              \
    X(GATHER, NULL, "rows by index")                                                                                   \
    X(KV_WRITE, NULL, "keys and values into their pages")                                                              \
    X(ATTENTION, NULL, "attention over pages")                                                                         \
    X(ROUTER, NULL, "a router's scores, groups and choice")                                                            \
    X(TOPK, NULL, "the largest logits")                                                                                \
    X(ROUTE_CODES, "MoeInitRoutingV2, DynamicQuant and Cast", "int8 rows in the order of their experts, with scales")  \
    X(COUNT_SUMS, "GroupedMatmul, which takes counts, then what takes their sums", "experts' counts cumulated")        \
    X(ROUTE_ROWS, "no routed experts on the card", "rows in the order of their experts")                               \
    X(GROUPED_PRODUCT, "no routed experts on the card", "products of each expert's rows with its own weights")         \
    X(GROUPED_GATE_UP, "GroupedMatmul, then what takes their sums", "experts' products up to silu(gate) * up in int8") \
    X(GROUPED_SWIGLU_QUANT, "SwiGlu, then DynamicQuant", "experts' sums to silu(gate) * up and int8 codes in one")     \
    X(ROUTED_SUM, "no routed experts on the card", "experts' rows back to their tokens")

/* The attention's arguments, shared by the versions up to where they part. */
#define TD_ACLNN_ATTENTION_TENSOR_ARGS                                                                                   \
    const td_acl_tensor *query, const td_acl_tensor_list *key, const td_acl_tensor_list *value,                          \
        const td_acl_tensor *pse_shift, const td_acl_tensor *mask, const td_acl_int_array *query_lengths,                \
        const td_acl_int_array *kv_lengths, const td_acl_tensor *dequant_scale1, const td_acl_tensor *quant_scale1,      \
        const td_acl_tensor *dequant_scale2, const td_acl_tensor *quant_scale2, const td_acl_tensor *quant_offset2,      \
        const td_acl_tensor *antiquant_scale, const td_acl_tensor *antiquant_offset, const td_acl_tensor *block_table,   \
        const td_acl_tensor *query_padding, const td_acl_tensor *kv_padding, const td_acl_tensor *key_antiquant_scale,   \
        const td_acl_tensor *key_antiquant_offset, const td_acl_tensor *value_antiquant_scale,                           \
        const td_acl_tensor *value_antiquant_offset, const td_acl_tensor *key_prefix, const td_acl_tensor *value_prefix, \
        const td_acl_int_array *prefix_length, const td_acl_tensor *query_rope, const td_acl_tensor *key_rope,           \
        const td_acl_tensor *key_rope_antiquant_scale
#define TD_ACLNN_ATTENTION_NUMBER_ARGS                                                                           \
    int64_t heads, double scale, int64_t tokens_before, int64_t tokens_after, char *layout, int64_t kv_heads,    \
        int64_t sparse_mode, int64_t inner_precise, int64_t block_tokens, int64_t antiquant_mode, bool with_lse, \
        int64_t key_antiquant_mode, int64_t value_antiquant_mode
#define TD_ACLNN_ATTENTION_V3_ARGS \
    TD_ACLNN_ATTENTION_TENSOR_ARGS, TD_ACLNN_ATTENTION_NUMBER_ARGS, const td_acl_tensor *out, const td_acl_tensor *lse
#define TD_ACLNN_ATTENTION_V4_ARGS                                                                       \
    TD_ACLNN_ATTENTION_TENSOR_ARGS, const td_acl_tensor *query_dequant_scale, const td_acl_tensor *sink, \
        TD_ACLNN_ATTENTION_NUMBER_ARGS, int64_t query_quant_mode, const td_acl_tensor *out, const td_acl_tensor *lse
#define TD_ACLNN_QUANT_MATMUL_ARGS                                                                                          \
    const td_acl_tensor *x1, const td_acl_tensor *x2, const td_acl_tensor *x1_scale, const td_acl_tensor *x2_scale,         \
        const td_acl_tensor *y_scale, const td_acl_tensor *x1_offset, const td_acl_tensor *x2_offset,                       \
        const td_acl_tensor *y_offset, const td_acl_tensor *bias, bool transpose_x1, bool transpose_x2, int64_t group_size, \
        td_acl_tensor *out

#define TD_ACLNN_OPS(X)                                                                                                     \
    X(aclnnEmbedding, EMBEDDING, "nn index/embedding", const td_acl_tensor *weight, const td_acl_tensor *indices,           \
      const td_acl_tensor *out)                                                                                             \
    X(aclnnRmsNorm, RMS_NORM, "nn norm/rms_norm", const td_acl_tensor *x, const td_acl_tensor *gamma, double epsilon,       \
      const td_acl_tensor *out, const td_acl_tensor *rstd)                                                                  \
    X(aclnnAddRmsNorm, ADD_RMS_NORM, "nn norm/add_rms_norm", const td_acl_tensor *x1, const td_acl_tensor *x2,              \
      const td_acl_tensor *gamma, double epsilon, td_acl_tensor *out, td_acl_tensor *rstd, td_acl_tensor *sum)              \
    X(aclnnAddRmsNormDynamicQuant, NORM_QUANT, "nn norm/add_rms_norm_dynamic_quant", const td_acl_tensor *x1,               \
      const td_acl_tensor *x2, const td_acl_tensor *gamma, const td_acl_tensor *smooth1, const td_acl_tensor *smooth2,      \
      double epsilon, td_acl_tensor *out1, td_acl_tensor *out2, td_acl_tensor *sum, td_acl_tensor *scale1,                  \
      td_acl_tensor *scale2)                                                                                                \
    X(aclnnAddRmsNormCast, NORM_CAST, "nn norm/add_rms_norm_cast", const td_acl_tensor *x1, const td_acl_tensor *x2,        \
      const td_acl_tensor *gamma, double epsilon, const td_acl_tensor *out1, const td_acl_tensor *out2,                     \
      const td_acl_tensor *rstd, const td_acl_tensor *sum)                                                                  \
    X(aclnnDynamicQuant, DYNAMIC_QUANT, "nn quant/dynamic_quant", const td_acl_tensor *x, const td_acl_tensor *smooth,      \
      const td_acl_tensor *out, const td_acl_tensor *scale)                                                                 \
    X(aclnnQuantMatmulWeightNz, QUANT_MATMUL, "nn matmul/quant_batch_matmul_v3", TD_ACLNN_QUANT_MATMUL_ARGS)                \
    X(aclnnQuantMatmulV5, QUANT_MATMUL, "nn matmul/quant_batch_matmul_v4", TD_ACLNN_QUANT_MATMUL_ARGS)                      \
    X(aclnnQuantMatmulV4, QUANT_MATMUL, "nn matmul/quant_batch_matmul_v3", const td_acl_tensor *x1,                         \
      const td_acl_tensor *x2, const td_acl_tensor *scale, const td_acl_tensor *offset, const td_acl_tensor *token_scale,   \
      const td_acl_tensor *bias, bool transpose_x1, bool transpose_x2, const td_acl_tensor *out)                            \
    X(aclnnWeightQuantBatchMatmulV2, INT4_MATMUL, "nn matmul/weight_quant_batch_matmul_v2", const td_acl_tensor *x,         \
      const td_acl_tensor *weight, const td_acl_tensor *antiquant_scale, const td_acl_tensor *antiquant_offset,             \
      const td_acl_tensor *quant_scale, const td_acl_tensor *quant_offset, const td_acl_tensor *bias, int group_size,       \
      const td_acl_tensor *out)                                                                                             \
    X(aclnnMm, MATMUL, "nn matmul/mat_mul_v3", const td_acl_tensor *a, const td_acl_tensor *b, td_acl_tensor *out,          \
      int8_t cube_math)                                                                                                     \
    X(aclnnBatchMatMul, BATCH_MATMUL, "nn matmul/batch_mat_mul_v3", const td_acl_tensor *a, const td_acl_tensor *b,         \
      td_acl_tensor *out, int8_t cube_math)                                                                                 \
    X(aclnnTransposeBatchMatMul, TRANSPOSE_BATCH_MATMUL, "nn matmul/transpose_batch_mat_mul", const td_acl_tensor *x1,      \
      const td_acl_tensor *x2, const td_acl_tensor *bias, const td_acl_tensor *scale, const td_acl_int_array *perm_x1,      \
      const td_acl_int_array *perm_x2, const td_acl_int_array *perm_y, int8_t cube_math, const int32_t batch_split,         \
      td_acl_tensor *out)                                                                                                   \
    X(aclnnSwiGlu, SWIGLU, "nn activation/swi_glu", const td_acl_tensor *x, int64_t dim, const td_acl_tensor *out)          \
    X(aclnnDequantSwigluQuant, SWIGLU_QUANT, "nn quant/dequant_swiglu_quant", const td_acl_tensor *x,                       \
      const td_acl_tensor *weight_scale, const td_acl_tensor *token_scale, const td_acl_tensor *bias,                       \
      const td_acl_tensor *quant_scale, const td_acl_tensor *quant_offset, const td_acl_tensor *group_index,                \
      bool activate_left, char *quant_mode, const td_acl_tensor *out, const td_acl_tensor *scale)                           \
    X(aclnnKvRmsNormRopeCache, KV_FRONT, "transformer posembedding/kv_rms_norm_rope_cache", const td_acl_tensor *kv,        \
      const td_acl_tensor *gamma, const td_acl_tensor *cos, const td_acl_tensor *sin, const td_acl_tensor *slots,           \
      td_acl_tensor *rope_cache, td_acl_tensor *latent_cache, const td_acl_tensor *rope_scale,                              \
      const td_acl_tensor *latent_scale, const td_acl_tensor *rope_offset, const td_acl_tensor *latent_offset,              \
      double epsilon, char *cache_mode, bool with_rows, const td_acl_tensor *rope, const td_acl_tensor *latent)             \
    X(aclnnMlaPrologV2WeightNz, MLA_FRONT, "transformer attention/mla_prolog_v2", const td_acl_tensor *x,                   \
      const td_acl_tensor *w_dq, const td_acl_tensor *w_uq_qr, const td_acl_tensor *w_uk, const td_acl_tensor *w_dkv_kr,    \
      const td_acl_tensor *gamma_cq, const td_acl_tensor *gamma_ckv, const td_acl_tensor *sin, const td_acl_tensor *cos,    \
      const td_acl_tensor *slots, td_acl_tensor *latent_cache, td_acl_tensor *rope_cache, const td_acl_tensor *x_scale,     \
      const td_acl_tensor *w_dq_scale, const td_acl_tensor *w_uq_qr_scale, const td_acl_tensor *w_dkv_kr_scale,             \
      const td_acl_tensor *latent_quant_scale, const td_acl_tensor *rope_quant_scale, const td_acl_tensor *smooth_cq,       \
      double epsilon_cq, double epsilon_ckv, char *cache_mode, const td_acl_tensor *query, const td_acl_tensor *query_rope, \
      const td_acl_tensor *query_scale)                                                                                     \
    X(aclnnQkvRmsNormRopeCache, GQA_FRONT, "transformer posembedding/qkv_rms_norm_rope_cache", const td_acl_tensor *qkv,    \
      const td_acl_tensor *q_gamma, const td_acl_tensor *k_gamma, const td_acl_tensor *cos, const td_acl_tensor *sin,       \
      const td_acl_tensor *slots, td_acl_tensor *query, td_acl_tensor *key_cache, td_acl_tensor *value_cache,               \
      const td_acl_tensor *key_scale, const td_acl_tensor *value_scale, const td_acl_tensor *key_offset,                    \
      const td_acl_tensor *value_offset, const td_acl_int_array *sizes, const td_acl_int_array *heads, double epsilon,      \
      char *cache_mode, const td_acl_tensor *query_rows, const td_acl_tensor *key_rows, const td_acl_tensor *value_rows)    \
    X(aclnnRopeWithSinCosCache, ROPE_BOTH, "transformer posembedding/rope_with_sin_cos_cache",                              \
      const td_acl_tensor *positions, const td_acl_tensor *query, const td_acl_tensor *key, const td_acl_tensor *table,     \
      const td_acl_int_array *sections, int64_t head_dim, bool halves, td_acl_tensor *query_out, td_acl_tensor *key_out)    \
    X(aclnnRotaryPositionEmbedding, ROPE, "transformer posembedding/rotary_position_embedding", const td_acl_tensor *x,     \
      const td_acl_tensor *cos, const td_acl_tensor *sin, int64_t mode, td_acl_tensor *out)                                 \
    X(aclnnAdd, ADD, "math math/add", const td_acl_tensor *a, const td_acl_tensor *b, const td_acl_scalar *alpha,           \
      td_acl_tensor *out)                                                                                                   \
    X(aclnnInplaceAdd, ADD_IN_PLACE, "math math/add", const td_acl_tensor *x, const td_acl_tensor *y,                       \
      const td_acl_scalar *alpha)                                                                                           \
    X(aclnnSigmoid, SIGMOID, "nn activation/sigmoid", const td_acl_tensor *x, td_acl_tensor *out)                           \
    X(aclnnInplaceMul, MUL_IN_PLACE, "math math/mul", td_acl_tensor *x, const td_acl_tensor *y)                             \
    X(aclnnCast, CAST, "math math/cast", const td_acl_tensor *x, const td_acl_dtype dtype, td_acl_tensor *out)              \
    X(aclnnGatherV2, GATHER, "nn index/gather_v2", const td_acl_tensor *x, int64_t dim, const td_acl_tensor *index,         \
      td_acl_tensor *out)                                                                                                   \
    X(aclnnScatterPaKvCache, KV_WRITE, "transformer attention/scatter_pa_kv_cache", const td_acl_tensor *key,               \
      td_acl_tensor *key_cache, const td_acl_tensor *slots, const td_acl_tensor *value, td_acl_tensor *value_cache,         \
      const td_acl_tensor *compress_lengths, const td_acl_tensor *compress_offsets, const td_acl_tensor *seq_lengths,       \
      char *cache_mode, char *scatter_mode, const td_acl_int_array *strides, const td_acl_int_array *offsets)               \
    X(aclnnScatterNdUpdate, KV_WRITE, "nn index/scatter_nd_update", td_acl_tensor *x, const td_acl_tensor *indices,         \
      const td_acl_tensor *updates)                                                                                         \
    X(aclnnFusedInferAttentionScoreV4, ATTENTION, "transformer attention/fused_infer_attention_score",                      \
      TD_ACLNN_ATTENTION_V4_ARGS)                                                                                           \
    X(aclnnFusedInferAttentionScoreV3, ATTENTION, "transformer attention/fused_infer_attention_score",                      \
      TD_ACLNN_ATTENTION_V3_ARGS)                                                                                           \
    X(aclnnFusedInferAttentionScoreV5, ATTENTION, "transformer attention/fused_infer_attention_score",                      \
      TD_ACLNN_ATTENTION_TENSOR_ARGS, const td_acl_tensor *query_dequant_scale, const td_acl_tensor *sink,                  \
      const td_acl_int_array *query_start, const td_acl_int_array *kv_start, TD_ACLNN_ATTENTION_NUMBER_ARGS,                \
      int64_t query_quant_mode, int64_t pse_type, const td_acl_tensor *out, const td_acl_tensor *lse)                       \
    X(aclnnMoeGatingTopK, ROUTER, "transformer moe/moe_gating_top_k", const td_acl_tensor *x, const td_acl_tensor *bias,    \
      int64_t k, int64_t k_group, int64_t n_group, int64_t group_mode, int64_t renorm, int64_t norm_type, bool with_scores, \
      double scale, double eps, const td_acl_tensor *out, const td_acl_tensor *ids, const td_acl_tensor *scores)            \
    X(aclnnMoeGatingTopKSoftmaxV2, ROUTER, "transformer moe/moe_gating_top_k_softmax_v2", const td_acl_tensor *x,           \
      const td_acl_tensor *finished, int64_t k, int64_t renorm, bool with_scores, const td_acl_tensor *out,                 \
      const td_acl_tensor *ids, const td_acl_tensor *scores)                                                                \
    X(aclnnTopk, TOPK, "math math/topk", const td_acl_tensor *x, int64_t k, int64_t dim, bool largest, bool sorted,         \
      td_acl_tensor *values, td_acl_tensor *indices)                                                                        \
    X(aclnnMoeInitRoutingV3, ROUTE_CODES, "transformer moe/moe_init_routing_v3", const td_acl_tensor *x,                    \
      const td_acl_tensor *ids, const td_acl_tensor *scale, const td_acl_tensor *offset, int64_t active, int64_t capacity,  \
      int64_t n_experts, int64_t drop_pad_mode, int64_t counts_type, bool with_counts, int64_t quant_mode,                  \
      const td_acl_int_array *expert_range, int64_t places_type, const td_acl_tensor *out, const td_acl_tensor *places,     \
      const td_acl_tensor *counts, const td_acl_tensor *out_scale)                                                          \
    X(aclnnCumsum, COUNT_SUMS, "math math/cumsum", const td_acl_tensor *x, int64_t dim, td_acl_dtype dtype,                 \
      td_acl_tensor *out)                                                                                                   \
    X(aclnnMoeInitRoutingV2, ROUTE_ROWS, "transformer moe/moe_init_routing_v2", const td_acl_tensor *x,                     \
      const td_acl_tensor *ids, int64_t active, int64_t capacity, int64_t n_experts, int64_t drop_pad_mode,                 \
      int64_t counts_type, bool with_counts_before, const td_acl_tensor *out, const td_acl_tensor *places,                  \
      const td_acl_tensor *counts, const td_acl_tensor *counts_before)                                                      \
    X(aclnnGroupedMatmulV5, GROUPED_PRODUCT, "transformer gmm/grouped_matmul", const td_acl_tensor_list *x,                 \
      const td_acl_tensor_list *weight, const td_acl_tensor_list *bias, const td_acl_tensor_list *scale,                    \
      const td_acl_tensor_list *offset, const td_acl_tensor_list *antiquant_scale,                                          \
      const td_acl_tensor_list *antiquant_offset, const td_acl_tensor_list *token_scale, const td_acl_tensor *groups,       \
      const td_acl_tensor_list *activation_in, const td_acl_tensor_list *activation_scale,                                  \
      const td_acl_tensor_list *activation_offset, int64_t split, int64_t group_axis, int64_t groups_type,                  \
      int64_t activation, td_acl_int_array *tuning, td_acl_tensor_list *out, td_acl_tensor_list *activation_out,            \
      td_acl_tensor_list *quant_scale_out)                                                                                  \
    X(aclnnGroupedMatmulSwigluQuantWeightNZ, GROUPED_GATE_UP, "transformer gmm/grouped_matmul_swiglu_quant",                \
      const td_acl_tensor *x, const td_acl_tensor *weight, const td_acl_tensor *bias, const td_acl_tensor *offset,          \
      const td_acl_tensor *weight_scale, const td_acl_tensor *token_scale, const td_acl_tensor *groups, td_acl_tensor *out, \
      td_acl_tensor *scale, td_acl_tensor *out_offset)                                                                      \
    X(aclnnDequantSwigluQuantV2, GROUPED_SWIGLU_QUANT, "nn quant/dequant_swiglu_quant", const td_acl_tensor *x,             \
      const td_acl_tensor *weight_scale, const td_acl_tensor *token_scale, const td_acl_tensor *bias,                       \
      const td_acl_tensor *quant_scale, const td_acl_tensor *quant_offset, const td_acl_tensor *groups, bool activate_left, \
      char *quant_mode, int64_t out_dtype, char *round_mode, int64_t activate_dim, int64_t swiglu_mode, double clamp_limit, \
      double glu_alpha, double glu_bias, const td_acl_tensor *out, const td_acl_tensor *scale)                              \
    X(aclnnMoeFinalizeRoutingV2, ROUTED_SUM, "transformer moe/moe_finalize_routing_v2", const td_acl_tensor *x,             \
      const td_acl_tensor *places, const td_acl_tensor *x1, const td_acl_tensor *x2, const td_acl_tensor *bias,             \
      const td_acl_tensor *weights, const td_acl_tensor *ids, int64_t drop_pad_mode, const td_acl_tensor *out)

typedef enum {
#define TD_ACLNN_LADDER(name, without, purpose) TD_ACLNN_LADDER_##name,
    TD_ACLNN_LADDERS(TD_ACLNN_LADDER)
#undef TD_ACLNN_LADDER
        TD_ACLNN_LADDER_COUNT,
} td_aclnn_ladder;

typedef td_aclnn_status (*td_aclnn_run)(void *workspace, uint64_t workspace_bytes, td_acl_executor *executor,
                                        td_acl_stream stream);

/** Both functions of each operation that was found; NULL, both, where one is missing. */
typedef struct {
#define TD_ACLNN_MEMBERS(op, ladder, document, ...)                                                                \
    td_aclnn_status (*op##GetWorkspaceSize)(__VA_ARGS__, uint64_t * workspace_bytes, td_acl_executor * *executor); \
    td_aclnn_run op;
    TD_ACLNN_OPS(TD_ACLNN_MEMBERS)
#undef TD_ACLNN_MEMBERS
    /* The workspace that an attention may ask for with any lengths, which are not read; NULL: the library does not say
     * (ops-transformer, op_api/aclnn_fused_infer_attention_score_v3.cpp and _v4.cpp). */
    td_aclnn_status (*aclnnFusedInferAttentionScoreV3GetMaxWorkspaceSize)(TD_ACLNN_ATTENTION_V3_ARGS,
                                                                          uint64_t         *workspace_bytes,
                                                                          td_acl_executor **executor);
    td_aclnn_status (*aclnnFusedInferAttentionScoreV4GetMaxWorkspaceSize)(TD_ACLNN_ATTENTION_V4_ARGS,
                                                                          uint64_t         *workspace_bytes,
                                                                          td_acl_executor **executor);
} td_aclnn;

#endif
