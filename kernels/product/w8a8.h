/*
 * W8A8 products of the device: int8 weights times int8 activations, exact in int32, scaled once at the end.
 *
 * DESIGN. They are the loops of int8c (tile_gemm.h) with another end: panels of several tiles' codes one behind the other,
 * the scales beside them, a bias, and outputs where the caller wants them, in f32 or bf16. Weights [n, k] are cut into
 * panels of `nr` output rows, each stored [ceil(k/4)][nr][4], as code + 128 or, for some kernels, the code itself: one
 * vector of the panel holds four k of several outputs, which is what vpdpbusd multiplies with four broadcast activations.
 * Rows beyond n and k beyond its end are zero. Integer sums are exact, and the scaling is the same expression everywhere, so
 * all kernels give the same bits. Kernels of smmla have eight k of an output beside each other, and not four.
 */
#ifndef TD_KERNELS_PRODUCT_W8A8_H
#define TD_KERNELS_PRODUCT_W8A8_H

#include <stdbool.h>

#include "core/dtype.h"

#define TD_W8A8_K_MAX 131072 /* 127 * 128 * k stays within int32 */

/**
 * out[i, j] = (float)(sum over k of x[i, k] * w[j, k]) * sx[i] * sw[j] (+ bias[j]), from left to right, for j in the panels
 * [panel_begin, panel_end).
 */
typedef struct {
    size_t         m, n, k;
    const int8_t  *x;     /* [m, ldx], values in [-127, 127]; k .. round_up(k, 8) are zero; 4-byte aligned */
    size_t         ldx;   /* a multiple of 8 */
    const float   *sx;    /* [m] */
    const int32_t *x_sum; /* [m] sum over k of x */
    const void    *w;     /* packed */
    const float   *sw;    /* [round_up(n, nr)] */
    const float   *bias;  /* [n] or NULL */
    void          *out;   /* [m, ldo] f32 or bf16 */
    size_t         ldo;   /* elements */
    td_dtype       out_dtype;
    size_t         panel_begin, panel_end;
} td_w8a8_args;

typedef struct {
    const char *name;   /* "w8a8_avx512vnni_14x32" */
    uint16_t    mr, nr; /* tile: rows of x, outputs */
    bool signed_codes;  /* weights lie in panels as they are, for instructions that take s8 x s8, and not as code + 128 */
    bool eights;        /* panels are [ceil(k/8)][nr][8] */
    void (*run)(const td_w8a8_args *a);
} td_w8a8_kernel;

/** Write one panel: rows [nr_valid, k] of q with leading dimension ldq; the rest of the panel becomes zero. */
void td_w8a8_pack(const td_w8a8_kernel *kernel, void *panel, const int8_t *q, size_t ldq, size_t nr_valid, size_t k);

extern const td_w8a8_kernel td_w8a8_scalar;
extern const td_w8a8_kernel td_w8a8_avx2, td_w8a8_avxvnni, td_w8a8_avx512vnni, td_w8a8_amx;
extern const td_w8a8_kernel td_w8a8_neon, td_w8a8_dotprod, td_w8a8_i8mm, td_w8a8_sve256;

#define TD_W8A8_NR_MAX 32

static inline size_t td_w8a8_panels(const td_w8a8_kernel *kernel, size_t n) {
    return (n + kernel->nr - 1) / kernel->nr;
}
/** k of an output that lie beside each other in a panel. */
static inline size_t td_w8a8_run(const td_w8a8_kernel *kernel) {
    return kernel->eights ? 8 : 4;
}
static inline size_t td_w8a8_panel_bytes(const td_w8a8_kernel *kernel, size_t k) {
    const size_t run = td_w8a8_run(kernel);
    return (k + run - 1) / run * run * kernel->nr;
}

#endif
