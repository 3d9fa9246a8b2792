/*
 * RMS norm of rows, with what is added to them before and the int8 codes of the result; quantisation alone; and what becomes
 * of rows value by value.
 *
 * Why it is shaped so. Decode gives these kernels a few rows of some thousand values, and what counts is how often one waits
 * for memory. A sum or a largest value needs the whole row, so there a block has a row: residual, norm and codes are one
 * launch. All loads of a thread, gamma's too, are under way before the first is used, and the row stays in registers between
 * its passes (rows.cuh). Sums go over threads in a fixed tree, so a row's bits depend on the row alone. What needs no sum
 * has several blocks a row.
 *
 * A block of many threads has the fewest loads to wait for one after the other. But a multiprocessor has room for few of
 * them, and each warp of a norm repeats what is not about its values. So kernels come in variants: `short` ones for rows of up
 * to TD_CUDA_SHORT_MAX values, which prompts and experts bring by the thousand, and a norm for rows of up to
 * TD_CUDA_MIDDLE_MAX. That one has half the threads of td_norm, which sum in the order that those would.
 */
#include "npu/cuda/kernels/rows.cuh"

#define NORM_KEPT (TD_CUDA_NORM_MAX / TD_CUDA_ROW_THREADS / ROW_VECTOR)
#define NORM_PARTS (TD_CUDA_ROW_THREADS / 32) /* sums over a block: of a warp, or of each of its stretches */
#define QUANT_KEPT 3                          /* in registers: rows of up to 24,576; of short ones up to 6,144 */
#define GLU_KEPT 1                            /* what is longer is computed twice: few rows are */

/* The sum over a row of what its threads have in KEPT vectors. APART: a warp's vectors are stretches of the row that are
 * summed one by one, as if each had a warp of its own. */
template <int KEPT, bool APART>
TD_FN float norm_squares(const float (&v)[KEPT][ROW_VECTOR], td_shared<float> part) {
    const td_u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    float        sum[KEPT];
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        sum[j] = APART || j == 0 ? 0.0f : sum[j - 1];
#pragma unroll
        for (int i = 0; i < ROW_VECTOR; i++) sum[j] = fmaf(v[j][i], v[j][i], sum[j]);
    }
#pragma unroll
    for (int j = APART ? 0 : KEPT - 1; j < KEPT; j++) {
        sum[j] = td_warp_sum(sum[j]);
        if (lane == 0) part[(APART ? j * warps : 0) + warp] = sum[j];
    }
    __syncthreads();
    return td_warp_sum(lane < (APART ? KEPT : 1) * warps ? part[lane] : 0.0f);
}

/* v = v / sqrt(mean(v^2) + eps) * gamma of a row of k, rounded to bf16 where ROUNDED; to out where that is given, and as
 * codes where q is. part: 2 * NORM_PARTS */
template <bool WHOLE, bool ROUNDED, int KEPT, bool APART>
TD_FN void norm_values(float (&v)[KEPT][ROW_VECTOR], const row_f32 (&gamma)[KEPT], float eps, td_u32 k, td_bf16 *out,
                       td_i8 *q, td_u32 q_stride, float *scale_out, td_shared<float> part) {
    const td_shared<unsigned> most = td_shared_as<unsigned>(part + NORM_PARTS);
    const td_u32              begin = threadIdx.x * ROW_VECTOR, step = blockDim.x * ROW_VECTOR, lane = threadIdx.x % 32;
    const float mean = norm_squares<KEPT, APART>(v, part) / static_cast<float>(k), factor = 1.0f / sqrtf(mean + eps);
    unsigned    amax = 0;
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        float by[ROW_VECTOR];
        row_values(gamma[j], by);
#pragma unroll
        for (int i = 0; i < ROW_VECTOR; i++) v[j][i] = v[j][i] * factor * by[i];
        const row_bf16 rounded = row_rounded(v[j]);
        if (ROUNDED) row_values(rounded, v[j]);
        if (out) row_store<WHOLE>(out, begin + j * step, k, rounded);
        amax = max(amax, row_magnitude(v[j]));
    }
    if (!q) return;
    amax = __reduce_max_sync(TD_ALL_LANES, amax);
    if (lane == 0) most[threadIdx.x / 32] = amax;
    __syncthreads();
    float       scale;
    const float inverse =
        td_inverse_scale(__reduce_max_sync(TD_ALL_LANES, lane < blockDim.x / 32 ? most[lane] : 0u), &scale);
#pragma unroll
    for (int j = 0; j < KEPT; j++) row_store_codes<WHOLE>(q, begin + j * step, q_stride, v[j], inverse);
    if (threadIdx.x == 0) *scale_out = scale;
}

struct norm_args {
    const td_u32  *n_rows, *row_of;
    td_bf16       *x;
    const td_bf16 *add;
    const float   *gamma;
    float          eps;
    td_u32         hidden;
    td_bf16       *out;
    td_u32         out_stride;
    td_i8         *q;
    td_u32         q_stride;
    float         *scale;
};

template <bool WHOLE, int KEPT, bool APART>
TD_FN void norm_row(const norm_args &a, td_shared<float> part) {
    const td_u32 begin = threadIdx.x * ROW_VECTOR, step = blockDim.x * ROW_VECTOR;
    const size_t i = blockIdx.x;
    row_bf16     x[KEPT], add[KEPT];
    row_f32      gamma[KEPT];
    float        v[KEPT][ROW_VECTOR];
#pragma unroll
    for (int j = 0; j < KEPT; j++) gamma[j] = row_load<WHOLE>(a.gamma, begin + j * step, a.hidden);
    td_take_turn();
    if (i >= *a.n_rows) return;
    const size_t   from = (a.row_of ? a.row_of[i] : i) * a.hidden;
    td_bf16       *x_row = a.x + from;
    const td_bf16 *add_row = a.add + from;
#pragma unroll
    for (int j = 0; j < KEPT; j++) x[j] = row_load<WHOLE>(x_row, begin + j * step, a.hidden);
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        add[j] = a.add ? row_load<WHOLE>(add_row, begin + j * step, a.hidden) : row_bf16{{0, 0, 0, 0}};
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        row_values(x[j], v[j]);
        if (!a.add) continue;
        float more[ROW_VECTOR];
        row_values(add[j], more);
#pragma unroll
        for (int e = 0; e < ROW_VECTOR; e++) v[j][e] = v[j][e] + more[e];
        x[j] = row_rounded(v[j]);
        row_values(x[j], v[j]); /* the norm is of what others will read */
        row_store<WHOLE>(x_row, begin + j * step, a.hidden, x[j]);
    }
    norm_values<WHOLE, true, KEPT, APART>(v, gamma, a.eps, a.hidden, a.out ? a.out + i * a.out_stride : nullptr,
                                          a.q ? a.q + i * a.q_stride : nullptr, a.q_stride, a.scale + i, part);
}

template <bool APART>
TD_FN void norm(const norm_args &a) {
    TD_SHARED(float, part, 2 * NORM_PARTS);
    const td_u32 at_once = blockDim.x * ROW_VECTOR;
    if (a.hidden % ROW_VECTOR || a.q_stride % ROW_VECTOR || (a.out && a.out_stride % ROW_VECTOR) || !is_aligned(a.x, 16) ||
        !is_aligned(a.add, 16) || !is_aligned(a.out, 16) || !is_aligned(a.q, 8))
        norm_row<false, NORM_KEPT, APART>(a, part);
    else if (!APART && a.hidden <= at_once && a.q_stride <= at_once) /* other vectors would be zeros */
        norm_row<true, 1, APART>(a, part);
    else
        norm_row<true, NORM_KEPT, APART>(a, part);
}

/**
 * x += add, where that is given, rounded to bf16; out = x / sqrt(mean(x^2) + eps) * gamma; and out once more as codes, made
 * from the rounded values.
 * grid (rows), block TD_CUDA_ROW_THREADS, of the variants MIDDLE_THREADS and SHORT_THREADS. The first two give a row the same
 * bits.
 * @param row_of [rows] the row of x and add that row i is; NULL: i. Only without add.
 * @param x      [*, hidden] bf16; hidden up to TD_CUDA_NORM_MAX, MIDDLE_MAX or SHORT_MAX
 * @param add    [*, hidden] bf16 or NULL
 * @param gamma  [hidden]
 * @param out    [rows, out_stride] bf16 or NULL
 * @param q      [rows, q_stride] or NULL
 * @param scale  [rows] where q is given
 */
#define NORM(name, threads, apart)                                                                                  \
    TD_KERNEL(threads)                                                                                              \
    name(const td_u32 *n_rows, const td_u32 *row_of, td_bf16 *x, const td_bf16 *add, const float *gamma, float eps, \
         td_u32 hidden, td_bf16 *out, td_u32 out_stride, td_i8 *q, td_u32 q_stride, float *scale) {                 \
        norm<apart>({n_rows, row_of, x, add, gamma, eps, hidden, out, out_stride, q, q_stride, scale});             \
    }
NORM(td_norm, TD_CUDA_ROW_THREADS, false)
NORM(td_norm_middle, TD_CUDA_MIDDLE_THREADS, true)
NORM(td_norm_short, TD_CUDA_SHORT_THREADS, false)

struct norm_f32_args {
    const td_u32 *n_rows;
    const float  *x, *gamma;
    float         eps;
    td_u32        k;
    td_bf16      *out;
    td_i8        *q;
    td_u32        q_stride;
    float        *scale;
};

template <bool WHOLE, int KEPT>
TD_FN void norm_row_f32(const norm_f32_args &a, td_shared<float> part) {
    const td_u32 begin = threadIdx.x * ROW_VECTOR, step = blockDim.x * ROW_VECTOR;
    const size_t i = blockIdx.x;
    row_f32      raw[KEPT], gamma[KEPT];
    float        v[KEPT][ROW_VECTOR];
#pragma unroll
    for (int j = 0; j < KEPT; j++) gamma[j] = row_load<WHOLE>(a.gamma, begin + j * step, a.k);
    td_take_turn();
    if (i >= *a.n_rows) return;
#pragma unroll
    for (int j = 0; j < KEPT; j++) raw[j] = row_load<WHOLE>(a.x + i * a.k, begin + j * step, a.k);
#pragma unroll
    for (int j = 0; j < KEPT; j++) row_values(raw[j], v[j]);
    norm_values<WHOLE, false, KEPT, false>(v, gamma, a.eps, a.k, a.out ? a.out + i * a.k : nullptr,
                                           a.q ? a.q + i * a.q_stride : nullptr, a.q_stride, a.scale + i, part);
}

/**
 * Rows in f32, normed, and their codes, made from values that are not rounded: q's low-rank part. grid (rows), block
 * TD_CUDA_SHORT_THREADS.
 * @param x [rows, k]; k up to TD_CUDA_SHORT_MAX
 * @param out [rows, k] bf16 or NULL
 * @param q, scale  td_quantize_f32's, or NULL
 */
TD_KERNEL(TD_CUDA_SHORT_THREADS)
td_norm_f32(const td_u32 *n_rows, const float *x, const float *gamma, float eps, td_u32 k, td_bf16 *out, td_i8 *q,
            td_u32 q_stride, float *scale) {
    TD_SHARED(float, part, 2 * NORM_PARTS);
    const norm_f32_args a = {n_rows, x, gamma, eps, k, out, q, q_stride, scale};
    const td_u32        at_once = blockDim.x * ROW_VECTOR;
    if (k % ROW_VECTOR)
        norm_row_f32<false, NORM_KEPT>(a, part);
    else if (k <= at_once && q_stride <= at_once)
        norm_row_f32<true, 1>(a, part);
    else
        norm_row_f32<true, NORM_KEPT>(a, part);
}

template <class T>
TD_FN void quantize(const td_u32 *n_rows, const T *x, td_u32 k, size_t x_stride, td_i8 *q, td_u32 q_stride, float *scale) {
    TD_SHARED(unsigned, part, TD_CUDA_ROW_THREADS / 32);
    const size_t i = blockIdx.x;
    const td_u32 at_once = blockDim.x * ROW_VECTOR;
    td_take_turn();
    if (i >= *n_rows) return;
    const T   *row = x + i * x_stride;
    td_i8     *codes = q + i * q_stride;
    const auto load = [&](td_u32 at) { return row_load<true>(row, at, k); };
    const auto load_some = [&](td_u32 at) { return row_load<false>(row, at, k); };
    const auto values = [](const decltype(row_load<true>(row, 0, k)) &raw, float v[ROW_VECTOR]) { row_values(raw, v); };
    if (k % ROW_VECTOR || !is_aligned(row, 16))
        row_codes<QUANT_KEPT>(load_some, values, q_stride, codes, scale + i, part);
    else if (q_stride <= at_once)
        row_codes<1>(load, values, q_stride, codes, scale + i, part);
    else if (q_stride <= 2 * at_once)
        row_codes<2>(load, values, q_stride, codes, scale + i, part);
    else
        row_codes<QUANT_KEPT>(load, values, q_stride, codes, scale + i, part);
}

/**
 * Codes of rows (npu.h, int8 rule). grid (rows), block TD_CUDA_ROW_THREADS, of the variants for short rows
 * TD_CUDA_SHORT_THREADS: all take rows of any length.
 * @param x [rows, x_stride] bf16, or f32
 * @param q [rows, q_stride], q_stride a multiple of TD_CUDA_QUANT_STRIDE; zeros behind k
 */
#define QUANTIZE(name, type, threads)                                                                               \
    TD_KERNEL(threads)                                                                                              \
    name(const td_u32 *n_rows, const type *x, td_u32 k, td_u32 x_stride, td_i8 *q, td_u32 q_stride, float *scale) { \
        quantize(n_rows, x, k, x_stride, q, q_stride, scale);                                                       \
    }
QUANTIZE(td_quantize_bf16, td_bf16, TD_CUDA_ROW_THREADS)
QUANTIZE(td_quantize_bf16_short, td_bf16, TD_CUDA_SHORT_THREADS)
QUANTIZE(td_quantize_f32, float, TD_CUDA_ROW_THREADS)
QUANTIZE(td_quantize_f32_short, float, TD_CUDA_SHORT_THREADS)

struct gate_and_up {
    row_f32 gate, up;
};

TD_FN void glu_quantize(const td_u32 *n_rows, const float *gate, const float *up, td_u32 inter, const td_glu &glu, td_i8 *q,
                        td_u32 q_stride, float *scale) {
    TD_SHARED(unsigned, part, TD_CUDA_ROW_THREADS / 32);
    const size_t i = blockIdx.x;
    td_take_turn();
    if (i >= *n_rows) return;
    const float *gate_row = gate + i * inter, *up_row = up + i * inter;
    const auto   values = [&](const gate_and_up &raw, float v[ROW_VECTOR]) {
        float more[ROW_VECTOR];
        row_values(raw.gate, v);
        row_values(raw.up, more);
#pragma unroll
        for (int j = 0; j < ROW_VECTOR; j++) v[j] = td_gated(glu, v[j], more[j]);
    };
    if (inter % ROW_VECTOR == 0)
        row_codes<GLU_KEPT>(
            [&](td_u32 at) {
                return gate_and_up{row_load<true>(gate_row, at, inter), row_load<true>(up_row, at, inter)};
            },
            values, q_stride, q + i * q_stride, scale + i, part);
    else
        row_codes<GLU_KEPT>(
            [&](td_u32 at) {
                return gate_and_up{row_load<false>(gate_row, at, inter), row_load<false>(up_row, at, inter)};
            },
            values, q_stride, q + i * q_stride, scale + i, part);
}

/**
 * h = what the gated unit makes of gate and up, and its codes. Grid and blocks as td_quantize_f32.
 * @param gate, up [rows, inter]
 * @param alpha, limit, up_add  td_glu
 */
#define GLU_QUANTIZE(name, threads)                                                                                      \
    TD_KERNEL(threads)                                                                                                   \
    name(const td_u32 *n_rows, const float *gate, const float *up, td_u32 inter, float alpha, float limit, float up_add, \
         td_i8 *q, td_u32 q_stride, float *scale) {                                                                      \
        glu_quantize(n_rows, gate, up, inter, {alpha, limit, up_add}, q, q_stride, scale);                               \
    }
GLU_QUANTIZE(td_glu_quantize, TD_CUDA_ROW_THREADS)
GLU_QUANTIZE(td_glu_quantize_short, TD_CUDA_SHORT_THREADS)

/** Codes of rows, placed where rows are longer. grid (rows), block TD_CUDA_SHORT_THREADS. x [rows, k], q [rows, q_stride],
 * zeros behind k. */
TD_KERNEL(TD_CUDA_SHORT_THREADS)
td_place_codes(const td_u32 *n_rows, const td_i8 *x, td_u32 k, td_i8 *q, td_u32 q_stride) {
    const size_t i = blockIdx.x;
    if (i >= *n_rows) return;
    for (td_u32 j = threadIdx.x; j < q_stride; j += blockDim.x)
        q[i * q_stride + j] = j < k ? x[i * k + j] : static_cast<td_i8>(0);
}

/* out = f(i) of k values of a row, eight of a thread. */
template <class T, class F>
TD_FN void row_each(const td_u32 *n_rows, td_u32 k, T *out, const F &f) {
    const size_t row = blockIdx.y;
    const td_u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * ROW_VECTOR;
    if (row >= *n_rows || at >= k) return;
    float v[ROW_VECTOR];
    f(row * k, at, v);
    if (k % ROW_VECTOR == 0)
        row_store<true>(out + row * k, at, k, v);
    else
        row_store<false>(out + row * k, at, k, v);
}
TD_FN void row_read(const float *row, td_u32 at, td_u32 k, float v[ROW_VECTOR]) {
    row_values(k % ROW_VECTOR == 0 ? row_load<true>(row, at, k) : row_load<false>(row, at, k), v);
}

/** h = silu(gate) * up. grid (inter / TD_CUDA_EACH_VALUES rounded up, rows), block TD_CUDA_EACH_THREADS.
 * @param gate, up [rows, inter] f32
 * @param h        [rows, inter] bf16 */
TD_KERNEL(TD_CUDA_EACH_THREADS)
td_swiglu(const td_u32 *n_rows, const float *gate, const float *up, td_u32 inter, td_bf16 *h) {
    row_each(n_rows, inter, h, [&](size_t row, td_u32 at, float v[ROW_VECTOR]) {
        float more[ROW_VECTOR];
        row_read(gate + row, at, inter, v);
        row_read(up + row, at, inter, more);
#pragma unroll
        for (int i = 0; i < ROW_VECTOR; i++) v[i] = td_silu(v[i]) * more[i];
    });
}

/** gate = what the gated unit makes of gate and up, [rows, inter] f32. Grid and block as td_swiglu. */
TD_KERNEL(TD_CUDA_EACH_THREADS)
td_glu_f32(const td_u32 *n_rows, float *gate, const float *up, td_u32 inter, float alpha, float limit, float up_add) {
    row_each(n_rows, inter, gate, [&](size_t row, td_u32 at, float v[ROW_VECTOR]) {
        float more[ROW_VECTOR];
        row_read(gate + row, at, inter, v);
        row_read(up + row, at, inter, more);
#pragma unroll
        for (int i = 0; i < ROW_VECTOR; i++) v[i] = td_gated({alpha, limit, up_add}, v[i], more[i]);
    });
}

/** Rows of f32 as bf16. Grid and block as td_swiglu, of k. x, out [rows, k]. */
TD_KERNEL(TD_CUDA_EACH_THREADS)
td_round(const td_u32 *n_rows, const float *x, td_u32 k, td_bf16 *out) {
    row_each(n_rows, k, out, [&](size_t row, td_u32 at, float v[ROW_VECTOR]) { row_read(x + row, at, k, v); });
}
