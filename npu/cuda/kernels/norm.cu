/*
 * RMS norm of rows, with what is added to them before and the int8 codes of the result; and quantisation alone.
 *
 * Why it is shaped so. Decode gives these kernels a few rows of some thousand values. What counts is that a step launches
 * few of them, so residual, norm and codes are one launch, and the row stays in shared memory between its three passes. A
 * block has a row; a thread's values are those at its number plus multiples of the block's size, and sums go over threads in
 * a fixed tree. So a row's bits depend on the row alone.
 */
#include "npu/cuda/kernels/kernel.cuh"

/* Codes of a row that f(i) gives, for i < k, and zeros up to the stride. */
template <class F>
TD_FN void quantize_row(const F &f, td_u32 k, td_u32 stride, unsigned amax_bits, td_i8 *q, float *scale_out) {
    float       scale;
    const float inverse = td_inverse_scale(amax_bits, &scale);
    for (td_u32 i = threadIdx.x; i < stride; i += blockDim.x) q[i] = i < k ? td_code(f(i), inverse) : static_cast<td_i8>(0);
    if (threadIdx.x == 0) *scale_out = scale;
}

/**
 * x += add, where that is given, rounded to bf16; out = x / sqrt(mean(x^2) + eps) * gamma; and out once more as codes, made
 * from the rounded values.
 * grid (rows), block TD_CUDA_NORM_THREADS, dynamic shared memory hidden floats.
 * @param row_of [rows] the row of x and add that row i is; NULL: i. Only without add.
 * @param x      [*, hidden] bf16
 * @param add    [*, hidden] bf16 or NULL
 * @param gamma  [hidden]
 * @param out    [rows, out_stride] bf16 or NULL
 * @param q      [rows, q_stride], q_stride a multiple of TD_CUDA_QUANT_STRIDE, or NULL
 * @param scale  [rows] where q is given
 */
TD_KERNEL(TD_CUDA_NORM_THREADS)
td_norm(const td_u32 *n_rows, const td_u32 *row_of, td_bf16 *x, const td_bf16 *add, const float *gamma, float eps,
        td_u32 hidden, td_bf16 *out, td_u32 out_stride, td_i8 *q, td_u32 q_stride, float *scale) {
    TD_SHARED(float, part, TD_CUDA_NORM_THREADS / 32);
    TD_SHARED_DYNAMIC(float, row);
    const size_t i = blockIdx.x;
    if (i >= *n_rows) return;
    const size_t from = row_of ? row_of[i] : i;
    td_bf16     *values = x + from * hidden;
    float        sum = 0;
    for (td_u32 j = threadIdx.x; j < hidden; j += blockDim.x) {
        float v = td_from_bf16(values[j]);
        if (add) {
            const td_bf16 rounded = td_to_bf16(v + td_from_bf16(add[from * hidden + j]));
            values[j] = rounded;
            v = td_from_bf16(rounded); /* the norm is of what others will read */
        }
        row[j] = v;
        sum = fmaf(v, v, sum);
    }
    sum = td_block_sum(sum, part);
    const float factor = 1.0f / sqrtf(sum / static_cast<float>(hidden) + eps);
    unsigned    amax = 0;
    for (td_u32 j = threadIdx.x; j < hidden; j += blockDim.x) {
        const td_bf16 rounded = td_to_bf16(row[j] * factor * gamma[j]);
        if (out) out[i * out_stride + j] = rounded;
        row[j] = td_from_bf16(rounded);
        amax = max(amax, td_magnitude(row[j]));
    }
    if (!q) return;
    amax = td_block_max(amax, td_shared_as<unsigned>(part));
    quantize_row([&](td_u32 j) { return row[j]; }, hidden, q_stride, amax, q + i * q_stride, scale + i);
}

template <class T>
TD_FN void quantize(const td_u32 *n_rows, const T *x, td_u32 k, size_t x_stride, td_i8 *q, td_u32 q_stride, float *scale) {
    TD_SHARED(unsigned, part, TD_CUDA_QUANT_THREADS / 32);
    const size_t i = blockIdx.x;
    if (i >= *n_rows) return;
    const T *row = x + i * x_stride;
    unsigned amax = 0;
    for (td_u32 j = threadIdx.x; j < k; j += blockDim.x) amax = max(amax, td_magnitude(td_get(row, j)));
    amax = td_block_max(amax, part);
    quantize_row([&](td_u32 j) { return td_get(row, j); }, k, q_stride, amax, q + i * q_stride, scale + i);
}

/**
 * Codes of rows (npu.h, int8 rule). grid (rows), block TD_CUDA_QUANT_THREADS.
 * @param x [rows, x_stride] bf16, or f32; q and scale as td_norm's.
 */
TD_KERNEL(TD_CUDA_QUANT_THREADS)
td_quantize_bf16(const td_u32 *n_rows, const td_bf16 *x, td_u32 k, td_u32 x_stride, td_i8 *q, td_u32 q_stride,
                 float *scale) {
    quantize(n_rows, x, k, x_stride, q, q_stride, scale);
}
TD_KERNEL(TD_CUDA_QUANT_THREADS)
td_quantize_f32(const td_u32 *n_rows, const float *x, td_u32 k, td_u32 x_stride, td_i8 *q, td_u32 q_stride, float *scale) {
    quantize(n_rows, x, k, x_stride, q, q_stride, scale);
}

/**
 * h = what the gated unit makes of gate and up, and its codes. grid (rows), block TD_CUDA_NORM_THREADS, dynamic shared
 * memory inter floats. @param gate, up [rows, inter]
 * @param alpha, limit, up_add  td_glu
 */
TD_KERNEL(TD_CUDA_NORM_THREADS)
td_glu_quantize(const td_u32 *n_rows, const float *gate, const float *up, td_u32 inter, float alpha, float limit,
                float up_add, td_i8 *q, td_u32 q_stride, float *scale) {
    TD_SHARED(unsigned, part, TD_CUDA_NORM_THREADS / 32);
    TD_SHARED_DYNAMIC(float, row);
    const size_t i = blockIdx.x;
    if (i >= *n_rows) return;
    unsigned amax = 0;
    for (td_u32 j = threadIdx.x; j < inter; j += blockDim.x) {
        row[j] = td_gated({alpha, limit, up_add}, gate[i * inter + j], up[i * inter + j]);
        amax = max(amax, td_magnitude(row[j]));
    }
    amax = td_block_max(amax, part);
    quantize_row([&](td_u32 j) { return row[j]; }, inter, q_stride, amax, q + i * q_stride, scale + i);
}

/** Codes of rows, placed where rows are longer. grid (rows), block TD_CUDA_QUANT_THREADS. x [rows, k], q [rows, q_stride],
 * zeros behind k. */
TD_KERNEL(TD_CUDA_QUANT_THREADS)
td_place_codes(const td_u32 *n_rows, const td_i8 *x, td_u32 k, td_i8 *q, td_u32 q_stride) {
    const size_t i = blockIdx.x;
    if (i >= *n_rows) return;
    for (td_u32 j = threadIdx.x; j < q_stride; j += blockDim.x)
        q[i * q_stride + j] = j < k ? x[i * k + j] : static_cast<td_i8>(0);
}

/** h = silu(gate) * up. grid (rows), block TD_CUDA_NORM_THREADS. gate, up [rows, inter] f32, h [rows, inter] bf16. */
TD_KERNEL(TD_CUDA_NORM_THREADS)
td_swiglu(const td_u32 *n_rows, const float *gate, const float *up, td_u32 inter, td_bf16 *h) {
    const size_t i = blockIdx.x;
    if (i >= *n_rows) return;
    for (td_u32 j = threadIdx.x; j < inter; j += blockDim.x)
        h[i * inter + j] = td_to_bf16(td_silu(gate[i * inter + j]) * up[i * inter + j]);
}

/** gate = what the gated unit makes of gate and up, [rows, inter] f32. grid (rows), block TD_CUDA_NORM_THREADS. */
TD_KERNEL(TD_CUDA_NORM_THREADS)
td_glu_f32(const td_u32 *n_rows, float *gate, const float *up, td_u32 inter, float alpha, float limit, float up_add) {
    const size_t i = blockIdx.x;
    if (i >= *n_rows) return;
    for (td_u32 j = threadIdx.x; j < inter; j += blockDim.x)
        gate[i * inter + j] = td_gated({alpha, limit, up_add}, gate[i * inter + j], up[i * inter + j]);
}

/** Rows of f32 as bf16. grid (rows), block TD_CUDA_NORM_THREADS. x, out [rows, k]. */
TD_KERNEL(TD_CUDA_NORM_THREADS)
td_round(const td_u32 *n_rows, const float *x, td_u32 k, td_bf16 *out) {
    const size_t i = blockIdx.x;
    if (i >= *n_rows) return;
    for (td_u32 j = threadIdx.x; j < k; j += blockDim.x) out[i * k + j] = td_to_bf16(x[i * k + j]);
}

/**
 * Rows in f32, normed, and their codes, made from values that are not rounded: q's low-rank part. grid (rows), block
 * TD_CUDA_NORM_THREADS, dynamic shared memory k floats.
 * @param x [rows, k]
 * @param out [rows, k] bf16 or NULL; q and scale as td_norm's, q may be NULL
 */
TD_KERNEL(TD_CUDA_NORM_THREADS)
td_norm_f32(const td_u32 *n_rows, const float *x, const float *gamma, float eps, td_u32 k, td_bf16 *out, td_i8 *q,
            td_u32 q_stride, float *scale) {
    TD_SHARED(float, part, TD_CUDA_NORM_THREADS / 32);
    TD_SHARED_DYNAMIC(float, row);
    const size_t i = blockIdx.x;
    if (i >= *n_rows) return;
    float sum = 0;
    for (td_u32 j = threadIdx.x; j < k; j += blockDim.x) {
        row[j] = x[i * k + j];
        sum = fmaf(row[j], row[j], sum);
    }
    sum = td_block_sum(sum, part);
    const float factor = 1.0f / sqrtf(sum / static_cast<float>(k) + eps);
    unsigned    amax = 0;
    for (td_u32 j = threadIdx.x; j < k; j += blockDim.x) {
        row[j] = row[j] * factor * gamma[j];
        if (out) out[i * k + j] = td_to_bf16(row[j]);
        amax = max(amax, td_magnitude(row[j]));
    }
    if (!q) return;
    amax = td_block_max(amax, td_shared_as<unsigned>(part));
    quantize_row([&](td_u32 j) { return row[j]; }, k, q_stride, amax, q + i * q_stride, scale + i);
}
