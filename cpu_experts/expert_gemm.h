/*
 * Kernels of the expert FFN: a tile of nr output rows times a few rows of activations.
 *
 * DESIGN. A weight matrix [n, k] is cut into tiles of nr rows; a kernel travels with its tile layout, its packer and its
 * unpacker.
 *   int4c  nr f32 scales | for each four k: nr/2 dwords; byte b of dword i holds code+8 of row i (low nibble) and of row nr/2+i
 *          (high nibble) at k = 4*i+b.
 *   int8c  nr f32 scales | for each four k: nr dwords; byte b of dword i holds code+128 of row i.
 *   int4g  zeros, where there are any: for each group nr/2 bytes, row i in the low nibble, nr/2+i in the high; to 64 bytes | for
 *          each group of k: nr scales, then codes as int4c, in [0, 15]. To 64 bytes.
 *   fp4g   nr f32 factors | for each 64 of k: the scales of its groups, nr bytes each, then codes of e2m1 as int4c's. To 64 bytes.
 *   bf16   for each k: nr/2 dwords; dword i holds row i (high half) and row nr/2+i (low half).
 * k is padded to a multiple of kr with weights 0, rows with scale 0. Codes are stored without sign, so that the u8 x s8
 * instructions take them as they are; 8 (int4c, int4g) or 128 (int8c) times the sum of the activations is subtracted. Codes of e2m1 become
 * twice their value in the registers, an integer. Integer formats accumulate in int32, exactly; int4g and fp4g then add their groups in
 * ascending order, one fma each; bf16 adds one fma per k in the
 * order of k. So every tier and every m gives the same bits.
 */
#ifndef TD_CPU_EXPERTS_EXPERT_GEMM_H
#define TD_CPU_EXPERTS_EXPERT_GEMM_H

#include "cpu_experts/cpu_experts.h"

#define TD_GEMM_NR_MAX 32
#define TD_GEMM_K_MAX 65536 /* 255 * 127 * k stays below 2^31 (a byte of two codes is multiplied whole) */

/** One row of activations. */
typedef struct {
    const void    *x;         /* bf16: [k] f32; else [k] int8 codes, zero from the true k to the padded one */
    float          scale;     /* of the codes */
    int32_t        sum;       /* of the codes */
    const int32_t *group_sum; /* int4g, fp4g: [k / size] minus 8 times the sum of each group's codes (quant/row_quant.h) */
} td_gemm_row;

typedef struct {
    const void        *tile; /* 64-byte aligned */
    const void        *next; /* the tile that the caller multiplies next: a kernel fetches its beginning early. NULL: nothing is known */
    size_t             k;    /* padded: a multiple of kr */
    size_t             m;    /* rows, >= 1 */
    const td_gemm_row *rows; /* [m] */
    td_expert_groups   groups; /* int4g, fp4g */
    /**
     * [m, nr] 64-byte aligned. int4c, int8c: (f32)(sum of code * x) * tile scale * row scale. int4g: acc * row scale, where over
     * groups acc = fma((f32)(sum of (code - zero) * x), scale, acc) from 0. fp4g: acc * (factor / 2) * row scale, where
     * acc = fma((f32)(sum of 2 * value * x), scale, acc). bf16: acc = fma(w, x, acc) from 0.
     */
    float             *out;
} td_gemm_args;

/** Weights of a tile, not packed. */
typedef struct {
    void    *rows;  /* [nr, k] dense: int8 codes (int4c in [-7, 7], int8c in [-127, 127], int4g and fp4g in [0, 15]) or bf16 */
    float   *scale; /* int4c, int8c: [nr]; int4g, fp4g: [nr, k / size], values of scale_dtype */
    uint8_t *zero;  /* int4g: [nr, k / size]; 8 where the tile has no zero points */
    float   *factor; /* fp4g: [nr] */
} td_gemm_weights;

typedef struct {
    const char      *name;   /* "int4c_avx512vnni_14x32" */
    const char      *layout; /* kernels of one layout read each other's tiles; at most 15 characters */
    td_expert_format format;
    uint32_t         needs;         /* TD_CPU_* bits, all required */
    uint16_t         mr, nr, kr;    /* rows of activations per register tile, output rows per tile, k padding */
    /* k is padded; groups are those of int4g and fp4g */
    size_t (*tile_bytes)(size_t k, const td_expert_groups *groups); /* multiple of 64 */
    void (*pack)(void *tile, const td_gemm_weights *w, size_t k, const td_expert_groups *groups);
    void (*unpack)(const void *tile, td_gemm_weights *w, size_t k, const td_expert_groups *groups); /* the inverse */
    void (*run)(const td_gemm_args *a);
    /** out[i] = gate[i] / (1 + exp(-gate[i])) * up[i]; n a multiple of 16; out may be gate. Relative error of silu below
     * 4e-7. */
    void (*silu_mul)(const float *gate, const float *up, size_t n, float *out);
    /** y[i] = fma(w, v[i], y[i]); n a multiple of 16. */
    void (*axpy)(float w, const float *v, size_t n, float *y);
} td_gemm_kernel;

/** Bytes of an element of td_gemm_weights.rows. */
static inline size_t td_gemm_element(td_expert_format format) { return format == TD_EXPERT_BF16 ? sizeof(td_bf16) : 1; }

/** The best kernel of a format that the features allow; never NULL for a format of the enum. */
const td_gemm_kernel *td_gemm_select(td_expert_format format, uint32_t features);

/** The kernel of a format with this layout that needs least (for unpacking a file), or NULL. */
const td_gemm_kernel *td_gemm_find_layout(td_expert_format format, const char *layout);

/** All kernels of the build, for tests and benchmarks. */
const td_gemm_kernel *const *td_gemm_list(size_t *n);

#endif
