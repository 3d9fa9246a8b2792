/* The experts' kernels by format (quant/tile_gemm.h says what they compute), and the vector functions of their FFN. */
#ifndef TD_CPU_EXPERTS_EXPERT_GEMM_H
#define TD_CPU_EXPERTS_EXPERT_GEMM_H

#include "cpu_experts/cpu_experts.h"
#include "quant/tile_gemm.h"

/** Bytes of an element of td_gemm_weights.rows. */
static inline size_t td_gemm_element(td_expert_format format) { return format == TD_EXPERT_BF16 ? sizeof(td_bf16) : 1; }

/** Kernels of a format, best first; NULL behind the last, which needs nothing. */
const td_gemm_kernel *const *td_gemm_list(td_expert_format format);

/** The best kernel of a format that the features allow; never NULL for a format of the enum. */
const td_gemm_kernel *td_gemm_select(td_expert_format format, uint32_t features);

/** The layout of a format's tiles that has this name, on whatever processor, or NULL. */
const td_tile_layout *td_tile_layout_named(td_expert_format format, const char *name);

typedef struct {
    const char *name;
    uint32_t    needs; /* TD_CPU_* bits, all required */
    /**
     * out[r, i] = gate[r, i] / (1 + exp(-gate[r, i])) * up[r, i]; gate and up [rows, cols] dense, out [rows, ldo], cols a multiple of 16.
     * Relative error of silu below 4e-7.
     */
    void (*silu_mul)(const float *gate, const float *up, size_t rows, size_t cols, float *out, size_t ldo);
    /** y[i] = fma(w, v[i], y[i]); n a multiple of 16. */
    void (*axpy)(float w, const float *v, size_t n, float *y);
} td_expert_vec;

/** Best first; NULL behind the last. All give the same bits. */
extern const td_expert_vec *const td_expert_vecs[];

/** The best that the features allow. */
const td_expert_vec *td_expert_vec_select(uint32_t features);

#endif
