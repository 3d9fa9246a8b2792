/*
 * Kernels of matrix products: tiles of nr output rows times rows of activations, and what becomes of the values.
 *
 * DESIGN. A weight matrix [n, k] is cut into tiles of nr rows. A kernel names the layout of the tiles that it reads.
 * Layouts, with their packers and unpackers, are compiled for every processor, so that a file packed for another one can be
 * read and packed anew.
 *   int4c  nr f32 scales | for each four k: nr/2 dwords; byte b of dword i holds code+8 of row i (low nibble) and of row
 *          nr/2+i (high nibble) at k = 4*i+b. 16x4s: the high nibble holds the code itself, in two's complement, so that a
 *          signed byte is worth 16 * high + low + 8. 16x8s: the same, with eight k and qwords.
 *   int8c  nr f32 scales | for each four k: nr dwords; byte b of dword i holds code+128 of row i. 16x4s: the code. 16x8s:
 *          the code, with eight k and qwords.
 *   int4g  zeros, where there are any: for each group nr/2 bytes, row i in the low nibble, nr/2+i in the high; to 64 bytes |
 *          for each group of k: nr scales, then codes as int4c's, in [0, 15]; 16x4s: high ones less 8, in two's complement.
 *          To 64 bytes.
 *   fp4g   nr f32 factors | for each 64 of k: the scales of its groups, nr bytes each, then codes of e2m1 as int4c's. To 64
 *          bytes.
 *   bf16   for each k: nr/2 dwords; dword i holds row i (high half) and row nr/2+i (low half).
 * k is padded to a multiple of kr with weights 0, rows with scale 0. Codes are stored without sign, so that the u8 x s8
 * instructions take them as they are; 8 (int4c, int4g) or 128 (int8c) times the sum of the activations is subtracted. Codes
 * of e2m1 become twice their value in the registers, an integer. Integer formats accumulate in int32, exactly; int4g and
 * fp4g then add their groups in ascending order, one fma each; bf16 adds one fma per k in the order of k. So every tier and
 * every m gives the same bits.
 */
#ifndef TD_KERNELS_PRODUCT_TILE_GEMM_H
#define TD_KERNELS_PRODUCT_TILE_GEMM_H

#include <stdbool.h>

#include "core/dtype.h"
#include "kernels/glu.h"

#define TD_GEMM_NR_MAX 32
#define TD_GEMM_K_MAX 65536   /* 255 * 127 * k stays below 2^31 (a byte of two codes is multiplied whole) */
#define TD_INT8C_K_MAX 131072 /* 127 * 128 * k stays within int32; sums with an offset wrap, and come back */

/** Groups of weights along k, kept as AWQ, GPTQ, compressed-tensors, MXFP4 and NVFP4 have them. */
typedef struct {
    uint16_t size; /* weights along k that share a scale: int4g 32, 64 or 128; fp4g 32 (MXFP4) or 16 (NVFP4) */
    /** int4g: BF16, F16 or F32. fp4g: F8_E8M0 (MXFP4) or F8_E4M3 (NVFP4); every row has an f32 factor too. */
    td_dtype scale_dtype;
    bool     zero_points; /* int4g: every group has a zero in [0, 15]; false: it is 8 everywhere */
} td_gemm_groups;

/** One row of activations. */
typedef struct {
    const void *x;     /* bf16: [k] f32; else [k] int8 codes, zero from the true k to the padded one */
    float       scale; /* of the codes */
    int32_t     sum;   /* of the codes */
    /** int4g, fp4g: [k / size] minus 8 times the sum of each group's codes (kernels/rows/row_quant.h). */
    const int32_t *group_sum;
} td_gemm_row;

/**
 * Where the values y[m, n] of a product go, and what becomes of them on the way: the bias is added, then they are gated,
 * then stored, or added to sums.
 */
typedef struct {
    size_t       column; /* of the first tile's first output */
    size_t       n;      /* columns that there are: those of the last tile beyond them are left out */
    const float *bias;   /* [n], or NULL */
    const float *gate;   /* [m, ld_gate]: y[i, j] becomes what glu makes of it and the gate; or NULL */
    td_glu       glu;
    size_t       ld_gate;
    /** Instead of out, where n is of whole tiles: a term weight[i] * y[i, j] to sum j of row i (kernels/exact_sum.h); or
     * NULL. */
    int32_t *const *sums;   /* [m] rows of td_exact_words(n) words */
    const float    *weight; /* [m] */
    void           *out;    /* [m, ld] */
    size_t          ld;     /* elements */
    td_dtype        dtype;  /* of out: F32, or BF16, rounded to nearest even */
    bool            far;    /* out is so large that no near cache keeps it: it may be written past the caches */
} td_gemm_end;

/**
 * Rows times tiles, whose values then go through `end`.
 * int4c, int8c: y = (f32)(sum of code * x) * tile scale * row scale. int4g: y = acc * row scale, where over groups acc =
 * fma((f32)(sum of (code - zero) * x), scale, acc) from 0. fp4g: y = acc * (factor / 2) * row scale, where acc =
 * fma((f32)(sum of 2 * value * x), scale, acc). bf16: y = acc = fma(w, x, acc) from 0.
 */
typedef struct {
    const void *tile;    /* the first of n_tiles, one behind the other; 64-byte aligned */
    size_t      n_tiles; /* >= 1 */
    const void *next;  /* the tile that the caller multiplies after them: a kernel fetches its beginning early. NULL: nothing
                          is known */
    const void *ahead; /* what else the caller reads after them: the next rows. A kernel of many rows fetches it, too */
    size_t      ahead_bytes;
    size_t      k;             /* padded: a multiple of kr */
    size_t      m;             /* rows, >= 1 */
    const td_gemm_row *rows;   /* [m], their x at equal distances */
    td_gemm_groups     groups; /* int4g, fp4g */
    td_gemm_end        end;
} td_gemm_args;

/** Weights of a tile, not packed. */
typedef struct {
    void  *rows;  /* [nr, k] dense: int8 codes (int4c in [-8, 7], int8c in [-127, 127], int4g and fp4g in [0, 15]) or bf16 */
    float *scale; /* int4c, int8c: [nr]; int4g, fp4g: [nr, k / size], values of scale_dtype */
    uint8_t *zero;   /* int4g: [nr, k / size]; 8 where the tile has no zero points */
    float   *factor; /* fp4g: [nr] */
} td_gemm_weights;

typedef struct td_tile_layout td_tile_layout;

/** How a tile lies in memory. k is padded; groups are those of int4g and fp4g. No function here needs more than the build's
 * baseline. */
struct td_tile_layout {
    const char *name;   /* "int4c_32x4", at most 15 characters: packed files tell it */
    uint16_t    nr, kr; /* output rows per tile, k padding */
    uint16_t    run;    /* k of a row that lie beside each other: 4 or 8; of bf16 1 */
    /** What four bytes of codes are xored with when they are packed. int8c: the bytes, which were signed. int4c, int4g,
     * fp4g: those of the high row, in [0, 15] before (int4c: code + 8). */
    uint32_t flip;
    size_t (*tile_bytes)(size_t nr, size_t k, const td_gemm_groups *groups); /* multiple of 64 */
    void (*pack)(const td_tile_layout *l, void *tile, const td_gemm_weights *w, size_t k, const td_gemm_groups *groups);
    void (*unpack)(const td_tile_layout *l, const void *tile, td_gemm_weights *w, size_t k,
                   const td_gemm_groups *groups); /* the inverse */
};

static inline size_t td_tile_bytes(const td_tile_layout *l, size_t k, const td_gemm_groups *groups) {
    return l->tile_bytes(l->nr, k, groups);
}

static inline void td_tile_pack(const td_tile_layout *l, void *tile, const td_gemm_weights *w, size_t k,
                                const td_gemm_groups *groups) {
    l->pack(l, tile, w, k, groups);
}

static inline void td_tile_unpack(const td_tile_layout *l, const void *tile, td_gemm_weights *w, size_t k,
                                  const td_gemm_groups *groups) {
    l->unpack(l, tile, w, k, groups);
}

typedef struct {
    const char           *name;  /* "int4c_avx512vnni_14x32" */
    const td_tile_layout *tiles; /* that it reads: kernels of one layout read each other's */
    uint16_t              mr;    /* rows that it multiplies at a time: blocks of rows are best multiples of it */
    uint16_t rows; /* of a call that it likes best, at most; a call may have any number. 0: the caller's choice */
    void (*run)(const td_gemm_args *a);
} td_gemm_kernel;

/** The formats above. */
typedef enum {
    TD_PRODUCT_INT4C,
    TD_PRODUCT_BF16,
    TD_PRODUCT_INT8C,
    TD_PRODUCT_INT4G,
    TD_PRODUCT_FP4G,
    TD_PRODUCTS
} td_product;

/** Bytes of an element of td_gemm_weights.rows. */
static inline size_t td_gemm_element(td_product product) {
    return product == TD_PRODUCT_BF16 ? sizeof(td_bf16) : 1;
}

/** The layout of a product's tiles that has this name, on whatever processor, or NULL. */
const td_tile_layout *td_tile_layout_named(td_product product, const char *name);

/** Whether kernels of int4g, or of fp4g, take tiles of such groups. */
bool td_int4g_takes(const td_gemm_groups *g);
bool td_fp4g_takes(const td_gemm_groups *g);

/* Each is defined by the …_layout.c of its format. */
extern const td_tile_layout td_int4c_16x4, td_int4c_32x4, td_int4c_16x4s, td_int4c_16x8s, td_int8c_16x4, td_int8c_32x4,
    td_int8c_16x4s, td_int8c_16x8s, td_bf16_16, td_bf16_32;
extern const td_tile_layout td_int4g_16x4, td_int4g_32x4, td_int4g_16x4s, td_int4g_16x8s, td_fp4g_16x4, td_fp4g_32x4,
    td_fp4g_16x8;

#endif
