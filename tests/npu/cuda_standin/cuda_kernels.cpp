/* The library of emulated kernels: every source of npu/cuda/kernels, and the list of what a driver finds in them. Names in
 * the sources are unique over all of them. */
#include "tests/npu/cuda_standin/cuda_emulation.h"

#include "npu/cuda/kernels/embed.cu"
#include "npu/cuda/kernels/gqa.cu"
#include "npu/cuda/kernels/linear_bf16.cu"
#include "npu/cuda/kernels/linear_w8a8.cu"
#include "npu/cuda/kernels/mla.cu"
#include "npu/cuda/kernels/norm.cu"
#include "npu/cuda/kernels/router.cu"
#include "npu/cuda/kernels/top.cu"

TD_CUDA_EXPORT(td_embed, TD_CUDA_EMBED_THREADS)
TD_CUDA_EXPORT(td_gqa_place, 128)
TD_CUDA_EXPORT(td_gqa_decode_64, TD_CUDA_ATTN_THREADS)
TD_CUDA_EXPORT(td_gqa_decode_128, TD_CUDA_ATTN_THREADS)
TD_CUDA_EXPORT(td_gqa_prefill_64, TD_CUDA_ATTN_THREADS)
TD_CUDA_EXPORT(td_gqa_prefill_128, TD_CUDA_ATTN_THREADS)
TD_CUDA_EXPORT(td_merge_spans, TD_CUDA_MERGE_THREADS)
TD_CUDA_EXPORT(td_bf16_linear_8, TD_CUDA_LINEAR_THREADS)
TD_CUDA_EXPORT(td_bf16_linear_32, TD_CUDA_LINEAR_THREADS)
TD_CUDA_EXPORT(td_f32_linear, 256)
TD_CUDA_EXPORT(td_mla_place, TD_CUDA_NORM_THREADS)
TD_CUDA_EXPORT(td_mla_query, TD_CUDA_NORM_THREADS)
TD_CUDA_EXPORT(td_mla_absorbed_16, TD_CUDA_LATENT_THREADS)
TD_CUDA_EXPORT(td_mla_absorbed_64, TD_CUDA_LATENT_THREADS)
TD_CUDA_EXPORT(td_mla_expand, TD_CUDA_ATTN_THREADS)
TD_CUDA_EXPORT(td_mla_prefill, TD_CUDA_ATTN_THREADS)
TD_CUDA_EXPORT(td_norm_f32, TD_CUDA_NORM_THREADS)
TD_CUDA_EXPORT(td_norm, TD_CUDA_NORM_THREADS)
TD_CUDA_EXPORT(td_quantize_bf16, TD_CUDA_QUANT_THREADS)
TD_CUDA_EXPORT(td_quantize_f32, TD_CUDA_QUANT_THREADS)
TD_CUDA_EXPORT(td_swiglu_quantize, TD_CUDA_NORM_THREADS)
TD_CUDA_EXPORT(td_w8a8_8, TD_CUDA_LINEAR_THREADS)
TD_CUDA_EXPORT(td_w8a8_16, TD_CUDA_LINEAR_THREADS)
TD_CUDA_EXPORT(td_w8a8_32, TD_CUDA_LINEAR_THREADS)
TD_CUDA_EXPORT(td_w8a8_64, TD_CUDA_LINEAR_THREADS)
TD_CUDA_EXPORT(td_w8a8_swiglu_8, TD_CUDA_LINEAR_THREADS)
TD_CUDA_EXPORT(td_w8a8_swiglu_16, TD_CUDA_LINEAR_THREADS)
TD_CUDA_EXPORT(td_w8a8_swiglu_32, TD_CUDA_LINEAR_THREADS)
TD_CUDA_EXPORT(td_w8a8_swiglu_64, TD_CUDA_LINEAR_THREADS)
TD_CUDA_EXPORT(td_w8a8_epilogue, 256)
TD_CUDA_EXPORT(td_route, 32)
TD_CUDA_EXPORT(td_combine, 256)
TD_CUDA_EXPORT(td_gate_rows, 256)
TD_CUDA_EXPORT(td_top, TD_CUDA_TOP_THREADS)
TD_CUDA_EXPORT(td_softmax_sums, TD_CUDA_TOP_THREADS)
