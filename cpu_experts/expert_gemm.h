/*
 * Kernels of the expert FFN: a tile of nr output rows times a few rows of activations.
 *
 * DESIGN. A weight matrix [n, k] is cut into tiles of nr rows; a kernel travels with its tile layout, its packer and its
 * unpacker. int4c tile  nr f32 scales | for each group of 4 k: nr/2 dwords; byte b of dword i holds code+8 of row i (low
 * nibble) and of row nr/2+i (high nibble) at k = 4*group+b. k is padded to a multiple of kr with code 0, rows with scale 0.
 *   bf16 tile   for each k: nr/2 dwords; dword i holds row i (high half) and row nr/2+i (low half).
 * Codes are stored without sign, so that the u8 x s8 instructions take them as they are; 8 * sum(activations) is subtracted
 * at the end. int4c accumulates in int32, exactly; bf16 accumulates one fma per k in the order of k. So every tier and every
 * m gives the same bits.
 */
#ifndef TD_CPU_EXPERTS_EXPERT_GEMM_H
#define TD_CPU_EXPERTS_EXPERT_GEMM_H

#include "cpu_experts/cpu_experts.h"

#define TD_GEMM_NR_MAX 32
#define TD_GEMM_K_MAX 65536 /* 15 * 16 * 127 * k stays below 2^31 (high nibbles are accumulated times 16) */

/** One row of activations. */
typedef struct {
    const void *x;     /* int4c: [k] int8 codes, zero from the true k to the padded one; bf16: [k] f32 */
    float       scale; /* int4c: of the codes */
    int32_t     sum;   /* int4c: of the codes */
} td_gemm_row;

typedef struct {
    const void        *tile; /* 64-byte aligned */
    size_t             k;    /* padded: a multiple of kr */
    size_t             m;    /* rows, >= 1 */
    const td_gemm_row *rows; /* [m] */
    float             *out;  /* [m, nr] 64-byte aligned: int4c ((f32)(acc - 8 sum) * tile scale) * row scale; bf16 acc */
} td_gemm_args;

typedef struct {
    const char      *name;   /* "int4c_avx512vnni_14x32" */
    const char      *layout; /* kernels of one layout read each other's tiles; at most 15 characters */
    td_expert_format format;
    uint32_t         needs;         /* TD_CPU_* bits, all required */
    uint16_t         mr, nr, kr;    /* rows of activations per register tile, output rows per tile, k padding */
    size_t (*tile_bytes)(size_t k); /* multiple of 64 */
    /** rows: [nr, k] dense: int8 codes in [-7, 7] (int4c) or bf16; scale: [nr] (int4c). k is padded. */
    void (*pack)(void *tile, const void *rows, const float *scale, size_t k);
    void (*unpack)(const void *tile, void *rows, float *scale, size_t k); /* the inverse */
    void (*run)(const td_gemm_args *a);
    /** out[i] = gate[i] / (1 + exp(-gate[i])) * up[i]; n a multiple of 16; out may be gate. Relative error of silu below
     * 4e-7. */
    void (*silu_mul)(const float *gate, const float *up, size_t n, float *out);
    /** y[i] = fma(w, v[i], y[i]); n a multiple of 16. */
    void (*axpy)(float w, const float *v, size_t n, float *y);
} td_gemm_kernel;

/** The best kernel of a format that the features allow; never NULL for a format of the enum. */
const td_gemm_kernel *td_gemm_select(td_expert_format format, uint32_t features);

/** The kernel of a format with this layout that needs least (for unpacking a file), or NULL. */
const td_gemm_kernel *td_gemm_find_layout(td_expert_format format, const char *layout);

/** All kernels of the build, for tests and benchmarks. */
const td_gemm_kernel *const *td_gemm_list(size_t *n);

#endif
