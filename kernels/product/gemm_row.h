/* Rows of activations, made as products take them (td_gemm_row): f32 for bf16 weights; else int8 codes, for formats in
 * groups with the sums of their groups behind them. */
#ifndef TD_KERNELS_PRODUCT_GEMM_ROW_H
#define TD_KERNELS_PRODUCT_GEMM_ROW_H

#include "kernels/product/tile_gemm.h"

/** Bytes of such a row of k values, k padded as the kernel wants it. @param groups of int4g and fp4g. */
size_t td_gemm_row_bytes(td_product p, const td_gemm_groups *groups, size_t k);

/**
 * Make one of cols values and the padding behind them.
 * @param src [cols] dtype; may be dst if it is f32.
 * @param dst td_gemm_row_bytes(k) bytes, aligned as f32.
 * @param row out, points into dst.
 */
void td_gemm_row_make(td_product p, const td_gemm_groups *groups, td_dtype dtype, const void *src, size_t cols, size_t k,
                      void *dst, td_gemm_row *row);

/** The same of int8 codes [cols] that are there already. */
void td_gemm_row_take(td_product p, const td_gemm_groups *groups, const int8_t *codes, float scale, size_t cols, size_t k,
                      void *dst, td_gemm_row *row);

#endif
