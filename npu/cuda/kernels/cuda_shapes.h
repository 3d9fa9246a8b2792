/* Sizes that the kernels and those who launch them agree on: threads of a block, and what a block computes. */
#ifndef TD_NPU_CUDA_SHAPES_H
#define TD_NPU_CUDA_SHAPES_H

#define TD_CUDA_EMBED_THREADS 128 /* a block: one row */
#define TD_CUDA_NORM_THREADS 256  /* a block: one row; dynamic shared memory: hidden floats */
#define TD_CUDA_QUANT_THREADS 256 /* a block: one row */
#define TD_CUDA_QUANT_STRIDE 64   /* rows of codes are padded with zeros to a multiple of it, those of int8 weights too */

/* Products of few rows: a block computes TD_CUDA_TILE_N outputs of all rows; its warps share k. */
#define TD_CUDA_LINEAR_THREADS 256
#define TD_CUDA_TILE_N 16
#define TD_CUDA_LINEAR_ROWS_MAX 64

#endif
